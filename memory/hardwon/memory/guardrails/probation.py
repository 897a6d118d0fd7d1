"""Probation: every guardrail is a hypothesis that is tested again from time to time.

After `TUNING.trial_refusals` refusals or `TUNING.trial_hours` hours, the call is allowed once as a trial, and its
outcome decides. If the call succeeds, the guardrail is no longer enforced; it remains as advice until new failures
restore it. If the call fails, the guardrail is renewed. The number of refusals until the next trial doubles with every
failed trial in a row, up to `TUNING.max_refusals`. The waiting time is half the age of the guardrail, between
`TUNING.trial_hours` and `TUNING.max_hours`. An outage, or a trial without a recorded outcome, changes nothing.

Pinned guardrails are not on probation. The counts are rows of the library, so all processes share them. If the library
cannot be written or is locked, this process counts in memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import LibraryReadOnly, LibraryUnwritable
from hardwon.memory.records import Item
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.clock import read_clock
from hardwon.memory.storage.database import Store

from .tuning import TUNING

_HOUR = 3600.0
_ROW = "refusals, refused, trials, failed, began, tried"


def clock() -> float:
    """Return the current time in seconds since the epoch."""
    return read_clock()


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a guardrail's probation."""

    refusals: int = 0
    """Refusals since the last trial."""
    refused: int = 0
    """Refusals in total."""
    trials: int = 0
    failed: int = 0
    """Failed trials in a row."""
    began: float = 0.0
    """Creation time of the guardrail, in seconds since the epoch."""
    tried: float = 0.0
    """Time of the last trial, or of the creation."""

    @property
    def after_refusals(self) -> int:
        """Return the number of refusals after which the next trial is due."""
        # 16 bounds the size of the integer
        return min(TUNING.trial_refusals << min(self.failed, 16), TUNING.max_refusals)

    @property
    def due_at(self) -> float:
        """Return the time at which the next trial is due regardless of refusals, in seconds since the epoch."""
        held = (self.tried - self.began) / 2 if self.failed else 0.0
        return self.tried + min(max(held, TUNING.trial_hours * _HOUR), TUNING.max_hours * _HOUR)

    def is_due(self, now: float, *, by_hours: bool = False) -> bool:
        """Return whether the next call should be allowed as a trial; `by_hours` ignores the number of refusals.

        If the system clock was set back by more than an hour, a trial is due at once.
        """
        was_set_back = now < self.tried - TUNING.trial_hours * _HOUR
        return (not by_hours and self.refusals >= self.after_refusals) or now >= self.due_at or was_set_back


