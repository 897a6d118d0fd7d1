"""A model of the world that was learned: where an action led whenever it was taken in this very state."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.runtime import Agent, Context
from hardwon.runtime.loop.recorded_model import RecordedModel
from hardwon.runtime.planning.search_planner import SearchPlanner

SHUT, OPEN = State("The box is shut.", task="get the coin"), State("The box is open.", task="get the coin")
ACTIONS = ("open box", "take coin", "wait")


@pytest.fixture
def library():
    with ExperienceLibrary.open(":memory:") as opened:
        yield opened


def record(library, *moves, success=False, ending="step_limit", trust="trusted"):
    steps = [
        Step(pre, action, post, Diagnosis(True), reward, t, admissible=ACTIONS)
        for t, (pre, action, post, reward) in enumerate(moves)
    ]
    library.record(Trajectory("get the coin", tuple(steps), success, ending=ending, trust=trust))


OPENED, WAITED, TAKEN = (SHUT, "open box", OPEN, 0.0), (SHUT, "wait", SHUT, 0.0), (OPEN, "take coin", OPEN, 1.0)


def imagine(library, *path, state=SHUT):
    return RecordedModel(library).imagine(Context(state, ACTIONS), path)


def test_the_most_frequent_result_and_its_certainty(library):
    """Worked example: it opened in 3 of 4 steps, so 3 / 5; then the coin was taken in the only one: 3 / 5 * 1 / 2."""
    for _ in range(2):
        record(library, OPENED)
    record(library, (SHUT, "open box", SHUT, 0.0))
    record(library, OPENED, TAKEN, success=True, ending="success")
    first = imagine(library, "open box")
    assert (first.state.observation, first.actions, first.done) == (OPEN.observation, ACTIONS, False)
    assert first.certainty == pytest.approx(3 / 5)
    second = imagine(library, "open box", "take coin")
    assert (second.done, second.reward, second.info["success"], second.actions) == (True, 1.0, True, ())
    assert second.certainty == pytest.approx(3 / 10)


@pytest.mark.parametrize(("score", "is_success"), [(1.0, True), (0.9, False)])
def test_a_graded_episode_is_solved_with_the_full_outcome(library, score, is_success):
    steps = (Step(OPEN, "take coin", OPEN, Diagnosis(True), 1.0, admissible=ACTIONS),)
    library.record(Trajectory("get the coin", steps, False, score, ending="success", meta={"outcome": "score"}))
    assert imagine(library, "take coin", state=OPEN).info["success"] is is_success


def test_what_was_never_tried_there_is_not_known(library):
    """Degenerate cases: an empty library, another state, another action, another task, or nothing after the end."""
    assert imagine(library, "open box") is None
    record(library, OPENED, TAKEN, success=True, ending="success")
    record(library, OPENED, (OPEN, "look", OPEN, 0.0))
    assert imagine(library, "open box", "take coin", "look") is None
    assert imagine(library, "open box", state=OPEN) is None
    assert imagine(library, "wait") is None
    assert imagine(library, "open box", state=replace(SHUT, task="clean the box")) is None
    assert imagine(library, "open box", "take coin", "wait") is None


def test_the_reward_is_the_mean_of_those_that_were_given(library):
    for reward in (1.0, 0.0):
        record(library, (OPEN, "take coin", OPEN, reward))
    assert imagine(library, "take coin", state=OPEN).reward == 0.5


def test_messages_and_the_order_of_episodes_do_not_matter(library):
    """Invariance."""
    record(library, OPENED)
    record(library, (SHUT, "open box", SHUT, 0.0))
    record(library, OPENED)
    with ExperienceLibrary.open(":memory:") as other:
        for move in (OPENED, OPENED, (SHUT, "open box", SHUT, 0.0)):
            record(other, move)
        assert imagine(library, "open box") == imagine(other, "open box")
    assert imagine(library, "open box", state=replace(SHUT, feedback="Nothing.")) == imagine(library, "open box")


def test_an_episode_that_was_cut_off_does_not_end_there(library):
    record(library, OPENED)
    assert not imagine(library, "open box").done
    record(library, (SHUT, "wait", SHUT, 0.0), ending="task_lost")
    lost = imagine(library, "wait")
    assert lost.done
    assert not lost.info["success"]


def test_new_episodes_are_known_and_those_of_strangers_are_not(library):
    model = RecordedModel(library)
    context = Context(SHUT, ACTIONS)
    record(library, OPENED, trust="untrusted")
    assert model.imagine(context, ["open box"]) is None
    record(library, OPENED)
    assert model.imagine(context, ["open box"]) is not None


def test_a_plan_is_found_in_what_was_recorded(workshop):
    """From random play alone, and without a clone: the shortest chain of actions to the goal."""

    class Single(workshop):  # type: ignore[misc, valid-type]
        """A workshop that nothing looks ahead in."""

        branches = None

    with ExperienceLibrary.open(":memory:") as library:
        learner = Agent("random", library, Single(goal="pickaxe"), max_steps=25)
        for seed in range(12):
            learner.run(seed=seed)
        world, planner = Single(goal="pickaxe"), SearchPlanner(library, RecordedModel(library))
        state, done = world.reset(), False
        while not done:
            plan = planner.plan(Context(state, tuple(world.admissible(state))), ())
            assert plan is not None
            state, _, done, _ = world.step(plan.steps[0].action)
        assert world.ran == ["gather wood", "craft table", "craft pickaxe"]
        agent = Agent("episodic", library, Single(goal="pickaxe"), planner="recorded", max_steps=9, learn=False)
        result = agent.run(seed=1)
        assert result.success
        assert any("plan" in step.why.extra for step in result.trajectory.steps)
