"""What a process keeps in memory of one namespace: derived from SQLite, rebuilt from it at any time.

Values of actions, words and their frequencies, active items and their guard. `catch_up` reads what
was written since, by this process or another, in the order in which it was written.
"""

import json

from .catalogue import item_of
from .guardrails import Guard
from .records import Failure, Hit, Item, State, Step
from .situation import Situation
from .store import Store
from .values import ValueTable

STRUCTURAL_SHARE = 0.15
"""A word that occurs in this share of the episodes belongs to the structure of the environment."""
STRUCTURAL_AFTER = 15
"""Episodes before any word is called structural."""
_GOOD = frozenset({Failure.NONE, Failure.STEP_LIMIT})


class Derived:
    """The caches of one namespace; not thread-safe by itself, the library holds the lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._seq = 0
        self._last_step = 0
        self._key_texts: dict[int, str] = {}
        self._last_key = 0
        self._situation: Situation | None = None
        self.values = ValueTable()
        self.words: dict[str, int] = {}
        self.episodes = 0
        self.structural: frozenset[str] = frozenset()
        self.items: dict[str, Item] = {}
        self.numbers: dict[int, str] = {}
        self.guard = Guard()
        self.bound: dict[str, tuple[Hit, ...]] = {}
        """Items found for a state cluster by search, so that its next visit needs none."""

        self.reached: dict[str, tuple[str, ...]] = {}
        """By place, the places that recorded steps led to from it, as far as asked."""

        self.task_episodes: dict[str, tuple[list[Step], ValueTable]] = {}
        """What was retrieved once for a task."""

    def catch_up(self) -> frozenset[str]:
        """Read what was written since the last call; returns what kinds of things changed."""
        rows = self._store.rows(
            "SELECT seq, what FROM changes WHERE seq > ? AND namespace = ? ORDER BY seq", (self._seq, self._namespace)
        )
        if not rows:
            return frozenset()
        self._seq = rows[-1][0]
        changed = frozenset(row[1] for row in rows)
        if "trajectory" in changed:
            self._read_words()
            self._read_steps()
            self.reached.clear()
        if "item" in changed:
            self._read_items()
        self._situation = None
        self.task_episodes.clear()
        return changed

    def situation(self, state: State) -> Situation:
        """The state prepared for keys; the same object while the state and the words stay the same."""
        if self._situation is None or self._situation.state is not state:
            self._situation = Situation(state, self.structural)
        return self._situation

    def _read_words(self) -> None:
        (self.episodes,) = self._store.rows(
            "SELECT count(*) FROM trajectories WHERE namespace = ? AND success IS NOT NULL", (self._namespace,)
        )[0]
        self.words = dict(self._store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (self._namespace,)))
        if self.episodes >= STRUCTURAL_AFTER:
            enough = STRUCTURAL_SHARE * self.episodes
            self.structural = frozenset(word for word, episodes in self.words.items() if episodes >= enough)

    def _read_steps(self) -> None:
        rows = self._store.rows(
            "SELECT id, keys, return_to_go, failure, action FROM steps WHERE namespace = ? AND id > ? ORDER BY id",
            (self._namespace, self._last_step),
        )
        # keys after steps: another process may write both in between, and a step must find its keys
        keys = self._store.rows("SELECT id, text FROM keys WHERE id > ? ORDER BY id", (self._last_key,))
        self._key_texts.update(keys)
        self._last_key = keys[-1][0] if keys else self._last_key
        for step_id, filed, value, failure, action in rows:
            texts = [self._key_texts[number] for number in json.loads(filed)]
            bad, lost = failure not in _GOOD, failure == Failure.TASK_LOST
            self.values.add(texts, value, step_id, action=action, bad=bad, lost=lost)
            self._last_step = step_id

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
