"""Effects of items per world: where an item helps, where it hurts, and where it is left out for that.

While an agent learns, items that fit are held back at random (one episode of ten). In each world, the episodes
that were shown an item are compared with those that it was held back from:

    d_w = p_w - q_w,  v_w = p_w (1 - p_w) / (n_w + 2) + q_w (1 - q_w) / (m_w + 2)

with p_w = (won + 1) / (n_w + 2) of the n_w episodes shown, and q_w likewise of the m_w withheld ones (Agresti and
Caffo 2000: no interval of width 0). Only the last WINDOW episodes of each arm count, so that a world may change.

Worlds tell of each other, so each difference is shrunk to the item's mean over its worlds (empirical Bayes,
DerSimonian and Laird 1986 for the variance tau^2 between worlds, at least SPREAD^2):

    mean = sum_w d_w / (v_w + tau^2) / sum_w 1 / (v_w + tau^2)
    effect_w = B_w mean + (1 - B_w) d_w,  B_w = v_w / (v_w + tau^2)
    variance_w = (1 - B_w) v_w + B_w^2 / sum_w 1 / (v_w + tau^2)

An item is masked in a world where the whole 90 % interval of its effect is below 0 and each arm has LEAST episodes.
A masked item is still shown now and then, as others are now and then withheld; so the mask can be lifted.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hardwon.memory.records import Item
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.world_scores import SCORES, Scores, score_in
from hardwon.memory.storage.worlds import Worlds

WINDOW = 40
"""Episodes per item, world and arm that count: the newest."""
LEAST = 3
"""Episodes of each arm before an item may be masked: two failures are chance."""
SPREAD = 0.1
"""The least standard deviation of an item's effect between worlds."""
Z = 1.645
"""Of a 90 % interval: 5 % on each side."""
FLOOR = 0.4
"""A score in a world below which an item is left out there while its effect is not known."""


@dataclass(frozen=True, slots=True)
class Arms:
    """Episodes of one world: how many were shown an item, how many it was held back from, and how many of each won."""

    shown: int = 0
    shown_won: int = 0
    withheld: int = 0
    withheld_won: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What an item does in one world: the difference that showing it makes, with a 90 % interval."""

    world: int
    name: str
    shown: int
    withheld: int
    difference: float | None
    """Shrunk to the item's mean over worlds; None until it was both shown and withheld there."""
    low: float | None
    high: float | None
    masked: bool
    """Whether it is left out in this world."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A shrunk difference and its interval."""

    difference: float
    low: float
    high: float


def shrink(arms: Mapping[int, Arms]) -> dict[int, Estimated]:
    """Return the effect in each world that has episodes of both arms."""
    seen = {world: _difference(one) for world, one in arms.items() if one.shown and one.withheld}
    if not seen:
        return {}
    between = max(SPREAD**2, _variance_between(list(seen.values())))
    weights = {world: 1.0 / (v + between) for world, (_, v) in seen.items()}
    total = sum(weights.values())
    mean = sum(weights[world] * d for world, (d, _) in seen.items()) / total
    found = {}
    for world, (d, v) in seen.items():
        share = v / (v + between)
        effect = share * mean + (1.0 - share) * d
        margin = Z * math.sqrt((1.0 - share) * v + share**2 / total)
        found[world] = Estimated(effect, max(-1.0, effect - margin), min(1.0, effect + margin))
    return found


def _difference(arms: Arms) -> tuple[float, float]:
    """Return the smoothed difference of the arms, and its variance."""
    p = (arms.shown_won + 1) / (arms.shown + 2)
    q = (arms.withheld_won + 1) / (arms.withheld + 2)
    return p - q, p * (1 - p) / (arms.shown + 2) + q * (1 - q) / (arms.withheld + 2)


def _variance_between(seen: Sequence[tuple[float, float]]) -> float:
    """Return by how much the differences vary beyond what chance within each makes (DerSimonian and Laird)."""
    weights = [1.0 / v for _, v in seen]
    total = sum(weights)
    mean = sum(w * d for w, (d, _) in zip(weights, seen, strict=True)) / total
    apart = sum(w * (d - mean) ** 2 for w, (d, _) in zip(weights, seen, strict=True))
    scale = total - sum(w * w for w in weights) / total
    return max(0.0, (apart - (len(seen) - 1)) / scale) if len(seen) > 1 else 0.0


def hurts(arms: Arms, estimated: Estimated | None) -> bool:
    """Return whether an item surely hurts in a world."""
    return estimated is not None and estimated.high < 0 and is_tried(arms)


def is_tried(arms: Arms) -> bool:
    """Return whether both arms have enough episodes to tell."""
    return min(arms.shown, arms.withheld) >= LEAST


_Outcomes = deque[tuple[int, int]]
_USED = (
    "SELECT used.id, item_id, trajectory_id, mode, world, success FROM usages AS used "
    "JOIN episode_worlds AS placed USING (namespace, trajectory_id) "
    "JOIN trajectories AS episode ON episode.namespace = used.namespace AND episode.id = trajectory_id "
    "WHERE used.id > ? AND +used.namespace = ? AND mode IN ('recalled', 'followed', 'withheld') "
    "AND success IS NOT NULL ORDER BY used.id"
)


