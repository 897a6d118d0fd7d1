"""The probe of unstated preconditions: its pairs are minimal, and no rule that ignores the task gets a pair right."""

import json
from dataclasses import replace

import pytest

from benchmarks.learning import preconditions as bench
from benchmarks.learning.errands import FAILED, FOLDS, KINDS, PAIRS, Errands, find_plan, find_twin, list_errands
from hardwon.memory import ExperienceLibrary, Failure
from hardwon.memory.errors import UnknownName
from hardwon.runtime.agent import Agent
from hardwon.runtime.policies.episodic import EpisodicPolicy
from hardwon.runtime.policies.lookahead import LookaheadPolicy

NUMBERS = range(2 * PAIRS)


# -- the world


@pytest.mark.parametrize("fold", FOLDS)
def test_a_pair_differs_in_one_operator(fold):
    """The last one, in its verb and its unstated precondition; the task is its text, and the note says its need."""
    errands = list_errands(fold)
    assert len(errands) == 2 * PAIRS
    for errand, twin in zip(errands[::2], errands[1::2], strict=True):
        assert (errand.has_precondition, twin.has_precondition) == (True, False)
        assert errand.operators[:-1] == twin.operators[:-1]
        assert errand.goal == replace(twin.goal, text=errand.task, unstated=errand.goal.unstated)
        assert errand.goal.unstated
        assert not twin.goal.unstated
        fields = ("thing", "place", "start", "scenery", "predicates")
        assert all(getattr(errand, name) == getattr(twin, name) for name in fields)


def test_no_other_operator_has_an_unstated_precondition():
    assert not any(operator.unstated for errand in list_errands("test") for operator in errand.operators[:-1])


def test_the_first_states_of_a_pair_differ_in_the_task_alone():
    """So no text states the precondition, and the actions do not show it either."""
    environment = Errands()
    for number in NUMBERS[::2]:
        first = environment.reset("test", number)
        actions = environment.admissible(first)
        other = environment.reset("test", number + 1)
        assert replace(first, task="") == replace(other, task="")
        assert actions == environment.admissible(other)
        assert len(actions) == 2
        assert first.notes == ()


def test_notes_state_the_precondition_where_they_are_wanted():
    environment = Errands(is_stated=True)
    for number in NUMBERS[:20:2]:
        first, other = (environment.reset("test", n).notes for n in (number, number + 1))
        assert first != other
        assert environment.clone().reset("test", number).notes == first


def test_folds_have_the_same_kinds_and_share_no_thing_and_no_place():
    learn, test = (list_errands(fold) for fold in FOLDS)
    assert {errand.kind for errand in learn} == {errand.kind for errand in test}
    assert len({errand.kind for errand in test}) == 2 * len(KINDS)
    for field in ("thing", "place"):
        used = [getattr(errand, field) for errand in (*learn, *test)[::2]]
        assert len(set(used)) == len(used) == 2 * PAIRS


def test_a_seed_gives_the_same_errands():
    list_errands.cache_clear()
    errands = list_errands("test", 3)
    list_errands.cache_clear()
    assert list_errands("test", 3) == errands
    assert list_errands("test", 4) != errands


def test_the_long_way_is_the_only_one_with_a_precondition_and_longer_without():
    for number, errand in enumerate(list_errands("test")):
        plan, other = find_plan(errand), find_plan(find_twin(list_errands("test"), number))
        assert len(plan) == (3 if errand.has_precondition else 2)
        assert plan[0] != other[0]


def test_an_action_with_an_unmet_precondition_fails_without_a_reason_and_can_be_made_up_for():
    environment = Errands()
    state = environment.reset("test", 0)
    errand = list_errands("test")[0]
    for action in (f"walk to {errand.place}", errand.task):
        state, reward, is_over, info = environment.step(action)
    assert (state.feedback, reward, is_over, info) == (FAILED, 0.0, False, {"error": FAILED})
    environment.step("go home")
    for action in find_plan(errand):
        state, reward, is_over, info = environment.step(action)
    assert (reward, is_over, info) == (1.0, True, {"success": True, "score": 1.0})


def test_what_is_not_offered_is_invalid_and_another_fold_an_error():
    environment = Errands()
    first = environment.reset("test", 0)
    state, _, _, info = environment.step("fly")
    assert (state, set(info)) == (first, {"invalid"})
    with pytest.raises(UnknownName, match="tests"):
        environment.reset("tests")


# -- the measurement


def test_one_way_for_all_gets_half_of_the_errands_and_no_pair():
    rows = {name: bench.summarize(name, "-", [outcomes]) for name, outcomes in bench.list_rules().items()}
    counts = {name: [row[f"{part}_seeds"][0] for part in bench.COUNTED] for name, row in rows.items()}
    assert counts == {
        "knows every condition": [40, 40, 40],
        "always near": [0, 40, 0],
        "always long": [40, 0, 0],
    }
    assert [row["completed"] for row in rows.values()] == [80, 40, 80]


def test_counts_by_hand():
    """Two pairs and two seeds: the first seed gets one pair right, the second one errand with a precondition."""
    yes, slow, no = (True, True), (True, False), (False, False)
    row = bench.summarize("a", "empty", [[yes, yes, slow, yes], [yes, no, slow, slow]])
    assert (row["with_precondition"], row["with_precondition_seeds"]) == (0.5, [1, 1])
    assert (row["twins"], row["twins_seeds"]) == (0.5, [2, 0])
    assert (row["both"], row["both_seeds"]) == (0.25, [1, 0])
    assert (row["completed"], row["errands"]) == (7, 8)
    assert row["both_ci95"] == [0.046, 0.699]  # Wilson, 1 of 4


