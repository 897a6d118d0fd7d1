"""The agents of a run: what each arm consults, and that training plays with the whole runtime."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainers.corridor import Corridor

from hardwon.memory import Item
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Decision
from hardwon.trainers.config.schema import LibraryConfig
from hardwon.trainers.rollouts.rollout import Spec, collect
from hardwon.trainers.workers.agent_pool import AgentPool, AgentSpec

CONTROL, RETRIEVED, GUIDED = Arm("control"), Arm("retrieved", "library"), Arm("guided", "role")
BOTH = Arm("both", "all")
LESSON = "in the corridor the prize is in the red room"
TEXT = "a role says: go west"
WEST = 2
"""A seed that begins in the white room, three rooms east of the prize."""


class Follower:
    """A policy that reads text: it follows the plan, else waits, and keeps what it was given to read."""

    name, reads = "follower", "text"

    def __init__(self):
        self.contexts: list[Any] = []

    def decide(self, context):
        self.contexts.append(context)
        planned = context.plan.next.action if context.plan and context.plan.next else None
        return Decision(planned or "wait")

    async def adecide(self, context):
        return self.decide(context)

    @property
    def hints(self):
        return [context.guidance or "" for context in self.contexts]


class Sessions:
    """An engine that is never asked for tokens."""

    async def begin(self, session):
        pass

    async def end(self, session):
        pass


@pytest.fixture
def play(library):
    """Plays episodes in an arm: returns the policy that read them, and the rollouts."""
    casts: list[AgentPool] = []

    def run(arm, *, cast=None, learning=True, seeds=(WEST,), steps=4, **settings):
        cast = cast or open_cast(library, **settings)
        casts.append(cast)
        policy = Follower()
        agent = cast.build_agent(arm, policy, learning=learning, max_steps=steps)
        specs = [Spec("train", seed, arm.name, memory=TEXT) for seed in seeds]
        try:
            sessions: Any = Sessions()
            return policy, asyncio.run(collect({arm.name: agent}, sessions, specs))
        finally:
            agent.close()

    return run


def open_cast(library, **settings):
    """Nothing is withheld unless a test asks for it, so that what is shown does not depend on chance."""
    recalls = LibraryConfig(**{"withhold": False, **settings})
    config = SimpleNamespace(library=recalls, environment=SimpleNamespace(max_steps=4), policy=None)
    stage = SimpleNamespace(
        config=config, environment=Corridor(), engine=Sessions(), prompts=None, context=None, library=library,
        start=None,
    )  # fmt: skip
    return AgentPool(stage)


def make_skill(*steps):
    return Item("skill", "walk", steps=steps, condition={"text": "white room"}, verify={"text": "red room"})


def actions(rollouts):
    return [step.action for step in rollouts[0].trajectory.steps]


@pytest.mark.parametrize(
    ("arm", "lesson", "text"),
    [(CONTROL, False, False), (RETRIEVED, True, False), (GUIDED, False, True), (BOTH, True, True)],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_arm_shows_what_its_name_says(play, library, arm, lesson, text):
    library.add(Item("insight", LESSON))
    policy, _ = play(arm)
    first = policy.hints[0]
    assert (LESSON in first, TEXT in first) == (lesson, text)


@pytest.mark.parametrize("arm", [RETRIEVED, BOTH], ids=lambda arm: arm.name)
def test_a_rollout_plans_with_the_skills_of_the_library(play, library, arm):
    ref = library.add(make_skill("go west", "go west", "go west")).item_id
    _, rollouts = play(arm, planner="skills")
    assert actions(rollouts) == ["go west"] * 3
    assert rollouts[0].trajectory.meta["skills"] == {ref: True}
    assert {*actions(play(arm)[1])} == {"wait"}, "without the setting nothing is planned"
    assert {*actions(play(CONTROL, planner="skills")[1])} == {"wait"}


def test_what_is_left_of_a_plan_is_repaired_in_a_rollout(play, library):
    """The planned action cannot be done here: the rest is dropped, and the skill failed."""
    ref = library.add(make_skill("go west", "fly")).item_id
    _, rollouts = play(RETRIEVED, planner="skills")
    assert actions(rollouts)[:2] == ["go west", "wait"]
    assert rollouts[0].trajectory.meta["skills"] == {ref: False}


def test_guidance_runs_where_a_situation_is_new_and_in_trouble(play, library):
    library.add(Item("insight", LESSON))
    _, (rollout,) = play(RETRIEVED)
    occasions = [step.why.guidance["asked"] for step in rollout.trajectory.steps if step.why.guidance]
    assert len(occasions) == len({*occasions}) == 2


def test_items_are_withheld_in_training_alone(play, library):
    library.add(Item("insight", LESSON))

    def count(**how):
        _, rollouts = play(RETRIEVED, seeds=range(60), steps=1, **{"withhold": True, **how})
        steps = [step for rollout in rollouts for step in rollout.trajectory.steps]
        return sum(bool(step.why.withheld) for step in steps)

    assert 0 < count() < 20
    assert count(withhold=False) == count(learning=False) == count(learn=False) == 0


def test_an_agent_is_kept_for_its_casting(library):
    cast = open_cast(library)
    cast._policies[1.0] = Follower()
    first = cast.get_agent(AgentSpec(CONTROL))
    assert cast.get_agent(AgentSpec(CONTROL)) is first
    assert cast.get_agent(AgentSpec(RETRIEVED)) is not first
    cast.close()
