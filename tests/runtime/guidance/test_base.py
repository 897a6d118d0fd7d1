import asyncio

import pytest

from hardwon.memory import Diagnosis, Failure, Item, Recollection, State, Step
from hardwon.memory.records import Hit
from hardwon.runtime.guidance.base import RetrievalGuidance, WarmUpGuidance, find_occasion
from hardwon.runtime.interfaces.types import Context

HALL = State("You are in the hall. There is a door.")


def item(title, kind="insight", **fields):
    """A hit on an item."""
    return Hit(Item(kind, title, **{"id": title, **fields}), 0.5, "words")


def step(action, failure=Failure.NONE, evidence=""):
    """A hit on a step that led to a return of 0.5."""
    judged = Diagnosis(failure is Failure.NONE, failure, evidence=evidence)
    return Hit(Step(HALL, action, HALL, judged, return_to_go=0.5), 0.5, "words")


def asked(items=(), steps=(), guardrails=(), **fields):
    """What guidance looks at in the hall."""
    return Context(HALL, recollection=Recollection(tuple(items), tuple(steps), tuple(guardrails)), **fields)


def hint(items=(), steps=(), guardrails=()):
    """What is said of a recollection."""
    return RetrievalGuidance().propose(asked(items, steps, guardrails))


NO_EATING = Item("guardrail", "do not eat", "it is poison", condition={"text": "x"}, forbids="eat {1}", id="gu")


def test_nothing_recalled_says_nothing():
    """Abstaining is a valid answer and costs no token."""
    assert hint() is None


def test_what_was_recalled_is_said():
    """A line each: items, guardrails, then steps."""
    said = hint([item("doors stick", body="push hard")], [step("open door")], [NO_EATING])
    assert said.text.splitlines() == [
        "- insight: doors stick. push hard",
        "- guardrail: do not eat. it is poison",
        "- in a similar situation, `open door` led to a return of 0.50",
    ]


def test_it_says_whom_to_credit():
    """Items and guardrails, each once; steps are nobody's."""
    assert hint([item("a"), item("b"), item("a")], [step("open")], [NO_EATING]).item_ids == ("a", "b", "gu")


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ("It is locked.", "- in a similar situation, `open` failed (precondition): It is locked."),
        ("", "- in a similar situation, `open` failed (precondition)"),
    ],
)
def test_a_failed_step_warns(evidence, line):
    """With the words of the environment, where there were any."""
    assert hint(steps=[step("open", Failure.PRECONDITION, evidence)]).text == line


def test_what_a_guardrail_forbids_is_not_recommended():
    """However well it went elsewhere."""
    assert "eat cake" not in hint(steps=[step("eat cake"), step("drink tea")], guardrails=[NO_EATING]).text


def test_what_is_said_twice_is_said_once():
    """Two steps alike make one line."""
    assert hint(steps=[step("open"), step("open")]).text.count("\n") == 0


def test_a_hint_names_the_steps_it_speaks_of():
    """So that a person can ask later on what experience a choice rested."""
    state = State("a hall")
    step = Step(state, "open door", state, Diagnosis(True), id=7, return_to_go=0.5)
    hint = RetrievalGuidance().propose(asked(steps=[Hit(step, 1.0, "near")]))
    assert hint is not None
    assert hint.step_ids == (7,)


def test_a_skill_that_begins_with_what_is_forbidden_is_not_recommended():
    """systems.md §7.8: guidance that recommends a forbidden action is dropped; nobody is credited for it."""
    said = hint([item("dine", "skill", steps=("eat cake", "rest"))], guardrails=[NO_EATING])
    assert said.item_ids == ("gu",)
    assert "dine" not in said.text


def test_when_not_to_use_an_item_is_said():
    """With the item itself."""
    assert hint([item("push doors", when_not_to_use="they are locked")]).text.endswith("Not when: they are locked.")


def fill(library, items):
    for n in range(len(library.items.find()), items):
        library.add(Item("insight", f"fact number {'abcdefghijkl'[n]}"))


def test_guidance_waits_until_it_is_warm(library, episode):
    """Both gates have to open: ten active items, and as many recorded episodes as asked for."""
    guidance, seen = WarmUpGuidance(RetrievalGuidance(), library, episodes=2), []
    for items in (9, 10):
        fill(library, items)
        seen.append(guidance.is_warm)
        library.record(episode())
    assert [*seen, guidance.is_warm] == [False, False, True]
    assert guidance.propose(asked([item("doors stick")])) is not None


def test_items_that_were_retired_do_not_count(library):
    """Only active ones do."""
    fill(library, 10)
    guidance = WarmUpGuidance(RetrievalGuidance(), library, episodes=0)
    assert guidance.is_warm
    library.items.retire(library.items.find()[0].id, "wrong")
    assert not guidance.is_warm


@pytest.mark.parametrize(
    ("steps", "new_situation", "replan", "was_guided", "occasion"),
    [
        (0, True, None, False, "start"),
        (1, True, None, True, "situation"),
        (1, False, None, False, "situation"),
        (1, False, None, True, None),
        (1, False, "a loop", True, "trouble"),
    ],
)
def test_guidance_runs_at_the_start_in_trouble_and_where_it_has_not_run(
    steps, new_situation, replan, was_guided, occasion
):
    given = {"steps": steps, "new_situation": new_situation, "replan": replan, "was_guided": was_guided}
    assert find_occasion(**given) == occasion


def test_awaited_hints_begin_after_the_warm_up_as_well(library, episode):
    guidance = WarmUpGuidance(RetrievalGuidance(), library, items=0, episodes=1)
    context = asked([item("doors stick")])
    assert asyncio.run(guidance.apropose(context)) is None
    library.record(episode())
    assert asyncio.run(guidance.apropose(context)) == guidance.propose(context) is not None
