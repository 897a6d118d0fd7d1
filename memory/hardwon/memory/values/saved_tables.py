"""Value tables that follow the library's steps: loaded from a cache file if there is one, then updated from new steps.

One table holds all steps of a namespace. With a `WorldMap`, the keys of each step are prefixed with its world, so that
returns of one game do not affect another. A library with a single world needs the one table alone.
"""

import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from hardwon.memory.records import Estimate, bounded
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.evidence import (
    ANY_AGAIN,
    Evidence,
    again_key,
    call_keys,
    evidence_of,
    fact_keys,
    facts_of,
)
from hardwon.memory.situations.keys import GUARD_MARK
from hardwon.memory.situations.note_keys import complete_told, find_told_action, is_about_notes
from hardwon.memory.storage.cache_files import OTHER_MAKE, SAVE_AFTER, CacheFile, due
from hardwon.memory.storage.counted import COUNTED_STEPS, TRUSTED, find_counted_writers
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import WorldMap

from .cells import MADE, StoredCells
from .value_table import ValueTable

logger = logging.getLogger("hardwon.memory")

MAX_ID = 2**63 - 1
_READ = 8192
"""Rows per query."""
_KEYS = "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))"
_WORLD_MARK = "\x1f"
"""Separates the world from the key."""


def prefix_with_world(world: int, key: str) -> str:
    """Return a key with the prefix of a world."""
    return f"{world}{_WORLD_MARK}{key}"


def estimate_in_world(values: ValueTable, world: int, keys: Sequence[str], context: str = "") -> Estimate:
    """Estimate the value of an action from the steps of one world."""
    return values.estimate(keys, context, prefix=prefix_with_world(world, ""))


