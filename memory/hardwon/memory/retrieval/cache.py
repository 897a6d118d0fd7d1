"""What one process holds of a namespace in memory: derived from SQLite, and rebuilt from it at any time.

Each part owns its state and answers for it: words, worlds, items in force, statistics, effects, support and findings.
`NamespaceCache.catch_up` tells them what any process wrote since the last call, in the order of writing.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory.records import Hit, Item, State, Step
from hardwon.memory.situations.keys import Situation, guard_keys
from hardwon.memory.storage.counted import EpisodeWords
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import WorldMap
from hardwon.memory.trust.support import Support
from hardwon.memory.values.effects import Effects
from hardwon.memory.values.statistics import Statistics
from hardwon.memory.values.value_table import ValueTable

from .items_in_force import ItemsInForce
from .ranking import BestSteps, RankedRow, Subject, TakenStep
from .request import RecallCache
from .similar_tasks import Tasks

_CHANGES = "SELECT iif(op = 'scored', 'score', what), max(seq) FROM changes WHERE seq > ? AND namespace = ? GROUP BY 1"


class Findings:
    """What recall has found, so that the next visit of a situation searches nothing."""

    def __init__(self, store: Store, namespace: int) -> None:
        self.bound: dict[tuple[str, frozenset[int] | None, frozenset[str], tuple[str, ...]], tuple[Hit, ...]] = {}
        """By cluster, applicable worlds, words and reachable places: items found by search, until the items change."""
        self.subjects: dict[str, Subject] = {}
        """By item: its words with their weights, until an item or an episode is added."""
        self.done: dict[frozenset[int] | None, BestSteps] = {}
        """By applicable worlds: the best steps taken in states, filled on demand."""
        self.voters: dict[tuple[str, bool, frozenset[int] | None], list[TakenStep]] = {}
        """By signature, whether the preceding actions were read, and applicable worlds: the voting steps."""
        self.nearest: dict[tuple[str, frozenset[int] | None, bool], list[RankedRow]] = {}
        """By text, applicable worlds, and whether it was a question: the states that search found."""
        self.ranked: dict[tuple[Any, ...], tuple[tuple[Hit, ...], int]] = {}
        """Recalled steps, by everything they depend on; states often recur before the next write."""
        self.recollections = RecallCache()
        """Results of recalls in known situations; states often recur before the next write."""
        self.steps: dict[int, Step | None] = {}
        """Recalled steps by id, without texts that read like instructions; None if the action does."""
        self.reached: dict[str, tuple[str, ...]] = {}
        """By place, the places that recorded steps reached from it, filled on demand; none if no item has a place."""
        self.uses: Mapping[str, int] | None = None
        """The number of uses of each form of action in untrusted steps."""
        self.task_episodes: dict[str, tuple[list[Step], ValueTable]] = {}
        """By task: steps of similar tasks and their values."""
        self.tasks = Tasks(store, namespace)

    def forget(self, changed: Collection[str]) -> None:
        """Drop what these kinds of changes may have altered."""
        for lookup in (self.done, self.voters, self.ranked, self.recollections):
            lookup.clear()
        if changed:
            self.uses = None
            self.nearest.clear()  # only after a change: vectors that a search writes do not alter its results
            self.task_episodes.clear()
        if "trajectory" in changed or "item" in changed:  # both change how rare words are
            self.subjects.clear()
            self.reached.clear()
        if "item" in changed:  # new items may fit clusters that were already searched
            self.bound.clear()

    def forget_searches(self) -> None:
        """Drop the results of earlier searches."""
        for lookup in (self.bound, self.nearest, self.ranked, self.recollections):
            lookup.clear()

    def exchange(self, updated: Mapping[str, Item]) -> None:
        """Replace items of which only the score changed; search results for them stay valid."""
        for cluster, hits in self.bound.items():
            if any(hit.what.id in updated for hit in hits):
                self.bound[cluster] = tuple(
                    replace(hit, what=updated[hit.what.id])
                    if isinstance(hit.what, Item) and hit.what.id in updated
                    else hit
                    for hit in hits
                )


class NamespaceCache:
    """The parts of one namespace; not thread-safe, so callers hold the library's lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._seq = 0
        self._situation: Situation | None = None
        self.words = EpisodeWords(store.rows, namespace)
        self.worlds = WorldMap(store.rows, namespace)
        """The worlds (environments and kinds of task) of the episodes."""
        self.items = ItemsInForce(store, namespace, self.worlds, self.words)
        self.statistics = Statistics(store, namespace, self.worlds, self.words)
        self.effects = Effects(store, namespace, self.worlds, lambda: self.items.by_id)
        self.support = Support(store, namespace)
        self.findings = Findings(store, namespace)

    def catch_up(self) -> Collection[str]:
        """Read what was written since the last call, and return the kinds of changes."""
        before = self._seq
        changed: dict[str, int] = dict(self._store.rows(_CHANGES, (before, self._namespace)))
        self.findings.forget(changed)
        if not changed:
            return ()
        self._seq = max(changed.values())
        self._situation = None
        if "trajectory" in changed:
            self._read_episodes()
        if "item" in changed:  # a change of scores alone is much cheaper
            self.items.read(before)
            self.effects.renew()
        elif "score" in changed:
            self.findings.exchange(self.items.read_scores(before))
        return changed

    def _read_episodes(self) -> None:
        """Read the words and worlds of new episodes; statistics are only marked, and read when they are needed."""
        if is_recounted := self.words.read():  # everything that was counted over episodes is void
            self.worlds.forget()
            self.statistics.forget()
            self.findings.bound.clear()
        is_merged = self.worlds.read()
        if is_recounted or is_merged:
            self.items.homes.clear()
            self.effects.renew(worlds=True)
        self.statistics.mark_unread(is_merged)
        self.effects.unread = self.support.unread = True

    def situation(self, state: State) -> Situation:
        """Return the situation of a state; the same object while the state and the words stay the same."""
        # Compared by identity: comparing observations on every call would cost more than a new situation.
        if self._situation is None or self._situation.state is not state:
            is_known = self.worlds.find(state.task) is not None  # structural words of other worlds do not apply here
            self._situation = Situation(state, self.words.structural if is_known else frozenset())
        return self._situation

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return all keys under which a step with this action in this state is filed."""
        situation = self.situation(state)
        guarded = self.items.guard.keys(situation, action)
        return tuple(dict.fromkeys((*situation.keys(action, counts), *guard_keys(situation, action), *guarded)))
