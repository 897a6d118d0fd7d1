"""The in-memory cache of one namespace, derived from SQLite and rebuilt from it at any time.

It contains action values, words with their frequencies, the active items and their guard. `catch_up` reads what any
process wrote since the last call, in the order of writing. Values are read on first use, from their cache file if there
is one (see `storage.cache_files`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from hardwon.memory.guardrails.conditions import Guard, is_in_force
from hardwon.memory.guardrails.context_ranges import ContextRanges
from hardwon.memory.items import readable_items
from hardwon.memory.records import Estimate, Hit, Item, Outcome, State, Step
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.keys import Situation, guard_keys
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.counted import EpisodeClock
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.storage.worlds import Worlds
from hardwon.memory.trust import testimony
from hardwon.memory.trust.support import Support
from hardwon.memory.values.choices import Choices, read_choices, weight_of
from hardwon.memory.values.demonstration_index import DemonstrationIndex
from hardwon.memory.values.effects import AdviceGain, Effect, Effects
from hardwon.memory.values.filed_demonstrations import FiledDemonstrations
from hardwon.memory.values.filed_lookahead import FiledLookahead
from hardwon.memory.values.lookahead import Lookahead, look_around
from hardwon.memory.values.lookahead_table import fit_nothing
from hardwon.memory.values.outcomes import ActionOutcomes
from hardwon.memory.values.saved_tables import FiledValues, WorldMap, estimate_in_world
from hardwon.memory.values.tuning import TUNING as VALUES
from hardwon.memory.values.value_table import ValueTable

from .ranking import BestSteps, RankedRow, Subject, TakenStep
from .request import RecallCache
from .similar_tasks import Tasks
from .tuning import TUNING

_EPISODES_OF = "SELECT DISTINCT trajectory_id FROM steps WHERE id IN (SELECT value FROM json_each(?))"
_CHANGED = "SELECT DISTINCT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item'"
_CHANGED_ITEMS = (
    "SELECT number, id, record, status FROM items "
    "WHERE namespace = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY number"
)
_STRUCTURAL = "SELECT word FROM words WHERE namespace = ? AND episodes >= ?"
_COUNTS = (
    "SELECT value, coalesce(episodes, 0) FROM json_each(?) LEFT JOIN words ON words.namespace = ? AND word = value"
)


def read_structural_words(store: Store, namespace: int, episodes: int) -> frozenset[str]:
    """Return the words that belong to the structure of the environment."""
    if episodes < TUNING.structural_after:
        return frozenset()
    return frozenset(word for (word,) in store.rows(_STRUCTURAL, (namespace, TUNING.structural_share * episodes)))


class NamespaceCache:
    """The caches of one namespace; not thread-safe, so callers hold the library's lock."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._seq = 0
        self._cache_file = CacheFile(store, namespace)
        self._values = FiledValues(store, namespace, self._cache_file)
        self._map = WorldMap(store, namespace)
        self._per_world: FiledValues | None = None
        self._choices: dict[int, tuple[int, Choices]] = {}
        self._demonstrations = FiledDemonstrations(store, namespace)
        self._outcomes = ActionOutcomes(store, namespace)
        self._lookahead: dict[int, FiledLookahead] = {}
        self._homes: dict[str, frozenset[int]] = {}
        self._effects = Effects(store, namespace)
        self._situation: Situation | None = None
        self._word_counts: dict[str, int] = {}
        """By word that was asked for, the number of episodes that showed it."""
        self._structural: frozenset[str] | None = None
        self.clock = EpisodeClock(namespace)
        """The number of episodes in this namespace, and of those that count."""
        self.items: dict[str, Item] = {}
        self.numbers: dict[int, str] = {}
        self.context_ranges = ContextRanges(store, lambda: self.structural)
        self._guard: Guard | None = None
        self._remedies: list[Item] | None = None
        self.bound: dict[tuple[str, frozenset[int] | None, frozenset[str]], tuple[Hit, ...]] = {}
        """By cluster and applicable worlds: items found by search, so that the next visit needs no search."""

        self.subjects: dict[str, Subject] = {}
        """By item: its words with their weights, until an item or an episode is added."""

        self.done: dict[frozenset[int] | None, BestSteps] = {}
        """By applicable worlds: the best steps taken in states, filled on demand."""

        self.voters: dict[tuple[str, bool, frozenset[int] | None], list[TakenStep]] = {}
        """By signature, whether the preceding actions were read, and applicable worlds: the voting steps."""

        self._uses: Mapping[str, int] | None = None
        self._has_untrusted: bool | None = None
        self.nearest: dict[tuple[str, frozenset[int] | None, bool], list[RankedRow]] = {}
        """By text, applicable worlds, and whether it was a question: the states that search found."""

        self.ranked: dict[tuple[Any, ...], tuple[tuple[Hit, ...], int]] = {}
        """Recalled steps, by everything they depend on; states often recur before the next write."""

        self.recollections = RecallCache()
        """Results of recalls in known situations; states often recur before the next write."""

        self.steps: dict[int, Step | None] = {}
        """Recalled steps by id, without texts that read like instructions; None if the action does."""

        self.reached: dict[str, tuple[str, ...]] = {}
        """By place, the places that recorded steps reached from it, filled on demand."""

        self.task_episodes: dict[str, tuple[list[Step], ValueTable]] = {}
        """By task: steps of similar tasks and their values."""

        self.tasks = Tasks(store, namespace)
        self.support = Support(store, namespace)

    def catch_up(self) -> frozenset[str]:
        """Read what was written since the last call, and return the kinds of changes."""
        for read in (self.done, self.voters, self.ranked, self.recollections):  # steps do not change
            read.clear()
        before = self._seq
        rows = self._store.rows(
            "SELECT iif(op = 'scored', 'score', what), max(seq) FROM changes "
            "WHERE seq > ? AND namespace = ? GROUP BY 1",
            (before, self._namespace),
        )
        if not rows:
            return frozenset()
        self._seq = max(row[1] for row in rows)
        self._uses = self._has_untrusted = None
        self.nearest.clear()  # only after a change: vectors that a search writes do not alter its results
        changed = frozenset(row[0] for row in rows)
        if changed & {"item", "trajectory"}:  # both change how rare words are
            self.subjects.clear()
        if "trajectory" in changed:
            before_count = self.clock.counted
            self.clock.read(self._store.rows)
            if self.clock.counted != before_count:
                self._forget_counts()
            # Only marked here: words and values are read when they are needed.
            self._values.unread = True
            self._word_counts.clear()
            self._structural = None
            self._read_worlds()
            self._effects.unread = True
            self._demonstrations.mark_unread()
            self._outcomes.unread = True
            self.support.unread = True
            for book in self._lookahead.values():
                book.unread = True
            self.reached.clear()
        if "item" in changed:  # a change of scores alone is much cheaper: see `_read_scores`
            self._read_items(before)
            self._effects.renew()
        elif "score" in changed:
            self._read_scores(before)
        self._situation = None
        self.task_episodes.clear()
        return changed

    def situation(self, state: State) -> Situation:
        """Return the situation of a state; the same object while the state and the words stay the same."""
        # Compared by identity: comparing observations on every call would cost more than a new situation.
        if self._situation is None or self._situation.state is not state:
            is_known = self.worlds.find(state.task) is not None  # structural words of other worlds do not apply here
            self._situation = Situation(state, self.structural if is_known else frozenset())
        return self._situation

    def count_episodes(self, words: Collection[str]) -> Mapping[str, int]:
        """Return, by word, the number of episodes that showed it."""
        counts = self._word_counts
        if missing := [word for word in words if word not in counts]:
            counts.update(self._store.rows(_COUNTS, (dumps(missing), self._namespace)))
        return counts

    @property
    def structural(self) -> frozenset[str]:
        """Return the words that belong to the structure of the environment."""
        if self._structural is None:
            self._structural = read_structural_words(self._store, self._namespace, self.clock.time)
        return self._structural

    @property
    def guard(self) -> Guard:
        """Return the guard of the active guardrails."""
        if self._guard is None:
            self._guard = Guard(self.items.values(), self.is_known_for, self.context_ranges)
        self._guard.follow(self.structural)
        return self._guard

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return all keys under which a step with this action in this state is filed."""
        situation = self.situation(state)
        keys = (*situation.keys(action, counts), *guard_keys(situation, action), *self.guard.keys(situation, action))
        return tuple(dict.fromkeys(keys))

    def _forget_counts(self) -> None:
        """Drop everything that was counted over episodes, because episodes of other writers count now."""
        store, namespace = self._store, self._namespace
        self._map, self._per_world = WorldMap(store, namespace), None
        self._demonstrations, self._outcomes = FiledDemonstrations(store, namespace), ActionOutcomes(store, namespace)
        self._effects.renew(worlds=True)
        for counts in (self._choices, self._lookahead, self._homes, self.bound):
            counts.clear()

    @property
    def values(self) -> ValueTable:
        """Return the value table, updated with all new steps."""
        return self._values.read()

    @property
    def last_step(self) -> int:
        """Return the id of the last step in the value table."""
        return self._values.last_step

    def keys_since(self, step_id: int) -> set[str]:
        """Return the keys of the steps after this one."""
        return self._values.keys_since(step_id)

    def read_values(self) -> None:
        """Read the values from their files and steps."""
        self._values.read()
        if self._per_world is not None:
            self._per_world.read()

    def save(self) -> None:
        """Write the values to their cache files if those are far behind."""
        self._values.save()
        if self._per_world is not None:
            self._per_world.save()

    def _read_worlds(self) -> None:
        """Read the worlds, and keep values per world only while there are several."""
        united = self._map.read()
        if united:
            self._effects.renew(worlds=True)
            self._homes.clear()
            self._lookahead.clear()
        # Merged worlds change the prefix of keys, so the table per world is built again.
        several = len(self._map.worlds.standing) > 1
        if united and self._per_world is not None and self._cache_file.writable:
            self._cache_file.drop("world-values")
        if self._per_world is None or united or not several:
            self._per_world = (
                FiledValues(self._store, self._namespace, self._cache_file, self._map) if several else None
            )
        else:
            self._per_world.unread = True

    @property
    def worlds(self) -> Worlds:
        """Return the worlds (environments and kinds of task) of the episodes."""
        return self._map.worlds

    def count_practice(self, state: State, actions: Iterable[str]) -> int:
        """Return the number of episodes of a state's environment."""
        number = self.worlds.find(state.task, actions)
        return 0 if number is None else self.worlds.count_kin(number)

    def related(self, state: State, actions: Iterable[str] = ()) -> frozenset[int] | None:
        """Return the worlds whose experience applies in a state, or None if all of it does; see `worlds`."""
        return self.worlds.related(state.task, actions)

    @property
    def has_untrusted(self) -> bool:
        """Return whether the namespace may have steps of untrusted writers."""
        if self._has_untrusted is None:
            self._has_untrusted = testimony.has_untrusted(self._store, self._namespace)
        return self._has_untrusted

    @property
    def uses(self) -> Mapping[str, int]:
        """Return the number of uses of each form of action in untrusted steps."""
        if self._uses is None:
            self._uses = testimony.uses_of(self._store, self._namespace)
        return self._uses

    def forget_findings(self) -> None:
        """Clear the results of earlier searches."""
        for lookups in (self.bound, self.nearest, self.ranked, self.recollections):
            lookups.clear()

    def is_of(self, number: int, worlds: frozenset[int] | None) -> bool:
        """Return whether this is the number of an active item that applies in these worlds."""
        ref = self.numbers.get(number)
        return ref is not None and (worlds is None or self.counts_in(self.items[ref], worlds))

    def counts_in(self, item: Item, worlds: frozenset[int] | None) -> bool:
        """Return whether an item applies in these worlds.

        Pinned items and items without evidence apply everywhere; other items apply in the worlds of their evidence.
        """
        if worlds is None or item.pinned or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or not homes.isdisjoint(worlds)

    def score_in(self, state: State, actions: Iterable[str] = ()) -> Callable[[Item], float]:
        """Return a function for the score of an item in the world of a state.

        If the world is uncertain, it is the item's own score.
        """
        world = self.worlds.find_sure(state.task, actions)
        return attrgetter("score") if world is None else self._effects.score_in(world)

    def is_known_for(self, item: Item, task: str) -> bool:
        """Return whether an item has evidence from the world of a task.

        Items that were not created from experience apply to all worlds.
        """
        if item.source != "experience" or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or any(self.worlds.fits(world, task) for world in homes)

    def homes_of(self, item: Item) -> frozenset[int]:
        """Return the worlds of an item's evidence; empty if none of its steps are recorded."""
        if item.id not in self._homes:
            rows = self._store.rows(_EPISODES_OF, (json.dumps(item.provenance),))
            self._homes[item.id] = frozenset(world for (ref,) in rows if (world := self._map.of(ref)) is not None)
        return self._homes[item.id]

    def masked(self, state: State, actions: Iterable[str] = ()) -> frozenset[str]:
        """Return the ids of the items that are masked in the state's world because they hurt there."""
        if not self._effects.left_out_anywhere(self.worlds, self.items):
            return frozenset()
        world = self.worlds.find_sure(state.task, actions)
        return self._effects.left_out(world, self.worlds, self.items)

    def gain(self) -> AdviceGain:
        """Return the gain of all advice."""
        return self._effects.gain(self.worlds)

    def effects(self, item: Item) -> list[Effect]:
        """Return the effect of an item in each world."""
        return self._effects.of(item, self.worlds)

    def estimates(self, situation: Situation, actions: Mapping[str, str]) -> dict[str, Estimate]:
        """Return the estimate of each action from the steps of the situation's world."""
        world = self.worlds.find(situation.state.task, actions)
        estimates = {}
        for action, counts in actions.items():
            context = situation.context(action)
            if world is None:
                estimates[action] = Estimate(0.0, context=context)
            elif self._per_world is None:
                estimates[action] = self.values.estimate(situation.keys(action, counts), context)
            else:
                keys = situation.keys(action, counts)
                estimates[action] = estimate_in_world(self._per_world.read(), world, keys, context)
        return estimates if world is None else self._with_choices(estimates, situation, actions, world)

    def count_outcomes(
        self, state: State, listed: Collection[str], worlds: frozenset[int] | None
    ) -> dict[str, Outcome]:
        """Return the outcomes of the listed actions, and of some that may become possible; see `outcomes`."""
        return self._outcomes.find(state, listed, worlds)

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap) -> Lookahead:
        """Return the lookahead values of the actions here and at the other locations of an episode."""
        world = self.worlds.find(state.task, actions)
        if world is None:
            return look_around(fit_nothing(), state, actions, episode)
        if world not in self._lookahead:
            self._lookahead[world] = FiledLookahead(self._store, self._namespace, self.worlds.names_of(world))
        book = self._lookahead[world]
        return look_around(book.read(self.structural), state, actions, episode)

    def index_demonstrations(self, environment: str | None, actions: Iterable[str]) -> DemonstrationIndex:
        """Return the index of demonstrations of an environment; None stands for all of them."""
        return self._demonstrations.read(self.worlds, environment, actions)

    def _with_choices(
        self, estimates: dict[str, Estimate], situation: Situation, actions: Mapping[str, str], number: int
    ) -> dict[str, Estimate]:
        """Return the estimates, moved towards frequent choices if almost all episodes succeeded."""
        world = self.worlds.get(number)
        weight = weight_of(world.won, world.episodes)
        if not weight:
            return estimates
        successes, choices = self._choices.get(number, (0, None))
        # Rereading decodes up to `choice_episodes`, so it waits until the successes have grown by a quarter.
        if choices is None or world.won >= VALUES.reread_growth * successes:
            choices = read_choices(
                self._store, self._namespace, self.worlds.names_of(number), self.structural, self.clock.counted
            )
            self._choices[number] = (world.won, choices)
        return choices.blend(estimates, situation, actions, weight) if choices.steps else estimates

    @property
    def remedies(self) -> Sequence[Item]:
        """Return the active remedies that have steps."""
        if self._remedies is None:
            self._remedies = [item for item in self.items.values() if item.kind == "remedy" and item.steps]
        return self._remedies

    def _read_items(self, after: int) -> None:
        """Read the active items that changed after this number of a change, or all of them if it is 0."""
        self._remedies = None
        self.bound.clear()  # new items may fit clusters that were already searched
        if not after:
            self._read_all_items()
            return
        refs = [ref for (ref,) in self._store.rows(_CHANGED, (after, self._namespace))]
        rows = self._store.rows(_CHANGED_ITEMS, (self._namespace, json.dumps(refs)))
        if len(rows) < len(refs):  # a row that is gone leaves no number to remove
            self._read_all_items()
            return
        read = {item.id: item for _, item in readable_items((row[0], row[2]) for row in rows if row[3] == "active")}
        if self._guard is not None:  # one query for all; `exchange` would read the evidence of each on its own
            self.context_ranges.read(filter(is_in_force, read.values()))
        added = []
        for number, ref, _, _ in rows:
            old, new = self.items.get(ref), read.get(ref)
            if self._guard is not None:
                self._guard.exchange(old, new)
            self._homes.pop(ref, None)  # an update may have added evidence
            if new is None:
                self.items.pop(ref, None)
                self.numbers.pop(number, None)
                continue
            self.items[ref] = new
            if number not in self.numbers:
                added.append(number)
            self.numbers[number] = ref
        # in the order of their numbers, as when all are read: a revived item has an old number
        if added and [*self.numbers][-len(added) :] != sorted(self.numbers)[-len(added) :]:
            self.numbers = dict(sorted(self.numbers.items()))
            self.items = {ref: self.items[ref] for ref in self.numbers.values()}

    def _read_all_items(self) -> None:
        """Read all active items."""
        rows = self._store.rows(
            "SELECT number, record FROM items WHERE namespace = ? AND status = 'active' ORDER BY number",
            (self._namespace,),
        )
        self.items, self.numbers = {}, {}
        self._homes.clear()
        for number, item in readable_items(rows):
            self.items[item.id] = item
            self.numbers[number] = item.id
        self._guard = None

    def _read_scores(self, after: int) -> None:
        """Update items of which only the score changed; search results for them stay valid."""
        rows = self._store.rows(
            "SELECT number, record FROM items WHERE namespace = ? AND status = 'active' AND id IN "
            "(SELECT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item')",
            (self._namespace, after, self._namespace),
        )
        updated = {item.id: item for _, item in readable_items(rows)}
        if self._guard is not None:
            for ref, item in updated.items():
                self._guard.exchange(self.items.get(ref), item)
        self.items.update(updated)
        self._remedies = None
        for cluster, hits in self.bound.items():
            if any(hit.what.id in updated for hit in hits):
                self.bound[cluster] = tuple(_replace_item(hit, updated) for hit in hits)


def _replace_item(hit: Hit, updated: Mapping[str, Item]) -> Hit:
    """Return the hit with the updated item, if its item changed."""
    item = updated.get(hit.what.id) if isinstance(hit.what, Item) else None
    return hit if item is None else replace(hit, what=item)
