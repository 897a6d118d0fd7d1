"""In a rollout, recall shows nothing of the task instance being played."""

import asyncio
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.records import Diagnosis, Recollection
from hardwon.memory.upkeep.queries import select_steps
from hardwon.runtime.interfaces.types import Info
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
            evidence = tuple(step.id or 0 for step in library.episodes.get(ref).steps)
            library.add(Item("insight", text, signatures=("kitchen",), provenance=evidence))
        library.add(Item("insight", "the kitchen has a shelf", signatures=("kitchen",), source="person"))
        yield library


def recall(library, seed, k=5, split="train", **how):
    async def within():
        if seed is not None:
            rollout._EPISODE.set(rollout._Episode(Spec(split, seed)))
        return library.recall(KITCHEN, k=k, **how)

    return asyncio.run(within())


def within(seed, ask, split="train"):
    """Return what a function returns in a rollout of an instance."""

    async def run():
        rollout._EPISODE.set(rollout._Episode(Spec(split, seed)))
        return ask()

    return asyncio.run(run())


class Fetch:
    """Put a thing where it belongs in three steps: each success is a demonstration for the other instances."""

    name = "fetch"

    def reset(self, task="", seed=0):
        self.thing, self.place = ("milk", "plate", "coat", "book")[seed % 4], ("fridge", "cupboard")[seed // 4 % 2]
        self.done = 0
        return self.state("A kitchen.")

    def state(self, text):
        return State(text, task=f"put the {self.thing} in the {self.place}")

    def admissible(self, state):
        return [*self.wanted(), "wait"]

    def wanted(self):
        return [f"take {self.thing}", f"open {self.place}", f"put {self.thing} in {self.place}"]

    def step(self, action):
        self.done += action == self.wanted()[self.done]
        won = self.done == 3
        return self.state(f"You did: {action}."), float(won), won, Info(success=won)

    def clone(self):
        return Fetch()

    def close(self):
        pass


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
    (step,) = known.episodes.get(other).steps
    assert known.admin.query(select_steps, [step.id], task="have lunch", seed=7) == {step.id}
    assert known.admin.query(select_steps, [step.id], task=TASK, seed=7) == frozenset()


def test_an_item_with_evidence_elsewhere_too_is_shown(known):
    milk = next(item for item in known.items.find() if item.title.startswith("milk"))
    (other,) = known.episodes.get(f"{TASK}#8/put plate on shelf").steps
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
    (step,) = known.episodes.get(f"{TASK}#7/put milk in fridge").steps
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
        for row in library.episodes.find():
            played = library.episodes.get(row["id"])
            like = {ref for step in played.steps for ref in step.why.similar or ()}
            shown += len(like)
            assert library.admin.query(select_steps, like, task=played.task, seed=played.seed) == frozenset()
    assert shown


@pytest.mark.parametrize("planner", ["demonstrations", "skills"])
def test_a_run_never_follows_plans_of_the_instance_that_it_plays(corridor, tmp_path, planner):
    settings = corridor(
        environment={"name": f"{__name__}:Fetch", "max_steps": 12},
        arms={"control": 1, "library": 3},
        tasks={"train": {"seeds": "0-2"}, "eval": {"seeds": "12-13"}},
        explore={"worlds": {"seeds": "4-5"}, "steps": 10, "tries": 1},
        library={"planner": planner, "evolve_every": 1},
        run={"iterations": 3, "groups": 3, "rerolls": 0, "save_every": 3, "out": str(tmp_path / "run")},
    )
    train(settings)
    followed = 0
    with ExperienceLibrary.open(tmp_path / "run" / "library.db") as library:
        for row in library.episodes.find():
            played = library.episodes.get(row["id"])
            for step in played.steps:
                if source := str(step.why.extra.get("demonstration", "")).removeprefix("episode:"):
                    followed += 1
                    assert library.episodes.get(source).seed != played.seed
                for ref in step.why.skills or ():
                    followed += 1
                    evidence = library.items.get(ref).provenance
                    own = library.admin.query(select_steps, evidence, task=played.task, seed=played.seed)
                    assert not own.issuperset(evidence)
    assert followed or planner == "skills"


def test_demonstrations_and_places_of_the_same_instance_are_left_out(known):
    """Also of an imported episode without a split, which may be of any."""
    milk, plate = f"{TASK}#7/put milk in fridge", f"{TASK}#8/put plate on shelf"

    def ask():
        index = OtherWorlds(known).episodes.index_demonstrations()
        return {one.id for one in index.list_demonstrations(TASK)}, index.things

    assert within(7, ask) == ({plate}, {"plate", "shelf"})
    assert within(8, ask) == ({milk}, {"milk", "fridge"})
    assert within(9, ask)[0] == {milk, plate}
    assert {one.id for one in OtherWorlds(known).episodes.index_demonstrations().list_demonstrations(TASK)} == {
        milk,
        plate,
    }
    (soap,) = known.record_many([replace(episode(7, "put soap on shelf"), meta={"split": "dev"})])
    assert within(7, ask)[0] == {plate, soap}
    assert within(7, ask, split="dev")[0] == {plate}


def test_the_lookahead_value_is_that_of_an_unknown_world_if_the_library_has_the_instance(known):
    def ask(library):
        return library.look_ahead(KITCHEN, ["put milk in fridge"])

    with ExperienceLibrary.open(":memory:") as empty:
        unknown = ask(empty)
    assert within(7, lambda: ask(OtherWorlds(known))) == unknown
    assert within(9, lambda: ask(OtherWorlds(known))) == ask(known) != unknown


def guard(known, seed, action, title="stop", **fields):
    """Add a guardrail that rests on the episode of an instance, and return its id."""
    name = {7: "put milk in fridge", 8: "put plate on shelf"}[seed]
    (step,) = known.episodes.get(f"{TASK}#{seed}/{name}").steps
    item = Item(
        "guardrail",
        title,
        forbids=action,
        condition={"text": "kitchen"},
        provenance=(step.id,),
        confidence=0.95,
        **fields,
    )
    admission = known.add(item)
    assert admission.status == "added"
    return admission.item_id


def test_plans_are_checked_by_the_guardrails_of_other_instances_alone(known):
    guard(known, 7, "put milk in fridge", granularity="task")
    guard(known, 8, "put plate on shelf", granularity="task")
    plan = ["put milk in fridge", "put plate on shelf"]

    def check(*actions):
        return OtherWorlds(known).check(KITCHEN, actions).allowed

    assert not known.check(KITCHEN, plan[:1]).allowed
    assert within(7, lambda: check(plan[0]))
    assert not within(8, lambda: check(plan[0]))
    # the first guardrail is lifted, and a later action of the plan is forbidden all the same
    assert not within(7, lambda: check(*plan))


def test_the_words_of_a_lifted_guardrail_are_not_shown(known):
    guard(known, 7, "put milk in fridge", "the milk is for tea")
    guard(known, 8, "put milk in {1}", "the fridge is full")
    library = OtherWorlds(known)
    for ask in (library.check, library.enforce):
        for own, words in ((7, "the fridge is full"), (8, "the milk is for tea")):
            verdict = within(own, lambda ask=ask: ask(KITCHEN, "put milk in fridge"))
            assert (verdict.allowed, verdict.cause, len(verdict.items)) == (False, words, 1)


def test_a_masked_item_of_the_same_instance_is_not_tried(known, monkeypatch):
    """A trial shows an item by its id, although it hurt."""
    masked = tuple(item.id for item in known.items.find())
    monkeypatch.setattr(known, "recall", lambda *args, **how: Recollection(masked=masked))
    shown = {known.items.get(ref).title for ref in recall(OtherWorlds(known), 7).masked}
    assert shown == {"plates belong on the shelf", "the kitchen has a shelf"}


def test_nothing_is_passed_through_but_what_shows_no_instance(known):
    """A method that the library gets later cannot leak before somebody has looked at it."""
    library = OtherWorlds(known)
    passed = {"": set(), "items": {"get", "settle_trial"}, "episodes": {"get", "count", "context", "keys"}}
    for part, names in passed.items():
        real, shown = (getattr(one, part) if part else one for one in (known, library))
        public = {name for name in dir(real) if not name.startswith("_")}
        own = {*dir(type(shown)), *vars(shown)}
        assert {name for name in public - own if hasattr(shown, name)} == names
    with pytest.raises(AttributeError, match="'find' is not passed through"):
        library.items.find()
    with pytest.raises(AttributeError, match="'search' is not passed through"):
        library.search("milk")


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
