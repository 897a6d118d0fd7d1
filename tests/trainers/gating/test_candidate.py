"""An episode that tries a candidate shows it where recall finds it among the items of the library, and only there."""

import asyncio
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.gating.item_guidance import ItemGuidance
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.rollouts.candidate import CandidateGuidance
from hardwon.trainers.rollouts.rollout import Spec, current_episode, enter_episode

STATE = State("A closed cupboard is here.", task="find the spoon in the kitchen")
STORED = (
    "The spoon of the kitchen is not in the oven",
    "The spoon of the kitchen is not in the sink",
    "The spoon of the garden is in the shed",
    "The fork of the kitchen is in the drawer",
)


@pytest.fixture
def library():
    with ExperienceLibrary.open(":memory:") as library:
        library.items.add_many([Item("insight", text) for text in STORED])
        yield library


def propose(library, candidate, k):
    """Return the hint of an episode that tries a candidate, and what became of that."""

    async def run():
        enter_episode(Spec("train", 1, candidate=candidate))
        context = Context(STATE, (), OtherWorlds(library).recall(STATE, k=k))
        return await CandidateGuidance(ItemGuidance()).apropose(context), current_episode().tried

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "k", "tried"),
    [
        ("The spoon of the kitchen is in the cupboard", 2, "shown"),
        ("The spoon of the kitchen is in the cupboard", 0, "missed"),
        ("The shovel of the garden is in the shed", 2, "missed"),
        ("Quarterly revenue rose", 4, "missed"),
        (f"{STORED[0]}!", 2, "known"),
    ],
)
def test_a_candidate_is_shown_where_recall_finds_it(library, text, k, tried):
    plain, _ = propose(library, None, k)
    hint, became = propose(library, Item("insight", text, id="x"), k)
    assert became == tried
    if tried == "shown":
        assert text in hint.text
        assert len(hint.text.splitlines()) == len(plain.text.splitlines()), "it takes the place of another"
        assert len(hint.item_ids) == k - 1, "it gets no credit"
    else:
        assert hint == plain


def test_a_candidate_that_was_shown_once_stays_shown(library):
    candidate = Item("insight", "The spoon of the kitchen is in the cupboard", id="x")

    async def run():
        enter_episode(Spec("train", 1, candidate=candidate))
        for state in (STATE, replace(STATE, observation="Rain.", task="wait")):
            recalled = OtherWorlds(library).recall(state, k=2)
            await CandidateGuidance(ItemGuidance()).apropose(Context(state, (), recalled))
        return current_episode().tried

    assert asyncio.run(run()) == "shown"