def test_a_detour_is_not_right():
    errand = list_errands("test")[1]
    long = find_plan(list_errands("test")[0])[:-1]
    assert bench.follow_plan(errand, find_plan(errand)) == (True, True)
    assert bench.follow_plan(errand, (*long, errand.task)) == (True, False)
    assert bench.follow_plan(errand, long) == (False, False)


def test_learning_uses_the_other_errands_and_a_test_changes_nothing():
    with ExperienceLibrary.open(":memory:") as library:
        bench.learn(EpisodicPolicy(), "skills", library, 6, 0, is_stated=False)
        tasks = {library.episodes.get(row["id"]).task for row in library.episodes.find()}
        assert len(tasks) == library.episodes.count() == 6
        assert tasks <= {errand.task for errand in list_errands("learn")}
        assert len(bench.play(EpisodicPolicy(), "skills", library, 0, is_stated=False, errands=range(4))) == 4
        assert library.episodes.count() == 6


def test_every_errand_is_learned_once_before_any_is_repeated():
    order = list(bench._draw_order(100, 0))
    assert sorted(order[:80]) == list(NUMBERS)
    assert len(set(order[80:])) == 20
    assert order != list(bench._draw_order(100, 1))


@pytest.mark.parametrize(("condition", "episodes", "noted"), [
    ("empty", 0, False), ("learned", 3, False), ("stated", 0, True), ("learned, stated", 3, True)
])  # fmt: skip
def test_a_condition_learns_and_states_what_its_name_says(monkeypatch, condition, episodes, noted):
    seen = []

    def note(policy, planner, library, seed, *, is_stated):
        steps = [step for row in library.episodes.find() for step in library.episodes.get(row["id"]).steps]
        seen.append(
            (type(policy), planner, library.episodes.count(), is_stated, {bool(step.pre.notes) for step in steps})
        )
        return []

    monkeypatch.setattr(bench, "play", note)
    for agent in bench.AGENTS:
        bench.run_seed(agent, condition, 0, 3)
    learned = {noted} if episodes else set()
    assert seen == [
        (EpisodicPolicy, None, episodes, noted, learned),
        (EpisodicPolicy, "skills", episodes, noted, learned),
        (LookaheadPolicy, None, episodes, noted, learned),
    ]


def test_a_mined_skill_can_begin_with_other_things():
    """Facts have no names of things in them, so a skill's condition holds in the errands of the test, too."""
    with ExperienceLibrary.open(":memory:") as library:
        bench.learn(EpisodicPolicy(), "skills", library, 80, 0, is_stated=False)
        environment = Errands()
        assert any(library.offered(environment.reset("test", number), kinds=("skill",)) for number in NUMBERS)


@pytest.fixture
def scripted():
    """Make a chat model that gives these answers in turn, and keeps the messages that it read."""
    pytest.importorskip("langchain_core", reason="needs the chat extra")
    from langchain_core.language_models import FakeListChatModel
    from pydantic import Field

    class Scripted(FakeListChatModel):
        seen: list[str] = Field(default_factory=list)

        def _call(self, messages, *args, **options):
            self.seen.append(" ".join(str(message.content) for message in messages))
            return super()._call(messages, *args, **options)

    return lambda *answers: Scripted(responses=list(answers))


def test_a_chat_planner_can_be_measured(scripted):
    """A scripted model plans the long way for the errand with a precondition, and the near way for its twin."""
    from hardwon.runtime.planning.chat_planner import ChatPlanner

    plans = [find_plan(errand) for errand in list_errands("test")[:2]]
    answers = [json.dumps({"steps": [{"action": action, "check": ""} for action in plan]}) for plan in plans]
    model = scripted(*answers)
    with ExperienceLibrary.open(":memory:") as library:
        planner = ChatPlanner(model, library)
        played = bench.play(EpisodicPolicy(), planner, library, 0, is_stated=False, errands=(0, 1))
    assert played == [(True, True), (True, True)]
    for number, errand in enumerate(list_errands("test")[:2]):
        assert errand.task in model.seen[number]
        assert errand.note not in model.seen[number]


def test_the_long_way_completes_the_twin_and_is_not_right(scripted):
    from hardwon.runtime.planning.chat_planner import ChatPlanner

    errand, twin = list_errands("test")[:2]
    long = (*find_plan(errand)[:-1], twin.task)
    model = scripted(json.dumps({"steps": [{"action": action, "check": ""} for action in long]}))
    with ExperienceLibrary.open(":memory:") as library:
        played = bench.play(EpisodicPolicy(), ChatPlanner(model, library), library, 0, is_stated=False, errands=[1])
    assert played == [(True, False)]


def test_failing_is_diagnosed_and_not_fatal():
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(EpisodicPolicy(), library, Errands(), max_steps=10, seed=0, learn=False)
        steps = [step for number in NUMBERS[:10] for step in agent.run("test", number).trajectory.steps]
        agent.close()
    failures = [step.diagnosis.failure for step in steps if step.post.feedback == FAILED]
    assert failures
    assert set(failures) == {Failure.TOOL_ERROR}


def test_the_command_prints_a_table_or_json(hardwon, hardwon_json, monkeypatch):
    monkeypatch.setattr(bench, "AGENTS", ("episodic",))
    monkeypatch.setattr(bench, "CONDITIONS", ("empty",))
    monkeypatch.setattr(bench, "run_seed", lambda agent, condition, seed, episodes: [(True, seed == 0)] * 80)
    rows = hardwon_json("bench", "preconditions", "--seeds", "2")["rows"]
    assert [row["agent"] for row in rows] == ["knows every condition", "always near", "always long", "episodic"]
    assert (rows[-1]["both_seeds"], rows[-1]["completed"]) == ([40, 0], 160)
    printed = hardwon("bench", "preconditions")
    assert "completed" in printed.stdout
    assert "episodic, empty ..." in printed.stderr
