from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, Failure, Item, State, Step, Trajectory
from hardwon.memory.guardrails.conditions import matches
from hardwon.memory.learning import skill_mining
from hardwon.memory.learning.generalization import common, find_changes, find_replacement, generalise
from hardwon.memory.learning.skill_mining import (
    SkillMiner,
    find_preparation,
    gains,
    repairs,
    without_circles,
)
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.actions import bind

FINE, FAILED = Diagnosis(True), Diagnosis(False, Failure.PRECONDITION)
OUTAGE = Diagnosis(False, Failure.UNAVAILABLE)


def walk(*moves, start=0):
    """Steps from place to place: `(action, place after, reward, diagnosis)`, short forms allowed."""
    steps, at = [], start
    for n, move in enumerate(moves):
        action, to, reward, judged = (*move, *(0.0, FINE)[len(move) - 2 :]) if len(move) < 4 else move
        steps.append(Step(State(f"place {at}."), action, State(f"place {to}."), judged, reward, n, id=n + 1))
        at = to
    return steps


def actions(run):
    return list(run.actions)


def test_a_skill_is_a_run_of_successes_that_ends_with_a_gain():
    """systems.md §3: each maximal successful run ending with a gain."""
    steps = walk(("a", 1), ("b", 2, 0.0, FAILED), ("c", 3), ("d", 4, 1.0), ("e", 5))
    assert [actions(run) for run in gains(steps)] == [["c", "d"]]


def test_every_gain_ends_a_run():
    steps = walk(("a", 1, 1.0), ("b", 2), ("c", 3, 0.5))
    assert [(actions(run), run.gain) for run in gains(steps)] == [(["a"], 1.0), (["b", "c"], 0.5)]


def test_circles_are_left_out():
    """A walk there and back teaches nothing: it is erased."""
    steps = walk(("go east", 1), ("go west", 0), ("go north", 2), ("take coin", 3, 1.0))
    assert [step.action for step in without_circles(steps)] == ["go north", "take coin"]
    steps = walk(("go up", 1), ("go east", 2), ("go west", 1), ("take coin", 3, 1.0))
    assert [step.action for step in without_circles(steps)] == ["go up", "take coin"]


@pytest.mark.parametrize(
    ("moves", "needed"),
    [
        # about a thing of the last action, and about a thing of a needed action
        ([("open oven", 1), ("open fridge", 2)], ["open fridge"]),
        (
            [("go to shelf", 1), ("take milk from shelf", 2), ("open fridge", 3)],
            ["go to shelf", "take milk from shelf", "open fridge"],
        ),
        ([("open fridge", 1, 0.0, FAILED), ("take milk", 2)], ["take milk"]),
        ([("open fridge", 1), ("take milk", 2, 0.5, FINE)], ["open fridge"]),  # the reward makes it a lesson of its own
        ([("open fridge", 1), ("close fridge", 0), ("take milk", 2)], ["take milk"]),  # a loop
        ([("go east", 1), ("go west", 2)], []),
        ([], []),
    ],
)
def test_steps_about_the_same_things_prepare_a_step(moves, needed):
    steps = walk(*moves, ("put milk in fridge", 99, 1.0))
    assert [step.action for step in find_preparation(steps)] == needed


def test_every_step_prepares_an_action_that_names_nothing_and_the_last_ones_are_kept():
    steps = walk(*[(f"lookup(n={n})", n + 1) for n in range(9)], ("submit()", 99, 1.0))
    assert [step.action for step in find_preparation(steps)] == [
        f"lookup(n={n})" for n in range(9 - TUNING.max_preparing_steps, 9)
    ]
    named = walk(*[(f"polish lamp with cloth{n}", n + 1) for n in range(9)], ("sell lamp", 99, 1.0))
    assert [step.t for step in find_preparation(named)] == [6, 7, 8]


def test_a_long_run_teaches_its_end():
    steps = walk(*[(f"go {n}", n + 1) for n in range(20)], ("take coin", 99, 1.0))
    (run,) = gains(steps)
    assert len(run.actions) == TUNING.max_skill_steps
    assert run.actions[-1] == "take coin"


def test_a_repair_is_what_came_between_a_failure_and_the_same_action_s_success():
    steps = walk(("open gate", 0, 0.0, FAILED), ("take key", 1), ("open gate", 2))
    ((failure, run, has_worked),) = repairs(steps)
    assert (failure, actions(run), run.ids) == ("precondition", ["take key", "open gate"], (2, 3))
    assert has_worked