class FiledValues:
    """A value table, with the last step it contains and the last step saved to its cache file."""

    def __init__(
        self,
        store: Store,
        namespace: int,
        cache_file: CacheFile,
        worlds: WorldMap | None = None,
        *,
        witness: int | None = None,
    ) -> None:
        """Create an unread table."""
        self._witness = witness
        self._store = store
        self._namespace = namespace
        self._cache_file = cache_file
        self._worlds = worlds
        self._name = "values" if worlds is None else "world-values"
        self._of_worlds = "" if worlds is None else f" worlds {sorted(worlds.aliases.items())}"
        self._table: ValueTable | None = None
        self._heard = TRUSTED
        self._last_step = 0
        self._filed = 0
        self._saved = 0
        self.unread = True
        """Whether there may be steps that the table does not contain."""

    @property
    def is_read(self) -> bool:
        """Return whether the table has been read."""
        return self._table is not None

    def read(self) -> ValueTable:
        """Return the table, updated with all new steps."""
        if (
            self._witness is None
            and self.unread
            and (heard := find_counted_writers(self._store.rows, self._namespace)) != self._heard
        ):
            self._heard, self._table = heard, None  # a second writer appeared: the untrusted steps no longer count
            self._last_step = self._filed = self._saved = 0
        if self._table is None:  # first use, or the set of counted writers changed
            saved = self._cache_file.load(self._name, self._file_identity) if self._witness is None else None
            self._table = ValueTable(StoredCells(saved.arrays) if saved else None)
            if saved is not None:
                self._last_step, self._filed, self._saved = saved.last, saved.count, saved.count
        if self.unread:
            self.unread = False
            before = self._filed
            # One snapshot for all batches: an episode recorded meanwhile is read completely or not at all.
            with self._store.snapshot():
                self.read_steps(self._table)
            if self._filed - before >= SAVE_AFTER or self._filed - self._saved >= max(SAVE_AFTER, self._saved):
                self.save()  # the read was long or the table doubled; the rest is saved on close
        return self._table

    @property
    def last_step(self) -> int:
        """Return the id of the last step in the table."""
        return self._last_step

    def keys_since(self, step_id: int) -> set[str]:
        """Return the keys of the steps after this one that the table contains."""
        later = FiledValues(self._store, self._namespace, self._cache_file, self._worlds, witness=self._witness)
        later._heard, later._last_step = self._heard, step_id
        values = ValueTable()
        with self._store.snapshot():
            later.read_steps(values, self._last_step)
        return set(values.touched)

    @property
    def _counted(self) -> str:
        """Return the SQL condition on the steps that count."""
        return COUNTED_STEPS[self._heard] if self._witness is None else f"AND witness = {self._witness:d} "

    @property
    def _file_identity(self) -> str:
        """Return the string that identifies how the cache file was made; a file with another string is stale."""
        return f"{MADE}{self._of_worlds}{self._heard}"

    def save(self) -> None:
        """Write the table to its cache file if that is far behind."""
        if (
            self._table is not None
            and self._witness is None
            and self._cache_file.writable
            and due(self._filed - self._saved, self._saved)
        ):
            arrays = StoredCells.arrays(self._table.cells)
            self._cache_file.save(self._name, self._file_identity, self._last_step, self._filed, arrays)
            self._saved = self._filed

    def read_steps(self, values: ValueTable, newest: int = MAX_ID) -> None:
        """Add the steps that were recorded since the last call."""
        # A namespace with few steps is read by its index. Otherwise the unary plus disables that index, because
        # SQLite would sort the whole namespace for every batch; scanning by id needs no sort.
        few = "SELECT count(*) FROM (SELECT 1 FROM steps WHERE namespace = ? LIMIT ?)"
        plus = "" if not self._last_step and self._store.rows(few, (self._namespace, _READ))[0][0] < _READ else "+"
        query = (
            "SELECT id, keys, return_to_go, failure, action, trajectory_id FROM steps "
            f"WHERE {plus}namespace = ? AND id > ? AND id <= ? {self._counted}ORDER BY id LIMIT ?"
        )
        texts: dict[int, str] = {}
        note_words: set[str] = set()
        while rows := self._store.rows(query, (self._namespace, self._last_step, newest, _READ)):
            # Evidence of a step depends on other steps of its episode, so a batch must not split one.
            rows = _whole_episodes(rows)
            cut = self._find_cut(rows)
            ids_of_steps = _parse_key_ids(rows)
            unknown = sorted(set(chain.from_iterable(ids_of_steps)).difference(texts))
            texts.update(new := dict(self._store.rows(_KEYS, (json.dumps(unknown),))))
            note_words.update(filter(find_told_action, new.values()))
            filed = [[text for text in map(texts.get, numbers) if text is not None] for numbers in ids_of_steps]
            facts = [facts_of(keys, row[4]) for keys, row in zip(filed, rows, strict=True)]
            for step_keys, step_facts, (step_id, _, value, _, action, episode), evidence in zip(
                filed, facts, rows, _judge_steps(rows, facts), strict=True
            ):
                world = self._worlds.of(episode) if self._worlds is not None else None
                keys = step_keys if note_words.isdisjoint(step_keys) else complete_told(step_keys)
                keys = self._select_keys(keys, action, world, evidence, step_facts)
                value = bounded(value)  # older files may hold unbounded returns
                values.add(
                    keys,
                    value,
                    step_id,
                    action=action,
                    bad=evidence.bad,
                    lost=evidence.lost,
                    episode=evidence.episode,
                    ends=evidence.ends and evidence.counts and step_id != cut,
                    prefix="" if world is None else prefix_with_world(world, ""),
                )
                if evidence.again is not None and keys and self._worlds is None:
                    self._count_again(values, action, value, step_id, evidence)
            self._last_step = rows[-1][0]
            self._filed += len(rows)

    def _find_cut(self, rows: Sequence[tuple[Any, ...]]) -> int | None:
        """Return the last step of a batch if its episode fills the batch and continues beyond it."""
        (last, *_, episode) = rows[-1]
        if len(rows) < _READ or rows[0][-1] != episode:
            return None
        later = "SELECT 1 FROM steps WHERE namespace = ? AND trajectory_id = ? AND id > ? LIMIT 1"
        return int(last) if self._store.rows(later, (self._namespace, episode, last)) else None

    @staticmethod
    def _count_again(values: ValueTable, action: str, value: float, step_id: int, evidence: Evidence) -> None:
        """Count the repetition of a failed call, both for the form of the call and for all forms."""
        form, bad = parse_action(action).template, bool(evidence.again)
        values.add([again_key(form)], value, step_id, action=action, bad=bad, episode=evidence.episode)
        values.add([ANY_AGAIN], value, step_id, action=form, bad=bad, episode=evidence.episode)

    def _select_keys(
        self, keys: list[str], action: str, world: int | None, evidence: Evidence, facts: tuple[str, ...]
    ) -> list[str]:
        """Return the keys of a step in this table, which has none of steps outside of its worlds.

        An outage has no keys that count failures or what notes told: it says nothing of what was right.
        """
        if not evidence.counts:
            keys = [key for key in keys if not key.startswith(GUARD_MARK) and not is_about_notes(key)]
        if self._worlds is None:
            return [*keys, *call_keys(action), *fact_keys(action, facts)] if keys and evidence.counts else keys
        return [] if world is None else [key for key in keys if not key.startswith(GUARD_MARK)]


