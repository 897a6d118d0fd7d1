"""Tables of values that follow the library's steps: read from a file where there is one, then from the steps.

One table has all steps of a namespace; where a `WorldMap` is given, the keys of each step begin with its world.
"""

import json
import logging
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from hardwon.memory.records import bounded
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.evidence import ANY_AGAIN, Evidence, again_key, call_keys, evidence_of
from hardwon.memory.situations.keys import GUARD_MARK
from hardwon.memory.storage.cache_files import OTHER_MAKE, SAVE_AFTER, Sidecar, due
from hardwon.memory.storage.database import Store

from .value_table import MADE, StoredCells, ValueTable
from .world_values import WorldMap, in_world

logger = logging.getLogger("hardwon.memory")

MAX_ID = 2**63 - 1
_READ = 8192
_KEYS = "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))"

HEARD, ALONE = "", " one writer"
"""Whose steps a table has: the trusted ones, or those of the only writer there is, who is not trusted."""
_FILTERS = {HEARD: "AND witness = 0 ", ALONE: ""}


def heard_in(store: Store, namespace: int) -> str:
    """Return whose steps count in a namespace: an untrusted writer's count while nobody else has written there."""
    (writers,) = store.rows("SELECT count(*), sum(name != '') FROM writers WHERE namespace = ?", (namespace,))
    return ALONE if tuple(writers) == (1, 1) else HEARD


class FiledValues:
    """One table, and up to which step it is read and saved."""

    def __init__(
        self,
        store: Store,
        namespace: int,
        sidecar: Sidecar,
        worlds: WorldMap | None = None,
        *,
        witness: int | None = None,
    ) -> None:
        """Read the steps that count in a namespace, or those of one untrusted writer alone, which have no file."""
        self._witness = witness
        self._store = store
        self._namespace = namespace
        self._sidecar = sidecar
        self._worlds = worlds
        self._name = "values" if worlds is None else "world-values"
        self._of_worlds = "" if worlds is None else f" worlds {sorted(worlds.worlds.aliases.items())}"
        self._table: ValueTable | None = None
        self._heard = HEARD
        self._last_step = 0
        self._filed = 0
        self._saved = 0
        self.unread = True
        """Whether there may be steps that the table has not."""

    @property
    def is_read(self) -> bool:
        """Whether anybody asked for the table yet."""
        return self._table is not None

    def read(self) -> ValueTable:
        """Return the table, brought up to the truth."""
        if self._witness is None and self.unread and (heard := heard_in(self._store, self._namespace)) != self._heard:
            self._heard, self._table = heard, None  # a first writer beside the untrusted one: its steps count no more
            self._last_step = self._filed = self._saved = 0
        if self._table is None:
            saved = self._sidecar.load(self._name, self._made) if self._witness is None else None
            self._table = ValueTable(StoredCells(saved.arrays) if saved else None)
            if saved is not None:
                self._last_step, self._filed, self._saved = saved.last, saved.count, saved.count
        if self.unread:
            self.unread = False
            before = self._filed
            with self._store.snapshot():
                self.read_steps(self._table)
            if self._filed - before >= SAVE_AFTER or self._filed - self._saved >= max(SAVE_AFTER, self._saved):
                self.save()  # what took long to read, or has doubled; the rest at closing
        return self._table

    @property
    def _counted(self) -> str:
        return _FILTERS[self._heard] if self._witness is None else f"AND witness = {self._witness:d} "

    @property
    def _made(self) -> str:
        return f"{MADE}{self._of_worlds}{self._heard}"

    def save(self) -> None:
        """Write the table to its file, where that is much behind."""
        if (
            self._table is not None
            and self._witness is None
            and self._sidecar.writable
            and due(self._filed - self._saved, self._saved)
        ):
            arrays = StoredCells.arrays(self._table.cells)
            self._sidecar.save(self._name, self._made, self._last_step, self._filed, arrays)
            self._saved = self._filed

    def read_steps(self, values: ValueTable, newest: int = MAX_ID) -> None:
        """File the steps that were recorded since."""
        # few steps among many of others are found by the namespace's index, all others in the order of their ids
        few = "SELECT count(*) FROM (SELECT 1 FROM steps WHERE namespace = ? LIMIT ?)"
        plus = "" if not self._last_step and self._store.rows(few, (self._namespace, _READ))[0][0] < _READ else "+"
        query = (
            "SELECT id, keys, return_to_go, failure, action, trajectory_id FROM steps "
            f"WHERE {plus}namespace = ? AND id > ? AND id <= ? {self._counted}ORDER BY id LIMIT ?"
        )
        texts: dict[int, str] = {}
        while rows := self._store.rows(query, (self._namespace, self._last_step, newest, _READ)):
            rows = _whole_episodes(rows)
            filed = _numbers_of(rows)
            unknown = sorted({number for numbers in filed for number in numbers if number not in texts})
            texts.update(self._store.rows(_KEYS, (json.dumps(unknown),)))
            for numbers, (step_id, _, value, _, action, episode), known in zip(filed, rows, _judged(rows), strict=True):
                keys = self._keyed([texts[number] for number in numbers if number in texts], action, episode, known)
                value = bounded(value)  # older files hold any return
                values.add(keys, value, step_id, action=action, bad=known.bad, lost=known.lost, episode=known.episode)
                if known.again is not None and keys and self._worlds is None:
                    self._count_again(values, action, value, step_id, known)
            self._last_step = rows[-1][0]
            self._filed += len(rows)

    @staticmethod
    def _count_again(values: ValueTable, action: str, value: float, step_id: int, known: Evidence) -> None:
        """Count the repetition of a failed call: for its form, and for all forms."""
        form, bad = parse_action(action).template, bool(known.again)
        values.add([again_key(form)], value, step_id, action=action, bad=bad, episode=known.episode)
        values.add([ANY_AGAIN], value, step_id, action=form, bad=bad, episode=known.episode)

    def _keyed(self, keys: list[str], action: str, episode: str, known: Evidence) -> list[str]:
        """The keys of a step in this table; an outage is filed under none that counts failures."""
        if self._worlds is not None:
            world = self._worlds.of(episode)
            return [] if world is None else [in_world(world, key) for key in keys if not key.startswith(GUARD_MARK)]
        if not known.counts:
            return [key for key in keys if not key.startswith(GUARD_MARK)]
        return [*keys, *call_keys(action)] if keys else keys