def test_a_repair_says_of_how_many_episodes(library):
    """An attempt that did not help counts, and what mostly does not help is no remedy."""
    helped = walk(("open gate", 0, 0.0, FAILED), ("take key", 1), ("open gate", 2))
    in_vain = walk(("open gate", 0, 0.0, FAILED), ("take key", 1), ("open gate", 1, 0.0, FAILED))
    assert [has_worked for *_, has_worked in repairs(in_vain)] == [False]
    bodies = []
    for number, steps in enumerate((helped, in_vain, helped, helped, in_vain, in_vain, in_vain, helped)):
        library.record(Trajectory("get out", tuple(steps), True, id=f"e{number}"))
        library.evolve()
        bodies.append("".join(item.body for item in library.items.find(["remedy"])))
    counted = "Without that, it failed (precondition) in 3 of 3 episodes; after that, it worked in 2 of 3"
    assert (bodies[1], bodies[2]) == ("", counted)
    assert bodies[-1] == bodies[2]


@pytest.mark.parametrize(
    ("failed", "fixed", "changes"),
    [
        ('pay(to="card", n=1)', 'pay(to="gift", n=1)', (("to", "card", "gift"),)),
        ("pay(n=1)", 'pay(n=1, why="it broke")', (("why", "", "{}"),)),
        ('pay(n=1, why="x")', "pay(n=1)", (("why", "{}", ""),)),
        ("pay()", "pay(force=true)", (("force", "", "{}"),)),
        ("pay(n=1)", "pay(n=1)", ()),
        ("pay(n=1)", "send(n=2)", ()),
        ("pay(1)", "pay(2)", ()),
        ("open gate", "open door", ()),
        ('bash(command="ls a")', 'bash(command="ls b")', ()),
        ('bash(command="pytest t")', 'bash(command="DB=x pytest t")', (("command", "{}", "db=x"),)),
        ('bash(command="pytest t")', 'bash(command="cd a && pytest t")', (("command", "{}", "cd a &&"),)),
        ('bash(command="pytest t")', 'bash(command=".venv/bin/pytest t")', (("command", "{}", ".venv/bin/pytest"),)),
        ('bash(command="git push")', 'bash(command="git push -u origin b")', (("command", "{}", "-u origin b"),)),
        ('bash(command="python a.py")', 'bash(command="python3.12 a.py")', (("command", "{}", "python3.12"),)),
        ('bash(command="pytest t")', 'bash(command="pytest t | tail")', ()),
        ('bash(command="pytest t")', 'bash(command="pytest t; true")', ()),
        ('bash(command="pytest t")', 'bash(command="pytest u")', ()),
        ('bash(command="pytest t")', 'bash(command="pytest t", cwd="a")', ()),
    ],
)
def test_other_arguments_of_the_same_tool_may_be_what_made_it_work(failed, fixed, changes):
    """A command of a game or a shell names another thing or program instead, unless something was added to it."""
    assert find_changes(failed, fixed) == changes
    runs = [run.changes for _, run, _ in repairs(walk((failed, 0, 0.0, FAILED), (fixed, 1)))]
    assert runs == ([changes] if changes or failed == fixed else [])


@pytest.mark.parametrize("failure", [FAILED, OUTAGE])
@pytest.mark.parametrize(("in_vain", "n"), [(0, 1), (1, 1), (3, 0)])
def test_a_call_may_work_at_the_second_try(library, failure, in_vain, n):
    """A call that usually fails twice is not worth repeating."""
    for number in range(5 + in_vain):
        last = ("sync(store=s)", 1) if number >= in_vain else ("sync(store=s)", 0, 0.0, failure)
        steps = walk(("sync(store=s)", 0, 0.0, failure), last)
        library.record(Trajectory("sync", tuple(steps), True, id=f"e{number}"))
    library.evolve()
    remedies = library.items.find(["remedy"])
    assert len(remedies) == n
    for remedy in remedies:
        assert remedy.title == f"If `sync(store=s)` fails ({failure.failure.value}), call it again"
        assert remedy.body.endswith(f"the next call worked in 5 of {5 + in_vain}")


def test_after_an_outage_other_arguments_show_nothing():
    assert list(repairs(walk(("sync(store=s)", 0, 0.0, OUTAGE), ("sync(store=t)", 1)))) == []


