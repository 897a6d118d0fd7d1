from collections import Counter

import pytest

from hardwon.memory import Item, Recollection
from hardwon.memory.records import Hit
from hardwon.memory.values.effects import Effects
from hardwon.runtime.agent import Agent
from hardwon.runtime.guidance.base import RetrievalGuidance
from hardwon.runtime.loop.advisor import Advisor
from hardwon.runtime.loop.holdout import DrawnItems, is_forced, is_withheld, without
from hardwon.runtime.loop.tuning import TUNING

GUARDRAIL = Item("guardrail", "no", condition={"text": "x"}, forbids="eat {1}", id="gu")


def test_chances_are_as_specified():
    """systems.md §7.7: sampled with override probability 0.02; an item is held back in one episode of ten."""
    assert (TUNING.override, TUNING.withhold) == (0.02, 0.1)
    forced = sum(is_forced(f"episode {n}", 3, 0) for n in range(5000))
    withheld = sum(is_withheld(f"episode {n}", "in-1") for n in range(5000))
    assert forced / 5000 == pytest.approx(TUNING.override, abs=0.006)
    assert withheld / 5000 == pytest.approx(TUNING.withhold, abs=0.013)


def test_the_same_names_draw_the_same():
    """So that an episode can be run again."""
    assert [is_withheld("e", str(n)) for n in range(50)] == [is_withheld("e", str(n)) for n in range(50)]
    assert [is_forced("e", n, 0) for n in range(99)] == [is_forced("e", n, 0) for n in range(99)]


def test_items_are_held_back_independently():
    """One being held back says nothing of another."""
    both = sum(is_withheld(f"e{n}", "a") and is_withheld(f"e{n}", "b") for n in range(5000))
    assert both / 5000 == pytest.approx(TUNING.withhold**2, abs=0.005)


def test_what_is_held_back_is_not_in_the_recollection():
    """The others are, in order; a guardrail in force is always told."""
    items = [Item("insight", name, id=name) for name in "abc"]
    hits = tuple(Hit(item, 0.5, "") for item in (*items, GUARDRAIL))
    recollection = Recollection(items=hits, guardrails=(GUARDRAIL,))
    shown, withheld = without(recollection, lambda ref: ref in ("b", "gu"))
    assert [hit.what for hit in shown.items] == [items[0], items[2], GUARDRAIL]
    assert withheld == DrawnItems(("b",))
    assert without(recollection, lambda _: False) == (recollection, DrawnItems())


@pytest.fixture
def reader(library, rooms, script):
    """Runs an episode of an agent that reads, and gives the reasons of its steps."""

    def run(seed, **options):
        agent = Agent(script("go east", reads="text"), library, rooms(), **options)
        return [step.why for step in agent.run(seed=seed).trajectory.steps]

    return run


def test_items_are_held_back_while_learning(library, reader):
    """For the whole episode; each step says what it was shown and what was held back."""
    for colour in ("red", "blue", "green", "white"):
        library.add(Item("insight", f"in the {colour} room go to the golden room"))
    modes: Counter[str] = Counter()
    for seed in range(25):
        steps = reader(seed)
        shown = {ref for why in steps for ref in (why.recalled or ())}
        withheld = {ref for why in steps for ref in (why.withheld or ())}
        assert not shown & withheld
        modes.update(shown=len(shown), withheld=len(withheld))
    assert 0 < modes["withheld"] < 0.3 * modes["shown"]
    assert {"recalled", "withheld"} <= {
        usage["mode"] for item in library.items.find() for usage in library.items.usages(item.id)
    }


def test_a_masked_item_is_recorded_as_masked_whether_it_was_shown_or_not(library, reader, monkeypatch):
    """So that its effect is measured among episodes with the same chance."""
    ref = library.add(Item("insight", "in the red room go to the golden room")).item_id
    monkeypatch.setattr(Effects, "left_out", lambda self, world: frozenset({ref}))
    modes: Counter[str] = Counter()
    for seed in range(40):
        steps = reader(seed)
        masked = [why for why in steps if ref in (why.masked or ())]
        modes.update(shown=any(ref in (why.recalled or ()) for why in masked))
        modes.update(withheld=any(ref in (why.withheld or ()) for why in masked))
    assert 0 < modes["shown"] < 12 < modes["withheld"]
    usages = Counter(usage["mode"] for usage in library.items.usages(ref))
    assert usages["masked"] == modes["shown"] + modes["withheld"]


