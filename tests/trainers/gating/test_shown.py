"""What is shown: near equals take turns, near twins are merged, and a gate may refuse."""

import asyncio
from collections import Counter
from typing import Any, cast

from hardwon.memory import ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Diagnosis, Hit, Recollection
from hardwon.runtime.guidance.base import RetrievalGuidance
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.gating.diversity import DiverseLibrary, Diversity, chunks, merge_pass
from hardwon.trainers.gating.gate import ByRecord, Gated, GatedGuidance, Judgement
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.roles.item_reward import Use, uses_of


def test_near_equal_items_take_turns():
    """systems.md §5: 100 identical queries do not return the same item > 60% when 5 near-equal items exist."""
    for seed in range(5):
        diversity = Diversity(seed=seed)
        near = {f"item{n}": 0.9 - 0.001 * n for n in range(5)}
        first = Counter(diversity.ranked(near)[0] for _ in range(100))
        assert max(first.values()) <= 60
        assert len(first) == 5


def test_the_order_by_hand():
    """s = -rank - 0.4 log(1 + retrievals) - 1[recent]."""
    diversity = Diversity(seed=0, demote=0.0)
    near = {"a": 0.9, "b": 0.8, "c": 0.7}
    assert diversity.ranked(near) == ["a", "b", "c"]
    diversity.settle()
    # a: -0 - 0.4 log 2 - 1 = -1.28; b: -1; c: -2
    assert diversity.ranked(near) == ["b", "a", "c"]


def test_what_was_just_shown_is_demoted_half_of_the_time():
    """systems.md §5: with p = 0.5 demote a first that was just used."""
    diversity = Diversity(seed=0)
    near = {"a": 0.9, "b": 0.1, "c": 0.1, "d": 0.1}
    diversity.ranked(near, k=4)
    diversity.settle()
    last = sum(diversity.ranked(near, asker=str(n))[-1] == "a" for n in range(400))
    assert 150 < last < 250


def test_the_order_of_asking_does_not_matter():
    """Episodes run side by side, and a run must be repeatable."""
    one, other = Diversity(seed=1), Diversity(seed=1)
    near = dict.fromkeys("abcde", 0.5)
    for _ in range(3):
        forward = {asker: one.ranked(near, 2, asker) for asker in "xyz"}
        backward = {asker: other.ranked(near, 2, asker) for asker in "zyx"}
        assert forward == backward
        one.settle()
        other.settle()
    assert one.state_dict() == other.state_dict()


def test_the_same_seed_and_state_give_the_same_order():
    one, other = Diversity(seed=3), Diversity(seed=3)
    ids = dict.fromkeys("abcde", 0.5)
    for n in range(10):
        one.ranked(ids, asker=str(n))
    one.settle()
    other.load_state_dict(one.state_dict())
    assert [one.ranked(ids, asker=str(n)) for n in range(10)] == [other.ranked(ids, asker=str(n)) for n in range(10)]


def test_recall_asks_for_more_and_shows_as_many_as_were_asked_for():
    class Known:
        namespace = "default"

        def recall(self, state, *, k, budget_tokens=None):
            items = tuple(Hit(Item("insight", f"way {n}", id=f"i{n}"), 0.9, "") for n in range(k))
            return Recollection(items)

    library = DiverseLibrary(cast(Any, Known()), Diversity(seed=0))
    shown = {hit.what.id for _ in range(40) for hit in library.recall(State("a hall"), k=1).items}
    assert len(library.recall(State("a hall"), k=2).items) == 2
    assert len(shown) > TUNING.wider / 2
    assert library.namespace == "default"


# -- merging


def near_twins(library, number=3):
    colours = ("red", "blue", "green")
    titles = [f"in the {colours[n]} hall go east first and take the coin there" for n in range(number)]
    return [library.add(Item("insight", title, provenance=(n + 1,))).item_id for n, title in enumerate(titles)]


def test_a_merge_pass_reduces_the_count_and_unites_the_evidence():
    """systems.md §5: merge reduces count and unites evidence."""
    with ExperienceLibrary.open(":memory:") as library:
        near_twins(library)
        other = library.add(Item("insight", "kitchen drawers hold nothing of use", provenance=(9,))).item_id
        merged = merge_pass(library)
        left = library.items(limit=None)
        assert len(left) == 2
        assert merged == 2
        (united,) = [item for item in left if item.id != other]
        assert sorted(united.provenance) == [1, 2, 3]


