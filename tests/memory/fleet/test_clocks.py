"""Clocks of hosts may be wrong by hours: order, times, leases and trials are those of the server."""

import time
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from tests.memory.fleet.test_trouble import connect
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import Item, State
from hardwon.memory.fleet import log as log_module

HOURS = 3600.0
SHIFTS = (-5 * HOURS, 5 * HOURS, 0.0)
GUARDRAIL = Item("guardrail", "no oven", condition={"text": "oven"}, forbids="touch oven", confidence=0.9)
CALL = State("The oven is hot.", task="cook")


@pytest.fixture
def host(monkeypatch):
    """A host whose clock is wrong by some seconds."""
    real = time.time

    @contextmanager
    def shift(seconds):
        with monkeypatch.context() as changed:
            changed.setattr(time, "time", lambda: real() + seconds)
            yield

    return shift


def test_order_and_times_are_those_of_the_server(url, tmp_path, host, episode):
    with connect(url, tmp_path / "a") as one, connect(url, tmp_path / "b") as two:
        for number in range(6):
            with host(SHIFTS[number % 3]):
                (one, two)[number % 2].record(episode("open drawer", id=f"e{number}"))
                (one, two)[number % 2].add(Item("insight", f"title {number}", "text"))
        one.admin.sync()
        two.admin.sync()
        assert one.admin.query(compute_digest) == two.admin.query(compute_digest)
        rows = list(one.episodes.find())
        times = [datetime.fromisoformat(row["recorded_at"]) for row in sorted(rows, key=lambda row: row["id"])]
        assert times == sorted(times)
        moments = [
            *times,
            *(
                datetime.fromisoformat(change["at"])
                for item in one.items.find()
                for change in one.items.history(item.id)
            ),
        ]
        assert all(abs((moment - datetime.now(UTC)).total_seconds()) < 600 for moment in moments)


@pytest.mark.parametrize("seconds", SHIFTS[:2])
def test_a_lease_lasts_as_long_as_the_server_says(url, tmp_path, host, monkeypatch, seconds):
    monkeypatch.setattr(log_module, "LEASE_S", 3.0)
    with connect(url, tmp_path / "a") as one, connect(url, tmp_path / "b") as two:
        with host(-seconds):
            term = one._file.log.take_lease("one") or 0
        with host(seconds):
            assert two._file.log.take_lease("two") is None
            time.sleep(3.2)
            assert two._file.log.take_lease("two") == term + 1


@pytest.mark.parametrize("seconds", SHIFTS)
def test_a_new_guardrail_holds_on_every_host(url, tmp_path, host, seconds):
    """Its age is that on the server: a host that is late would see it in the future and try it at once."""
    with connect(url, tmp_path / "a") as one, connect(url, tmp_path / "b") as two:
        one.add(GUARDRAIL)
        two.admin.sync()
        with host(seconds):
            assert [two.enforce(CALL, "touch oven").allowed for _ in range(3)] == [False] * 3