def test_nothing_is_held_back_when_it_counts(library, reader):
    """Not in evaluation; in the control arm nothing is shown that could be."""
    for colour in ("red", "blue", "green", "white"):
        library.add(Item("insight", f"in the {colour} room go to the golden room"))
    evaluated = [why for seed in range(25) for why in reader(seed, learn=False)]
    assert any(why.recalled for why in evaluated)
    assert not any(why.withheld for why in evaluated)
    assert not any(
        why.withheld is not None or why.recalled is not None
        for seed in range(10)
        for why in reader(seed, arm="control")
    )


def forced(library, rooms, script, **options):
    """Steps of thirty long episodes of a policy that wants what is forbidden."""
    ref = library.add(
        Item("guardrail", "no", "it hurts", condition={"text": "red"}, forbids="wait", confidence=0.9, pinned=True)
    ).item_id
    agent = Agent(script("wait", instead="go west"), library, rooms(), max_steps=40, **options)
    return ref, [step for seed in range(30) for step in agent.run(seed=seed).trajectory.steps]


def test_what_is_forbidden_is_tried_now_and_then(library, rooms, script, monkeypatch):
    """systems.md §7.7: about 2 in 100 blocked actions run; the step names the guardrail, and is not blocked by it."""
    monkeypatch.setattr(library, "evolve", lambda: None)  # else it finds guardrails of its own
    ref, steps = forced(library, rooms, script)
    overrode = [step for step in steps if step.why.overridden]
    assert 8 <= len(overrode) <= 45  # of 1200, 24 expected
    assert all(step.action == "wait" and step.why.overridden == (ref,) for step in overrode)
    assert not any(step.why.blocked is not None for step in overrode)
    assert len([usage for usage in library.items.usages(ref) if usage["mode"] == "overridden"]) == len(overrode)


def test_in_evaluation_nothing_forbidden_is_tried(library, rooms, script):
    """It counts."""
    _, steps = forced(library, rooms, script, learn=False)
    assert {step.action for step in steps} == {"go west"}


def test_where_all_is_forbidden_the_step_says_what_was_overridden(library, rooms, script):
    """The choice stands against the guardrail; that is a try of it, too."""
    ref = library.add(Item("guardrail", "no", condition={"text": "red"}, forbids="go east", confidence=0.9)).item_id
    result = Agent(script("go east"), library, rooms(actions=["go east"]), learn=False).run()
    assert result.trajectory.steps[0].why.overridden == (ref,)
    assert all(step.why.overridden is None for step in result.trajectory.steps[1:])


def test_what_hurts_in_this_world_has_its_trials_the_other_way_round():
    """Masked items are shown where they are drawn, and else count as held back; frozen, neither."""
    items = {ref: Item("insight", ref, id=ref) for ref in "abc"}
    recollection = Recollection((Hit(items["a"], 0.9, ""),), masked=("b", "c"))
    shown, withheld = without(recollection, lambda ref: ref == "c", items.__getitem__)
    assert [hit.what.id for hit in shown.items] == ["a", "c"]
    assert withheld == DrawnItems(("b",), masked=("b", "c"))
    assert without(recollection, lambda _: False) == (recollection, DrawnItems())
    none, withheld = without(recollection, lambda ref: ref == "a", items.__getitem__)
    assert none.items == ()
    assert withheld == DrawnItems(("a", "b", "c"), masked=("b", "c"))


def test_nine_of_ten_runs_that_measure_all_advice_have_all_of_it(library):
    """The others measure each item that they would have been shown."""
    items = tuple(Hit(Item("insight", name, id=name), 0.5, "") for name in "abc")
    recollection = Recollection(items=(*items, Hit(GUARDRAIL, 0.5, "")), guardrails=(GUARDRAIL,))
    advisor = Advisor(library, RetrievalGuidance(), is_trying=True)
    drawn = Counter[tuple[str | None, int, tuple[str, ...]]]()
    for n in range(2000):
        kept, sources = advisor.withhold(recollection, f"e{n}", is_measured=True)
        drawn[sources.advice, len(kept.items), sources.withheld] += 1
    assert set(drawn) == {("shown", 4, ()), ("withheld", 0, ("a", "b", "c"))}
    assert drawn["withheld", 0, ("a", "b", "c")] / 2000 == pytest.approx(TUNING.withhold, abs=0.02)
    assert Counter(bool(advisor.withhold(recollection, f"e{n}")[1].withheld) for n in range(2000))[True] > 400


def test_the_first_runs_of_an_own_agent_have_all_advice(library):
    recollection = Recollection(items=tuple(Hit(Item("insight", name, id=name), 0.5, "") for name in "abc"))
    advisor = Advisor(library, RetrievalGuidance(), is_trying=True)
    drawn = [advisor.withhold(recollection, f"e{n}", is_measured=False) for n in range(200)]
    assert drawn == [(recollection, DrawnItems())] * 200