@pytest.mark.parametrize("failure", [FAILED, OUTAGE])
@pytest.mark.parametrize(("works", "title"), [(True, "call it again"), (False, "first `wait()`, then `sync(store=s)`")])
def test_what_stands_between_two_tries_counts_if_the_call_does_not_work_without(library, failure, works, title):
    """Half of the runs try at once, and the others wait."""
    fails, again = ("sync(store=s)", 0, 0.0, failure), ("sync(store=s)", 1)
    at_once = (again,) if works else (fails, ("wait()", 0), again)
    for number in range(8):
        steps = walk(fails, *(at_once if number % 2 else (("wait()", 0), again)))
        library.record(Trajectory("sync", tuple(steps), True, id=f"e{number}"))
    library.evolve()
    (remedy,) = library.items.find(["remedy"])
    assert remedy.title.lower().endswith(title)
    assert remedy.title.startswith("If `sync" if works or failure is OUTAGE else "First")


def test_commands_of_a_game_are_tried_again_anyway():
    assert list(repairs(walk(("open door", 0, 0.0, FAILED), ("open door", 1)))) == []


@pytest.mark.parametrize(
    ("failed", "fixed", "program"),
    [
        ('bash(command="npm test")', 'bash(command="pnpm test")', "pnpm"),
        ('bash(command="npm run build -- a")', 'bash(command="yarn run build -- a")', "yarn"),
        ('bash(command="docker-compose up -d")', 'bash(command="docker compose up -d")', "docker compose"),
        ('bash(command="brew install jq")', 'bash(command="apt-get install jq")', "apt-get"),
        ('search(word="fee")', 'lookup(word="fee")', "lookup"),
        ('query(sql="SELECT a FROM user WHERE id=3")', 'query(sql="SELECT a FROM users WHERE id=3")', "users"),
        ('query(sql="SELECT a FROM user WHERE id=3")', 'query(sql="SELECT b FROM users WHERE id=3")', ""),
        ('query(sql="SELECT a FROM user WHERE id=3")', 'query(sql="SELECT b FROM user WHERE id=3")', ""),
        ('query(sql="SELECT a FROM user")', 'query(sql="SELECT a FROM users WHERE id=3")', ""),
        ('query(sql="SELECT a FROM user")', 'query(sql="DELETE FROM users")', ""),
        ('bash(command="brew install jq")', 'bash(command="apt-get install rg")', ""),
        ('bash(command="pytest a.py")', 'bash(command="cat a.py")', ""),
        ('bash(command="npm test")', 'bash(command="cd a && pnpm test")', ""),
        ('bash(command="npm test")', 'bash(command="npm ci")', ""),
        ('bash(command="npm test")', 'bash(command="npm test")', ""),
        ('bash(command="make")', 'bash(command="ninja")', ""),
        ('search(word="fee")', 'lookup(word="fees")', ""),
        ('search(word="fee")', 'lookup(name="fee")', ""),
        ("search()", "lookup()", ""),
        ("search(fee)", "lookup(fee)", ""),
        ("open gate", "unlock gate", ""),
    ],
)
def test_another_program_or_tool_may_do_what_a_failed_one_should(failed, fixed, program):
    """With the same subcommand or named arguments; what looks at the same file has another purpose."""
    assert find_replacement(failed, fixed) == program
    steps = walk((failed, 0, 0.0, FAILED), ("look", 1), (fixed, 2))
    if failed != fixed:
        found = [(run.actions, run.changes) for _, run, _ in repairs(steps)]
        assert found == ([((fixed,), (("", "{}", program),))] if program else [])


def test_what_prepared_the_same_call_is_no_replacement():
    """Unlocking a door does not open it: the call worked after it."""
    steps = walk(("open(door=a)", 0, 0.0, FAILED), ("unlock(door=a)", 1), ("open(door=a)", 2))
    assert [actions(run) for _, run, _ in repairs(steps)] == [["unlock(door=a)", "open(door=a)"]]


@pytest.mark.parametrize(("direct", "n"), [(0, 1), (4, 0)])
def test_another_program_is_a_fix_only_while_the_first_one_fails(library, direct, n):
    """Who runs the first one with success shows that it works here."""
    failed, fixed = ('bash(command="npm test")', 0, 0.0, FAILED), ('bash(command="pnpm test")', 1)
    for number in range(4 + direct):
        steps = walk(failed, fixed) if number < 4 else walk(('bash(command="npm test")', 1))
        library.record(Trajectory("test it", tuple(steps), True, id=f"e{number}"))
        library.evolve()
    items = [item for item in library.items.find(["remedy"]) if item.title.startswith("Use `bash")]
    assert len(items) == n


