"""Effects of items per world: where an item helps, where it hurts, and where it is therefore masked.

While an agent learns, matching items are withheld at random (in one of ten episodes). In each world, the episodes that
showed an item are compared with those that withheld it:

    d_w = p_w - q_w,  v_w = p_w (1 - p_w) / (n_w + 2) + q_w (1 - q_w) / (m_w + 2)

with p_w = (won + 1) / (n_w + 2) for the n_w episodes that showed it, and q_w likewise for the m_w that withheld it
(Agresti and Caffo 2000; the interval never has width 0). Graded outcomes x in [0, 1] (see `Trajectory.outcome`) count
with their sum as won, and vary less than successes with the same mean: with the one success and the one failure that
are added to each arm, p_w (1 - p_w) falls by the sum of x (1 - x) / (n_w + 2), to the plain variance of all n_w + 2
outcomes. That sum is 0 where each x is 0 or 1. Only the last `effect_episodes` episodes of each arm count, so the
estimate follows changes of a world. A masked item is withheld in nine of ten episodes instead of one. Episodes in which
it was masked are therefore compared among themselves, and their difference and the other are averaged, weighted by the
inverse of their variances: an agent that gets better meanwhile would otherwise have most of its good episodes without
the item.

Worlds inform each other: each difference is shrunk towards the item's mean over its worlds (empirical Bayes; the
variance tau^2 between worlds is by DerSimonian and Laird 1986 and at least `min_effect_deviation`^2):

    mean = sum_w d_w / (v_w + tau^2) / sum_w 1 / (v_w + tau^2)
    effect_w = B_w mean + (1 - B_w) d_w,  B_w = v_w / (v_w + tau^2)
    variance_w = (1 - B_w) v_w + B_w^2 / sum_w 1 / (v_w + tau^2)

An item is masked in a world if the whole 90 % interval of its effect is below 0 and each arm has at least
`min_arm_episodes` episodes. A masked item is still shown at random, as other items are withheld at random, so a mask
can be lifted.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, mul
from statistics import fmean

from hardwon.memory.reasons import ADVICE
from hardwon.memory.records import Failure, Item
from hardwon.memory.storage.counted import OUTCOME
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.world_scores import SCORES, Scores, score_in
from hardwon.memory.storage.worlds import Worlds

from .tuning import TUNING

Z = 1.645
"""Normal quantile of a two-sided 90 % interval."""


@dataclass(frozen=True, slots=True)
class Arms:
    """Episodes of one world that showed or withheld an item, and the sum of their outcomes, each in [0, 1]."""

    shown: int = 0
    shown_won: float = 0
    withheld: int = 0
    withheld_won: float = 0
    masked: "Arms | None" = None
    """The episodes in which the item was masked; the other counts are without them."""
    shown_partly: float = 0.0
    """Sum of x (1 - x) over the outcomes x of those that showed it; 0 where each is a success or a failure."""
    withheld_partly: float = 0.0
    """The same sum of those that withheld it."""

    @property
    def compared(self) -> "tuple[Arms, ...]":
        """The groups of episodes, with the same probability of withholding, that have both arms."""
        return tuple(each for each in (self, self.masked) if each and each.shown and each.withheld)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an item in one world: the difference that showing it makes, with a 90 % interval."""

    world: int
    name: str
    shown: int
    withheld: int
    difference: float | None
    """Difference of the mean outcomes, shrunk towards the mean over worlds; None until both arms have episodes."""
    low: float | None
    high: float | None
    masked: bool
    """Whether recall leaves the item out in this world."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A shrunk difference with its 90 % interval."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AdviceGain:
    """The difference that all advice of a library makes, with its 95 % interval."""

    shown: int
    withheld: int
    difference: float | None
    """Difference of the mean outcomes with and without advice; None until both have episodes."""
    low: float | None
    high: float | None
    is_off: bool
    """Whether advice is switched off, because it makes outcomes worse."""
    failed_calls: tuple[float, float] | None = None
    """Mean number of failed calls of an episode, without and with advice; None until both have episodes."""
    failed_calls_margin: float = 0.0
    """Half of the 95 % interval of their difference."""

    @property
    def says(self) -> str:
        """Return the answer to "does it help?" as a sentence."""
        if self.difference is None or self.low is None or self.high is None:
            counts = f"{self.shown} episodes were drawn to have advice, {self.withheld} to have none"
            return f"not measured yet: {counts}; the draw begins after 20 episodes, and gives none to one run in ten"
        without, with_it = self.failed_calls or (0.0, 0.0)
        saved, margin = without - with_it, self.failed_calls_margin
        # agents that recover succeed either way, so what advice saves them are failed calls
        helps, harms = self.low > 0 or (self.high >= 0 and saved > margin), self.high < 0 or saved < -margin
        word = "helps" if helps else "harms" if harms else "no clear difference"
        calls = f"failed calls per episode {with_it:.2f} with advice, {without:.2f} without; " * bool(without + with_it)
        off = "; switched off, and shown in one of ten episodes to measure it again" if self.is_off else ""
        points, low, high = (f"{100 * value:+.0f}" for value in (self.difference, self.low, self.high))
        counts = f"{self.shown} episodes with advice, {self.withheld} drawn to have none"
        return f"{word}: {calls}success {points} points (95 % interval {low} to {high}; {counts}){off}"


def measure_advice(episodes: Iterable[tuple[int, bool, bool, float, int]]) -> AdviceGain:
    """Return the gain of advice from episodes: world, whether advice was off, whether shown, outcome, failed calls.

    Within each world and state of the switch, the mean outcomes with and without advice are compared, and the
    differences are averaged, weighted by the size of both arms. The variance of an arm is at least that of both,
    because the few episodes without advice may vary little by chance.
    """
    groups: defaultdict[tuple[int, bool], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    calls: defaultdict[tuple[int, bool], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for world, was_off, was_shown, outcome, failures in episodes:
        groups[world, was_off][was_shown].append(outcome)
        calls[world, was_off][was_shown].append(failures)
    counts = [sum(len(arms[arm]) for arms in groups.values()) for arm in (False, True)]
    compared = [arms for arms in groups.values() if all(arms)]
    if not compared:
        return AdviceGain(counts[True], counts[False], None, None, None, False)
    shares = [1 / (1 / len(without) + 1 / len(with_it)) for without, with_it in compared]
    without, with_it = _average(compared, shares)
    difference, margin = with_it - without, _bound(compared, shares)
    half = margin(TUNING.gain_quantile)
    failed = [arms for arms in calls.values() if all(arms)]
    return AdviceGain(
        counts[True], counts[False], difference, max(-1.0, difference - half), min(1.0, difference + half),
        min(counts) >= TUNING.min_unadvised_episodes and difference + margin(Z) < 0,
        _average(failed, shares), _bound(failed, shares)(TUNING.gain_quantile),
    )  # fmt: skip


def _bound(groups: Sequence[tuple[list[float], list[float]]], shares: Sequence[float]) -> Callable[[float], float]:
    """Return a function for the margin of a mean difference over the groups, by the quantile of a normal."""
    squares = [sum(_sum_squares(arms[arm]) for arms in groups) for arm in (0, 1)]
    free = [sum(len(arms[arm]) - 1 for arms in groups) for arm in (0, 1)]
    pooled = (sum(squares) + 0.5) / (sum(free) + 1)
    variance = sum(
        max(pooled, squares[arm] / max(1, free[arm])) * share**2 / len(arms[arm])
        for share, arms in zip(shares, groups, strict=True)
        for arm in (0, 1)
    ) / sum(shares) ** 2  # fmt: skip
    # an expansion of the quantile of Student's distribution
    return lambda z: (z + (z**3 + z) / 4 / max(1, min(free))) * math.sqrt(variance)


def _average(groups: Sequence[tuple[list[float], list[float]]], shares: Sequence[float]) -> tuple[float, float]:
    """Return the means of both arms over the groups, weighted by their shares."""
    means = [[fmean(arms[arm]) for arms in groups] for arm in (0, 1)]
    without, with_it = (sum(map(mul, shares, each)) / sum(shares) for each in means)
    return without, with_it


def _sum_squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


def shrink(arms: Mapping[int, Arms]) -> dict[int, Estimated]:
    """Return the shrunk effect in each world that has episodes of both arms."""
    differences = {world: _difference(counts) for world, counts in arms.items() if counts.compared}
    if not differences:
        return {}
    # A lower bound: with few worlds, the estimate is often 0, which would erase their differences.
    between = max(TUNING.min_effect_deviation**2, _variance_between(list(differences.values())))
    weights = {world: 1.0 / (v + between) for world, (_, v) in differences.items()}
    total = sum(weights.values())
    mean = sum(weights[world] * d for world, (d, _) in differences.items()) / total
    estimates = {}
    for world, (d, v) in differences.items():
        share = v / (v + between)
        effect = share * mean + (1.0 - share) * d
        margin = Z * math.sqrt((1.0 - share) * v + share**2 / total)
        estimates[world] = Estimated(effect, max(-1.0, effect - margin), min(1.0, effect + margin))
    return estimates


def _difference(arms: Arms) -> tuple[float, float]:
    """Return the smoothed difference of the mean outcomes, and its variance."""
    weight = total = 0.0
    for each in arms.compared:
        p, spread = _smooth(each.shown, each.shown_won, each.shown_partly)
        q, other = _smooth(each.withheld, each.withheld_won, each.withheld_partly)
        v = spread + other
        weight, total = weight + 1.0 / v, total + (p - q) / v
    return total / weight, 1.0 / weight


def _smooth(n: int, won: float, partly: float) -> tuple[float, float]:
    """Return the mean of n outcomes, one success and one failure, and the variance of that mean."""
    mean = (won + 1) / (n + 2)
    # not the mean of squares less the squared mean: this way, successes and failures are not rounded otherwise
    return mean, (mean * (1 - mean) - partly / (n + 2)) / (n + 2)


def _variance_between(differences: Sequence[tuple[float, float]]) -> float:
    """Return the variance between worlds beyond chance within each (DerSimonian and Laird)."""
    # v is positive: each arm has at least one success and one failure.
    weights = [1.0 / v for _, v in differences]
    total = sum(weights)
    mean = sum(w * d for w, (d, _) in zip(weights, differences, strict=True)) / total
    dispersion = sum(w * (d - mean) ** 2 for w, (d, _) in zip(weights, differences, strict=True))
    scale = total - sum(w * w for w in weights) / total
    return max(0.0, (dispersion - (len(differences) - 1)) / scale) if len(differences) > 1 else 0.0


def hurts(arms: Arms, estimated: Estimated | None) -> bool:
    """Return whether an item hurts in a world: its interval is below 0 and both arms have enough episodes."""
    return estimated is not None and estimated.high < 0 and is_tried(arms)


def is_tried(arms: Arms) -> bool:
    """Return whether both arms have enough episodes to judge an item."""
    return (
        min(sum(each.shown for each in arms.compared), sum(each.withheld for each in arms.compared))
        >= TUNING.min_arm_episodes
    )


_Outcomes = deque[tuple[int, float]]
_USED = (
    f"SELECT used.id, item_id, trajectory_id, mode, world, {OUTCOME}, iif(item_id = '{ADVICE}', "
    "(SELECT count(*) FROM steps WHERE steps.namespace = used.namespace AND steps.trajectory_id = used.trajectory_id "
    f"AND failure NOT IN ('none', '{Failure.BLOCKED}', '{Failure.REJECTED}')), 0) FROM usages AS used "
    "JOIN episode_worlds AS placed USING (namespace, trajectory_id) "
    "JOIN trajectories AS episode ON episode.namespace = used.namespace AND episode.id = trajectory_id "
    # The unary plus makes SQLite scan the new usages by id instead of the index of the namespace.
    "WHERE used.id > ? AND +used.namespace = ? AND mode IN ('recalled', 'followed', 'withheld', 'masked') "
    "AND success IS NOT NULL ORDER BY used.id"
)


class Effects:
    """The effects of a namespace's items, updated from new usages on every query."""

    def __init__(
        self, store: Store, namespace: int, worlds: Worlds, find_items: Callable[[], Mapping[str, Item]]
    ) -> None:
        """Create unread effects; `find_items` returns the active items by id."""
        self._store = store
        self._namespace = namespace
        self._worlds = worlds
        self._find_items = find_items
        self._last = 0
        self._outcomes: dict[str, dict[tuple[int, bool, bool], _Outcomes]] = {}
        """By item, then by (world as recorded, whether masked, whether shown): (usage id, outcome), the newest last."""
        self._scores: dict[str, Scores] = {}
        self._masked: dict[str, set[int]] = {}
        """By item: the worlds that mask it, computed on demand since its episodes last changed."""
        self._left_out: dict[int, frozenset[str]] | None = None
        self._advised: deque[tuple[int, bool, bool, float, int]] = deque(maxlen=TUNING.gain_episodes)
        self._gain: AdviceGain | None = None
        self.unread = True
        """Whether there may be usages that have not been read."""

    def left_out(self, world: int | None) -> frozenset[str]:
        """Return the ids of the items that are masked in a world; pinned items are never masked."""
        if self.unread:
            self._read()
        if self._left_out is None:
            items = self._find_items()
            masked: defaultdict[int, set[str]] = defaultdict(set)
            for ref in {*self._outcomes, *self._scores}:
                if ref in items and not items[ref].pinned:
                    if ref not in self._masked:
                        self._masked[ref] = self._masks(ref)
                    for number in self._masked[ref]:
                        masked[number].add(ref)
            self._left_out = {number: frozenset(refs) for number, refs in masked.items()}
        return self._left_out.get(world, frozenset()) if world is not None else frozenset()

    def score_in(self, world: int | None) -> Callable[[Item], float]:
        """Return a function for the score of an item in one world, which ranks it there, or its own score."""
        if world is None:
            return attrgetter("score")
        if self.unread:
            self._read()
        scores = self._scores

        def score(item: Item) -> float:
            return score_in(scores[item.id], world, item.score) if item.id in scores else item.score

        return score

    def gain(self) -> AdviceGain:
        """Return the gain of all advice."""
        if self.unread:
            self._read()
        if self._gain is None:
            standing_for = self._worlds.standing_for
            self._gain = measure_advice((standing_for(row[0]), *row[1:]) for row in self._advised)
        return self._gain

    def renew(self, *, worlds: bool = False) -> None:
        """Invalidate the masks."""
        self._left_out = None
        if worlds:
            self._masked.clear()
            self._scores.clear()
            self.unread = True

    def of(self, item: Item) -> list[Effect]:
        """Return the effect of an item in each world in which it was shown or withheld, ordered by world."""
        if self.unread:
            self._read()
        arms = self._arms(item.id)
        estimates, masked = shrink(arms), set() if item.pinned else self._masks(item.id)
        return [
            Effect(
                world,
                self._worlds.get(world).name,
                counts.shown + (counts.masked.shown if counts.masked else 0),
                counts.withheld + (counts.masked.withheld if counts.masked else 0),
                estimates[world].difference if world in estimates else None,
                estimates[world].low if world in estimates else None,
                estimates[world].high if world in estimates else None,
                world in masked,
            )
            for world, counts in sorted(arms.items())
        ]

    def _masks(self, ref: str) -> set[int]:
        """Return the worlds that mask an item: by its effect or, until that is known, by its score there."""
        arms = self._arms(ref)
        estimates = shrink(arms)
        masked = {world for world, counts in arms.items() if hurts(counts, estimates.get(world))}
        scores = self._scores.get(ref, {})
        if len(scores) > 1:  # with a single world it equals the item's own score, which recall checks itself
            masked |= {
                world
                for world, (score, _) in scores.items()
                # World 0 stands for scores that are not tied to a world.
                if world and score < TUNING.masking_score and not is_tried(arms.get(world, Arms()))
            }
        return masked

    def _arms(self, ref: str) -> dict[int, Arms]:
        """Count the newest episodes of each world; merged worlds are counted together."""
        outcomes_by_arm: defaultdict[tuple[int, bool, bool], list[tuple[int, float]]] = defaultdict(list)
        for (world, masked, with_item), outcomes in self._outcomes.get(ref, {}).items():
            outcomes_by_arm[self._worlds.standing_for(world), masked, with_item] += outcomes
        return {
            world: _count_arms({arm[1:]: pairs for arm, pairs in outcomes_by_arm.items() if arm[0] == world})
            for world in {world for world, _, _ in outcomes_by_arm}
        }

    def _read(self) -> None:
        """Read new usages and the scores of their items."""
        self.unread = False
        episodes: dict[tuple[str, str], tuple[int, int, float, int]] = {}
        modes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for number, ref, episode, mode, *ended in self._store.rows(_USED, (self._last, self._namespace)):
            self._last = number
            world, outcome, failed = ended
            episodes[ref, episode] = number, world, outcome, failed
            modes[ref, episode].add(mode)
        # One entry per item and episode: an item both withheld and shown in an episode counts as shown.
        for (ref, episode), (number, world, outcome, failed) in episodes.items():
            took_part = modes[ref, episode] - {"masked"}
            if not took_part:
                continue  # it was drawn, but the hint did not use it
            arm = world, "masked" in modes[ref, episode], took_part != {"withheld"}
            if ref == ADVICE:
                self._advised.append((*arm, outcome, failed))
                self._gain = None
                continue
            self._outcomes.setdefault(ref, {}).setdefault(arm, deque(maxlen=TUNING.effect_episodes)).append(
                (number, outcome)
            )
        if episodes or not self._scores:
            self._read_scores({ref for ref, _ in episodes} if self._scores else None)
            self._left_out = None

    def _read_scores(self, changed: set[str] | None) -> None:
        """Read the scores per world of these items, or of all items if None is given."""
        condition = "" if changed is None else " AND item_id IN (SELECT value FROM json_each(?))"
        parameters = () if changed is None else (json.dumps(sorted(changed)),)
        for ref in self._scores.keys() | self._outcomes.keys() if changed is None else changed:
            self._scores.pop(ref, None)
            self._masked.pop(ref, None)
        for ref, world, score, uses in self._store.rows(SCORES + condition, (self._namespace, *parameters)):
            self._scores.setdefault(ref, {})[world] = score, uses


def _count_arms(outcomes: Mapping[tuple[bool, ...], Sequence[tuple[int, float]]]) -> Arms:
    """Return the arms of one world."""
    # Taken over both groups, so that what the item did before it was masked is forgotten in the end.
    pairs = [(*pair, masked) for masked in (False, True) for pair in outcomes.get((masked, True), ())]
    newest = sorted(pairs)[-TUNING.effect_episodes :]
    groups = []
    for masked in (False, True):
        with_it = [outcome for _, outcome, is_masked in newest if is_masked == masked]
        without = [outcome for _, outcome in sorted(outcomes.get((masked, False), ()))[-TUNING.effect_episodes :]]
        partly = [sum(x * (1.0 - x) for x in arm) for arm in (with_it, without)]
        groups.append(Arms(len(with_it), sum(with_it), len(without), sum(without), None, *partly))
    in_use, masked_group = groups
    return in_use if masked_group == Arms() else replace(in_use, masked=masked_group)
