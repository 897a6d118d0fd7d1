"""Numbers of an argument for which a value is right, or for which a call needs another one before it."""

import pytest

from hardwon.memory.learning.calls.choices import CallUse
from hardwon.memory.learning.calls.ranges import find_conditional_need, find_ranged_choice
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.titles import choose_cases, is_in_range

APPROVE = "approve(invoice={1})"
RATE = {3: "short", 9: "middle", 30: "long"}


def book(nights, rate, episode, *, failure=""):
    return CallUse(f'book(guest="{episode}", nights={nights}, rate="{rate}")', episode, failure, {})


def list_bookings(nights, limits=(7, 99)):
    """Return uses in which each rate is tried until one works."""
    uses = []
    for n, number in enumerate(nights):
        right = sum(float(number) > limit for limit in limits)
        uses += [book(number, rate, f"e{n}", failure="" if at == right else "tool_error")
                 for at, rate in enumerate(["short", "middle", "long"][: right + 1])]  # fmt: skip
    return uses


def list_payments(amounts, limit=100, *, vain=()):
    """Return uses of a payment: those above the limit fail, and work after the approval but for those in vain."""
    uses = []
    for n, amount in enumerate(amounts):
        pay, needs = f'pay(invoice="R{n}", amount={amount})', float(amount) > limit
        uses.append(CallUse(pay, f"e{n}", "tool_error" if needs else "", {}))
        if needs:
            failure = "tool_error" if amount in vain else ""
            uses.append(CallUse(pay, f"e{n}", failure, {APPROVE: f'approve(invoice="R{n}")'}))
    return uses


@pytest.mark.parametrize(
    ("nights", "limits", "clauses"),
    [
        ([1, 12, 3, 9, 2, 15, 5, 20], (7, 99), ["nights is 5 or less", "nights is 9 or more"]),
        ([1, 2, 3, 11, 12, 13, 31, 32, 33], (7, 20),
         ["nights is 3 or less", "nights is from 11 to 13", "nights is 31 or more"]),
        ([1.5, 12, 3, 9, 2, 15, 5.25, 20], (7, 99), ["nights is 5.25 or less", "nights is 9 or more"]),
        ([-1, 12, 3, 9, 2, 15, 5, 20], (7, 99), ["nights is 5 or less", "nights is 9 or more"]),
        ([1, 12, 2, 15, 20, 30, 40, 50], (7, 99), []),  # two of one kind
        ([1, 2, 3, 10, 11, 12], (7, 99), []),  # a random order parts these in one of ten
        ([1, 1, 1, 1, 12, 12, 12, 12], (7, 99), []),  # one number of each kind
        ([1, 2, 3, 11, 12, 13, 14], (7, 99), []),  # in one of 17
        ([1, 2, *range(11, 30)], (7, 99), []),  # two are few, however seldom a random order parts them
        ([1, 2, 3, 4, 5, 6, 7], (7, 99), []),
    ],
)  # fmt: skip
def test_a_value_fits_a_range_of_another_argument(nights, limits, clauses):
    choice = find_ranged_choice(list_bookings(nights, limits))
    assert list(choice.cases if choice else ()) == clauses


def test_one_number_that_is_out_of_order_leaves_no_range():
    uses = list_bookings([1, 12, 3, 9, 2, 15, 5, 20])
    assert find_ranged_choice([*uses, book(14, "short", "odd")]) is None
    assert find_ranged_choice([]) is None
    assert find_ranged_choice([*uses, book(9, "short", "same")]) is None
    alone = [CallUse(f"set(rate={n % 2})", f"e{n}", "", {}) for n in range(40)]
    assert find_ranged_choice(alone) is None  # a value is no reason of its own
    assert find_ranged_choice([*uses, book('"many"', "middle", "word")]) is None


@pytest.mark.parametrize(
    ("amounts", "vain", "clause"),
    [
        ([40, 250, 75, 320, 90, 510, 30, 180], (), "amount is above 90"),
        ([40, 250, 75, 320, 90, 510, 30, 180, 600, 700], (180,), "amount is above 90"),
        ([40, 250, 75, 320, 90, 510, 30, 180], (180, 250), None),  # it fails after the approval, too
        ([40, 250, 75, 320, 90, 510, 30, 180, 600, 700, 800, 900], (180, 250, 320), None),
        ([40, 250, 75, 320], (), None),
        ([40, 75, 90, 30, 20, 10], (), None),  # it is never needed
        ([140, 175, 190, 130, 120, 110], (), None),  # it is always needed, which is said without a number
    ],
)
def test_a_call_is_needed_above_the_largest_number_that_worked_without(amounts, vain, clause):
    need = find_conditional_need(list_payments(amounts, vain=vain))
    assert (need and need.clause) == clause
    assert need is None or need.form == APPROVE


def test_the_first_call_of_an_episode_counts_and_enough_must_have_worked_after_the_need():
    uses = list_payments([40, 250, 75, 320, 90, 510, 30, 180])
    again = CallUse('pay(invoice="R1", amount=20)', "e1", "", {})  # a small payment after the large one
    need = find_conditional_need([*uses, again])
    assert need is not None
    assert need.clause == "amount is above 90"
    few = [use for use in uses if not use.prepared or use.episode in ("e1", "e3")]
    assert find_conditional_need(few) is None


def test_a_call_may_be_needed_below_a_number():
    uses = [
        CallUse(use.action.replace("amount=", "amount=-"), use.episode, use.failure, use.prepared)
        for use in list_payments([40, 250, 75, 320, 90, 510, 30, 180])
    ]
    need = find_conditional_need(uses)
    assert need is not None
    assert need.clause == "amount is below -90"


@pytest.mark.parametrize(
    ("call", "is_needed"),
    [
        ("pay(amount=250)", True), ("pay(amount=90)", False), ("pay(amount=90.5)", True), ("pay(amount=-1)", False),
        ('pay(amount="a lot")', True), ("pay(sum=1)", True),
    ],
)  # fmt: skip
def test_a_call_outside_of_the_range_is_not_warned_of(call, is_needed):
    title = "Before `pay`, call `approve` with the same invoice if amount is above 90"
    assert is_in_range(title, parse_action(call)) is is_needed
    assert is_in_range(title.replace("above", "below"), parse_action("pay(amount=250)")) is False
    assert is_in_range("Before `pay`, call `approve`", parse_action(call))


def test_a_range_is_said_whatever_the_present_says():
    title = 'In `book`, use rate="short" if nights is 5 or less, rate="long" if nights is 9 or more'
    assert choose_cases(title, lambda _: False, lambda _: False) == title