def test_who_runs_a_mended_command_at_once_does_not_show_that_the_plain_one_works(library):
    plain, mended = 'bash(command="python m.py t")', 'bash(command="DB=x python m.py t")'
    for number in range(6):
        steps = walk((plain, 0, 0.0, FAILED), (mended, 1)) if number < 3 else walk((mended, 1))
        library.record(Trajectory("migrate", tuple(steps), True, id=f"e{number}"))
        library.evolve()
    library.record(Trajectory("migrate", tuple(walk((plain, 0, 0.0, FAILED), (mended, 1))), True, id="last"))
    library.evolve()
    (remedy,) = library.items.find(["remedy"])
    assert remedy.title == 'Use `bash(command="DB=x python m.py t")`'
    assert "failed (precondition) in 4 of 4 episodes" in remedy.body


@pytest.mark.parametrize(("in_vain", "n"), [(0, 1), (1, 1), (3, 0)])
def test_a_flaky_tool_has_no_fix(library, in_vain, n):
    """With other arguments it works by chance, too."""
    for number in range(5 + in_vain):
        last = ("pay(to=b)", 1) if number >= in_vain else ("pay(to=b)", 0, 0.0, FAILED)
        library.record(Trajectory("pay", tuple(walk(("pay(to=a)", 0, 0.0, FAILED), last)), True, id=f"e{number}"))
    library.evolve()
    assert len(library.items.find(["remedy"])) == n


def test_candidates_of_one_episode_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(skill_mining, "TUNING", replace(TUNING, max_remedies=10))
    miner = SkillMiner()
    for number in range(100):
        steps = walk((f"pay(to=a{number})", 0, 0.0, FAILED), (f"pay(to=b{number})", 1))
        miner.read(Trajectory("pay", tuple(steps), True, id=f"e{number}"))
    assert len(miner._remedies) <= 11


def test_what_worked_without_a_repair_is_none():
    """It just worked the second time."""
    assert list(repairs(walk(("open gate", 0, 0.0, FAILED), ("open gate", 1)))) == []


def test_a_success_long_after_is_no_repair():
    moves = [(f"go {n}", n + 1) for n in range(TUNING.repair_within + 1)]
    assert list(repairs(walk(("open gate", 0, 0.0, FAILED), *moves, ("open gate", 99)))) == []


@pytest.mark.parametrize(
    ("runs", "patterns"),
    [
        ([["open oven", "take pie"], ["open fridge", "take pie"]], ("open {1}", "take pie")),
        ([["open oven", "take pie from oven"], ["open box", "take pie from box"]], ("open {1}", "take pie from {1}")),
        ([["put pie in box"], ["put cup in sink"]], ("put {1} in {2}",)),
        ([["open oven"]], ("open oven",)),
        ([["look"], ["look"]], ("look",)),
        ([['buy(what="tea", n=2)'], ['buy(what="milk", n=2)']], ("buy(what={1}, n=2)",)),
        ([["take {9}"], ["take cup"]], ("take {1}",)),
        ([['mail(to="[redacted:email]", n=2)'], ['mail(to="[redacted:email]", n=2)']], ("mail(to={1}, n=2)",)),
    ],
)
def test_the_least_general_pattern_keeps_what_is_equal(runs, patterns):
    """Arguments that vary together get the same hole."""
    assert generalise(runs) == patterns


@given(
    st.lists(
        st.lists(st.sampled_from(["open oven", "open fridge", "open old box"]), min_size=2, max_size=2), min_size=1
    )
)
def test_a_generalisation_matches_every_run_it_was_made_of(runs):
    patterns = generalise(runs)
    assert all(matches(pattern, action) for run in runs for pattern, action in zip(patterns, run, strict=True))


def test_common_facts_are_the_precondition():
    """What held before every run, and nothing that differed."""
    states = [State("x", {"holding": ["key", "cup"], "door": "shut"}), State("y", {"holding": ["key"], "door": "shut"})]
    assert common(states) == {"all": [{"fact": {"door": "shut"}}, {"fact": {"holding": "key"}}]}


