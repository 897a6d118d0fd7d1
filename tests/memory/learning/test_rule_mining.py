from collections import Counter
from functools import partial

import pytest

from hardwon.memory import Diagnosis, Failure, Item, State, Step, Trajectory
from hardwon.memory.guardrails.conditions import ALWAYS, guard_key
from hardwon.memory.learning.consolidation import read_common_words
from hardwon.memory.learning.contrast import SeenStep
from hardwon.memory.learning.rule_mining import RATE_LIMITS, RuleMiner
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.values.value_table import ValueTable


def table(key, good=0, bad=0, *, lost=False, value=0.0, arguments=2):
    """A value table in which the steps of one key went well so often, and badly."""
    values = ValueTable()
    for number in range(good + bad):
        action = f"eat thing{number % arguments}"
        failed = number >= good
        values.add([key], value, number, action=action, bad=failed, lost=lost and failed, episode=number)
    return values


def found(values):
    """The items that a table justifies."""
    return [item for _, item in RuleMiner().candidates(values)]


@pytest.mark.parametrize(
    ("key", "good", "bad", "kinds"),
    [
        ("! eat meal @ around 1: raw", 0, TUNING.guardrail_episodes - 1, []),
        ("! eat meal @ around 1: raw", 0, TUNING.guardrail_episodes, ["guardrail"]),
        ("! eat meal @ around 1: raw", 1, TUNING.guardrail_episodes, []),
        ("! eat meal @ around 1: raw", 1, TUNING.warning_episodes, ["warning"]),
        ("! eat {1} @ around 1: raw", 0, TUNING.wide_episodes, ["guardrail"]),
        ("! eat {1} @ around 1: raw", 0, TUNING.wide_episodes - 1, ["warning"]),
        ("! eat {1} @ around 1: raw", 0, TUNING.warning_episodes - 1, []),
        ("! eat {1} @ around 1: raw", 2, TUNING.warning_episodes, ["warning"]),
        ("! eat {1} @ around 1: raw", TUNING.warning_episodes, TUNING.warning_episodes, []),
        ("! eat {1} @ around 1: raw", 20, 0, []),
        ("! eat {1} @ told 1 grill", 0, TUNING.wide_episodes, ["guardrail"]),
        ("! eat {1} @ mark 1 unnamed", 0, TUNING.wide_episodes, ["guardrail"]),
    ],
)
def test_failures_justify_guardrails_and_warnings(key, good, bad, kinds):
    """A wide pattern needs more evidence than a narrow one; what works half the time justifies nothing."""
    assert [item.kind for item in found(table(key, good, bad))] == kinds


def test_many_steps_of_few_episodes_justify_no_guardrail():
    """An episode is one piece of evidence, however often the call failed in it."""
    values = ValueTable()
    for number in range(8 * (TUNING.guardrail_episodes - 1)):
        values.add(
            ["! eat meal @ around 1: raw"], 0.0, number, action="eat meal", bad=True, lost=False, episode=number // 8
        )
    assert found(values) == []


def test_losing_the_task_needs_less_evidence():
    """Where the failures lost the task a wide pattern is forbidden as soon as a narrow one."""
    values = table("! eat {1} @ around 1: raw; 0: cold", bad=TUNING.guardrail_episodes, lost=True)
    assert [item.kind for item in found(values)] == ["guardrail"]


def test_a_call_that_lost_the_task_is_forbidden_whatever_was_said_before():
    """The text before a call is what was said last, which hardly recurs."""
    values = table("! send(to=mia) @ around 1: -", bad=TUNING.guardrail_episodes, lost=True, arguments=1)
    assert [item.kind for item in found(values)] == ["guardrail"]


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("pattern", ["eat meal", "eat"])
def test_what_the_text_shows_as_a_whole_counts_where_the_task_was_lost(lost, pattern):
    """An error says what it needs. After a lost task, anything in the text may be the reason."""
    n = TUNING.wide_episodes
    around = "1: raw; 0: cold" if " " in pattern else "0: cold"
    full = table(f"! {pattern} @ around {around}", bad=n, lost=lost)
    near = table(f"! {pattern} @ around {around.removesuffix('0: cold').removesuffix('; ')}", bad=n, lost=lost)
    assert [item.kind for item in found(full)] == ["guardrail"] * lost
    assert [item.kind for item in found(near)] == ["guardrail"] * (not lost)


