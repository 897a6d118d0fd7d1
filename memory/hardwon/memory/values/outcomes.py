"""Outcomes of actions: how often exactly this action was rewarded or punished at once in earlier episodes.

    outcomes = outcomes_of_actions.find(state, listed, worlds)
    outcomes["put strainer in drawer"]      # Outcome(n=3, rewarded=3): the drawer is shut, so it is not listed yet

An estimate mixes what an action brought with what was left to earn, over like actions in like situations. What the
very same words brought at once is a fact that a reader can weigh. It is also known of actions that are not listed here:
those that were rewarded before and are about things that the state names tell what to work towards. If a listed action
made it possible before, the outcome names that action, the first link of the chain.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hardwon.memory.records import Outcome, State
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.phrases import content_words
from hardwon.memory.situations.scripts import FULL_STOPS, separate
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import state_text
from hardwon.memory.storage.offers import read_offers

UNLISTED = 3
"""Largest number of actions that are not listed."""
NEWEST = 16
"""First steps of an action per world whose context is compared with the current one."""
CACHED = 4096
"""Largest number of cached sums and certainties."""
PRIOR = 2
"""Weight of the actions of the same template in `certainty`, in episodes."""
_NOTHING = Outcome()
_WORDS = re.compile(r"\w+")
_SENTENCES = re.compile(rf"[.!?]\s+|[\n{FULL_STOPS}]")
_OF_ONE = re.compile(r"[\d@_]")
"""Signs of a name that belongs to one thing of one episode, such as `drawer 3` or an order number."""
_NEW = (
    "SELECT steps.id, steps.trajectory_id, action, world, reward, failure FROM steps "
    "JOIN trajectories AS episode ON episode.namespace = steps.namespace AND episode.id = steps.trajectory_id "
    "JOIN episode_worlds AS placed ON placed.namespace = steps.namespace AND placed.trajectory_id = episode.id "
    # The unary plus makes SQLite scan the few new rows by rowid instead of the index of the namespace.
    "WHERE steps.id > ? AND +steps.namespace = ? AND trust = 'trusted' AND success IS NOT NULL ORDER BY steps.id"
)
_CONTEXTS = (
    "SELECT task, notes, reward FROM steps JOIN states ON states.id = steps.pre "
    "WHERE steps.id IN (SELECT value FROM json_each(?))"
)
_BEFORE = (
    "SELECT taken.id, earlier.action, earlier.offer, earlier.id FROM steps AS taken "
    "JOIN steps AS earlier ON earlier.namespace = taken.namespace AND earlier.trajectory_id = taken.trajectory_id "
    "AND earlier.t <= taken.t WHERE taken.id IN (SELECT value FROM json_each(?)) ORDER BY taken.id, earlier.t DESC"
)


@dataclass(slots=True)
class _Firsts:
    """The first steps with one action in the episodes of a world."""

    n: int = 0
    rewarded: int = 0
    episode: str = ""
    """The newest episode."""
    steps: list[int] = field(default_factory=list)
    """Ids of the newest of them."""


@dataclass(slots=True)
class _Repeats:
    """How often actions of one template were rewarded in an episode, given a reward in another one."""

    tried: float = 0.0
    again: float = 0.0

    def add(self, first: _Firsts, times: int = 1) -> None:
        """Add an action: each of its rewards is compared with its other episodes, so their order does not matter."""
        if first.n > 1:
            self.tried += times * first.rewarded
            self.again += times * first.rewarded * (first.rewarded - 1) / (first.n - 1)


Mentions = tuple[tuple[bool, ...], frozenset[str]]
"""For each argument of an action, whether the task names it; and the sentences of the notes that name an argument."""


class ActionOutcomes:
    """The outcomes of every action of a namespace in trusted episodes, by its exact words."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._last = 0
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self._sums: dict[tuple[str, frozenset[int] | None], Outcome] = {}
        """By action and worlds: the outcome over them, until steps are read."""
        self._certainties: dict[tuple[Any, ...], float] = {}
        """By action, worlds, task and notes: the certainty, until steps are read."""
        self._priors: dict[tuple[str, frozenset[int] | None], tuple[float, tuple[int, ...]]] = {}
        """By action and worlds: the part of the certainty that no context changes, until steps are read."""
        self._rewarded: dict[str, list[str]] = {}
        """By one word of what they name: the actions that were rewarded."""
        self._enablers: dict[str, tuple[tuple[int, ...], Counter[str]]] = {}
        """By action: the ids of its newest steps, and the actions that made it possible in them."""
        self._firsts: dict[str, dict[int, _Firsts]] = {}
        """By action and world: its first steps in each episode."""
        self._contexts: dict[str, tuple[tuple[int, ...], Counter[tuple[Mentions, bool]]]] = {}
        """By action: the ids of its newest first steps; by context, how many of them were rewarded and how many not."""
        self._repeats: dict[str, dict[int, _Repeats]] = {}
        """By template and world: how far one reward of an action promises another."""
        self.unread = True
        """True if there may be steps that have not been read."""

    def find(self, state: State, listed: Collection[str], worlds: frozenset[int] | None) -> dict[str, Outcome]:
        """Return the outcomes of the listed actions, and of rewarded ones all of whose things the state names."""
        self._read()
        for cache in (self._sums, self._certainties, self._priors):
            if len(cache) > CACHED:
                cache.clear()
        counts = {action: outcome for action in listed if (outcome := self._count(action, worlds)).n}
        for action, outcome in counts.items():
            if outcome.rewarded:
                counts[action] = replace(outcome, certainty=self._find_certainty(action, state, worlds))
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
            action: replace(
                self._name_enabler(action, unlisted[action], listed),
                certainty=self._find_certainty(action, state, worlds),
            )
            for action in best[:UNLISTED]
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

    def _find_certainty(self, action: str, state: State, worlds: frozenset[int] | None) -> float:
        """Return the certainty of an action, which holds for all steps of an episode with the same notes."""
        key = (action, worlds, state.task, state.notes)
        if (certainty := self._certainties.get(key)) is None:
            certainty = self._certainties[key] = self._compute_certainty(action, state, worlds)
        return certainty

    def _compute_certainty(self, action: str, state: State, worlds: frozenset[int] | None) -> float:
        """Return the probability that the action is rewarded at once the next time; see `Outcome.certainty`."""
        if (prior := self._priors.get((action, worlds))) is None:
            prior = self._priors[action, worlds] = self._compute_prior(action, worlds)
        again, steps = prior
        n, rewarded = self._count_in_context(action, steps, find_context(action, state.task, state.notes))
        return (PRIOR * again + rewarded) / (PRIOR + n) if rewarded else 0.0

    def _compute_prior(self, action: str, worlds: frozenset[int] | None) -> tuple[float, tuple[int, ...]]:
        """Return how far a reward promises another in the rest of its template, and the newest steps of an action."""
        rest, steps = _Repeats(), []
        for world, first in self._firsts[action].items():
            if worlds is None or world in worlds:
                steps += first.steps
                rest.add(first, -1)
        for world, repeats in self._repeats.get(parse_action(action).template, {}).items():
            if worlds is None or world in worlds:
                rest.tried, rest.again = rest.tried + repeats.tried, rest.again + repeats.again
        return (rest.again + 1) / (rest.tried + 2), tuple(steps)

    def _count_in_context(self, action: str, steps: tuple[int, ...], context: "Mentions") -> tuple[int, int]:
        """Return the number of steps in such a context, and of those among them that were rewarded at once."""
        filed, counts = self._contexts.get(action, ((), Counter()))
        if filed != steps:
            counts = Counter(
                (find_context(action, task, tuple(json.loads(notes))), reward > 0)
                for task, notes, reward in self._store.rows(_CONTEXTS, (json.dumps(steps),))
            )
            self._contexts[action] = steps, counts
        return counts[context, True] + counts[context, False], counts[context, True]

    def _add_first(self, action: str, world: int, trajectory: str, step: int, rewarded: bool) -> None:
        """Count a step if it is the first with its action in the episode."""
        first = self._firsts.setdefault(action, {}).setdefault(world, _Firsts())
        if first.episode == trajectory:
            return
        repeats = self._repeats.setdefault(parse_action(action).template, {}).setdefault(world, _Repeats())
        repeats.add(first, -1)
        first.episode = trajectory
        first.n += 1
        first.rewarded += rewarded
        first.steps = [*first.steps, step][-NEWEST:]
        repeats.add(first)

    def _read(self) -> None:
        """Read the steps that were recorded since the last call."""
        if not self.unread:
            return
        self.unread = False
        before = self._last
        for step, trajectory, action, world, reward, failure in self._store.rows(_NEW, (self._last, self._namespace)):
            self._last = step
            if _is_about_one(action):
                continue  # its outcome says nothing about the thing of that name elsewhere
            by_world = self._outcomes.setdefault(action, {})
            is_first_reward = reward > 0 and not any(outcome.rewarded for outcome in by_world.values())
            bad = reward < 0 or failure != "none"
            self._add_first(action, world, trajectory, step, reward > 0)
            now = Outcome(1, int(reward > 0), int(bad), (step,))
            by_world[world] = by_world.get(world, _NOTHING) + now
            if is_first_reward:
                for word in _choose_word(action):
                    self._rewarded.setdefault(word, []).append(action)
        if self._last != before:
            for cache in (self._sums, self._certainties, self._priors):
                cache.clear()


@lru_cache(maxsize=CACHED)
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


@lru_cache(maxsize=CACHED)
def find_context(action: str, task: str, notes: tuple[str, ...]) -> Mentions:
    """Return what the task and the notes say about the arguments of an action.

    The same words can be right for one task or recipe and wrong for another, so their outcomes count separately.
    """
    slots, wanted = parse_action(action).slots, content_words(task)
    things = [_pad(slot) for slot in slots]
    sentences = (_pad(sentence) for note in notes for sentence in _SENTENCES.split(note))
    about = frozenset(sentence for sentence in sentences if any(thing in sentence for thing in things))
    return tuple(bool(content_words(slot) & wanted) for slot in slots), about


def _pad(text: str) -> str:
    """Return the words of a text in lower case with a space between them and at both ends."""
    return f" {' '.join(_WORDS.findall(separate(text)))} "


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
