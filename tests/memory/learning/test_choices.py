"""What the uses of a call that worked have in common, against those that failed."""

from dataclasses import replace
from itertools import pairwise

import pytest

from hardwon.memory.learning.calls.choices import (
    ArgumentChoice,
    CallUse,
    find_choice,
    find_mended,
    find_needed,
    has_open_choice,
    name_tool,
)

CHECK = "check_order(order={1})"
SUPPORT = 3


def use(order, to, episode, *, failure="", prepared=(), words=()):
    action = f'refund(order="{order}", to="{to}")'
    return CallUse(action, episode, failure, dict.fromkeys(prepared, ""), words=words, task=f"request {episode}")


def list_tries(*requests, values=("card", "voucher", "bank")):
    """Return uses: in each request, the values are tried in turn until the right one; requests are (right, words)."""
    return [
        use(100 + n, value, f"e{n}", failure="" if value == right else "tool_error", words=tuple(words.split()))
        for n, (right, words) in enumerate(requests)
        for value in values[: values.index(right) + 1]
    ]


def list_uses(*groups):
    """Return uses, each in an episode of its own: (beginning of the order, value, how many worked, how many failed)."""
    return [
        use(f"{begin}-{n}", to, f"{begin}{to}{n}", failure="" if n < worked else "tool_error")
        for begin, to, worked, failed in groups
        for n in range(worked + failed)
    ]


@pytest.mark.parametrize(("unprepared", "needed"), [(0, ()), (2, ()), (3, (CHECK,))])
def test_a_call_is_needed_if_all_that_worked_had_it_and_enough_that_failed_had_not(unprepared, needed):
    uses = [use("A-1", "card", f"e{n}", prepared=[CHECK]) for n in range(3)]
    uses += [use("A-1", "card", f"f{n}", failure="tool_error") for n in range(unprepared)]
    assert find_needed(uses, SUPPORT) == needed


def test_a_call_without_which_it_worked_once_is_not_needed():
    uses = [use("A-1", "card", f"f{n}", failure="tool_error") for n in range(9)]
    assert find_needed([*uses, use("A-1", "card", "e", prepared=[CHECK])], SUPPORT) == (CHECK,)
    assert find_needed([*uses, use("A-1", "card", "e", prepared=[CHECK]), use("A-1", "card", "g")], SUPPORT) == ()
    assert find_needed(uses, SUPPORT) == ()


def test_a_value_is_chosen_by_what_an_id_begins_with():
    uses = list_uses(("A", "card", 3, 0), ("A", "bank", 0, 2), ("B", "gift_card", 4, 1), ("B", "card", 0, 1))
    assert find_choice(uses, SUPPORT) == ArgumentChoice(
        "to", {'order begins with "A"': ("card", 3, 3), 'order begins with "B"': ("gift_card", 4, 5)}
    )


@pytest.mark.parametrize(
    "groups",
    [
        [("A", "card", 3, 0), ("B", "gift_card", 2, 0)],  # two episodes are chance
        [("A", "card", 3, 0), ("B", "gift_card", 3, 3)],  # it works half of the time
        [("A", "card", 3, 0), ("B", "card", 3, 0)],  # nothing to choose
        [("A", "card", 3, 0), ("B", "gift_card", 3, 0), ("B", "bank", 3, 0)],  # both work
        [("A", "send to 12 Elm Road", 3, 0), ("B", "send to 9 Oak Lane", 3, 0)],  # texts of requests
    ],
)
def test_chance_and_texts_are_no_choice(groups):
    failures = [("A", "cash", 0, 3), ("B", "cash", 0, 3)]
    assert find_choice(list_uses(*groups, *failures), SUPPORT) is None


@pytest.mark.parametrize(("n", "is_choice"), [(2, False), (3, True)])
def test_values_that_fit_ids_are_a_choice_if_others_failed_there(n, is_choice):
    uses = list_uses(("A", "card", 3, 0), ("B", "gift_card", 3, 0), ("A", "gift_card", 0, n - 1), ("B", "card", 0, 1))
    assert (find_choice(uses, SUPPORT) is not None) is is_choice


def test_one_id_of_many_episodes_is_no_rule_about_ids():
    tries = [("A-1", "card", "gift_card"), ("B-1", "gift_card", "card")] * 4
    uses = [
        use(order, value, f"e{n}", failure=failure)
        for n, (order, right, wrong) in enumerate(tries)
        for value, failure in ((wrong, "tool_error"), (right, ""))
    ]
    assert find_choice(uses, SUPPORT) is None


