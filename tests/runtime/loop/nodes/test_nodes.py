import random
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, Failure, Item, Recollection, State, Step, Trajectory
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.reasons import Reasons
from hardwon.memory.situations.refinements import BEST
from hardwon.runtime.environments.timeout import Watched
from hardwon.runtime.environments.tools.environment import ToolEnvironment
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.loop.nodes import ROUTES, TARGETS
from hardwon.runtime.loop.state import LiveEpisode
from hardwon.runtime.loop.tuning import TUNING
from hardwon.runtime.planning.plans import SkillPlanner

from .states import RED, episode, forbid, settings


def test_a_masked_skill_is_drawn_as_masked_whether_it_is_offered_or_not(nodes, library, monkeypatch):
    """The planner gets it in one episode of ten, and the steps tell that it was masked in all of them."""
    item = library.items.get(library.add(Item("skill", "go there", steps=("go east",), source="person")).item_id)
    monkeypatch.setattr(
        type(library), "offered", lambda self, state, kinds=(), *, masked=False: (item,) if masked else ()
    )
    offered = 0
    for number in range(200):
        items, drawn = nodes._select_items(episode(episode=number), ("skill",))
        assert drawn.masked == (item.id,)
        assert (item in items) == (item.id not in drawn.withheld)
        offered += len(items)
    assert 5 <= offered <= 40


def test_every_route_is_drawn():
    """What follows a node is among what the drawing says."""
    states = [episode(), episode(failed="x"), episode(ending="x"), episode(decision=Decision("a"), forbidden={"a": ""})]
    for stage, route in ROUTES.items():
        assert {route(state) for state in states} <= set(TARGETS[stage])


def test_the_context_has_the_tools_of_the_environment_with_their_schemas(nodes):
    """Only an environment whose actions are calls has any."""
    assert nodes.context(episode(recollection=Recollection())).tools == {}

    def look(at: str) -> str:
        """Look."""
        return at

    environment = ToolEnvironment([look])
    nodes.live["t"] = LiveEpisode(Watched(environment), WorkingMemory())
    nodes.policy.reads = "text"
    assert nodes.context(episode(recollection=Recollection())).tools == environment.tool_schemas()
    nodes.policy.reads = "values"
    assert nodes.context(episode(recollection=Recollection())).tools == {}


def test_an_episode_begins_afresh(nodes):
    """Whatever an earlier one under the same thread left."""
    update = nodes.begin(episode(failed="x", ending="y", steps=(1, 2), score=1.0, success=True))
    assert (update["steps"], update["failed"], update["ending"]) == ((), "", "")
    assert (update["score"], update["success"]) == (0.0, False)
    assert update["first"] is update["state"]
    assert update["state"] == RED


def test_a_situation_is_new_the_first_time(nodes):
    """By its signature."""
    step = Step(RED, "wait", RED, Diagnosis(True))
    assert nodes.signature(episode())["new_situation"]
    assert not nodes.signature(episode(steps=(step,)))["new_situation"]
    assert nodes.signature(episode(steps=(step,), state=State("Elsewhere.")))["new_situation"]


def test_a_value_policy_gets_estimates_only(nodes, library, monkeypatch):
    """No text is searched for."""
    recollection = nodes.recall(episode())["recollection"]
    assert set(recollection.estimates) == {"go east", "go west", "wait"}
    assert library._file.search.scans == 0


def test_a_reading_policy_gets_items_and_guardrails(nodes, library, script):
    """And what is forbidden here is known to the guidance."""
    library.add(Item("insight", "the red room is a room"))
    forbid(library, "go west")
    reading = replace(nodes, policy=script("wait", reads="text"))
    recollection = reading.recall(episode())["recollection"]
    assert recollection.items
    assert [item.forbids for item in recollection.guardrails] == ["go west"]


def test_what_the_episode_did_already_is_nothing_to_work_towards(nodes, library, script):
    """A rewarded action that is not possible here is shown until the episode has taken it."""
    hall = State("A red lamp, a green chest.", task="go to the golden room")
    took = Step(hall, "take red lamp", hall, Diagnosis(True), reward=1.0)
    walked = Step(hall, "go east", hall, Diagnosis(True))
    library.record(Trajectory("go to the golden room", (walked, took), True))
    reading = replace(nodes, policy=script("wait", reads="text"))
    now = {"state": hall}
    assert reading.recall(episode(**now))["recollection"].outcomes.keys() == {"go east", "take red lamp"}
    after = reading.recall(episode(**now, steps=(took,)))["recollection"]
    assert after.outcomes.keys() == {"go east"}
    listed = reading.recall(episode(**now, steps=(took,), actions=("take red lamp",)))["recollection"]
    assert listed.outcomes.keys() == {"take red lamp"}


def test_without_memory_there_is_no_hint(nodes, library, script):
    """The control arm reads nothing; the others what was recalled."""
    library.add(Item("insight", "the red room is a room"))
    reading = replace(nodes, policy=script("wait", reads="text"))
    recalled = episode(**reading.recall(episode()))
    assert "the red room is a room" in reading.guide(recalled)["hint"].text
    assert settings(reading, arm=Arm.of("control")).guide(recalled)["hint"] is None
    assert nodes.guide(recalled)["hint"] is None


def test_chance_is_the_episodes_own(nodes):
    """Drawn from task, seed, episode, step and replan; the same again, another elsewhere."""

    def draw(**fields):
        return nodes.context(episode(recollection=None, **fields)).rng.random()

    assert draw() == draw()
    stepped = {"steps": (Step(RED, "a", RED, Diagnosis(True)),)}
    others: list[dict[str, Any]] = [{"seed": 1}, {"task": "x"}, {"episode": 1}, {"replans": 1}, stepped]
    assert len({draw(), *(draw(**other) for other in others)}) == 6
    assert isinstance(nodes.context(episode(recollection=None)).rng, random.Random)