def test_another_direction_is_another_item():
    with ExperienceLibrary.open(":memory:") as library:
        for n, way in enumerate(("east", "west")):
            library.add(Item("insight", f"in the red hall go {way} first and take the coin there", provenance=(n + 1,)))
        before = len(library.items(limit=None))
        assert merge_pass(library) == 0
        assert len(library.items(limit=None)) == before


def test_what_a_person_pinned_is_not_merged():
    with ExperienceLibrary.open(":memory:") as library:
        for item in near_twins(library):
            assert item is not None
            library.pin(item)
        assert merge_pass(library) == 0
        assert len(library.items(limit=None)) == 3


def test_chunks_hold_the_nearest_together():
    items = [Item("insight", title) for title in ("a b c d", "x y z w", "a b c e", "x y z v")]
    assert [[item.title[0] for item in chunk] for chunk in chunks(items, size=2)] == [["a", "a"], ["x", "x"]]


# -- the gate


class Says:
    def __init__(self, *answers):
        self.answers = list(answers)

    def judge(self, task, text, record):
        return self.answers.pop(0)


def test_a_gate_accepts_refines_or_rejects_and_every_answer_is_logged():
    """systems.md §5: gate accept/refine/reject logged."""
    gate = Gated(Says(Judgement("accept"), Judgement("refine", "go west"), Judgement("reject", why="it misled")))
    assert [passed(gate, "go east") for _ in range(3)] == ["go east", "go west", ""]
    assert [entry["answer"] for entry in gate.answers] == ["accept", "refine", "reject"]
    assert gate.answers[2]["why"] == "it misled"


def passed(gate, text, item=""):
    return asyncio.run(gate.ask(Context(State("a hall", task="find")), text, item=item)).text


def recalled(*titles):
    items = tuple(Hit(Item("insight", title, id=title), 0.9, "") for title in titles)
    return Context(State("a hall", task="find"), recollection=Recollection(items))


def test_guidance_names_only_what_the_gate_lets_pass():
    judged = Says(Judgement("reject"), Judgement("refine", "go west"), Judgement("accept"))
    hint = GatedGuidance(RetrievalGuidance(), Gated(judged)).propose(recalled("one", "two", "three"))
    assert hint is not None
    assert hint.item_ids == ("two", "three")
    assert hint.text == "- insight: go west.\n- insight: three."


def test_where_all_is_rejected_nothing_is_shown():
    assert GatedGuidance(RetrievalGuidance(), Gated(Says(Judgement("reject")))).propose(recalled("one")) is None


def test_equal_answers_are_logged_once_with_how_often():
    gate = Gated(ByRecord())
    for _ in range(3):
        passed(gate, "go east", "i1")
    (answer,) = gate.drain()
    assert (answer["item"], answer["answer"], answer["times"]) == ("i1", "accept", 3)
    assert gate.drain() == []


def test_a_gate_remembers_what_an_item_was_worth():
    gate, other = Gated(ByRecord(least=4)), Gated(ByRecord(least=4))
    gate.record_differences("i1", [-1.0] * 4)
    other.load_state_dict(gate.state_dict())
    assert passed(gate, "go east", "i1") == ""
    assert passed(other, "go east", "i1") == ""
    assert passed(other, "go east", "i2") == "go east"


def test_a_gate_by_record_rejects_what_did_harm():
    gate = ByRecord(least=4)
    assert gate.judge("find", "go east", [-1.0] * 4).answer == "reject"
    assert gate.judge("find", "go east", [-1.0]).answer == "accept"


# -- who used what


def played(name, success, arm="library", **why):
    state = State("a hall")
    return Trajectory(
        "find", (Step(state, "go", state, Diagnosis(True), why=Reasons.of(why)),), success, arm=arm, id=name
    )


def test_an_episode_that_was_shown_steps_and_no_item_is_no_control():
    """It was shown something: what it did without the item is not what one does without memory."""
    rollouts = [
        Rollout(played("a", True, recalled=["i1"], memory="text"), (), "w"),
        Rollout(played("b", False, like=[3], memory="text"), (), "w"),
        Rollout(played("c", False, "control"), (), "w"),
        Rollout(played("d", True), (), "w"),
    ]
    assert uses_of(rollouts) == [("w", "i1", Use((1.0,), (0.0, 1.0)))]


def test_what_failed_is_neither_consumer_nor_control():
    rollouts = [
        Rollout(played("a", True, recalled=["i1"]), (), "w", "policy_error"),
        Rollout(played("b", None, recalled=["i1"]), (), "w"),
    ]
    assert uses_of(rollouts) == []