def _whole_episodes(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows without the last episode's, where it may go on beyond them; one that fills them all is taken as it is."""
    if len(rows) < _READ or rows[0][-1] == rows[-1][-1]:
        return rows
    begun = next(at for at in range(len(rows) - 1, -1, -1) if rows[at][-1] != rows[-1][-1])
    return rows[: begun + 1]


def _numbers_of(rows: list[tuple[Any, ...]]) -> list[list[int]]:
    """Return the numbers of the keys of each step; a step whose row is damaged is filed under none."""
    try:
        found: list[list[int]] = json.loads(f"[{','.join(row[1] for row in rows)}]")
        return found
    except (ValueError, TypeError):
        return [_numbers(row) for row in rows]


def _numbers(row: tuple[Any, ...]) -> list[int]:
    try:
        return [int(number) for number in json.loads(row[1])]
    except (ValueError, TypeError):
        logger.warning("step %s is damaged and left out. Run: hardwon memory verify", row[0])
        return []


def _judged(rows: list[tuple[Any, ...]]) -> Iterator[Evidence]:
    """What each step says of its call, episode by episode."""
    for _, episode in groupby(rows, key=lambda row: row[-1]):
        steps = list(episode)
        yield from evidence_of([(row[4], row[3]) for row in steps], steps[0][0])


def read_anew(store: Store, namespace: int) -> ValueTable:
    """Return the values of the steps that are there, whatever a file says."""
    truth, values = FiledValues(store, namespace, Sidecar(store, namespace)), ValueTable()
    truth._heard = heard_in(store, namespace)
    truth.read_steps(values)
    return values


def saved_problem(store: Store, namespace: int, *, per_world: bool = False) -> str:
    """Return how the file of a namespace's values differs from its steps; empty when it does not, or is not there.

    A file of worlds that were united since is no fault: it is passed over when it is next opened.
    """
    sidecar, worlds = Sidecar(store, namespace), None
    if per_world:
        worlds = WorldMap(store, namespace)
        worlds.read()
    truth, values = FiledValues(store, namespace, sidecar, worlds), ValueTable()
    truth._heard = heard_in(store, namespace)
    wrong = sidecar.problem(truth._name, truth._made)
    if per_world and wrong and wrong.startswith(OTHER_MAKE):
        return ""
    saved = None if wrong else sidecar.load(truth._name, truth._made)
    if saved is None:
        return wrong or ""
    truth.read_steps(values, saved.last)
    held = StoredCells(saved.arrays).all()
    other = sum(held.get(key) != cell for key, cell in values.cells.items()) + len(held.keys() - values.cells.keys())
    return f"{other} keys with other values than their steps" if other else ""