def test_only_what_the_run_brought_about_verifies_it():
    before = [State("x", {"holding": [], "door": "shut"})]
    after = [State("x", {"holding": ["pie"], "door": "shut"})]
    assert common(after, before) == {"fact": {"holding": "pie"}}


def test_without_facts_the_clusters_are_the_condition():
    one, two = State("a drawer"), State("a shelf")
    assert common([one, one]) == {"signature": one.signature}
    assert common([one, two]) == {"any": [{"signature": one.signature}, {"signature": two.signature}]}


def won(library, n=2, success=True):
    for _ in range(n):
        steps = walk(("open box", 1), ("take coin from box", 2, 1.0))
        library.record(Trajectory("find the coin", tuple(replace(step, id=None) for step in steps), success))


def test_two_successes_make_a_skill_with_preconditions_and_verification(library):
    """systems.md §3: a skill has preconditions and verification; its evidence are the steps of the runs."""
    won(library)
    library.evolve()
    (skill,) = library.items.find(["skill"])
    assert skill.steps == ("open box", "take coin from box")
    assert skill.condition == {"signature": State("place 0.").signature}
    assert skill.verify == {"signature": State("place 2.").signature}
    assert [step.action for step in library.episodes.steps(skill.provenance)] == ["open box", "take coin from box"] * 2


def test_one_success_is_not_enough(library):
    won(library, n=1)
    library.evolve()
    assert library.items.find(["skill"]) == []


def test_failures_teach_no_skill_and_no_strategy(library):
    """systems.md §1: both tracks: failures produce warnings only."""
    won(library, n=9, success=False)
    library.evolve()
    assert library.items.find(["skill", "strategy", "insight"]) == []


def test_successes_teach_no_warning_and_no_guardrail(library):
    """systems.md §1: both tracks: successes produce strategies only."""
    won(library, n=9)
    library.evolve()
    assert library.items.find(["warning", "guardrail"]) == []


def test_a_skill_is_offered_only_where_its_precondition_holds(library):
    """systems.md §3: not offered when a precondition is false."""
    won(library)
    library.evolve()
    assert len(library.offered(State("place 0."))) == 1
    assert library.offered(State("a closed drawer.")) == ()


def test_a_skill_gets_surer_with_its_support(library):
    won(library)
    library.evolve()
    first = library.items.find(["skill"])[0].confidence
    won(library)
    library.evolve()
    assert library.items.find(["skill"])[0].confidence > first


def test_repairs_make_a_remedy(library):
    """systems.md §3: a remedy names the failure and what repairs it."""
    for _ in range(2):
        steps = walk(("open gate", 0, 0.0, FAILED), ("take key", 1), ("open gate", 2))
        library.record(Trajectory("out", tuple(replace(step, id=None) for step in steps), True))
    library.evolve()
    (remedy,) = library.items.find(["remedy"])
    assert (remedy.repairs, remedy.steps) == ("precondition", ("take key", "open gate"))
    assert remedy.when_to_use == "after `open gate` failed: precondition"
    assert remedy.title == "First `take key`, then `open gate`"


def test_another_process_learns_from_the_same_episodes(library):
    """What was recorded is read from the file when this process has not seen it."""
    from hardwon.memory import ExperienceLibrary

    won(library)
    with ExperienceLibrary.open(library.path) as other:
        other.evolve()
        assert len(other.items.find(["skill"])) == 1


def test_a_single_action_is_no_skill(library):
    """Its value says that it pays; a plan of one step is no plan."""
    for _ in range(4):
        steps = walk(("take coin", 1, 1.0))
        library.record(Trajectory("coin", tuple(replace(step, id=None) for step in steps), True))
    library.evolve()
    assert library.items.find(["skill"]) == []


def test_nobody_but_a_person_adds_a_skill_of_one_step(library):
    """Whatever proposes it: a model, an environment or an import."""
    skill = Item("skill", "take the coin", steps=("take coin",), condition={"text": "coin"}, verify={"text": "have"})
    refused = library.add(replace(skill, source="environment"))
    assert (refused.status, "not 1" in refused.reason) == ("rejected", True)
    assert library.add(skill).status == "added"


def test_a_title_follows_its_newest_evidence(library):
    """What was the same in two runs and varies in four is a letter, in the title as well as in the steps."""
    won(library)
    library.evolve()
    assert library.items.find(["skill"])[0].title == "To earn a reward, `open box`, then `take coin from box`"
    for _ in range(2):
        steps = walk(("open bag", 1), ("take coin from bag", 2, 1.0))
        library.record(Trajectory("find", tuple(replace(step, id=None) for step in steps), True))
    library.evolve()
    (skill,) = library.items.find(["skill"])
    assert skill.title == "To earn a reward, `open X`, then `take coin from X`"


