"""What needs no line in a hint: what the run has done, and what a remedy says better."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Failure, Hit, Item, Reasons, Recollection, State, Step
from hardwon.runtime.guidance.base import lines_of
from hardwon.runtime.guidance.coverage import find_done

REQUEST = "Refund A-1"
GIFT, CARD = 'refund(order="A-1", to="gift_card")', 'refund(order="A-1", to="card")'
FIX = Item(
    "remedy", "First gift_card", "It worked.", forbids='refund(order={1}, to="card")',
    steps=('refund(order={1}, to="gift_card")',), repairs="tool_error", source="experience", episodes=8, id="fix",
)  # fmt: skip
PRECONDITION = Item(
    "remedy", "First check", "It worked.", steps=("check(order={1})", 'refund(order={1}, to="card")'),
    repairs="tool_error", source="experience", episodes=8, id="before",
)  # fmt: skip


def take(action, failure=Failure.NONE, task=REQUEST, evidence="", **fields):
    diagnosis = Diagnosis(failure is Failure.NONE, failure, evidence=evidence)
    return Step(State(REQUEST, task=task), action, State(""), diagnosis, **fields)


def show(*what, history=(), observation=REQUEST):
    hits = [Hit(each, 1.0, "") for each in what]
    recollection = Recollection(
        items=tuple(hit for hit in hits if isinstance(hit.what, Item)),
        steps=tuple(hit for hit in hits if isinstance(hit.what, Step)),
    )
    return [line.text for line in lines_of(recollection, State(observation, task=REQUEST), history=history)]


@pytest.mark.parametrize(
    ("observation", "done"),
    [
        (f"> {GIFT}\nrefunded", [GIFT]),
        (f"> {GIFT}\nError: no such order", []),
        (f"> {GIFT}\nfailed", []),
        (f"> {GIFT}\n", []),
        (f"{GIFT} worked", [GIFT]),
        (f"- {GIFT} -> ok\n- {CARD}: Error: not paid by card", [GIFT]),
        (f"> {CARD}\nError: no\n\n> {GIFT}\nrefunded (today)", [GIFT]),
        (f"I am about to call {GIFT}", []),
        ("> submit()\ndone", ["submit()"]),
        ("> open drawer\nIt is open.", []),
    ],
)
def test_a_state_shows_what_was_done(observation, done):
    assert find_done(State(observation), ()) == tuple(done)


def test_the_steps_of_the_run_are_what_was_done_for_this_request():
    steps = [take(CARD, Failure.TOOL_ERROR), take(GIFT), take("open drawer"), take("check(order=7)", task="another")]
    assert find_done(State(f"> {CARD}\ndone", task=REQUEST), steps) == (GIFT,)
    assert find_done(None, steps) == ()


@pytest.mark.parametrize(
    ("history", "shown"),
    [((), True), ((CARD,), True), ((GIFT,), False), (('refund(order="B-2", to="gift_card")',), False)],
)
def test_a_fix_is_shown_until_the_call_was_made(history, shown):
    assert bool(show(FIX, history=[take(action) for action in history])) is shown


@pytest.mark.parametrize(("history", "shown"), [((), True), (("check(order=5)",), False), ((CARD,), False)])
def test_a_precondition_is_shown_until_it_is_met(history, shown):
    assert bool(show(PRECONDITION, history=[take(action) for action in history])) is shown


@pytest.mark.parametrize(
    ("history", "shown"),
    [((), True), ((GIFT,), False), (('refund(order="A-1", to="bank")',), False), (('mail(order="A-1")',), True)],
)
def test_what_was_done_for_a_thing_is_not_recommended_with_another_value(history, shown):
    done = [take(action) for action in history]
    assert bool(show(take(GIFT, return_to_go=1.0), history=done, observation="A-1, gift_card")) is shown
    other = take('refund(order="B-2", to="gift_card")', return_to_go=1.0)
    assert show(other, history=[take('refund(order="A-1", to="bank")')], observation="B-2, gift_card")


def test_what_a_remedy_says_is_not_recommended_with_another_value_once_it_was_made():
    choice = replace(FIX, title="In `ship`", steps=("ship(method={1})",), forbids="ship(method={1})")
    other = take('ship(method="careful")', return_to_go=1.0)
    done = [take('ship(method="express")')]
    assert show(other, observation="careful", history=done)  # another parcel, maybe
    assert not show(choice, other, observation="careful", history=done)


def test_a_call_without_arguments_that_was_made_is_not_recommended():
    assert show(take("submit()", return_to_go=1.0))
    assert not show(take("submit()", return_to_go=1.0), history=[take("submit()")])


def test_a_remedy_takes_the_place_of_other_lines_about_its_calls():
    others = [
        Item("guardrail", "Do not card", forbids='refund(order={1}, to="card")', condition={"text": "Refund"},
             source="experience", episodes=8, id="g"),
        Item("strategy", "Prefer `refund(order={order}, to={to})` when you can", source="experience", episodes=8,
             id="s"),
        take(GIFT, return_to_go=1.0),
        take(CARD, Failure.TOOL_ERROR),
    ]  # fmt: skip
    assert len(show(*others)) == 3  # the success is part of the count of the failure
    assert show(FIX, *others) == ["- remedy: First gift_card. It worked."]
    assert show(FIX, *others, history=[take(GIFT)]) == []


def test_what_a_remedy_does_not_say_stays():
    """The words of the error, other values, what a person wrote, and other tools."""
    stays = [
        Item("guardrail", "Do not cash", forbids='refund(order={1}, to="cash")', condition={"text": "Refund"},
             source="experience", episodes=8, id="g"),
        Item("insight", "Be kind to `refund`", id="p"),
        take(CARD, Failure.TOOL_ERROR, evidence="It was paid by gift card"),
        take('mail(order="A-1")', return_to_go=1.0),
    ]  # fmt: skip
    assert len(show(FIX, *stays)) == 5


def test_a_remedy_of_which_no_word_may_be_shown_takes_no_place():
    few = Item(
        "remedy", "First gift_card", steps=FIX.steps, forbids=FIX.forbids, repairs="tool_error", source="experience",
        episodes=2, id="few",
    )  # fmt: skip
    lines = show(few, take(CARD, Failure.TOOL_ERROR), observation="Refund an order.")
    assert lines[0] == "- remedy: After `refund(order={order}, to={to})` failed, other values worked."
    assert len(lines) == 2


def test_actions_of_a_game_are_never_done():
    steps = [take("open drawer", why=Reasons(), return_to_go=0.5)]
    assert show(*steps, history=steps) == []  # only the verb would remain
    assert show(*steps, history=steps, observation="a drawer") == [
        "- in a similar situation, `open drawer` led to a return of 0.50"
    ]