def test_what_one_argument_did_forbids_no_other():
    """A raw potato that always fails is a matter of raw potatoes: the pattern for all things stays open."""
    assert found(table("! eat {1} @ around 1: raw", bad=2 * TUNING.wide_episodes, lost=True, arguments=1)) == []


def test_a_guardrail_says_what_where_and_how_often():
    """Pattern, condition, evidence, and a confidence that grows with it."""
    (item,) = found(table("! eat {1} @ around 1: raw", bad=TUNING.wide_episodes))
    assert (item.forbids, item.condition, item.writer) == ("eat {1}", {"around": "1: raw"}, "rules")
    assert item.confidence == pytest.approx((TUNING.wide_episodes + 1) / (TUNING.wide_episodes + 2), abs=1e-3)
    assert f"Failed in {TUNING.wide_episodes} of {TUNING.wide_episodes} episodes" in item.body
    assert item.provenance


def strategic(gain, n=TUNING.strategy_evidence, apiece=1):
    """A table in which an action pays so much more under one condition than usual."""
    values = ValueTable()
    for number in range(100):
        values.add(["eat {1}"], 0.0, number, episode=number)
    for number in range(n):
        values.add(["eat {1} | tried 0 to unknown | 1:T |"], gain, number, episode=number // apiece)
    return values


@pytest.mark.parametrize(("condition", "n"), [("1: | nothing told", 0), ("1:T | nothing told", 1)])
def test_a_strategy_without_a_condition_is_no_advice(condition, n):
    """The failure: `Prefer take X when you can`."""
    values = strategic(0.0)
    for number in range(TUNING.strategy_evidence):
        values.add([f"eat {{1}} | {condition}"], 1.0, number, episode=number)
    assert len(found(values)) == n


@pytest.mark.parametrize(
    ("gain", "n", "kinds"),
    [
        (TUNING.strategy_gain + 0.01, TUNING.strategy_evidence, ["strategy"]),
        (TUNING.strategy_gain - 0.01, TUNING.strategy_evidence, []),
        (1.0, TUNING.strategy_evidence - 1, []),
    ],
)
def test_what_pays_more_than_usual_is_a_strategy(gain, n, kinds):
    """With enough evidence and enough gain."""
    assert [item.kind for item in found(strategic(gain, n))] == kinds


def test_many_steps_of_few_episodes_are_no_strategy():
    n = 4 * TUNING.strategy_evidence
    assert found(strategic(1.0, n, apiece=n // 2)) == []
    assert found(strategic(1.0, n, apiece=n // TUNING.strategy_episodes)) != []


def test_evidence_counts_episodes_and_not_their_steps():
    """Twelve steps of four episodes are four pieces of evidence, and each episode is named by one step."""
    values = ValueTable()
    for number in range(12):
        values.add(["! eat meal @ around 1: raw"], 0.0, number, action="eat meal", bad=True, episode=number // 3)
    (item,) = found(values)
    assert (item.body, item.confidence, item.episodes) == ("Failed in 4 of 4 episodes here", 0.833, 4)
    assert item.provenance == (2, 5, 8, 11)


def test_a_title_shows_the_command_that_was_run():
    """The key has lost the order of the flags."""
    values = ValueTable()
    for number in range(TUNING.guardrail_episodes):
        action = "git push origin --force"
        values.add(["! git push --force origin @ around "], 0.0, number, action=action, bad=True, episode=number)
    (item,) = found(values)
    assert item.title.startswith("Do not `git push origin --force`")


@pytest.mark.parametrize(
    ("examples", "shown"),
    [
        (["git push origin --force"], "git push origin --force"),
        ([], "git push --force origin"),
    ],
)
def test_a_strategy_shows_the_command_that_was_run(examples, shown):
    """The key has lost the order of the flags."""
    values, pattern = ValueTable(), "git push --force origin"
    for key, value, n in ((pattern, 0.0, 100), (f"{pattern} | tried 0 to unknown | 1:T |", 1.0, 9)):
        for number in range(n):
            values.add([key], value, number, episode=number)
    steps = [SeenStep(action, (), 1.0, False) for action in examples]
    ((_, item),) = RuleMiner().candidates(values, tuple, lambda _: steps)
    assert item.title.startswith(f"Prefer `{shown}` when")
    assert f"`{shown}` at any time" in item.body


def test_a_call_of_an_address_shows_the_whole_address(library, episode):
    call = 'http_get(url="https://api.example.com/v1/invoices")'
    library.record_many(failing(episode, library, call, times=TUNING.guardrail_episodes))
    library.evolve()
    titles = [item.title for item in library.items.find(["guardrail"])]
    assert titles == [f"Do not `{call}`"]


def test_that_notes_tell_anything_is_no_strategy():
    """The common key of all their words has no condition; the key of a word says which one it is."""
    values = ValueTable()
    for key, mean, n in (("eat {1}", 0.0, 100), ("eat {1} | ?", 0.9, 20), ("eat {1} | 1 peel", 0.9, 20)):
        for number in range(n):
            values.add([key], mean, number, episode=number)
    assert [key for key, _ in RuleMiner().candidates(values)] == ["eat {1} | 1 peel"]


FACTS = "eat {1} | tried 0 to unknown | 1:T | "
AROUND = f"{FACTS} | 1: also ripe | nothing told"


@pytest.mark.parametrize(
    ("mean_in_facts", "mean_around", "proposed"),
    [
        (0.8, 0.8, [FACTS]),
        (0.8, 0.8 + TUNING.condition_gain / 2, [FACTS]),
        (0.5, 0.5 + TUNING.condition_gain + 0.01, [FACTS, AROUND]),
        (0.1, 0.8, [AROUND]),
    ],
)
def test_a_condition_must_pay_more_than_the_wider_one(mean_in_facts, mean_around, proposed):
    """What is explained by fewer conditions is said with fewer."""
    values = ValueTable()
    for key, mean, n in (("eat {1}", 0.0, 100), (FACTS, mean_in_facts, 20), (AROUND, mean_around, 20)):
        for number in range(n):
            values.add([key], mean, number, episode=number)
    assert sorted(key for key, _ in RuleMiner().candidates(values)) == sorted(proposed)


def test_a_condition_of_words_that_tell_nothing_is_no_strategy():
    """It would be the sentence of the wider condition once more."""
    for common, count in ((set(), 2), ({"also"}, 2), ({"also", "ripe"}, 1)):
        values = ValueTable()
        for key, mean, n in (("eat {1}", 0.0, 100), (FACTS, 0.5, 20), (AROUND, 0.9, 20)):
            for number in range(n):
                values.add([key], mean, number, episode=number)
        titles = [item.title for _, item in RuleMiner().candidates(values, partial(frozenset, common))]
        assert len(set(titles)) == len(titles) == count
        assert not any(word in title for word in common for title in titles)


def test_words_of_almost_every_state_are_common(library):
    """Only with enough states, since a few share most of their words."""
    for number in range(TUNING.common_states // 4):
        assert read_common_words(library._file.store, library._file.number) == frozenset()
        state = State(f"You also see thing{number}.{' It is ripe.' if number % 2 else ''}", task="eat")
        library.record(Trajectory("eat", (Step(state, f"eat thing{number}", state, Diagnosis(True)),), True))
        assert library.episodes.count() == number + 1
    assert read_common_words(library._file.store, library._file.number) == {"you", "also", "see"}


def test_successes_give_strategies_and_failures_do_not():
    """Both tracks: what went well is never forbidden, what failed never recommended."""
    assert {item.kind for item in found(strategic(1.0))} == {"strategy"}
    assert {item.kind for item in found(table("! eat {1} @ around 1: raw", bad=50))} == {"guardrail"}


def test_nothing_new_proposes_nothing():
    """Cells that got no steps since are not looked at again."""
    values, evolution = table("! eat meal @ around 1: raw", bad=10), RuleMiner()
    assert len(list(evolution.candidates(values))) == 1
    assert list(evolution.candidates(values)) == []


def test_an_action_with_an_at_of_its_own_is_left_alone():
    """Its key cannot be read back into a pattern and a condition."""
    assert found(table("! email bob @ work @ around 1: -", bad=20)) == []


def failing(episode, library, name, times=1):
    """Episodes in each of which an action fails once."""
    settings = {"reward": 0.0, "success": False, "failure": Failure.PRECONDITION, "library": library}
    return [episode(name, **settings) for _ in range(times)]


def test_an_action_that_always_fails_is_forbidden(library, episode):
    """From recorded steps to a guardrail that refuses it here, and nothing else."""
    library.record_many(failing(episode, library, "shake drawer", times=8))
    report = library.evolve()
    assert report.count("added") > 0
    state = episode().steps[0].pre
    assert not library.check(state, "shake drawer").allowed
    assert library.check(state, "open drawer").allowed
    assert library.episodes.steps(library.items.find(["guardrail"])[0].provenance)[0].action == "shake drawer"


SERVICES = ("api", "web", "mail", "search", "auth", "billing", "cart", "login")


@pytest.mark.parametrize(
    ("write", "forbidden"),
    [
        ("deploy(service={0}, region=eu)", "deploy(service={1}, region=eu)"),
        ("deploy(region=eu, service={0})", "deploy(region=eu, service={2})"),
        ("deploy(service={0}, region=eu, by={0})", "deploy(service={1}, region=eu, by={3})"),
        ("deploy(region=eu)", None),
        ("deploy({0}, eu)", None),
        ("put {0} in eu", None),
    ],
)
def test_a_value_that_always_fails_is_forbidden_whatever_the_other_arguments(library, episode, write, forbidden):
    """Only of a named argument: the words of a command depend on the situation; a call without others has a rule."""
    texts = [f"Deploy {service} for {service}." for service in SERVICES]  # no two situations are alike
    for service, see in zip(SERVICES, texts, strict=True):
        steps = episode(write.format(service), see=see, failure=Failure.TOOL_ERROR, library=library).steps
        works = episode(write.format(service).replace("eu", "us"), see=see, library=library).steps
        library.record(Trajectory("find the spoon", (*steps, *works), success=True))
        library.evolve()
    rules = [item for item in library.items.find(["guardrail"]) if item.condition == ALWAYS]
    assert [item.forbids for item in rules] == ([forbidden] if forbidden else [])
    if forbidden:
        new = episode(see="Deploy chat.").steps[0].pre
        assert not library.check(new, write.format("chat")).allowed
        assert library.check(new, write.format("chat").replace("eu", "us")).allowed
        (rule,) = rules
        assert guard_key(rule) not in library.episodes.keys(new, write.format("chat")), "it is counted by its call"
        assert rule.body == "Failed in 8 of 8 episodes whatever the other arguments"
        library.record(episode(write.format("chat"), see="Deploy chat.", library=library))
        assert library.evolve().count("added") == 0
        assert library.check(new, write.format("chat")).allowed, "it has worked since"


@pytest.mark.parametrize("regions", [("eu",), ("eu", "asia")])
def test_a_rule_for_all_values_of_an_argument_needs_failures_with_several(library, episode, regions):
    """Who deployed everything to one region knows nothing about another."""
    for number, service in enumerate(SERVICES * len(regions)):
        action = f"deploy(service={service}, region={regions[number % len(regions)]})"
        library.record(episode(action, see="It is noon.", failure=Failure.TOOL_ERROR, library=library))
    library.evolve()
    now = episode(see="It is noon.").steps[0].pre
    assert not library.check(now, "deploy(service=chat, region=eu)").allowed
    assert library.check(now, "deploy(service=chat, region=us)").allowed is (len(regions) == 1)


def test_a_value_that_mostly_fails_is_not_warned_of_in_any_situation():
    """It works in some of them; what fails in one situation has a warning of its own."""
    values = ValueTable()
    for number in range(TUNING.wide_episodes * 2):
        action = f"find(word={SERVICES[number % 8]}, lang=en)"
        values.add(["! find(word={1}, lang=en)"], 0.0, number, action=action, bad=number % 5 > 0, episode=number)
    assert found(values) == []


@pytest.mark.parametrize(("condition", "kinds"), [("around 1: -", []), ("again failed", ["guardrail"])])
def test_to_repeat_a_call_is_useless_whatever_its_value(condition, kinds):
    """A value that all failures share says nothing of others, except that such a call fails again."""
    values = ValueTable()
    for number in range(TUNING.wide_episodes):
        keys = [f"! find(word={{1}}, lang={{2}}) @ {condition}", "! find(word={1}, lang=en)"]
        values.add(keys, 0.0, number, action=f"find(word={SERVICES[number]}, lang=en)", bad=True, episode=number)
    assert [item.kind for item in found(values) if item.condition != ALWAYS] == kinds


def test_a_value_that_worked_once_or_with_one_thing_alone_is_not_forbidden(library, episode):
    """Nothing follows for other things, nor from failures before a success."""
    for number in range(3 * len(SERVICES)):
        service, failure = SERVICES[number % 8], Failure.NONE if number % 8 == 7 else Failure.TOOL_ERROR
        see = f"Deploy {service} for {service}."
        library.record(episode(f"deploy(service={service}, region=eu)", see=see, failure=failure, library=library))
        library.record(episode("deploy(service=api, region=us)", failure=Failure.TOOL_ERROR, library=library))
        library.evolve()
    assert not [item for item in library.items.find(["guardrail"]) if "{1}" in (item.forbids or "")]


def test_rate_limits_are_exact(library, episode):
    """Fifty candidates: exactly as many guardrails as one call may add, the others not; the report counts all."""
    for number in range(50):
        library.record_many(failing(episode, library, f"shake{number} drawer", times=TUNING.guardrail_episodes))
    report = library.evolve()
    assert report.candidates >= 50
    assert report.count("added") == RATE_LIMITS["guardrail"]
    assert Counter(item.kind for item in library.items.find()) == {"guardrail": RATE_LIMITS["guardrail"]}


def test_evolving_again_adds_nothing_new(library, episode):
    """Without new experience."""
    library.record_many(failing(episode, library, "shake drawer", times=20))
    library.evolve()
    before = library.items.find()
    assert library.evolve().admissions == ()
    assert library.items.find() == before


def test_another_process_finds_the_same(path, library, episode):
    """A second process that reads the same steps merges into what the first one made."""
    with type(library).open(path) as other:
        other.evolve()
        library.record_many(failing(episode, library, "shake drawer", times=20))
        library.evolve()
        assert {admission.status for admission in other.evolve().admissions} == {"merged"}
        assert len(other.items.find()) == len(library.items.find())


@pytest.fixture
def guarded(library, episode):
    """A library with a guardrail by the rules, and what it forbids."""
    library.record_many(failing(episode, library, "shake drawer", times=6))
    library.evolve()
    return library, next(item for item in library.items.find(["guardrail"]) if item.forbids == "shake drawer")


def test_a_guardrail_that_the_counts_no_longer_support_is_released(guarded, episode):
    """Retired, with the reason in its history; the action may run again."""
    library, item = guarded
    for _ in range(2):
        library.record(episode(*["shake drawer"] * 6, library=library))
    cell = library._file.caught_up().statistics.values.cells[guard_key(item)]
    assert cell.failed < TUNING.release_rate * cell.episodes
    assert item.id in library.evolve().retired
    assert library.items.history(item.id)[-1]["detail"] == {"why": "worked in 2 of 8 episodes"}
    assert library.check(episode().steps[0].pre, "shake drawer").allowed


def test_a_pinned_guardrail_is_not_released(guarded, episode):
    """A person wants it."""
    library, item = guarded
    library.items.update(item.id, pinned=True)
    library.record(episode(*["shake drawer"] * 6, library=library))
    assert item.id not in library.evolve().retired
    assert library.items.get(item.id).status == "active"


def test_a_person_s_guardrail_is_not_released(library, episode):
    """The rules answer for their own."""
    condition = {"around": library.episodes.context(episode().steps[0].pre, "shake drawer")}
    mine = Item("guardrail", "mine", condition=condition, forbids="shake drawer", confidence=0.9)
    library.add(mine)
    library.record(episode(*["shake drawer"] * 12, library=library))
    assert library.evolve().retired == ()


def test_an_excluded_episode_justifies_nothing(library, episode):
    """What the environment broke is no evidence."""
    made = episode(*["shake drawer"] * 20, success=None, failure=Failure.PRECONDITION, library=library)
    library.record(made)
    assert library.evolve().candidates == 0


def test_evolution_changes_no_number(library, episode):
    """Items come of experience; the values of actions stay what they are."""
    library.record_many(failing(episode, library, "shake drawer", times=20))
    state = State("You see a wooden drawer. It is closed.", task="find the spoon")
    before = library.recall(state, k=0, actions={"shake drawer": ""}).estimates
    library.evolve()
    assert library.recall(state, k=0, actions={"shake drawer": ""}).estimates == before


def test_what_the_rate_limit_left_out_is_proposed_the_next_time():
    """A burst of findings is spread over several calls, not lost."""
    values = table("! eat meal @ around 1: raw", bad=TUNING.guardrail_episodes)
    evolution = RuleMiner()
    ((key, item),) = evolution.candidates(values)
    evolution.postpone(key, values)
    assert [again for _, again in evolution.candidates(values)] == [item]
