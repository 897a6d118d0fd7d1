"""What a process keeps in memory of one namespace: derived from SQLite, rebuilt from it at any time.

Values of actions, words and their frequencies, active items and their guard. `catch_up` reads what
was written since, by this process or another, in the order in which it was written. The values are
read when they are first asked for, from their file where there is one (see `storage.cache_files`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory.guardrails.conditions import Guard
from hardwon.memory.guardrails.surroundings import Surroundings
from hardwon.memory.items import readable_items
from hardwon.memory.records import Estimate, Hit, Item, State, Step
from hardwon.memory.situations.keys import Situation, guard_keys
from hardwon.memory.storage.cache_files import Sidecar
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import Worlds
from hardwon.memory.values.choices import REREAD, Choices, read_choices, weight_of
from hardwon.memory.values.effects import Effect, Effects
from hardwon.memory.values.saved_tables import FiledValues
from hardwon.memory.values.value_table import ValueTable
from hardwon.memory.values.world_values import WorldMap, estimate_in

from .ranking import Done, Found, Known
from .similar_tasks import Tasks

STRUCTURAL_SHARE = 0.15
"""A word that occurs in this share of the episodes belongs to the structure of the environment."""
_EPISODES_OF = "SELECT DISTINCT trajectory_id FROM steps WHERE id IN (SELECT value FROM json_each(?))"
STRUCTURAL_AFTER = 15
"""Episodes before any word is called structural."""


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
        self._values = FiledValues(store, namespace, self._sidecar)
        self._map = WorldMap(store, namespace)
        self._per_world: FiledValues | None = None
        self._choices: dict[int, tuple[int, Choices]] = {}
        self._homes: dict[str, frozenset[int]] = {}
        self._effects = Effects(store, namespace)
        self._situation: Situation | None = None
        self._words_unread = False
        self._words: dict[str, int] = {}
        self._structural: frozenset[str] = frozenset()
        self._last_episode = 0
        self.episodes = 0
        """Recorded in this namespace, excluded ones apart."""
        self.items: dict[str, Item] = {}
        self.numbers: dict[int, str] = {}
        self.surroundings = Surroundings(store, lambda: self.structural)
        self._guard: Guard | None = None
        self.bound: dict[tuple[str, frozenset[int] | None], tuple[Hit, ...]] = {}
        """Items found for a state cluster by search, so that its next visit needs none; by the worlds that count."""

        self.done: dict[frozenset[int] | None, Known] = {}
        """By the worlds that count: what was done in the states that were near, as far as asked."""

        self.voters: dict[tuple[str, bool, frozenset[int] | None], list[Done]] = {}
        """By signature, whether what led there was read, and the worlds that count: the steps that vote here."""

        self.uses: Mapping[str, int] | None = None
        """How often untrusted steps have each form of action, once asked."""
        self.near: dict[tuple[str, frozenset[int] | None, bool], list[Found]] = {}
        """By text, the worlds that count, and whether it was a question: the states found, as far as asked."""

        self.ranked: dict[tuple[Any, ...], tuple[tuple[Hit, ...], int]] = {}
        """What was recalled of steps, by all that it depends on: states come again before anything is written."""

        self.steps: dict[int, Step] = {}
        """Steps that were recalled, by id: most situations are met again before anything is written."""

        self.reached: dict[str, tuple[str, ...]] = {}
        """By place, the places that recorded steps led to from it, as far as asked."""

        self.task_episodes: dict[str, tuple[list[Step], ValueTable]] = {}
        """What was retrieved once for a task."""

        self.tasks = Tasks(store, namespace)

    def catch_up(self) -> frozenset[str]:
        """Read what was written since the last call; returns what kinds of things changed."""
        for read in (self.done, self.voters, self.steps, self.ranked):
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
        self.uses = None
        self.near.clear()  # after the check: the vectors that a search writes change nothing that it finds
        changed = frozenset(row[0] for row in rows)
        if "trajectory" in changed:
            self._count_episodes()
            self._words_unread = self._values.unread = True
            self._read_worlds()
            self._effects.unread = True
            self.reached.clear()
        if "item" in changed:
            self._read_items()
            self._effects.renew()
        elif "score" in changed:
            self._read_scores(before)
        self._situation = None
        self.task_episodes.clear()
        return changed

    def situation(self, state: State) -> Situation:
        """The state prepared for keys; the same object while the state and the words stay the same."""
        if self._situation is None or self._situation.state is not state:
            known = self.worlds.find(state.task) is not None  # another world's structure says nothing of this one
            self._situation = Situation(state, self.structural if known else frozenset())
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

    @property
    def guard(self) -> Guard:
        """The active guardrails, filed by the structural words of now."""
        if self._guard is None or self._guard.structural != self.structural:
            self._guard = Guard(self.items.values(), self.is_known_for, self.surroundings)
        return self._guard

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return all keys under which a step with this action in this state is filed."""
        situation = self.situation(state)
        found = (*situation.keys(action, counts), *guard_keys(situation, action), *self.guard.keys(situation, action))
        return tuple(dict.fromkeys(found))

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
        return self._values.read()

    def read_values(self) -> None:
        """Read the values from their files and the steps where that was not done yet."""
        self._values.read()
        if self._per_world is not None:
            self._per_world.read()

    def save(self) -> None:
        """Write the values that this process read to their files, where those are much behind."""
        self._values.save()
        if self._per_world is not None:
            self._per_world.save()

    def _read_worlds(self) -> None:
        united = self._map.read()
        if united:
            self._effects.renew(worlds=True)
        several = len(self._map.worlds.standing) > 1
        if united and self._per_world is not None and self._sidecar.writable:
            self._sidecar.drop("world-values")
        if self._per_world is None or united or not several:
            self._per_world = FiledValues(self._store, self._namespace, self._sidecar, self._map) if several else None
        else:
            self._per_world.unread = True

    @property
    def worlds(self) -> Worlds:
        """The environments and kinds of task that the episodes are of."""
        return self._map.worlds

    def related(self, state: State, actions: Iterable[str] = ()) -> frozenset[int] | None:
        """Return the worlds whose experience counts in a state; None where that of all worlds does. See `worlds`."""
        return self.worlds.related(state.task, actions)

    def is_of(self, number: int, worlds: frozenset[int] | None) -> bool:
        """Return whether an active item has this number, and its evidence is of one of these worlds, or of none."""
        ref = self.numbers.get(number)
        return ref is not None and self.counts_in(self.items[ref], worlds)

    def counts_in(self, item: Item, worlds: frozenset[int] | None) -> bool:
        """Return whether an item counts in these worlds: others' experience does not, what has no evidence does."""
        if worlds is None or item.pinned or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or not homes.isdisjoint(worlds)

    def score_in(self, item: Item, state: State, actions: Iterable[str] = ()) -> float:
        """Return the score of an item in the world of a state, or its own where that is not sure."""
        world = self.worlds.find_sure(state.task, actions)
        return item.score if world is None else self._effects.score_in(item, world)

    def is_known_for(self, item: Item, task: str) -> bool:
        """Whether an item distilled from experience has evidence of this task's world; others are for all worlds."""
        if item.source != "experience" or not item.provenance:
            return True
        homes = self.homes_of(item)
        return not homes or any(self.worlds.fits(world, task) for world in homes)

    def homes_of(self, item: Item) -> frozenset[int]:
        """Return the worlds that an item's evidence is of; none where it is of no recorded step."""
        if item.id not in self._homes:
            rows = self._store.rows(_EPISODES_OF, (json.dumps(item.provenance),))
            self._homes[item.id] = frozenset(world for (ref,) in rows if (world := self._map.of(ref)) is not None)
        return self._homes[item.id]

    def masked(self, state: State, actions: Iterable[str] = ()) -> frozenset[str]:
        """Return the ids of the items that are left out in this state's world, because they hurt there."""
        if not self._effects.left_out_anywhere(self.worlds, self.items):
            return frozenset()
        world = self.worlds.find_sure(state.task, actions)
        return self._effects.left_out(world, self.worlds, self.items)

    def effects(self, item: Item) -> list[Effect]:
        """Return what an item does in each world."""
        return self._effects.of(item, self.worlds)

    def estimates(self, situation: Situation, actions: Mapping[str, str]) -> dict[str, Estimate]:
        """Return what the steps of this state's world say about each action; nothing but 0 in an unknown world."""
        world = self.worlds.find(situation.state.task, actions)
        found = {}
        for action, counts in actions.items():
            context = situation.context(action)
            if world is None:
                found[action] = Estimate(0.0, context=context)
            elif self._per_world is None:
                found[action] = self.values.estimate(situation.keys(action, counts), context)
            else:
                keys = situation.keys(action, counts)
                found[action] = estimate_in(self._per_world.read(), world, keys, context)
        return found if world is None else self._with_choices(found, situation, actions, world)

    def _with_choices(
        self, found: dict[str, Estimate], situation: Situation, actions: Mapping[str, str], number: int
    ) -> dict[str, Estimate]:
        """Return the estimates, moved towards what was chosen where (almost) only successes are known."""
        world = self.worlds.get(number)
        weight = weight_of(world.won, world.episodes)
        if not weight:
            return found
        known, choices = self._choices.get(number, (0, None))
        if choices is None or world.won >= REREAD * known:
            choices = read_choices(self._store, self._namespace, self.worlds.names_of(number), self.structural)
            self._choices[number] = (world.won, choices)
        return choices.blend(found, situation, actions, weight) if choices.steps else found

    def _read_items(self) -> None:
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
        self.bound.clear()

    def _read_scores(self, after: int) -> None:
        """Items whose score alone changed stay found where they were found."""
        rows = self._store.rows(
            "SELECT number, record FROM items WHERE namespace = ? AND status = 'active' AND id IN "
            "(SELECT ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'item')",
            (self._namespace, after, self._namespace),
        )
        moved = {item.id: item for _, item in readable_items(rows)}
        self.items.update(moved)
        if any(item.kind == "guardrail" for item in moved.values()):
            self._guard = None
        for where, hits in self.bound.items():
            if any(hit.what.id in moved for hit in hits):
                self.bound[where] = tuple(_with_new(hit, moved) for hit in hits)


def _with_new(hit: Hit, moved: Mapping[str, Item]) -> Hit:
    item = moved.get(hit.what.id) if isinstance(hit.what, Item) else None
    return hit if item is None else replace(hit, what=item)
