"""A value that depends on what a request names is said with what decides it, in every door."""

from dataclasses import replace

import pytest
from tests.apps.test_fixes_in_doors import DOORS, GIFT, ask, find_advice, is_error

from hardwon.memory import ExperienceLibrary, Item
from hardwon.runtime.environments.calls import Call, build_state
from hardwon.runtime.integrations.tool_episode import ToolEpisode
from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING

CHANNELS = {"A": "card", "B": "gift_card", "C": "bank"}
ORDERS = [f"{letter}-{number}" for number in (17, 42, 56, 81) for letter in CHANNELS]
UNREADY, CLOSED = "Error: the order is not ready", "Error: this channel is closed"
LESSON = (
    'Before `refund`, call `check_order` with the same order. In `refund`, use to="card" if order begins with "A", '
    'to="gift_card" if order begins with "B", to="bank" if order begins with "C". This worked in 12 of 12 episodes'
)


def record(library, order, *, is_checked=False, channels=CHANNELS):
    """Record a request with a wrong channel first, with or without a call that came too early."""
    right = channels[order[0]]
    wrong = next(channel for channel in CHANNELS.values() if channel != right)
    made = [("refund", {"to": wrong}, UNREADY)] if not is_checked else []
    made += [
        ("check_order", {}, "delivered"),
        ("refund", {"to": wrong}, CLOSED),
        ("refund", {"to": right}, "refunded"),
    ]
    calls = [Call(name, {"order": order, **given}, r, r if is_error(r) else "") for name, given, r in made]
    episode = ToolEpisode(library, ask(order), hides_results=True)
    for n in range(len(calls)):
        episode.add_answer(episode.state(calls[:n]), calls[: n + 1])
    library.record(episode.trajectory(True, ending="success"))
    library.evolve()


@pytest.fixture(autouse=True)
def nothing_is_withheld(monkeypatch):
    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=0.0))
    monkeypatch.setattr("tests.apps.test_fixes_in_doors.ORDERS", ())


def test_only_the_case_of_the_request_is_said(library, monkeypatch):
    for order in ORDERS:
        record(library, order)
    monkeypatch.setattr("tests.apps.test_fixes_in_doors.LAST", "B-99")
    hint = next(iter(DOORS["middleware"](library, (GIFT,))))
    assert 'In `refund`, use to="gift_card" if order begins with "B". This worked' in hint
    assert "bank" not in hint


def test_it_is_recalled_where_others_began_with_the_call_before(library):
    """Requests in other words, of which nobody made the failing call first."""
    library.add(Item("remedy", "Zebras", steps=("check_order(order={1})", "refund(order={1})"), repairs="tool_error"))
    episode = ToolEpisode(library, "My parcel B-98 never came.", hides_results=True)
    episode.add_answer(episode.state(()), (Call("check_order", {"order": "B-98"}, "delivered"),))
    library.record(episode.trajectory(True, ending="success"))
    recalled = library.recall(build_state("My parcel B-99 never came.", (), ""))
    assert [hit.what.title for hit in recalled.items] == ["Zebras"]


@pytest.mark.parametrize("door", DOORS)
def test_the_value_is_said_with_what_decides_it(tmp_path, door):
    with ExperienceLibrary.open(tmp_path / "library.db", "hashing") as library:
        for n, order in enumerate(ORDERS):
            record(library, order, is_checked=n % 3 == 0)
        hint = next(iter(list(DOORS[door](library, (GIFT,)))))
    assert find_advice(hint) == LESSON
    assert not any(order in hint for order in ORDERS)


def test_a_value_of_some_requests_is_no_lesson_for_others(library):
    """What worked after a failure in three requests is not said to all of them once it fails in others."""
    for order in ORDERS:
        record(library, order)
    (remedy,) = library.items.find(["remedy"])
    assert "depends" not in remedy.title
    assert remedy.steps == ("check_order(order={1})", "refund(order={1}, to={2})")


@pytest.mark.parametrize("orders", [ORDERS[:5], [f"{n}-X" for n in range(12)]], ids=["few", "nothing decides"])
def test_without_enough_evidence_there_is_no_choice(library, orders):
    values = ("card", "bank", "gift_card", "bank")
    for n, order in enumerate(orders):
        record(library, order, channels={order[0]: values[n % 4]})
    assert not any("begins with" in item.title for item in library.items.find())
