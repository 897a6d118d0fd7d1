"""Outcomes of actions: how often exactly this action was rewarded or punished at once in earlier episodes.

    outcomes = outcomes_of_actions.find(state, listed, worlds)
    outcomes["put strainer in drawer"]      # Outcome(n=3, rewarded=3): the drawer is shut, so it is not listed yet

An estimate mixes the reward of an action with what was left to earn, over similar actions in similar situations.
Immediate rewards of the identical action are facts that a model can judge. They include actions that are not listed
now: those that were rewarded before, and whose things the state names, are goals to work towards. If a listed action
made such an action possible before, the outcome names it: it is the first link of the chain.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache

from hardwon.memory.records import Outcome, State
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.scripts import separate
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_offers, state_text

from .tuning import TUNING

_NOTHING = Outcome()
_WORDS = re.compile(r"\w+")
_OF_ONE = re.compile(r"[\d@_]")
"""Signs of a name that belongs to one thing of one episode, such as `drawer 3` or an order number."""
_NEW = (
    "SELECT steps.id, action, world, reward, failure FROM steps "
    "JOIN trajectories AS episode ON episode.namespace = steps.namespace AND episode.id = steps.trajectory_id "
    "JOIN episode_worlds AS placed ON placed.namespace = steps.namespace AND placed.trajectory_id = episode.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE steps.id > ? AND +steps.namespace = ? AND trust = 'trusted' AND success IS NOT NULL ORDER BY steps.id"
)
_BEFORE = (
    "SELECT taken.id, earlier.action, earlier.offer, earlier.id FROM steps AS taken "
    "JOIN steps AS earlier ON earlier.namespace = taken.namespace AND earlier.trajectory_id = taken.trajectory_id "
    "AND earlier.t <= taken.t WHERE taken.id IN (SELECT value FROM json_each(?)) ORDER BY taken.id, earlier.t DESC"
)


class ActionOutcomes:
    """The outcomes of every action of a namespace in trusted episodes, by its exact words."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._last = 0
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._sums: dict[tuple[str, frozenset[int] | None], Outcome] = {}
        """By action and worlds: the outcome over them, until steps are read."""
        self._rewarded: dict[str, list[str]] = {}
        """By one word of what they name: the actions that were rewarded."""
        self._enablers: dict[str, tuple[tuple[int, ...], Counter[str]]] = {}
        """By action: the ids of its newest steps, and the actions that made it possible in them."""
        self.unread = True
        """True if there may be steps that have not been read."""

    def find(self, state: State, listed: Collection[str], worlds: frozenset[int] | None) -> dict[str, Outcome]:
        """Return the outcomes of the listed actions, and of rewarded ones all of whose things the state names."""
        self._read()
        if len(self._sums) > 4096:
            self._sums.clear()
        counts = {action: outcome for action in listed if (outcome := self._count(action, worlds)).n}
        words, text = _split_words(state_text(state))
        candidates = {
            action: list_things(action)
            for word in words
            for action in self._rewarded.get(word, ())
            if action not in listed
        }
        mentions = find_named(text, {thing for things in candidates.values() for thing in things})
        unlisted = {
            action: outcome
            for action, things in candidates.items()
            if mentions.issuperset(things) and (outcome := self._count(action, worlds)).rewarded > outcome.punished
        }
        best = sorted(unlisted, key=lambda action: (-unlisted[action].share, -unlisted[action].n, action))
        return counts | {
            action: self._name_enabler(action, unlisted[action], listed) for action in best[: TUNING.max_unlisted]
        }

    def _name_enabler(self, action: str, outcome: Outcome, listed: Collection[str]) -> Outcome:
        """Return the outcome with the listed action that most often made this one possible."""
        steps, enablers = self._enablers.get(action, ((), Counter()))
        if steps != outcome.steps:
            enablers = find_enablers(self._store, action, outcome.steps)
            self._enablers[action] = outcome.steps, enablers
        candidates = [name for name in sorted(listed) if name in enablers]
        return replace(outcome, enabler=max(candidates, key=enablers.__getitem__)) if candidates else outcome

    def _count(self, action: str, worlds: frozenset[int] | None) -> Outcome:
        """Return the outcome of an action over some worlds."""
        if (outcome := self._sums.get((action, worlds))) is None:
            by_world = self._outcomes.get(action, {})
            applicable = (outcome for world, outcome in by_world.items() if worlds is None or world in worlds)
            outcome = self._sums[action, worlds] = sum(applicable, _NOTHING)
        return outcome

    def _read(self) -> None:
        """Read the steps that were recorded since the last call."""
        if not self.unread:
            return
        self.unread = False
        before = self._last
        for step, action, world, reward, failure in self._store.rows(_NEW, (self._last, self._namespace)):
            self._last = step
            if _is_about_one(action):
                continue  # its outcome says nothing about the thing of that name elsewhere
            by_world = self._outcomes.setdefault(action, {})
            is_first_reward = reward > 0 and not any(outcome.rewarded for outcome in by_world.values())
            bad = reward < 0 or failure != "none"
            now = Outcome(1, int(reward > 0), int(bad), (step,))
            by_world[world] = by_world.get(world, _NOTHING) + now
            if is_first_reward:
                for word in _choose_word(action):
                    self._rewarded.setdefault(word, []).append(action)
        if self._last != before:
            self._sums.clear()


@lru_cache(maxsize=4096)
def _is_about_one(action: str) -> bool:
    """Return whether an action names a thing of one episode."""
    return any(_OF_ONE.search(slot) for slot in parse_action(action).slots)


def find_enablers(store: Store, action: str, steps: Collection[int]) -> Counter[str]:
    """Return the actions after which an action became possible, with the number of the steps in which they did."""
    rows = store.rows(_BEFORE, (json.dumps(sorted(steps)),))
    offers = read_offers(store, {offer for _, _, offer, _ in rows if offer is not None})
    enablers: Counter[str] = Counter()
    decided: set[int] = set()
    for step, earlier, offer, number in rows:  # from the step back to the first of its episode
        if step in decided or number == step:
            continue
        if action not in offers.get(offer, (action,)):
            enablers[earlier] += 1
            decided.add(step)
    return enablers


@lru_cache(maxsize=512)
def _split_words(text: str) -> tuple[tuple[str, ...], str]:
    """Return the distinct words of a text, and all of them in one line with a space at both ends."""
    words = _WORDS.findall(separate(text))
    return tuple(dict.fromkeys(words)), f" {' '.join(words)} "


@lru_cache(maxsize=4096)
def list_things(action: str) -> tuple[str, ...]:
    """Return the things that an action names, each as ` words `; empty if it names none or one has no words."""
    things = [" ".join(_WORDS.findall(separate(slot))) for slot in parse_action(action).slots]
    return tuple(f" {thing} " for thing in things) if all(things) else ()


def find_named(text: str, things: Collection[str]) -> frozenset[str]:
    """Return the things that a text names; a key is not named by its `key holder`."""
    mentions = set()
    for thing in sorted((thing for thing in things if thing in text), key=lambda thing: (-len(thing), thing)):
        if thing in text:
            mentions.add(thing)
            text = text.replace(thing, " | ")
    return frozenset(mentions)


def _choose_word(action: str) -> Iterator[str]:
    """Yield the longest word of the things that an action names: one is enough to find it, and few share a long one."""
    words = [word for thing in list_things(action) for word in thing.split()]
    if words:
        yield max(words, key=len)
