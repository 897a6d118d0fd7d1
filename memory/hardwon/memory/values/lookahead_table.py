"""Lookahead values: what an action brings, and what it makes worth doing next, estimated from past steps.

For every key of an action (see `situations.lookahead_keys`) there are four means over the past steps with this key:

    gain    reward in units of the median reward, clipped to [-1, 1.5], plus the novelty of the step
    lost    share of steps that lost the task
    dead    share of steps that neither changed nor told anything
    unlock  the most valuable action that the step newly made possible, as far as it exceeds its value before

    Q(a) = gain(a) + lookahead_discount unlock(a) - lost_task_cost max(0, lost(a) - tolerated_losses)
    unlock of a step = max over actions b after it of max(0, Q(b) - max(0, Q(b) before)), over changed keys only

An increase of at most `value_noise` counts as none, because the best of many estimates is never exactly 0. Without
this, pairs of actions that undo each other seem to unlock each other.

This is fitted Q-iteration on marginal values: what could be done anyway is not counted again. A chain of actions can so
be learned link by link, before it ever succeeded as a whole.

A fifth table has the promise: the same values with the chance that an action is paid added, which is divided among its
tries. Chances propagate along chains as gains do, so an agent that learns finds the way to what it never tried.

Everything is derived from the steps of the newest episodes, in their order, and can be rebuilt from them at any time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.actions import ParsedAction
from hardwon.memory.situations.lookahead_keys import AGAIN, COLUMNS, FORM, LEVELS, NAMED, SPECIAL, TOLD, LookaheadKeys
from hardwon.memory.situations.tuning import TUNING as SITUATIONS

from .tuning import TUNING

HIGHEST_GAIN, LOWEST_GAIN = 1.5, -1.0
RECENT = 8192
"""Number of actions whose rows or lookahead values are kept by their keys."""

FIGURES = ("gain", "unlock", "lost", "dead", "promise")
"""The figures of a table; the promise is as `unlock`, with the chances of untried actions in the values."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
_WEIGHTS = np.array([2.0**level for level in LEVELS])


@dataclass(frozen=True, slots=True)
class LookaheadValue:
    """What past steps say about one action."""

    value: float
    """Q: the gain, and the discounted worth of what it unlocks, less the risk of losing the task."""
    gain: float = 0.0
    unlock: float = 0.0
    lost: float = 0.0
    """Share of similar steps that lost the task."""
    dead: float = 0.0
    """Share of similar steps that neither changed nor told anything."""
    n: int = 0
    """Number of past steps under the least tried key that tells what the notes say of the action's arguments."""
    promise: float = 0.0
    """Gain that a try could show beyond the value: the chance that the action, or one that it unlocks, is paid."""
    chance: float = 0.0
    """Share of similar actions that were ever paid, divided among the tries of this one."""