PAID = [("card", "paid credit card"), ("voucher", "paid gift card"), ("bank", "paid invoice")]


def test_a_value_is_chosen_by_what_the_text_says():
    cases = {
        'the text says "credit"': ("card", 4, 4),
        'the text says "gift"': ("voucher", 4, 4),
        'the text says "invoice"': ("bank", 4, 4),
    }
    assert find_choice(list_tries(*PAID * 4), SUPPORT) == ArgumentChoice("to", cases)


@pytest.mark.parametrize(("tasks", "is_choice"), [(12, True), (3, False)])
def test_a_request_that_is_repeated_tells_nothing_of_other_requests(tasks, is_choice):
    uses = [replace(each, task=f"request {int(each.episode[1:]) % tasks}") for each in list_tries(*PAID * 4)]
    assert (find_choice(uses, SUPPORT) is not None) is is_choice


def test_a_value_may_be_chosen_by_what_the_text_does_not_say():
    choice = find_choice(list_tries(*[("card", "lamp"), ("voucher", "lamp gift")] * 6), SUPPORT)
    assert choice == ArgumentChoice(
        "to", {'the text does not say "gift"': ("card", 6, 6), 'the text says "gift"': ("voucher", 6, 6)}
    )


@pytest.mark.parametrize(
    "requests",
    [
        PAID * 2,  # two requests say each of the words
        [(value, "paid") for value, _ in PAID] * 6,  # no word decides
        [*PAID * 4, *[(value, words) for (value, _), (_, words) in pairwise(PAID)] * 3],
        # twenty words of two requests each: some of them tell four requests from four others by chance
        [(value, " ".join(f"w{(n + k) % 10}" for k in range(5))) for n, (value, _) in enumerate(PAID[:2] * 4)],
    ],
    ids=["few", "alike", "contradictory", "chance"],
)
def test_words_that_may_be_chance_decide_nothing(requests):
    assert find_choice(list_tries(*requests), SUPPORT) is None


def test_the_order_of_the_requests_changes_nothing():
    uses = list_tries(*PAID * 4)
    choice, reverse = find_choice(uses, SUPPORT), find_choice(uses[::-1], SUPPORT)
    assert choice is not None
    assert reverse is not None
    assert choice.cases == reverse.cases


@pytest.mark.parametrize(("n", "is_told"), [(2, False), (3, True)])
def test_what_a_text_must_not_say_is_a_word_of_enough_requests(n, is_told):
    uses = list_tries(*[("card", "paid credit"), ("bank", "paid")] * 6, *[("voucher", "paid gift")] * n)
    assert (find_choice(uses, SUPPORT) is not None) is is_told


@pytest.mark.parametrize(("n", "is_told"), [(4, False), (6, True)])
def test_many_words_tell_few_requests_apart_by_chance(n, is_told):
    """C(8, 4) is 70, and C(12, 6) is 924; there are two words that decide, and 8 others."""
    others = [f"{'abcd'[k % 4]} {'efgh'[k % 3]} h" for k in range(2 * n)]
    words = [f"{word} {rest}" for word, rest in zip(["blue", "red"] * n, others, strict=True)]
    uses = list_tries(*zip(["card", "voucher"] * n, words, strict=True))
    assert (find_choice(uses, SUPPORT) is not None) is is_told


def test_requests_in_which_nothing_worked_count_against_a_value():
    uses = list_tries(*PAID * 4)
    vain = [use(n, "card", f"v{n}", failure="tool_error", words=("paid", "credit", "card")) for n in range(4)]
    choice = find_choice([*uses, *vain], SUPPORT)
    assert choice is not None
    assert [value for value, *_ in choice.cases.values()] == ["voucher", "bank"]


@pytest.mark.parametrize("codes", [("net_30", "net_60"), ("INV30", "SEPA"), ("a-1", "b-2")])
def test_codes_are_values_that_the_text_decides(codes):
    requests = [(codes[0], "an invoice"), (codes[1], "a debit")] * 6
    choice = find_choice(list_tries(*requests, values=codes), SUPPORT)
    assert choice is not None
    assert sorted(value for value, *_ in choice.cases.values()) == sorted(codes)


