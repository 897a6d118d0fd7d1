"""What the uses of a call that worked have in common, against those that failed."""

import pytest

from hardwon.memory.learning.generalization import ArgumentChoice, CallUse, find_choice, find_needed

CHECK = "check_order(order={1})"
SUPPORT = 3


def use(order, to, episode, *, failure="", prepared=()):
    return CallUse(f'refund(order="{order}", to="{to}")', episode, failure, dict.fromkeys(prepared, ""))


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
    uses = list_uses(("A", "card", 3, 0), ("B", "gift_card", 4, 1))
    assert find_choice(uses, SUPPORT) == ArgumentChoice("to", "order", {"A": ("card", 3, 3), "B": ("gift_card", 4, 5)})


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
    assert find_choice(list_uses(*groups), SUPPORT) is None