@dataclass(slots=True)
class EpisodeRows:
    """One episode as rows of key ids: the steps, and what each step made possible."""

    steps: list[int] = field(default_factory=list)
    """Row of each step."""
    rewards: list[float] = field(default_factory=list)
    novelty: list[float] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)
    dead: list[bool] = field(default_factory=list)
    followed: list[bool] = field(default_factory=list)
    """Whether it is known what each step made possible."""
    opened: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(step, row of an action after it, its row at the last visit, its row before the step); 0 for none."""


@dataclass(slots=True)
class Forms:
    """What the steps show about forms of actions: how often they were taken, whether they move, and their arguments."""

    steps: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    """Steps of each form that changed the location."""
    offered: Counter[str] = field(default_factory=Counter)
    """States in which each form was admissible."""
    first: dict[str, set[str]] = field(default_factory=dict)
    second: dict[str, set[str]] = field(default_factory=dict)
    """By form of two arguments, the heads of the first and of the second one."""

    def offer(self, parsed: ParsedAction) -> None:
        """Count an admissible action."""
        self.offered[parsed.template] += 1
        if len(parsed.heads) == 2:
            self.first.setdefault(parsed.template, set()).add(parsed.heads[0])
            self.second.setdefault(parsed.template, set()).add(parsed.heads[1])

    def is_move(self, form: str) -> bool:
        """Return whether most steps of this form changed the location."""
        return 2 * self.moved[form] > self.steps[form]


class Rows:
    """The key ids of actions; equal actions share one row. Row 0 has no keys."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {"": 0}
        self._added: dict[tuple[int, ...], int] = {(0,) * COLUMNS: 0}
        """All rows by their key ids."""
        self._recent: dict[tuple[str, ...], int] = {}
        """By keys, the rows that were filed last: most actions of a state are possible in the next one, too."""

    def __len__(self) -> int:
        return len(self._added)

    @property
    def keys(self) -> int:
        """Return the number of keys."""
        return len(self._keys)

    def file(self, keys: Sequence[str]) -> int:
        """Return the row of an action with these keys, which is added if it is new."""
        which = tuple(keys)
        row = self._recent.get(which)
        if row is None:
            ids = tuple([self._keys.setdefault(key, len(self._keys)) for key in which])
            row = self._added.setdefault(ids, len(self._added))
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[which] = row
        return row

    def find(self, keys: Sequence[str]) -> list[int]:
        """Return the ids of keys; 0 for an unknown one."""
        return [self._keys.get(key, 0) for key in keys]

    def build(self) -> Ints:
        """Return the key ids of all rows, (rows, columns)."""
        return np.array(list(self._added), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Mean:
    """Means of one figure by key, and the weight of each key."""

    mean: Floats
    weight: Floats

    @classmethod
    def of(cls, keys: Ints, values: Floats, size: int, episodes: Floats | None = None) -> "Mean":
        """Return the means over steps. A key with full names of things weighs as much as these differ from others."""
        flat = keys.ravel()
        spread = np.repeat(values, keys.shape[1])
        n = np.bincount(flat, minlength=size).astype(np.float64)
        total = np.asarray(np.bincount(flat, spread, minlength=size), dtype=np.float64)
        squares = np.asarray(np.bincount(flat, spread * spread, minlength=size), dtype=np.float64)
        safe = np.maximum(n, 1.0)
        mean = total / safe
        variance = np.maximum(squares / safe - mean * mean, 0.0)
        weight = np.minimum(n, TUNING.max_key_weight) * (n + 1.0) / (n * variance + TUNING.lookahead_variance)
        weight[0] = 0.0  # the empty key
        names, kinds = _list_names(keys)
        weight[names] *= _weigh_names(n, total, squares, np.ones(size) if episodes is None else episodes, names, kinds)
        return cls(mean, weight)

    @classmethod
    def stack(cls, means: Sequence["Mean"]) -> "Mean":
        """Return the means of several figures as those of one, (figures, keys)."""
        return cls(np.stack([part.mean for part in means]), np.stack([part.weight for part in means]))

    def estimate(self, keys: Ints) -> Floats:
        """Return the weighted mean over the keys of each row, for each figure; 0 without any evidence."""
        weights = np.take(self.weight, keys, axis=-1) * _WEIGHTS
        total = weights.sum(axis=-1)
        means: Floats = (weights * np.take(self.mean, keys, axis=-1)).sum(axis=-1) / np.maximum(total, 1e-12)
        return means


def _list_names(keys: Ints) -> tuple[Ints, Ints]:
    """Return the ids of the keys with full names, and those of the keys of all things of their kind."""
    pairs = np.stack([keys[:, NAMED:].ravel(), keys[:, SPECIAL:NAMED].ravel()])
    names, kinds = np.unique(pairs[:, pairs[0] > 0], axis=1)
    return names, kinds


def _count_episodes(keys: Ints, lengths: Sequence[int], size: int) -> Floats:
    """Return, by key, the share of its steps that are of different episodes, (size,)."""
    number = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    pairs = np.unique(number[:, None] * size + keys)
    n = np.bincount(keys.ravel(), minlength=size)
    shares: Floats = np.bincount(pairs % size, minlength=size) / np.maximum(n, 1)
    return shares


def _weigh_names(n: Floats, total: Floats, squares: Floats, episodes: Floats, names: Ints, kinds: Ints) -> Floats:
    """Return how far the steps with each name count apart from others of its kind, (names,); see `cells.weigh_part`."""
    own, count = n[names], n[kinds]
    m, rest = count - own, total[kinds] - total[names]
    safe = np.maximum(m, 1.0)
    differences = (total[names] / own - rest / safe) ** 2
    within = np.maximum(squares[kinds] - total[names] ** 2 / own - rest**2 / safe, 0.0) / count
    spread = np.maximum(squares[kinds] - total[kinds] ** 2 / count, 0.0) / count
    of_own, of_rest = own * episodes[names], m * episodes[kinds]
    inverse = 1.0 / of_own + 1.0 / np.maximum(of_rest, 1.0)
    doubt = TUNING.doubt_of_thing * (within + 2 * spread / (of_own + of_rest)) * inverse
    differs = (np.minimum(of_own, of_rest) >= TUNING.min_episodes_of_thing) & (differences > 0)
    weights: Floats = np.where(differs, np.maximum(0.0, 1.0 - doubt / np.maximum(differences, 1e-300)), 0.0)
    return weights


@dataclass(frozen=True, slots=True)
class LookaheadTable:
    """The means by key, fitted to the steps of some episodes."""

    rows: Rows
    forms: Forms
    keys: LookaheadKeys
    means: Mean
    """The means of each of `FIGURES`, (figures, keys)."""
    chances: Floats
    """See `count_chances`."""
    counts: Floats
    scale: float
    """The median positive reward, the unit of gains."""
    _judged: dict[tuple[str, ...], LookaheadValue] = field(default_factory=dict, compare=False, repr=False)
    """Lookahead values by keys: most actions of a step could be taken in the step before, too."""

    def judge(self, keys: Sequence[Sequence[str]]) -> list[LookaheadValue]:
        """Return the lookahead value of each action with these keys."""
        wanted = [tuple(columns) for columns in keys]
        kept = self._judged
        missing = [columns for columns in dict.fromkeys(wanted) if columns not in kept]
        if missing:
            if len(kept) + len(missing) > RECENT:
                kept.clear()
                missing = list(dict.fromkeys(wanted))
            kept.update(zip(missing, self._compute_values(missing), strict=True))
        return [kept[columns] for columns in wanted]

    def _compute_values(self, keys: Sequence[tuple[str, ...]]) -> list[LookaheadValue]:
        ids = np.array([self.rows.find(columns) for columns in keys], dtype=np.int32)
        ids[ids >= len(self.counts)] = 0  # keys of episodes that were read after the fit
        gain, unlock, lost, dead, expected = self.means.estimate(ids)
        value = compute_value(gain, unlock, lost)
        present = np.array([[key != "" for key in columns] for columns in keys])
        tried = _count_words(ids, present[:, SPECIAL], self.counts)
        chance = compute_chance(ids[:, FORM], tried, self.chances)
        promise = chance + TUNING.lookahead_discount * np.maximum(0.0, expected - unlock)
        n = _count_tried(present, self.counts[ids])
        columns = (column.tolist() for column in (value, gain, unlock, lost, dead, n, promise, chance))
        return [
            LookaheadValue(q, g, u, at_risk, idle, int(least), hope, own)
            for q, g, u, at_risk, idle, least, hope, own in zip(*columns, strict=True)
        ]


def _count_tried(present: NDArray[np.bool_], counts: Floats) -> Floats:
    """Return the least number of steps under the keys about the notes of each action, (actions,)."""
    columns_of_notes = slice(TOLD, TOLD + 1 + SITUATIONS.max_note_words)
    tried: Floats = np.where(present[:, columns_of_notes], counts[:, columns_of_notes], np.inf).min(axis=1)
    return tried


def compute_value(gain: Floats, unlock: Floats, lost: Floats) -> Floats:
    """Return Q of actions."""
    value: Floats = (
        gain
        + TUNING.lookahead_discount * unlock
        - TUNING.lost_task_cost * np.maximum(0.0, lost - TUNING.tolerated_losses)
    )
    return value


def compute_chance(forms: Ints, tried: Floats, chances: Floats) -> Floats:
    """Return the chance of each action to be paid, divided among its tries so far, (actions,)."""
    chance: Floats = chances[forms] / (1.0 + tried)
    return chance


def count_chances(keys: Ints, paid: NDArray[np.bool_], size: int) -> Floats:
    """Return the share of the actions of each form that were ever paid, by key of the form, (keys,).

    Actions count once, however often they were taken: 20 tries of one action say nothing about another one. A form
    that was never tried has a chance of one half.
    """
    special = np.where(keys[:, SPECIAL] > 0, keys[:, SPECIAL], keys[:, AGAIN])
    actions, number = np.unique(np.stack([keys[:, FORM], special], axis=1), axis=0, return_inverse=True)
    were_paid = np.bincount(number.ravel(), paid, minlength=len(actions)) > 0
    tried = np.bincount(actions[:, 0], minlength=size)
    chances: Floats = (np.bincount(actions[:, 0], were_paid, minlength=size) + 1.0) / (tried + 2.0)
    return chances


def fit(rows: Rows, forms: Forms, keys_of: LookaheadKeys, episodes: Sequence[EpisodeRows]) -> LookaheadTable:
    """Fit the tables to episodes."""
    ids, size = rows.build(), rows.keys
    steps = _concatenate([episode.steps for episode in episodes], np.int32)
    rewards = _concatenate([episode.rewards for episode in episodes], np.float64)
    positive = rewards[rewards > 0]
    scale = float(np.median(positive)) if len(positive) else 1.0
    gains = np.clip(rewards / scale, LOWEST_GAIN, HIGHEST_GAIN)
    gains += _concatenate([episode.novelty for episode in episodes], np.float64)
    keys = ids[steps]
    shares = _count_episodes(keys, [len(episode.steps) for episode in episodes], size)
    gain = Mean.of(keys, gains, size, shares)
    lost = Mean.of(keys, _concatenate([episode.lost for episode in episodes], np.float64), size, shares)
    dead = Mean.of(keys, _concatenate([episode.dead for episode in episodes], np.float64), size, shares)
    counts = np.bincount(keys.ravel(), minlength=size).astype(np.float64)
    counts[0] = 0.0  # new keys have this id, too, and no step
    chances = count_chances(keys, rewards > 0, size)
    links = _Links(
        ids, keys, shares, _concatenate([episode.followed for episode in episodes], np.bool_), _join_opened(episodes)
    )
    gains_of, lost_of = gain.estimate(ids), lost.estimate(ids)
    unlock = links.fit(lambda unlocked: compute_value(gains_of, unlocked, lost_of), size)
    tried = _count_words(ids, ids[:, SPECIAL] > 0, counts)
    chance, untried = compute_chance(ids[:, FORM], tried, chances), 1.0 / np.sqrt(1.0 + tried)
    promise = links.fit(lambda unlocked: compute_value(gains_of, unlocked, lost_of * (1.0 - untried)) + chance, size)
    means = Mean.stack([gain, unlock, lost, dead, promise])
    return LookaheadTable(rows, forms, keys_of, means, chances, counts, scale)


def _count_words(ids: Ints, has_words: NDArray[np.bool_], counts: Floats) -> Floats:
    """Return the number of steps with the words of each action, or with its form if it has no arguments, (actions,)."""
    tried: Floats = counts[np.where(has_words, ids[:, SPECIAL], ids[:, AGAIN])]
    return tried


@dataclass(frozen=True, slots=True)
class _Links:
    """Actions that the steps of all episodes made possible."""

    ids: Ints
    """Key ids of all rows, (rows, columns)."""
    keys: Ints
    """Key ids of each step, (steps, columns)."""
    shares: Floats
    """See `_count_episodes`."""
    followed: NDArray[np.bool_]
    opened: NDArray[np.int64]
    """See `EpisodeRows.opened`."""

    def fit(self, compute: Callable[[Floats], Floats], size: int) -> Mean:
        """Return the means of what steps unlock, in sweeps along the chains."""
        step, after, visited, before = self.opened.T
        unlock = Mean.of(self.keys[:0], np.zeros(0), size)
        for _ in range(TUNING.sweeps):
            value = compute(unlock.estimate(self.ids))
            value[0] = 0.0  # no row: the action was not possible before
            more = value[after] - np.maximum(0.0, np.maximum(value[visited], value[before]))
            targets = np.zeros(len(self.keys))
            np.maximum.at(targets, step, np.where(more > TUNING.value_noise, more, 0.0))
            unlock = Mean.of(self.keys[self.followed], targets[self.followed], size, self.shares)
        return unlock


def _concatenate(lists: Sequence[Sequence[Any]], dtype: Any) -> NDArray[Any]:
    return np.array([value for values in lists for value in values], dtype=dtype)


def _join_opened(episodes: Sequence[EpisodeRows]) -> NDArray[np.int64]:
    """Return what the steps of all episodes opened, with steps numbered across the episodes."""
    parts, first = [np.zeros((0, 4), dtype=np.int64)], 0
    for episode in episodes:
        part = np.array(episode.opened, dtype=np.int64).reshape(-1, 4)
        part[:, 0] += first
        parts.append(part)
        first += len(episode.steps)
    return np.concatenate(parts)


@cache
def fit_nothing() -> LookaheadTable:
    """Return the table of a world without episodes."""
    return fit(Rows(), Forms(), LookaheadKeys(), ())