def _whole_episodes(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Drop the last episode of a batch of rows, because it may continue beyond the batch.

    An episode that fills the whole batch is kept as it is.
    """
    if len(rows) < _READ or rows[0][-1] == rows[-1][-1]:
        return rows
    begun = next(at for at in range(len(rows) - 1, -1, -1) if rows[at][-1] != rows[-1][-1])
    return rows[: begun + 1]


def _parse_key_ids(rows: list[tuple[Any, ...]]) -> list[list[int]]:
    """Return the key ids of each step; a step with a damaged row has none."""
    try:
        key_ids: list[list[int]] = json.loads(f"[{','.join(row[1] for row in rows)}]")
        return key_ids
    except (ValueError, TypeError):
        return [_parse_row(row) for row in rows]


def _parse_row(row: tuple[Any, ...]) -> list[int]:
    """Return the key ids of one row, or none with a warning if the row is damaged."""
    try:
        return [int(number) for number in json.loads(row[1])]
    except (ValueError, TypeError):
        logger.warning("step %s is damaged and left out. Run: hardwon memory verify", row[0])
        return []


def _judge_steps(rows: list[tuple[Any, ...]], facts: list[tuple[str, ...]]) -> Iterator[Evidence]:
    """Yield the evidence of each step about its call, episode by episode, given the facts of each step."""
    for ref, episode in groupby(zip(rows, facts, strict=True), key=lambda pair: pair[0][-1]):
        steps = list(episode)
        outcomes = [(row[4], row[3]) for row, _ in steps]
        # a number of the id, because an episode that fills a batch comes in several parts
        yield from evidence_of(outcomes, zlib.crc32(ref.encode()), [step_facts for _, step_facts in steps])


def rebuild_values(store: Store, namespace: int) -> ValueTable:
    """Return the values of all recorded steps, ignoring the cache file."""
    truth, values = FiledValues(store, namespace, CacheFile(store, namespace)), ValueTable()
    truth._heard = find_counted_writers(store.rows, namespace)
    truth.read_steps(values)
    return values


def saved_problem(store: Store, namespace: int, *, per_world: bool = False) -> str:
    """Compare the cache file of a namespace's values with its steps.

    A file from before worlds were merged is not a problem; it is ignored the next time it is opened.
    """
    cache_file, worlds = CacheFile(store, namespace), None
    if per_world:
        worlds = WorldMap(store.rows, namespace)
        worlds.read()
    truth, values = FiledValues(store, namespace, cache_file, worlds), ValueTable()
    truth._heard = find_counted_writers(store.rows, namespace)
    wrong = cache_file.problem(truth._name, truth._file_identity)
    if per_world and wrong and wrong.startswith(OTHER_MAKE):
        return ""
    saved = None if wrong else cache_file.load(truth._name, truth._file_identity)
    if saved is None:
        return wrong or ""
    truth.read_steps(values, saved.last)
    held = StoredCells(saved.arrays).all()
    other = sum(held.get(key) != cell for key, cell in values.cells.items()) + len(held.keys() - values.cells.keys())
    return f"{other} keys with other values than their steps" if other else ""