def test_a_failed_decision_is_paid_for_too(nodes):
    """Where the failure says what it cost."""
    failure = PolicyFailure("no idea")
    failure.usage = ModelUsage(5, 0, 0.1, 1)  # type: ignore[attr-defined]
    update = nodes.apply_policy_failure(episode(), failure)
    assert (update["decision"], update["policy_failure"], update["usage"].prompt_tokens) == (None, "no idea", 5)


def test_three_policy_failures_in_a_row_end_an_episode(nodes):
    """Two do not, nor three with a step between."""
    failed = Step(RED, "", RED, Diagnosis(False, Failure.POLICY_ERROR))
    fine = Step(RED, "wait", RED, Diagnosis(True))

    def ending(*steps):
        return nodes.diagnose(episode(steps=steps, policy_failure="no idea"))["ending"]

    assert ending(*[failed] * (TUNING.max_policy_failures - 1)) == "policy_error"
    assert ending(*[failed] * (TUNING.max_policy_failures - 2)) == ""
    assert ending(failed, fine, failed) == ""


@pytest.mark.parametrize(
    ("done", "info", "ending"),
    [
        (True, {"success": True}, "success"),
        (True, {"lost": True}, "task_lost"),
        (True, {}, "done"),
        (False, {"success": True}, ""),
        (False, {}, ""),
    ],
)
def test_the_environment_says_when_it_is_over(nodes, done, info, ending):
    """And how."""
    state = episode(decision=Decision("wait"), outcome=(RED, 0.0, done, info))
    assert nodes.diagnose(state)["ending"] == ending


def test_too_many_steps_end_an_episode(nodes):
    """At the limit, unless the last step won."""
    late = episode(decision=Decision("wait"), outcome=(RED, 0.0, False, {}), max_steps=1)
    assert nodes.diagnose(late)["ending"] == "step_limit"
    won = episode(decision=Decision("wait"), outcome=(RED, 1.0, True, {"success": True}), max_steps=1)
    assert nodes.diagnose(won)["ending"] == "success"


@pytest.mark.parametrize(("why", "is_own"), [(Reasons(value=0.5), True), (Reasons(explored=True), True), (None, False)])
def test_a_step_is_filed_under_the_keys_it_was_estimated_by(nodes, library, why, is_own):
    """What is learnt of a step is found when the same choice comes again; of its own ones, also how quick it was."""
    estimated = library._file.caught_up().situation(RED).keys("go east", "tried 0 to unknown")
    assert estimated[-1].startswith(BEST)
    estimated = estimated if is_own else estimated[:-1]
    outcome: Any = (State("You are in the blue room.", task=RED.task), 0.0, False, {})
    (step,) = nodes.diagnose(episode(decision=Decision("go east", why or Reasons()), outcome=outcome))["steps"]
    assert step.keys[: len(estimated)] == estimated
    assert any(key.startswith(BEST) for key in step.keys) is is_own


@pytest.mark.parametrize(
    ("learn", "withhold", "looks_ahead", "planned", "kept"),
    [
        (True, False, False, False, True),
        (False, True, False, False, True),
        (False, False, True, False, True),
        (False, False, False, True, True),
        (False, False, False, False, False),
    ],
)
def test_a_step_keeps_the_admissible_actions_if_anything_reads_them(
    nodes, library, learn, withhold, looks_ahead, planned, kept
):
    nodes.policy.looks_ahead = looks_ahead
    ready = replace(settings(nodes, learn=learn, withhold=withhold), planner=SkillPlanner(library) if planned else None)
    outcome: Any = (State("You are in the blue room.", task=RED.task), 0.0, False, {})
    (step,) = ready.diagnose(episode(decision=Decision("go east"), outcome=outcome))["steps"]
    assert step.admissible == (("go east", "go west", "wait") if kept else ())


def test_who_was_shown_what_is_on_the_step(nodes):
    """For the usage table."""
    state = episode(
        decision=Decision("wait", Reasons(extra={"said": "so"})),
        outcome=(RED, 0.0, False, {}),
        hint=Hint("x", ("a", "b"), (7,)),
    )
    assert nodes.diagnose(state)["steps"][0].why == {"said": "so", "recalled": ["a", "b"], "like": [7]}


def test_an_episode_is_kept_once(nodes, library):
    """Finishing it again, as a resumed episode may, changes nothing."""
    state = episode(ending="done", success=True, score=1.0)
    state = {**state, **nodes.record(state)}
    nodes.finish(state)
    nodes.finish(state)
    assert library.episodes.count() == 1


def test_recall_is_given_the_last_action(nodes, monkeypatch):
    """At the beginning of an episode the empty text, later what was done last."""
    asked, recall = [], nodes.library.recall

    def spy(*args: Any, after: str | None, **options: Any) -> Any:
        asked.append(after)
        return recall(*args, after=after, **options)

    monkeypatch.setattr(nodes.library, "recall", spy)
    done = Step(RED, "go west", RED, Diagnosis(True))
    nodes.recall(episode())
    nodes.recall(episode(steps=(replace(done, action="wait"), done)))
    assert asked == ["", "go west"]


def test_an_episode_names_its_split_unless_the_task_says_it(nodes):
    """The same seed of another split is another task instance, though the words of the task are the same."""
    ended = episode(ending="success")
    asked = ended["state"].task
    assert nodes.record({**ended, "task": "dev"})["trajectory"].meta["split"] == "dev"
    assert "split" not in nodes.record({**ended, "task": asked})["trajectory"].meta
    assert "split" not in nodes.record({**ended, "task": ""})["trajectory"].meta
