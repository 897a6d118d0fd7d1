"""Probation: every guardrail is a hypothesis, and is tried again.

After `TRIAL_REFUSALS` refusals or `TRIAL_HOURS` hours the call is let through once, and its outcome
decides. A success takes the guardrail out of force (it goes on as advice, until new failures bring it
back). A failure renews it: the number of refusals doubles with each failed trial in a row, up to
`MOST_REFUSALS`; the time is half of how long the guardrail has been there, from `TRIAL_HOURS` to
`MOST_HOURS`. An outage, or a trial whose outcome nobody recorded, leaves all as it was.

A pinned guardrail is not on probation: a person wants it. The counts are rows of the library, so that
all processes share them; what may not be written (a library opened to be read) is counted in this
process instead.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import LibraryReadOnly, LibraryUnwritable
from hardwon.memory.records import Item
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.database import Store

TRIAL_REFUSALS = 5
"""Refusals after which the next call is let through."""
TRIAL_HOURS = 1.0
"""Hours after which a call is let through, however few were refused."""
MOST_REFUSALS = 320
MOST_HOURS = 24.0
WEAKENED = 0.5
"""What is left of the confidence of a guardrail after a call that it forbids worked."""
_HOUR = 3600.0
_ROW = "refusals, refused, trials, failed, began, tried"


def clock() -> float:
    """Return the time in seconds since 1970."""
    return time.time()


@dataclass(frozen=True, slots=True)
class Standing:
    """How a guardrail stands on its probation."""

    refusals: int = 0
    """Since the last trial."""
    refused: int = 0
    """In all."""
    trials: int = 0
    failed: int = 0
    """Trials that failed, in a row."""
    began: float = 0.0
    """When the guardrail was made, in seconds since 1970."""
    tried: float = 0.0
    """When it was last tried, or made."""

    @property
    def after_refusals(self) -> int:
        """Refusals after which the next trial is due."""
        return min(TRIAL_REFUSALS << min(self.failed, 16), MOST_REFUSALS)

    @property
    def due_at(self) -> float:
        """When the next trial is due, however few calls were refused."""
        held = (self.tried - self.began) / 2 if self.failed else 0.0
        return self.tried + min(max(held, TRIAL_HOURS * _HOUR), MOST_HOURS * _HOUR)

    def is_due(self, now: float) -> bool:
        """Return whether the next call is to be let through; a clock that was set back does not put a trial off."""
        was_set_back = now < self.tried - TRIAL_HOURS * _HOUR
        return self.refusals >= self.after_refusals or now >= self.due_at or was_set_back


class Probation:
    """The standing of the guardrails of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._local: dict[str, Standing] = {}
        self._counts_since = 0.0
        """When this process began to count by itself."""
        self.lifted: set[str] = set()
        """Guardrails whose call worked on a trial that nobody records: out of force in this process."""

    def standing(self, item_id: str) -> Standing:
        """Return how a guardrail stands."""
        known = self._local.get(item_id)
        return _read(self._store.connection, self._namespace, item_id) if known is None else known

    def admits(self, items: tuple[Item, ...], episodes: int = 0, *, keep: bool = True) -> bool:
        """Return whether a call that these guardrails forbid is let through as a trial; count it as refused if not.

        The first of them decides, which counts as a use of it after so many `episodes`. Without `keep` the counts are
        of this process alone, and nothing is written.
        """
        if self._store.read_only or not keep:
            return self._admit_here(items)
        try:
            with self._store.transaction(durable=False) as connection:
                standings = {item.id: _read(connection, self._namespace, item.id) for item in items}
                trial, moved = _moved(items, standings)
                _write(connection, self._namespace, moved)
                for item in items[:1]:
                    _note_use(connection, self._namespace, item.id, episodes)
            return trial
        except (LibraryUnwritable, LibraryReadOnly):
            return self._admit_here(items)

    def _admit_here(self, items: tuple[Item, ...]) -> bool:
        self._counts_since = self._counts_since or clock()  # what happened before, nobody tells this process
        standings = {item.id: self.standing(item.id) for item in items}
        trial, moved = _moved(
            items, {ref: replace(one, tried=max(one.tried, self._counts_since)) for ref, one in standings.items()}
        )
        self._local.update(moved)
        return trial

    def settle(self, item_ids: Iterable[str], worked: bool) -> None:
        """Take the outcome of a trial that nobody records: it decides in this process alone."""
        for ref in item_ids:
            known = self.standing(ref)
            self._local[ref] = replace(known, failed=0 if worked else known.failed + 1)
            if worked:
                self.lifted.add(ref)


def judge_trial(connection: Connection, namespace: int, item_id: str, worked: bool) -> None:
    """Renew a guardrail after a trial that failed, with a longer wait; begin anew after one that worked."""
    known = _read(connection, namespace, item_id)
    _write(connection, namespace, {item_id: replace(known, failed=0 if worked else known.failed + 1)})


def _note_use(connection: Connection, namespace: int, item_id: str, episodes: int) -> None:
    """Write down that an item was of use after so many episodes."""
    moved = connection.execute(
        "UPDATE items SET fresh = ? WHERE namespace = ? AND id = ? AND fresh < ?",
        (episodes, namespace, item_id, episodes),
    )
    if moved.rowcount:
        seal(connection, "items", "namespace = ? AND id = ?", (namespace, item_id))


def _moved(items: tuple[Item, ...], standings: dict[str, Standing]) -> tuple[bool, dict[str, Standing]]:
    """Whether a trial is due for one of the guardrails, of which none is pinned, and how all stand afterwards."""
    now = clock()
    if not any(item.pinned for item in items) and any(one.is_due(now) for one in standings.values()):
        tried = {ref: replace(one, refusals=0, trials=one.trials + 1, tried=now) for ref, one in standings.items()}
        return True, tried
    refused = {ref: replace(one, refusals=one.refusals + 1, refused=one.refused + 1) for ref, one in standings.items()}
    return False, refused


def _read(connection: Connection, namespace: int, item_id: str) -> Standing:
    row = connection.execute(
        f"SELECT {_ROW} FROM probation WHERE namespace = ? AND item_id = ?", (namespace, item_id)
    ).fetchone()
    if row is not None:
        return Standing(*row)
    made = connection.execute(
        "SELECT created_at FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)
    ).fetchone()
    began = _seconds(made[0]) if made else clock()
    return Standing(began=began, tried=began)


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return clock()


def _write(connection: Connection, namespace: int, standings: dict[str, Standing]) -> None:
    rows: list[tuple[Any, ...]] = [
        (namespace, ref, one.refusals, one.refused, one.trials, one.failed, one.began, one.tried)
        for ref, one in standings.items()
    ]
    connection.executemany("INSERT OR REPLACE INTO probation VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