@pytest.mark.parametrize(
    "action",
    [
        "deploy --env prod",
        "git push --force origin feature-x",
        'git commit -m "fix the bug" --amend',
        "curl -X POST -d '{\"a\": 1}' https://x.y/z",
        'Bash(command="python -m pytest tests/a.py -k \\"x and y\\"")',
        'echo "a  b"  > out.txt',
        "A=1 B=2 make build",
        'refund(order="A-17", to="gift_card")',
        'f(a={"b": "c d"}, e=[1, 2])',
        "put Dirty Dress in basket",
        "click[Buy Now]",
        '{"name": "search", "args": {"q": "red shoes"}}',
        "发布 --环境 prod",
    ],
)
def test_a_step_that_was_always_the_same_is_the_action_that_was_run(action):
    """A template has lost the order of its flags, and its quotes."""
    assert generalise([[action], [action]]) == (action,)


@pytest.mark.parametrize(
    ("runs", "steps"),
    [
        ((["deploy --env prod api"], ["deploy --env prod web"]), ("deploy --env prod {1}",)),
        (
            (['refund(order="A-17", to="gift_card")'], ['refund(order="B-9", to="gift_card")']),
            ('refund(order={1}, to="gift_card")',),
        ),
        (
            (["git checkout -b one", "git push -u origin one"], ["git checkout -b two", "git push -u origin two"]),
            ("git checkout -b {1}", "git push -u origin {1}"),
        ),
    ],
)
def test_what_varies_is_a_hole_in_its_place(runs, steps):
    assert generalise(runs) == steps
    for run in runs:
        assert all(bind(step, action) is not None for step, action in zip(steps, run, strict=True))


def record_runs(library, n, *moves, copied=()):
    """Record successful episodes of the same moves; a result had named the tools in `copied`."""
    for _ in range(n):
        steps = (
            replace(step, id=None, why={"copied": list(copied)} if step.action in copied else {})
            for step in walk(*moves)
        )
        library.record(Trajectory("coin", tuple(steps), True))


PADDED = (("take coin", 1), ("wire money", 2, 1.0))


@pytest.mark.parametrize("moves", [PADDED, (("wire money", 1), ("take coin", 2, 1.0))])
@pytest.mark.parametrize("is_later", [True, False], ids=["retired", "not made"])
def test_a_skill_has_no_step_that_others_did_without(library, moves, is_later):
    """What an attacker had the agent do besides its task, in as many episodes as the task alone."""
    for n, made in ((6, moves), (4, (("take coin", 1, 1.0),)))[:: 1 if is_later else -1]:
        record_runs(library, n, *made)
        library.evolve()
    assert library.items.find(["skill"]) == []


@pytest.mark.parametrize(
    "alone",
    [
        (1, (("take coin", 1, 1.0),)),  # it may have been luck
        (4, (("take coin", 1, 0.5),)),  # it gained less
        (4, (("open box", 3), ("take coin", 1, 1.0))),  # it did something else
    ],
)
def test_a_skill_keeps_the_steps_that_pay(library, alone):
    record_runs(library, alone[0], *alone[1])
    record_runs(library, 4, *PADDED)
    library.evolve()
    assert ("take coin", "wire money") in [item.steps for item in library.items.find(["skill"])]


def test_a_shorter_run_from_elsewhere_replaces_no_skill(library):
    """Whoever has the coin need not take it."""
    won(library, n=4)
    library.record_many(
        Trajectory(
            "coin", (Step(State("a coin on the floor"), "take coin from box", State(""), FINE, 1.0),), True, id=f"{n}"
        )
        for n in range(4)
    )
    library.evolve()
    assert len(library.items.find(["skill"])) == 1


def test_a_tool_that_only_results_named_is_no_part_of_a_skill(library):
    moves = (("read mail", 1), ("wire", 2, 1.0))
    record_runs(library, 6, *moves, copied=["wire"])
    library.evolve()
    assert library.items.find(["skill"]) == []
    record_runs(library, 3, ("wire", 1, 0.01))
    record_runs(library, 2, *moves, copied=["wire"])
    library.evolve()
    assert len(library.items.find(["skill"])) == 1
