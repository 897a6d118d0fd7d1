"""Statistics of one namespace: everything that is counted over its steps, each table read when it is first needed.

A table knows what it has read. `mark_unread` says that there may be more; the next question reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hardwon.memory.records import Estimate, State
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.keys import Situation
from hardwon.memory.situations.refinements import BEST
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.counted import EpisodeWords
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.worlds import WorldMap

from .cells import Cell
from .choices import Choices, read_choices, weight_of
from .filed_demonstrations import FiledDemonstrations
from .filed_lookahead import FiledLookahead
from .lookahead import Lookahead, look_around
from .lookahead_table import fit_nothing
from .outcomes import ActionOutcomes
from .saved_tables import FiledValues, estimate_in_world, prefix_with_world
from .tuning import TUNING
from .value_table import ValueTable


class Statistics:
    """The tables of a namespace; not thread-safe."""

    def __init__(self, store: Store, namespace: int, worlds: WorldMap, words: EpisodeWords) -> None:
        self._store, self._namespace = store, namespace
        self._worlds, self._words = worlds, words
        self.cache_file = CacheFile(store, namespace)
        self.filed = FiledValues(store, namespace, self.cache_file)
        """The value table of all steps."""
        self.per_world: FiledValues | None = None
        """The same per world; None while there is one world only."""
        self.forget()

    def forget(self) -> None:
        """Drop everything that was counted over episodes, because episodes of other writers count now."""
        self.per_world = None
        self.demonstrations = FiledDemonstrations(self._store, self._namespace)
        self.outcomes = ActionOutcomes(self._store, self._namespace)
        self._choices: dict[int, tuple[int, Choices]] = {}
        self._lookahead: dict[int, FiledLookahead] = {}

    def mark_unread(self, is_merged: bool) -> None:
        """Note that there may be new steps, and whether worlds were merged, which makes counts per world stale."""
        several = len(self._worlds.standing) > 1
        if is_merged:
            self._lookahead.clear()
            # The prefix of keys changes, so the table per world is built again.
            if self.per_world is not None and self.cache_file.writable:
                self.cache_file.drop("world-values")
        if self.per_world is None or is_merged or not several:
            self.per_world = (
                FiledValues(self._store, self._namespace, self.cache_file, self._worlds) if several else None
            )
        for values in filter(None, (self.filed, self.per_world)):
            values.unread = True
        for lookahead in self._lookahead.values():
            lookahead.unread = True
        self.demonstrations.unread = self.outcomes.unread = True

    @property
    def values(self) -> ValueTable:
        """Return the value table, updated with all new steps."""
        return self.filed.read()

    def read(self) -> None:
        """Read the values from their files and steps."""
        for table in filter(None, (self.filed, self.per_world)):
            table.read()

    def save(self) -> None:
        """Write the values to their cache files if those are far behind."""
        for table in filter(None, (self.filed, self.per_world)):
            table.save()

    def estimate(self, situation: Situation, actions: Mapping[str, str]) -> dict[str, Estimate]:
        """Return the estimate of each action from the steps of the situation's world."""
        world = self._worlds.find(situation.state.task, actions)
        if world is None:
            return {action: Estimate(0.0, context=situation.context(action)) for action in actions}
        estimates = {}
        for action, counts in actions.items():
            estimate = self._estimate_in(world, situation, action, counts)
            # a word that has just become structural, or ceased to be, hides what was filed in the same situation
            if not estimate.tried and situation.before is not None:
                before = self._estimate_in(world, situation.before, action, counts)
                estimate = replace(before, context=estimate.context) if before.tried else estimate
            estimates[action] = estimate
        return self._blend_choices(estimates, situation, actions, world)

    def _estimate_in(self, world: int, situation: Situation, action: str, counts: str) -> Estimate:
        """Return the estimate of an action from the steps of a world."""
        keys, context = situation.keys(action, counts), situation.context(action)
        if self.per_world is None:
            return self.values.estimate(keys, context)
        return estimate_in_world(self.per_world.read(), world, keys, context)

    def _blend_choices(
        self, estimates: dict[str, Estimate], situation: Situation, actions: Mapping[str, str], number: int
    ) -> dict[str, Estimate]:
        """Return the estimates; where almost all succeeded, moved to usual choices, with untried actions marked."""
        world = self._worlds.get(number)
        weight = weight_of(world.won, world.episodes)
        if not weight:
            return estimates
        if tries := self._list_tries(number, situation, actions):
            untried = {action: replace(estimates[action], untried=True) for action in estimates.keys() - tries.keys()}
            estimates = {**estimates, **untried}
        successes, choices = self._choices.get(number, (0, None))
        # Rereading decodes up to `choice_episodes` episodes, so it waits until the successes have grown by a quarter.
        if choices is None or world.won >= TUNING.reread_growth * successes:
            worlds, words = self._worlds.names_of(number), self._words
            choices = read_choices(self._store, self._namespace, worlds, words.structural, words.clock.counted)
            self._choices[number] = (world.won, choices)
        return choices.blend(estimates, situation, actions, weight, tries) if choices.steps else estimates

    def _list_tries(self, world: int, situation: Situation, actions: Mapping[str, str]) -> dict[str, Cell]:
        """Return the statistics of the actions that an agent tried for such a task."""
        keys = {action: situation.keys(action, counts)[-1] for action, counts in actions.items()}
        if not any(key.startswith(BEST) for key in keys.values()):
            return {}
        table, prefix = self.values, ""
        if self.per_world is not None:
            table, prefix = self.per_world.read(), prefix_with_world(world, "")
        cells = {action: table.cell(prefix + key) for action, key in keys.items()}
        return {action: cell for action, cell in cells.items() if cell is not None}

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap) -> Lookahead:
        """Return the lookahead values of the actions here and at the other locations of an episode."""
        world = self._worlds.find(state.task, actions)
        if world is None:
            return look_around(fit_nothing(), state, actions, episode)
        if world not in self._lookahead:
            self._lookahead[world] = FiledLookahead(self._store, self._namespace, self._worlds.names_of(world))
        return look_around(self._lookahead[world].read(self._words.structural), state, actions, episode)
