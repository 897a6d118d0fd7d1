"""The arm that is shown the items of the library alone."""

import asyncio
from pathlib import Path

import pytest
from tests.trainers.folder_base import build_settings

from hardwon.memory import Item, Recollection, State
from hardwon.memory.records import Estimate, Hit, Outcome
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.config.loading import of
from hardwon.trainers.gating.item_guidance import ItemGuidance
from hardwon.trainers.player import Player
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

HALL = State("You are in the hall.", task="find the coin")
LESSON = Item("insight", "to find the prize, open the door first", when_to_use="find the prize", id="a lesson")


def test_items_are_shown_without_counts_and_returns():
    recalled = Recollection(
        items=(Hit(LESSON, 1.0, "like it"),),
        estimates={"go east": Estimate(0.9, 5)},
        outcomes={"go east": Outcome(5, 5)},
    )
    hint = ItemGuidance().propose(Context(HALL, ("go east",), recalled))
    assert hint is not None
    assert "open the door first" in hint.text
    assert "go east" not in hint.text
    assert hint.item_ids == ("a lesson",)
    assert hint.step_ids == ()


@pytest.mark.parametrize(
    ("guidance", "shown"),
    [
        ({"lessons": "items"}, {"none": 1, "items": 3}),
        ({"lessons": "guide"}, {"none": 1, "library": 3}),
        ({"lessons": "items", "retrieved": "library", "guided": "guide"}, {"none": 1, "items": 2, "library": 1}),
    ],
)
def test_demonstrations_show_what_the_recalling_arms_show(tmp_path, monkeypatch, guidance, shown):
    """A policy learns to read lessons from lessons; a guide that has learned nothing is not asked."""
    guide = {"guide": {"settings": {"says": "recalled", "distil": 0}}} if "guide" in guidance.values() else {}
    settings = build_settings(
        tmp_path,
        arms={"control": 1, **dict.fromkeys(guidance, 2)},
        guidance=guidance,
        library={"explored": {"": {"seeds": "20-23"}}},
        warmstart={
            "examples": {"copies": 4, "memory_share": 0.75, "renamed": 1.0},
            "learning": {"updates": 1, "batch": 1},
        },
        roles={"policy": {}, **guide},
    )
    copies: dict[str, int] = {}
    renamed: set[str] = set()
    original = Player.demonstrate

    async def demonstrate(self, paths, arms, rename=None):
        if rename is None:  # to measure prompts
            return await original(self, paths, arms)
        copies.update({arm.memory: count for arm, count in arms.items()})
        specs = [Spec("", 0, arm.name, copy, salt="") for arm, count in arms.items() for copy in range(count)]
        renamed.update(spec.arm for spec in specs if rename(spec) is not str)
        return await original(self, paths, arms, rename)

    monkeypatch.setattr(Player, "demonstrate", demonstrate)
    train(settings)
    assert copies == shown
    assert "control" not in renamed
    assert len(renamed) == len(shown) - 1


def test_without_items_nothing_is_shown():
    recalled = Recollection(estimates={"go east": Estimate(0.9, 5)})
    assert ItemGuidance().propose(Context(HALL, ("go east",), recalled)) is None


def test_an_arm_shows_a_recorded_lesson_and_no_step_of_the_library(corridor):
    settings = corridor(arms={"control": 1, "lessons": 2}, guidance={"lessons": "items"})
    settings["library"] = {"explored": {"": {"seeds": "0-5"}}}
    session = Session.open(of(settings), Path(settings["run"]["out"]))
    try:
        session.library.add(LESSON)
        (played,) = asyncio.run(Player(session).play([("", 0)], {Arm("lessons", "items"): 1}, salt="a"))
        hint = played.trajectory.steps[0].why.memory or ""
        assert "open the door first" in hint
        assert "go east" not in hint
        assert "rewarded" not in hint
    finally:
        session.close()