@pytest.mark.parametrize(
    ("values", "said", "copied"),
    [
        (("30", "60"), "", False),
        (("U9310", "U7711"), " of u9310 and u7711", False),
        (("U9310", "U7711"), "", True),
    ],
    ids=["numbers", "requests name them", "results name them"],
)
def test_what_only_one_customer_has_is_no_code(values, said, copied):
    """Requests of two customers, of which each says the name: `user="U9310" if the text says "anna"`."""
    requests = [(values[0], "for anna"), (values[1], "for bert")] * 6
    tries = list_tries(*requests, values=values)
    tries = [replace(each, task=each.task + said, copied=values if copied else ()) for each in tries]
    assert find_choice(tries, SUPPORT) is None


def test_texts_are_no_values_that_the_text_decides():
    texts = [("send 12 Elm Road", "north"), ("send 9 Oak Lane", "south")] * 4
    assert find_choice(list_tries(*texts, values=("send 12 Elm Road", "send 9 Oak Lane")), SUPPORT) is None


@pytest.mark.parametrize(
    ("calls", "is_open"),
    [
        ([("1", "card"), ("2", "bank")] * 2, True),
        ([("1", "card"), ("2", "bank"), ("3", "voucher")], False),  # each worked once
        ([("1", "card"), ("2", "card")] * 2, False),  # only the order differs
        ([("1", "7 days"), ("1", "9 days")] * 2, False),  # no words
    ],
)
def test_an_argument_of_which_several_words_work_again_and_again_is_open(calls, is_open):
    assert has_open_choice([use(order, to, f"e{n}") for n, (order, to) in enumerate(calls)]) is is_open


def test_a_call_that_shares_an_argument_comes_before_habits():
    login, check = "login()", 'check_order(order="1")'
    worked = [CallUse('refund(order="1")', f"e{n}", "", {"login()": login, CHECK: check}) for n in range(3)]
    failed = [CallUse('refund(order="1")', f"f{n}", "tool_error", {}) for n in range(3)]
    assert find_needed([*worked, *failed], SUPPORT) == (CHECK,)
    alone = [CallUse('refund(order="1")', f"e{n}", "", {"login()": login}) for n in range(3)]
    assert find_needed([*alone, *failed], SUPPORT) == ("login()",)


def test_a_tool_is_named_whatever_its_arguments():
    assert name_tool('refund(tool="x", order="A-1")', "b") == 'use(tool="b", order="A-1")'


def list_payments(n, *, tasks=9, vain=0, lines=0, same=0):
    """Return uses: payments that failed and then worked with other amounts, also of other lines, or failed again."""
    uses = []
    for k in range(n + vain):
        parts = [(f"{k}9", "tool_error"), (f"{max(k, same)}5", "tool_error" if k >= n else "")]
        for amount, failure in parts:
            line = amount if k < lines else "0"
            action = f'book(id="{k}", amount="{amount}", line="{line}")'
            uses.append(CallUse(action, f"e{k}", failure, {}, task=f"request {k % tasks}"))
    return uses


@pytest.mark.parametrize(
    ("uses", "counts"),
    [
        (list_payments(6), (6, 6)),
        (list_payments(6, vain=3), (6, 9)),
        (list_payments(6, vain=4), None),  # other values work by chance
        (list_payments(6, lines=3), (6, 6)),
        (list_payments(6, lines=4), None),  # another argument was changed as well
        (list_payments(6, tasks=2), None),  # trials of two requests
        (list_payments(6, same=2), (6, 6)),
        (list_payments(6, same=3), None),  # a value that is mostly right is the fix
        (list_payments(0), None),
    ],
    ids=[
        "plain",
        "some in vain",
        "too many in vain",
        "another at times",
        "another too often",
        "same tasks",
        "half alike",
        "alike",
        "nothing",
    ],
)
def test_the_argument_that_was_changed_before_the_call_worked_is_to_be_checked(uses, counts):
    choice = find_mended(uses, SUPPORT)
    assert choice == (counts and ArgumentChoice("amount", {"": ("check amount", *counts)}))


@pytest.mark.parametrize(
    ("call", "is_told"),
    [('book(id="{}", to="x")', True), ('book(id="1", to="x")', False), ('book(id="{}")', False)],
    ids=["another value", "the same value", "one argument"],
)
def test_what_is_to_be_checked_is_one_of_several_arguments_with_another_value(call, is_told):
    tries = [("a", "tool_error"), ("b", "")]
    uses = [CallUse(call.format(f"{value}{n}"), f"e{n}", failure, {}) for n in range(6) for value, failure in tries]
    assert (find_mended(uses, SUPPORT) is not None) is is_told
