"""In a rollout, recall shows nothing of the task instance being played."""

import asyncio
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.records import Diagnosis
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.rollouts import rollout
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.trainer import train

TASK = "put the things away"
KITCHEN = State("You are in the kitchen. A shelf and a fridge are here.", task=TASK, signature="kitchen")


def episode(seed, action, task=TASK):
    pre = replace(KITCHEN, task=task)
    step = Step(pre, action, replace(pre, feedback="done"), Diagnosis(True), 1.0)
    return Trajectory(task, (step,), True, 1.0, seed=seed, id=f"{task}#{seed}/{action}")


@pytest.fixture
def known():
    """A library with an episode of each of two instances, an item from each, and one without evidence."""
    with ExperienceLibrary.open(":memory:") as library:
        ids = library.record_many([episode(7, "put milk in fridge"), episode(8, "put plate on shelf")])
        for ref, text in zip(ids, ("milk belongs in the fridge", "plates belong on the shelf"), strict=True):
            evidence = tuple(step.id or 0 for step in library.trajectory(ref).steps)
            library.add(Item("insight", text, signatures=("kitchen",), provenance=evidence))
        library.add(Item("insight", "the kitchen has a shelf", signatures=("kitchen",), source="person"))
        yield library


def recall(library, seed, k=5, split="train", **how):
    async def within():
        if seed is not None:
            rollout._EPISODE.set(rollout._Episode(Spec(split, seed)))
        return library.recall(KITCHEN, k=k, **how)

    return asyncio.run(within())


def titles(recalled):
    return {hit.what.title for hit in recalled.items}


def actions(recalled):
    return [hit.what.action for hit in recalled.steps]


def test_steps_and_items_of_the_same_task_and_seed_are_left_out(known):
    recalled = recall(OtherWorlds(known), 7)
    assert actions(recalled) == ["put plate on shelf"]
    assert titles(recalled) == {"plates belong on the shelf", "the kitchen has a shelf"}


def test_the_same_seed_of_another_task_is_another_instance(known):
    (other,) = known.record_many([episode(7, "eat", "have lunch")])
    (step,) = known.trajectory(other).steps
    assert known.select_steps([step.id], task="have lunch", seed=7) == {step.id}
    assert known.select_steps([step.id], task=TASK, seed=7) == frozenset()


def test_an_item_with_evidence_elsewhere_too_is_shown(known):
    milk = next(item for item in known.items() if item.title.startswith("milk"))
    (other,) = known.trajectory(f"{TASK}#8/put plate on shelf").steps
    known.add(replace(milk, id="", title="the fridge is cold", provenance=(*milk.provenance, other.id)))
    assert "the fridge is cold" in titles(recall(OtherWorlds(known), 7))


def test_what_is_left_out_makes_room_for_the_next_best(known):
    known.record_many([episode(7, f"put thing {n} away") for n in range(12)])
    assert actions(known.recall(KITCHEN, k=1)) != ["put plate on shelf"]
    recalled = recall(OtherWorlds(known), 7, k=1)
    assert actions(recalled) == ["put plate on shelf"]


def test_outside_of_a_rollout_nothing_changes(known):
    whole = known.recall(KITCHEN)
    recalled = recall(OtherWorlds(known), None)
    assert (recalled.steps, recalled.items) == (whole.steps, whole.items)
    assert len(whole.steps) == 2


def test_a_budget_applies_to_what_is_shown(known):
    recalled = recall(OtherWorlds(known), 7, budget_tokens=12)
    assert 0 < recalled.tokens <= 12


def test_a_guardrail_learned_in_this_instance_alone_does_not_bind_it(known):
    (step,) = known.trajectory(f"{TASK}#7/put milk in fridge").steps
    guardrail = Item(
        "guardrail",
        "no milk",
        forbids="put milk in fridge",
        condition={"text": "kitchen"},
        provenance=(step.id,),
        confidence=0.95,
    )
    assert known.add(guardrail).status == "added"
    library = OtherWorlds(known)

    async def allowed(seed):
        rollout._EPISODE.set(rollout._Episode(Spec("train", seed)))
        return library.check(KITCHEN, "put milk in fridge").allowed

    assert asyncio.run(allowed(7))
    assert not asyncio.run(allowed(8))
    assert not known.check(KITCHEN, "put milk in fridge").allowed


def test_a_run_never_shows_steps_of_the_instance_that_it_plays(corridor, tmp_path):
    """Two instances are played again and again, so without the filter most of what is recalled would be their own."""
    settings = corridor(
        arms={"control": 1, "library": 2},
        tasks={"train": {"seeds": "0-1"}, "eval": {"seeds": "100-103"}},
        run={"iterations": 3, "groups": 2, "rerolls": 0, "save_every": 3, "out": str(tmp_path / "run")},
    )
    train(settings)
    shown = 0
    with ExperienceLibrary.open(tmp_path / "run" / "library.db") as library:
        for row in library.trajectories():
            played = library.trajectory(row["id"])
            like = {ref for step in played.steps for ref in step.why.similar or ()}
            shown += len(like)
            assert library.select_steps(like, task=played.task, seed=played.seed) == frozenset()
    assert shown


def test_estimates_are_kept_unless_the_library_has_the_instance(known):
    """Their counts cannot be split by episode, so one recorded episode of the instance is enough to leave them out."""
    offered = {"put milk in fridge": "", "put plate on shelf": ""}
    assert recall(OtherWorlds(known), 7, actions=offered).estimates == {}
    assert set(recall(OtherWorlds(known), 9, actions=offered).estimates) == {*offered}
    assert recall(OtherWorlds(known), 9).summaries
    assert not recall(OtherWorlds(known), 8).summaries


def test_the_same_seed_of_another_split_is_another_instance(known):
    """In many games all tasks have the same words: dev 9 must be able to use what train 9 taught."""
    known.record_many([replace(episode(9, "put soap on shelf"), meta={"split": "train"})])
    offered = {"put soap on shelf": ""}
    assert "put soap on shelf" not in actions(recall(OtherWorlds(known), 9))
    assert recall(OtherWorlds(known), 9, actions=offered).estimates == {}
    assert "put soap on shelf" in actions(recall(OtherWorlds(known), 9, split="dev"))
    assert set(recall(OtherWorlds(known), 9, split="dev", actions=offered).estimates) == {*offered}
    # without a split, an episode may be of any
    assert "put plate on shelf" not in actions(recall(OtherWorlds(known), 8, split="dev"))