class Probation:
    """The probation of all guardrails of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._local: dict[str, Standing] = {}
        self._counts_since = 0.0
        """Time at which this process began to count in memory."""
        self.lifted: set[str] = set()
        """Guardrails whose unrecorded trial succeeded; this process no longer enforces them."""

    def standing(self, item_id: str) -> Standing:
        """Return the current standing of a guardrail."""
        standing = self._local.get(item_id)
        return _read(self._store.connection, self._namespace, item_id) if standing is None else standing

    def admits(self, items: tuple[Item, ...], episodes: int = 0, *, keep: bool = True, by_hours: bool = False) -> bool:
        """Return whether a forbidden call is allowed as a trial; count a refusal otherwise."""
        if self._store.read_only or not keep:
            return self._admit_locally(items, by_hours)
        try:
            # Losing a refusal in a crash is harmless, so the transaction need not wait for the disk.
            with self._store.transaction(durable=False, wait_s=0.0) as connection:
                # read under the write lock: two processes must not both grant the trial that is due
                standings = {item.id: _read(connection, self._namespace, item.id) for item in items}
                trial, updated = _decide_trial(items, standings)
                _write(connection, self._namespace, updated)
                for item in items[:1]:
                    _note_use(connection, self._namespace, item.id, episodes)
            return trial
        except (LibraryUnwritable, LibraryReadOnly):
            return self._admit_locally(items, by_hours)

    def _admit_locally(self, items: tuple[Item, ...], by_hours: bool) -> bool:
        """Decide on a trial with counts in memory, for a library that cannot be written."""
        self._counts_since = self._counts_since or clock()  # earlier refusals by other processes are unknown here
        standings = {item.id: self.standing(item.id) for item in items}
        trial, updated = _decide_trial(
            items,
            {
                ref: replace(standing, tried=max(standing.tried, self._counts_since))
                for ref, standing in standings.items()
            },
            by_hours=by_hours,
        )
        self._local.update(updated)
        return trial

    def settle(self, item_ids: Iterable[str], worked: bool) -> None:
        """Apply the outcome of a trial that is not recorded; it affects this process only."""
        for ref in item_ids:
            standing = self.standing(ref)
            self._local[ref] = replace(standing, failed=0 if worked else standing.failed + 1)
            if worked:
                self.lifted.add(ref)


def judge_trial(connection: Connection, namespace: int, item_id: str, worked: bool) -> None:
    """Record the outcome of a trial: a failure extends the wait until the next one, a success resets it."""
    standing = _read(connection, namespace, item_id)
    _write(connection, namespace, {item_id: replace(standing, failed=0 if worked else standing.failed + 1)})


def _note_use(connection: Connection, namespace: int, item_id: str, episodes: int) -> None:
    """Record that an item was used after this number of episodes."""
    updated = connection.execute(
        # `fresh < ?` skips the write and the new checksum for repeated refusals in one episode
        "UPDATE items SET fresh = ? WHERE namespace = ? AND id = ? AND fresh < ?",
        (episodes, namespace, item_id, episodes),
    )
    if updated.rowcount:
        seal(connection, "items", "namespace = ? AND id = ?", (namespace, item_id))


def _decide_trial(
    items: tuple[Item, ...], standings: dict[str, Standing], *, by_hours: bool = False
) -> tuple[bool, dict[str, Standing]]:
    """Decide whether a trial is due for a call, and return the updated standings.

    A pinned guardrail among the items rules out a trial.
    """
    now = clock()
    # one due guardrail suffices: the outcome of the call judges all that forbid it
    if not any(item.pinned for item in items) and any(
        standing.is_due(now, by_hours=by_hours) for standing in standings.values()
    ):
        # reset now, not with the outcome: a trial whose outcome is never recorded must not repeat at once
        tried = {
            ref: replace(standing, refusals=0, trials=standing.trials + 1, tried=now)
            for ref, standing in standings.items()
        }
        return True, tried
    counted = {
        ref: replace(standing, refusals=standing.refusals + 1, refused=standing.refused + 1)
        for ref, standing in standings.items()
    }
    return False, counted


def _read(connection: Connection, namespace: int, item_id: str) -> Standing:
    """Read the standing of a guardrail; a guardrail without a row starts at its creation."""
    row = connection.execute(
        f"SELECT {_ROW} FROM probation WHERE namespace = ? AND item_id = ?", (namespace, item_id)
    ).fetchone()
    if row is not None:
        return Standing(*row)
    created = connection.execute(
        "SELECT created_at FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)
    ).fetchone()
    began = _seconds(created[0]) if created else clock()
    return Standing(began=began, tried=began)


def _seconds(at: str) -> float:
    """Convert an ISO timestamp to seconds since the epoch; a malformed one counts as now."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return clock()


def _write(connection: Connection, namespace: int, standings: dict[str, Standing]) -> None:
    """Write standings to the library."""
    rows: list[tuple[Any, ...]] = [
        (
            namespace,
            ref,
            standing.refusals,
            standing.refused,
            standing.trials,
            standing.failed,
            standing.began,
            standing.tried,
        )
        for ref, standing in standings.items()
    ]
    connection.executemany("INSERT OR REPLACE INTO probation VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
