"""`evolve` looks only at items that changed, and decides as if it looked at all of them."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.learning.evidence_watch import EvidenceWatch
from hardwon.memory.learning.rule_mining import RuleMiner


def rule(ref, pattern="open box", context="1: red"):
    return Item(
        "guardrail", f"Do not `{pattern}`", condition={"around": context}, forbids=pattern, id=ref,
        source="experience", writer="rules", confidence=0.9,
    )  # fmt: skip


def test_an_item_is_due_when_it_or_its_cell_changed():
    watch, items = EvidenceWatch(), [rule("a"), rule("b", "open lid"), rule("c", context="1: blue")]
    person = replace(rule("p"), writer="person")
    assert watch.find_due([*items, person]) == items
    assert watch.find_due(items) == []
    watch.note([guard_key(items[1]), "open box | other"])
    assert watch.find_due(items) == [items[1]]
    assert watch.find_due(items) == []
    moved = replace(items[0], condition={"around": "1: blue"})
    assert watch.find_due([moved, *items[1:]]) == [moved]
    watch.note([guard_key(items[0])])  # nothing has this key any more
    assert watch.find_due([moved, *items[1:]]) == []
    watch.note([guard_key(moved)])
    assert watch.find_due([moved, *items[1:]]) == [moved, items[2]]
    watch.note([guard_key(moved)])
    assert watch.find_due(items[1:]) == [items[2]]  # a retired item is not due


def episode(ref, results, action="open red box", observation="A red box is here. You also see a lamp."):
    steps = []
    for worked in results:
        state = State(observation, task="get in")
        steps.append(
            Step(
                state, action, State("done" if worked else observation, task="get in"),
                Diagnosis(worked, Failure.NONE if worked else Failure.PRECONDITION), reward=0.0,
            )
        )  # fmt: skip
    return Trajectory("get in", steps=tuple(steps), success=any(results), id=ref)


@pytest.fixture
def looks(monkeypatch):
    """The items that `released` looks at, by call."""
    calls, real = [], RuleMiner.released

    def released(self, values, items):
        calls.append([item.id for item in items])
        return real(self, values, items)

    monkeypatch.setattr(RuleMiner, "released", released)
    return calls


def test_evolve_looks_at_few_items_and_releases_as_before(tmp_path, looks):
    """Items that are not concerned are looked at once; the one whose call works again is weakened or released."""
    path = tmp_path / "a.db"
    with ExperienceLibrary.open(path) as library:
        for number in range(8):
            library.record(episode(f"bad-{number}", [False, False]))
            library.evolve()
        wrong = library.items.find(["guardrail"])[0]
        library.items.add_many(rule(f"gu-{n}", f"open thing{n}x", f"1: word{n}") for n in range(50))
        library.evolve()
        looks.clear()
        library.record(episode("other", [True], "pull lever", "A lever is here."))
        library.evolve()
        assert looks == [[]]
        library.record(episode("works", [True, True]))
        library.evolve()
        assert wrong.id in looks[-1]
        assert len(looks[-1]) < 10
        assert library.items.get(wrong.id).confidence < wrong.confidence
        for number in range(4):
            library.record(episode(f"works-{number}", [True] * 4))
            library.evolve()
        assert library.items.get(wrong.id).status == "retired"


def test_a_reopened_library_looks_at_all_items_once(tmp_path, looks):
    """What another process recorded meanwhile is not missed."""
    path = tmp_path / "a.db"
    with ExperienceLibrary.open(path) as library:
        for number in range(8):
            library.record(episode(f"bad-{number}", [False, False]))
            library.evolve()
        wrong = library.items.find(["guardrail"])[0]
        with ExperienceLibrary.open(path) as other:
            other.record_many(episode(f"works-{number}", [True] * 4) for number in range(6))
        library.evolve()
        assert library.items.get(wrong.id).status == "retired"
    with ExperienceLibrary.open(path) as library:
        library.record_many(episode(f"bad-again-{number}", [False] * 3) for number in range(20))
        looks.clear()
        library.evolve()
        library.record(episode("later", [True], "pull lever", "A lever is here."))
        library.evolve()
    assert len(looks) == 2
    assert len(looks[1]) <= len(looks[0]) + 2
