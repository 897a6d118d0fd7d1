"""Whether a call has the trait that a remedy says."""

import pytest

from hardwon.memory import Item
from hardwon.memory.guardrails.preconditions import find_remedies, index_remedies
from hardwon.memory.guardrails.traits import find_trait_clause, has_trait
from hardwon.memory.situations.actions import parse_action


@pytest.mark.parametrize(
    ("clause", "has", "lacks"),
    [
        ("keep limit at 50 or less", "search(limit=50)", "search(limit=50.5)"),
        ("keep limit at 50 or more", "search(limit=50)", "search(limit=-60)"),
        ("keep limit at 50 or less", "search(limit=50)", 'search(limit="few")'),
        ('write day as "##.##.####" (# is a digit)', 'book(day="02.03.2027")', 'book(day="2027-03-02")'),
        ('write to as "AA" (A is a capital letter)', 'send(to="DE")', 'send(to="de")'),
        ('begin path with "/srv/logs/"', 'tail(path="/srv/logs/a.log")', 'tail(path="a.log")'),
        ('end to with "/triage"', 'send(to="bug/triage")', 'send(to="triage")'),
        ('include "triage" in labels', 'tag(labels=["bug", "triage"])', 'tag(labels=["bug, triage"])'),
        ('use to="cash"', 'send(to="cash")', 'send(to="Cash money")'),
        ("use limit=50", "search(limit=50)", "search()"),
    ],
)  # fmt: skip
def test_a_call_has_a_trait_or_lacks_it(clause, has, lacks):
    title = f"In `tool`, {clause}"
    assert find_trait_clause(title) == find_trait_clause(f"Before `tool`, call `other`. {title}") == clause
    assert (has_trait(clause, has), has_trait(clause, lacks)) == (True, False)


def test_a_copied_value_is_seen_among_what_results_named():
    clause = "copy user from a result"
    assert has_trait(clause, 'reset(user="U-93")', ("u-93",))
    assert not has_trait(clause, 'reset(user="U-93")')
    assert find_trait_clause(f"In `reset`, {clause}") == ""  # a call does not show it


@pytest.mark.parametrize(
    "title", ["", "In `refund`, use to=", 'In `refund`, use to="card" if order begins with "A"', "Use `refund()`",
              'In `refund`, keep limit at most or less', "In `refund`, do what you like"],
)  # fmt: skip
def test_other_titles_have_no_trait(title):
    clause = find_trait_clause(title)
    assert not has_trait(clause, 'refund(order="A-1", to="card", limit=5)')


@pytest.mark.parametrize(
    ("steps", "forbids", "title", "told"),
    [
        (("send(to={1})",), "send(to={1})", 'In `send`, end to with "/x"', [True, False]),
        (("check()", "send(to={1})"), "send(to={1})",
         'Before `send`, call `check`. In `send`, end to with "/x"', [True, True]),
        (("send(to=b/x)",), "send(to={1})", 'In `send`, use to="b/x"', [True, False]),
        (("send(to=b/x)",), "send(to=b)", "Use `send(to=b/x)`", [True, False]),
        (("send(to={1})",), "send(to={1})", "In `send`, copy to from a result", [False, False]),
    ],
)  # fmt: skip
def test_a_call_that_is_what_a_remedy_says_is_not_warned_of(steps, forbids, title, told):
    """A call that has the trait may still need another one before it."""
    item = Item("remedy", title, steps=steps, forbids=forbids, source="experience", episodes=5)
    remedies = index_remedies([item])
    calls = [f'send(to="{to}")' for to in ("b", "b/x")]
    assert [bool(find_remedies(remedies, call, parse_action(call))) for call in calls] == told
