"""What a process keeps in memory of one namespace: derived from SQLite, rebuilt from it at any time.

Values of actions, words and their frequencies, active items and their guard. `catch_up` reads what
was written since, by this process or another, in the order in which it was written. The values are
read when they are first asked for, from their file where there is one (see `sidecar`).
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from .catalogue import item_of
from .guardrails import Guard
from .ranking import Known
from .records import Failure, Hit, Item, State, Step
from .sidecar import SAVE_AFTER, Sidecar, due
from .situation import Situation
from .store import Store
from .values import MADE, StoredCells, ValueTable

STRUCTURAL_SHARE = 0.15
"""A word that occurs in this share of the episodes belongs to the structure of the environment."""
STRUCTURAL_AFTER = 15
"""Episodes before any word is called structural."""
MAX_ID = 2**63 - 1
_READ = 8192
_KEYS = "SELECT id, text FROM keys WHERE id IN (SELECT value FROM json_each(?))"
_GOOD = frozenset({Failure.NONE, Failure.STEP_LIMIT})


def structural_words(words: Mapping[str, int], episodes: int) -> frozenset[str]:
    """Return the words that belong to the structure of the environment, of all words with their episodes."""
    enough = STRUCTURAL_SHARE * episodes
    found = (word for word, shown in words.items() if shown >= enough)
    return frozenset(found) if episodes >= STRUCTURAL_AFTER else frozenset()


class Derived:
    """The caches of one namespace; not thread-safe by itself, the library holds the lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._seq = 0
        self._sidecar = Sidecar(store, namespace)
        self._values: ValueTable | None = None
        self._steps_unread = True
        self._last_step = 0
        self._filed = 0
        self._saved = 0
        self._situation: Situation | None = None
        self._words_unread = False
        self._words: dict[str, int] = {}
        self._structural: frozenset[str] = frozenset()
        self._last_episode = 0
        self.episodes = 0
        """Recorded in this namespace, excluded ones apart."""
        self.items: dict[str, Item] = {}
        self.numbers: dict[int, str] = {}
        self.guard = Guard()
        self.bound: dict[str, tuple[Hit, ...]] = {}
        """Items found for a state cluster by search, so that its next visit needs none."""

        self.done: Known = {}
        """What was done in the states that were near, as far as asked."""

        self.reached: dict[str, tuple[str, ...]] = {}
        """By place, the places that recorded steps led to from it, as far as asked."""

        self.task_episodes: dict[str, tuple[list[Step], ValueTable]] = {}
        """What was retrieved once for a task."""

    def catch_up(self) -> frozenset[str]:
        """Read what was written since the last call; returns what kinds of things changed."""
        self.done.clear()
        before = self._seq
        rows = self._store.rows(
            "SELECT iif(op = 'scored', 'score', what), max(seq) FROM changes "
            "WHERE seq > ? AND namespace = ? GROUP BY 1",
            (before, self._namespace),
        )
        if not rows:
            return frozenset()
        self._seq = max(row[1] for row in rows)
        changed = frozenset(row[0] for row in rows)
        if "trajectory" in changed:
            self._count_episodes()
            self._words_unread = self._steps_unread = True
            self.reached.clear()
        if "item" in changed:
            self._read_items()
        elif "score" in changed:
            self._read_scores(before)
        self._situation = None
        self.task_episodes.clear()
        return changed

    def situation(self, state: State) -> Situation:
        """The state prepared for keys; the same object while the state and the words stay the same."""
        if self._situation is None or self._situation.state is not state:
            self._situation = Situation(state, self.structural)
        return self._situation

    @property
    def words(self) -> dict[str, int]:
        """How many episodes showed each word."""
        self._read_words()
        return self._words

    @property
    def structural(self) -> frozenset[str]:
        """The words that belong to the structure of the environment."""
        self._read_words()
        return self._structural

    def _count_episodes(self) -> None:
        ((new, last),) = self._store.rows(
            "SELECT count(*) FILTER (WHERE success IS NOT NULL), max(rowid) FROM trajectories "
            "WHERE rowid > ? AND +namespace = ?",
            (self._last_episode, self._namespace),
        )
        self.episodes += new
        self._last_episode = last or self._last_episode

    def _read_words(self) -> None:
        if not self._words_unread:
            return
        self._words_unread = False
        rows = self._store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (self._namespace,))
        self._words = dict(rows)
        self._structural = structural_words(self._words, self.episodes)

    @property
    def values(self) -> ValueTable:
        """What past steps say about an action, brought up to the truth."""
        return self.read_values()

    def read_values(self) -> ValueTable:
        """The values, read from their file and the steps where that was not done yet."""
        if self._values is None:
            saved = self._sidecar.load("values", MADE)
            self._values = ValueTable(StoredCells(saved.arrays) if saved else None)
            if saved is not None:
                self._last_step, self._filed, self._saved = saved.last, saved.count, saved.count
        if self._steps_unread:
            self._steps_unread = False
            before = self._filed
            with self._store.snapshot():
                self._read_steps(self._values)
            if self._filed - before >= SAVE_AFTER or self._filed - self._saved >= max(SAVE_AFTER, self._saved):
                self.save()  # what took long to read, or has doubled; the rest at closing
        return self._values

    def save(self) -> None:
        """Write the values that this process read to their file, where that is much behind."""
        if self._values is not None and self._sidecar.writable and due(self._filed - self._saved, self._saved):
            arrays = StoredCells.arrays(self._values.cells)
            self._sidecar.save("values", MADE, self._last_step, self._filed, arrays)
            self._saved = self._filed

    def _read_steps(self, values: ValueTable, newest: int = MAX_ID) -> None:
        # few steps among many of others are found by the namespace's index, all others in the order of their ids
        few = "SELECT count(*) FROM (SELECT 1 FROM steps WHERE namespace = ? LIMIT ?)"
        plus = "" if not self._last_step and self._store.rows(few, (self._namespace, _READ))[0][0] < _READ else "+"
        query = (
            "SELECT id, keys, return_to_go, failure, action FROM steps "
            f"WHERE {plus}namespace = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?"
        )
        texts: dict[int, str] = {}
        while rows := self._store.rows(query, (self._namespace, self._last_step, newest, _READ)):
            filed = json.loads(f"[{','.join(row[1] for row in rows)}]")
            unknown = sorted({number for numbers in filed for number in numbers if number not in texts})
            texts.update(self._store.rows(_KEYS, (json.dumps(unknown),)))
            for numbers, (step_id, _, value, failure, action) in zip(filed, rows, strict=True):
                bad, lost = failure not in _GOOD, failure == Failure.TASK_LOST
                values.add([texts[number] for number in numbers], value, step_id, action=action, bad=bad, lost=lost)
            self._last_step = rows[-1][0]
            self._filed += len(rows)

    def _read_items(self) -> None:
        rows = self._store.rows(
            "SELECT number, record FROM items WHERE namespace = ? AND status = 'active' ORDER BY number",
            (self._namespace,),
        )
        self.items, self.numbers = {}, {}
        for number, record in rows:
            item = item_of(record)
            self.items[item.id] = item
            self.numbers[number] = item.id
        self.guard = Guard(self.items.values())
        self.bound.clear()

    def _read_scores(self, after: int) -> None:
        """Items whose score alone changed stay found where they were found."""
        rows = self._store.rows(
            "SELECT record FROM items WHERE namespace = ? AND status = 'active' AND id IN "
            "(SELECT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item')",
            (self._namespace, after, self._namespace),
        )
        moved = {item.id: item for item in (item_of(row[0]) for row in rows)}
        self.items.update(moved)
        if any(item.kind == "guardrail" for item in moved.values()):
            self.guard = Guard(self.items.values())
        for signature, hits in self.bound.items():
            if any(hit.what.id in moved for hit in hits):
                self.bound[signature] = tuple(_with_new(hit, moved) for hit in hits)


def _with_new(hit: Hit, moved: Mapping[str, Item]) -> Hit:
    item = moved.get(hit.what.id) if isinstance(hit.what, Item) else None
    return hit if item is None else replace(hit, what=item)


def saved_problem(store: Store, namespace: int) -> str:
    """How the file of a namespace's values differs from its steps; empty when it does not, or is not there."""
    sidecar = Sidecar(store, namespace)
    wrong = sidecar.problem("values", MADE)
    saved = None if wrong else sidecar.load("values", MADE)
    if saved is None:
        return wrong or ""
    truth, values = Derived(store, namespace), ValueTable()
    truth._read_steps(values, saved.last)
    held = StoredCells(saved.arrays).all()
    other = sum(held.get(key) != cell for key, cell in values.cells.items()) + len(held.keys() - values.cells.keys())
    return f"{other} keys with other values than their steps" if other else ""
