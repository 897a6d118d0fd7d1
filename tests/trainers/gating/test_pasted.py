"""The baseline that shows recalled episodes as they were."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.trainers.corridor import Corridor, Walks

from hardwon.memory import ExperienceLibrary, Recollection, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Diagnosis, Hit
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.config.loading import of
from hardwon.trainers.gating.pasted import PastedEpisodes, render_episode
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.player import Player
from hardwon.trainers.session import Session

HALL = State("You are in the hall.\nA door is here.", task="find the coin")


def episode(name, *steps, success=True):
    made = tuple(
        Step(HALL, action, replace(HALL, feedback=result), Diagnosis(True), reward, n)
        for n, (action, result, reward) in enumerate(steps)
    )
    return Trajectory(HALL.task, made, success, id=name)


@pytest.fixture
def library():
    with ExperienceLibrary.open(":memory:") as library:
        library.record(episode("a", ("open door", "The door is open.", 0.0), ("take coin", "Taken.", 1.0)))
        library.record(episode("b", ("wait", "Time passes.", 0.0), success=False))
        library.record(episode("c", ("push door", "It opens.", 1.0)))
        yield library


def propose(library, **how):
    return PastedEpisodes(library).propose(Context(HALL, (), library.recall(HALL, level="step", **how)))


def test_an_episode_is_shown_as_it_was(library):
    assert render_episode(library.episodes.get("a")).splitlines() == [
        "An earlier episode. Outcome: success.",
        "It saw: You are in the hall.",
        "A door is here.",
        "- open door: The door is open.",
        "- take coin: Taken. (reward +1.00)",
    ]
    assert "Outcome: failure" in render_episode(library.episodes.get("b"))
    graded = replace(library.episodes.get("b"), score=0.75, meta={"outcome": "score"})
    assert "Outcome: score 0.75." in render_episode(graded)
    long = episode("d", *((f"step {n}", "Done.", 0.0) for n in range(99)))
    assert len(render_episode(long).splitlines()) == TUNING.pasted_steps + 3


def test_two_episodes_of_the_recalled_steps_are_shown_with_their_steps(library):
    hint = propose(library, k=9)
    assert hint.text.count("An earlier episode") == 2
    assert hint.item_ids == ()
    shown = {step.why.trajectory for step in library.episodes.steps(hint.step_ids)}
    assert len(shown) == 2
    assert propose(library, k=1).text.count("An earlier episode") == 1


def test_nothing_recalled_and_untrusted_steps_show_nothing(library):
    assert PastedEpisodes(library).propose(Context(HALL, (), Recollection())) is None
    (step,) = library.episodes.steps([library.episodes.get("a").steps[0].id])
    untrusted = replace(step, why=replace(step.why, untrusted=True))
    recalled = Recollection(steps=(Hit(untrusted, 1.0, "like it"),))
    assert PastedEpisodes(library).propose(Context(HALL, (), recalled)) is None


@pytest.mark.parametrize("is_async", [False, True])
def test_without_a_library_it_reads_that_of_the_agent(is_async):
    """So an export is served with it before anybody has opened a library."""

    class Reads(Walks):
        def decide(self, context):
            hints.append(context.guidance or "")
            return super().decide(context)

    guidance, hints = PastedEpisodes(), list[str]()
    with ExperienceLibrary.open(":memory:") as library:
        for seed in (0, 1):
            agent = Agent(cast(Any, Reads()), library, Corridor(), arm="step", guidance=guidance, max_steps=4)
            asyncio.run(agent.arun("", seed)) if is_async else agent.run("", seed)
            agent.close()
        assert "An earlier episode. Outcome:" in hints[-1]
        with pytest.raises(ConfigError, match="no library"):
            guidance.propose(Context(HALL, (), library.recall(HALL, level="step")))


def test_an_arm_shows_episodes_of_other_instances(corridor):
    settings = corridor(arms={"control": 1, "pasted": 2}, guidance={"pasted": "episodes"})
    settings["library"] = {"explored": {"": {"seeds": "0-5"}}, "guardrails": True}
    session = Session.open(of(settings), Path(settings["run"]["out"]))
    try:
        (played,) = asyncio.run(Player(session).play([("", 0)], {Arm("pasted", "episodes"): 1}, salt="a"))
        hint = played.trajectory.steps[0].why.memory or ""
        assert "An earlier episode. Outcome:" in hint
        assert "rewarded" not in hint
        similar = session.library.episodes.steps(played.trajectory.steps[0].why.similar or ())
        seeds = {session.library.episodes.get(step.why.trajectory or "").seed for step in similar}
        assert seeds
        assert 0 not in seeds
    finally:
        session.close()
