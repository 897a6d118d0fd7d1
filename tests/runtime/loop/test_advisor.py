"""The advisor: one procedure by which the loop and the middleware turn experience into a hint."""

import asyncio
from dataclasses import replace

import pytest

from hardwon.memory import Hit, Item, Reasons, Recollection, State
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.loop.advisor import Advisor, collect_sources
from hardwon.runtime.loop.holdout import DrawnItems

SEE = State("A door.")
GUARDRAIL = Item("guardrail", "no", condition={"text": "door"}, forbids="push {1}", id="g")


class Fixed:
    """Guidance with one answer, which counts how it is asked."""

    def __init__(self, hint):
        self.hint, self.seen = hint, []

    def propose(self, context):
        self.seen.append(context)
        return self.hint


class Awaited(Fixed):
    """The same for an asynchronous loop."""

    async def apropose(self, context):
        return self.propose(context)


def advise(guidance, library=None, recollection=Recollection(), awaited=False):  # noqa: B008
    advisor = Advisor(library, guidance, False)
    context = Context(SEE, recollection=recollection)
    return asyncio.run(advisor.aadvise("start", context)) if awaited else advisor.advise("start", context)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_hint_is_passed_on_with_its_record(awaited):
    hint = Hint("go east", ("a",), (7,), ModelUsage(5, 1, 0.0, 1), why={"model": "m"})
    guidance = Awaited(hint)
    advice = advise(guidance, awaited=awaited)
    assert advice.hint == hint
    assert advice.usage == hint.usage
    assert 0.0 <= advice.record.pop("seconds") < 30.0
    assert advice.record == {
        "asked": "start", "model": "m", "abstained": False,
        "prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.0, "calls": 1,
    }  # fmt: skip
    assert len(guidance.seen) == 1


@pytest.mark.parametrize("hint", [None, Hint("", usage=ModelUsage(5, 1, 0.0, 1))])
def test_no_hint_is_an_answer_with_a_cost(hint):
    advice = advise(Fixed(hint))
    assert (advice.hint, advice.record["abstained"]) == (None, True)
    assert advice.usage == (hint.usage if hint else ModelUsage())


@pytest.mark.parametrize(("text", "written", "dropped"), [("push door", True, "push door"), ("push door", False, None)])
def test_a_written_hint_with_a_forbidden_action_is_dropped(text, written, dropped):
    recollection = Recollection(guardrails=(GUARDRAIL,))
    advice = advise(Fixed(Hint(text, written=written)), recollection=recollection)
    assert advice.record.get("dropped") == dropped
    assert (advice.hint is None) is bool(dropped)


def test_a_hint_is_recalled_experience_unless_it_says_otherwise():
    recollection = Recollection(guardrails=(GUARDRAIL,))
    assert advise(Fixed(Hint("push door")), recollection=recollection).hint == Hint("push door")


def test_items_are_withheld_only_while_trying(library):
    """Fixed per episode and item, so that a repeated run withholds the same."""
    items = [Item("insight", f"insight {n}", id=f"i{n}") for n in range(200)]
    recollection = Recollection(items=tuple(Hit(item, 1.0, "") for item in items))
    trying = Advisor(library, Fixed(None), True)
    left, drawn = trying.withhold(recollection, "episode")
    withheld = drawn.withheld
    assert 5 <= len(withheld) <= 40
    assert {hit.what.id for hit in left.items} | set(withheld) == {item.id for item in items}
    assert trying.withhold(recollection, "episode") == (left, drawn)
    assert trying.withhold(recollection, "another")[1] != drawn
    assert all(trying.is_withheld("episode", ref) for ref in withheld)
    frozen = replace(trying, is_trying=False)
    assert frozen.withhold(recollection, "episode") == (recollection, DrawnItems())
    assert not any(frozen.is_withheld("episode", ref) for ref in withheld)


def test_sources_are_fields_of_the_reasons():
    assert Reasons(**collect_sources(Hint("x", ("a",), (7,)), DrawnItems(("b",), ("a", "b")))) == {
        "recalled": ["a"], "like": [7], "withheld": ["b"], "masked": ["a", "b"]
    }  # fmt: skip
    assert Reasons(**collect_sources(Hint("x"), DrawnItems())) == {"recalled": [], "like": []}
    assert collect_sources(None, DrawnItems()) == {}