class Effects:
    """The effects of a namespace's items, read from the usages that were written since it was last asked."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._last = 0
        self._outcomes: dict[str, dict[tuple[int, bool], _Outcomes]] = {}
        """By item; by world as it was placed, and whether shown: (usage, won), the newest last."""
        self._scores: dict[str, Scores] = {}
        self._masked: dict[str, set[int]] = {}
        """By item: the worlds where it is left out, as far as told since its episodes changed."""
        self._left_out: dict[int, frozenset[str]] | None = None
        self.unread = True
        """Whether there may be usages that were not read."""

    def left_out(self, world: int | None, worlds: Worlds, items: Mapping[str, Item]) -> frozenset[str]:
        """Return the ids of the items that are masked in a world; pinned ones never are."""
        if self.unread:
            self._read()
        if self._left_out is None:
            found: defaultdict[int, set[str]] = defaultdict(set)
            for ref in {*self._outcomes, *self._scores}:
                if ref in items and not items[ref].pinned:
                    if ref not in self._masked:
                        self._masked[ref] = self._masks(ref, worlds)
                    for number in self._masked[ref]:
                        found[number].add(ref)
            self._left_out = {number: frozenset(refs) for number, refs in found.items()}
        return self._left_out.get(world, frozenset()) if world is not None else frozenset()

    def left_out_anywhere(self, worlds: Worlds, items: Mapping[str, Item]) -> bool:
        """Return whether any item is masked in any world."""
        self.left_out(None, worlds, items)
        return bool(self._left_out)

    def score_in(self, item: Item, world: int) -> float:
        """Return the score of an item in one world, by which it is ranked there."""
        if self.unread:
            self._read()
        return score_in(self._scores.get(item.id, {}), world, item.score)

    def renew(self, *, worlds: bool = False) -> None:
        """Tell anew what is masked where: items changed or, with their scores per world, worlds were united."""
        self._left_out = None
        if worlds:
            self._masked.clear()
            self._scores.clear()
            self.unread = True

    def of(self, item: Item, worlds: Worlds) -> list[Effect]:
        """Return what an item does in each world that it was shown in, or withheld."""
        if self.unread:
            self._read()
        arms = self._arms(item.id, worlds)
        found, masked = shrink(arms), set() if item.pinned else self._masks(item.id, worlds)
        return [
            Effect(
                world,
                worlds.get(world).name,
                one.shown,
                one.withheld,
                found[world].difference if world in found else None,
                found[world].low if world in found else None,
                found[world].high if world in found else None,
                world in masked,
            )
            for world, one in sorted(arms.items())
        ]

    def _masks(self, ref: str, worlds: Worlds) -> set[int]:
        """The worlds where an item is left out: by its effect or, while that is not known, by its score there."""
        arms = self._arms(ref, worlds)
        found = shrink(arms)
        masked = {world for world, one in arms.items() if hurts(one, found.get(world))}
        scores = self._scores.get(ref, {})
        if len(scores) > 1:  # of a single world it is the item's own, which recall looks at
            masked |= {
                world
                for world, (score, _) in scores.items()
                if world and score < FLOOR and not is_tried(arms.get(world, Arms()))
            }
        return masked

    def _arms(self, ref: str, worlds: Worlds) -> dict[int, Arms]:
        """Count the newest episodes of each world that stands; those united with it are of it."""
        kept: defaultdict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
        for (world, shown), outcomes in self._outcomes.get(ref, {}).items():
            kept[worlds.standing_for(world), shown] += outcomes
        won = {where: [success for _, success in sorted(some)[-WINDOW:]] for where, some in kept.items()}
        return {
            world: Arms(
                *_counts(won.get((world, True), ())),
                *_counts(won.get((world, False), ())),
            )
            for world in {world for world, _ in won}
        }

    def _read(self) -> None:
        """Read the usages that were written since, and the scores of their items."""
        self.unread = False
        episodes: dict[tuple[str, str], tuple[int, int, int, bool]] = {}
        for number, ref, episode, mode, world, success in self._store.rows(_USED, (self._last, self._namespace)):
            self._last = number
            shown = mode != "withheld" or episodes.get((ref, episode), (0, 0, 0, False))[-1]
            episodes[ref, episode] = (number, world, success, shown)
        for (ref, _), (number, world, success, shown) in episodes.items():
            arms = self._outcomes.setdefault(ref, {})
            arms.setdefault((world, shown), deque(maxlen=WINDOW)).append((number, success))
        if episodes or not self._scores:
            self._read_scores({ref for ref, _ in episodes} if self._scores else None)
            self._left_out = None

    def _read_scores(self, changed: set[str] | None) -> None:
        """Read the scores per world of the items that were used since; None for all."""
        of = "" if changed is None else " AND item_id IN (SELECT value FROM json_each(?))"
        asked = () if changed is None else (json.dumps(sorted(changed)),)
        for ref in self._scores.keys() | self._outcomes.keys() if changed is None else changed:
            self._scores.pop(ref, None)
            self._masked.pop(ref, None)
        for ref, world, score, uses in self._store.rows(SCORES + of, (self._namespace, *asked)):
            self._scores.setdefault(ref, {})[world] = score, uses


def _counts(won: Iterable[int]) -> tuple[int, int]:
    some = list(won)
    return len(some), sum(some)
