"""Worth: what an item turned out to be worth, and whom that is credited to.

An item is worth the paired difference of the episodes that used it to their control siblings, shrunk
while it is seldom used, less a cost for its length; to keep nothing is worth 0. The reward waits in a
buffer until there is enough of it, and reaches the one sequence that wrote the item and no other.
This file samples nothing and trains nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples

SHRINK = 2.0
"""An item used n times counts n / (n + SHRINK) of what it seems to be worth."""

Measure = Literal["difference", "sign", "outcome"]
"""What an item's use is worth: R with it less R without; the sign of that; or R with it alone, 0 as -1."""


# -- what an item is worth ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """The episodes of one group that consumed an item, and those that were shown nothing: their outcomes."""

    shown: tuple[float, ...]
    control: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        """Each consumer's outcome less the mean of its control siblings, of which there must be some."""
        return [outcome - fmean(self.control) for outcome in self.shown]


def worth(
    uses: Iterable[Use],
    *,
    tokens: int = 0,
    measure: Measure = "difference",
    cost: float = 0.05,
    length: int = 128,
) -> float | None:
    """Reward of the sequence that wrote an item; None while nothing can be said.

        r(e) = clip(mean over consuming episodes of [R - mean of the control siblings], -1, 1) n / (n + SHRINK)
               - cost tokens / length

    Groups without both kinds of episodes say nothing, but to the measure `outcome`, which compares
    with nothing. That one and `sign` are what others do, for comparison: they pay for what is of no use.
    """
    said = [use for use in uses if use.shown and (use.control or measure == "outcome")]
    n = sum(len(use.shown) for use in said)
    if not n:
        return None
    value = sum(_value(use, measure) * len(use.shown) for use in said) / n
    return max(-1.0, min(1.0, value)) * n / (n + SHRINK) - cost * tokens / length


def _value(use: Use, measure: Measure) -> float:
    if measure == "outcome":
        return fmean(2.0 * outcome - 1.0 for outcome in use.shown)
    difference = fmean(use.shown) - fmean(use.control)
    return difference if measure == "difference" else float((difference > 0) - (difference < 0))


def of_group(outcomes: Mapping[str | None, Sequence[float]]) -> dict[str, Use]:
    """By item, its use in one group, from the outcomes by what was shown; None was shown nothing."""
    control = tuple(outcomes.get(None, ()))
    return {item: Use(tuple(shown), control) for item, shown in outcomes.items() if item is not None}


def consumed(trajectory: Trajectory, shown: Mapping[str, str] = MappingProxyType({})) -> list[str | None]:
    """Ids of what an episode was shown; None alone for nothing; empty where it was shown something else than items.

    shown: by trajectory, the id of what was not recalled by the library.
    """
    items: list[str | None] = [shown[trajectory.id]] if trajectory.id in shown else []
    for step in trajectory.steps:
        items += step.why.get("recalled", ())
    if not items and any(step.why.get("like") or step.why.get("memory") for step in trajectory.steps):
        return []
    return list(dict.fromkeys(items)) or [None]


def uses_of(rollouts: Iterable[Rollout], shown: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, str, Use]]:
    """Group, item and use, of every item that was shown in a group; what failed does not count."""
    groups: dict[str, dict[str | None, list[float]]] = {}
    for rollout in rollouts:
        trajectory = rollout.trajectory
        if not rollout.failed and trajectory.success is not None:
            for item in consumed(trajectory, shown):
                groups.setdefault(rollout.group, {}).setdefault(item, []).append(float(trajectory.success))
    return [(group, item, use) for group, outcomes in groups.items() for item, use in of_group(outcomes).items()]


def unaided(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Those that count and were shown nothing."""
    return [
        rollout
        for rollout in rollouts
        if not rollout.failed
        and rollout.trajectory.success is not None
        and rollout.trajectory.steps
        and consumed(rollout.trajectory) == [None]
    ]


# -- what is known of what it wrote ---------------------------------------------------------------


@dataclass(slots=True)
class BufferedSample:
    """A sequence, the items that it wrote, and how they were used since it was last trained on."""

    row: Sample
    items: dict[str, int] = field(default_factory=dict)
    """By id, tokens of the item's text. A sequence that returned has none."""
    uses: dict[str, list[Use]] = field(default_factory=dict)
    trained: int = 0
    """Updates that it was in."""
    rests: int = 0
    """Update from which it may be trained on again."""

    def reward(self, **settings: Any) -> float | None:
        """Mean over the items that were used; 0 for having kept nothing, None while none was used."""
        if not self.items:
            return 0.0
        found = [worth(self.uses.get(item, ()), tokens=tokens, **settings) for item, tokens in self.items.items()]
        known = [value for value in found if value is not None]
        return fmean(known) if known else None


class Buffer:
    """Sequences waiting to be trained on, keyed by who wrote them: credit reaches no other."""

    def __init__(
        self,
        *,
        ready: int = 64,
        cooldown: int = 1,
        capacity: int = 4096,
        measure: Measure = "difference",
        cost: float = 0.05,
        length: int = 128,
    ) -> None:
        """ready: rewarded sequences, each with items of its own, that make an update.

        cooldown: updates for which a sequence rests once it was trained on. capacity: sequences kept;
        the oldest go.
        """
        self._ready, self._cooldown, self._capacity = ready, cooldown, capacity
        self._settings = {"measure": measure, "cost": cost, "length": length}
        self._samples: dict[str, BufferedSample] = {}
        self._writer: dict[str, str] = {}
        self.updates = 0
        """Batches taken so far."""

    def __len__(self) -> int:
        return len(self._samples)

    def wrote(self, row: Sample, items: Mapping[str, int], rewritten: Collection[str] = ()) -> None:
        """A sequence wrote these items, by id with their tokens; none where it returned.

        An item that another sequence wrote before stays that one's, unless its words were `rewritten`.
        """
        for item in rewritten:
            self._release(item)
        mine = {item: tokens for item, tokens in items.items() if item not in self._writer}
        if items and not mine:
            return
        self._samples[row.trace] = BufferedSample(row, mine)
        self._writer.update(dict.fromkeys(mine, row.trace))
        while len(self._samples) > self._capacity:
            self._forget(next(iter(self._samples)))

    def used(self, item: str, use: Use) -> None:
        """An item was used; one whose writer is not known, or forgotten, is passed over."""
        if sequence := self._writer.get(item):
            self._samples[sequence].uses.setdefault(item, []).append(use)

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        return len(self._rewarded()) >= self._ready

    def take(self) -> list[tuple[BufferedSample, float, float]]:
        """What is to be trained on: sample, reward, advantage.

        The advantage is the reward less the batch's mean, times (1 + times trained)^-1/2. What was
        taken rests, and what it is credited with begins anew; who returned is done.
        """
        found = self._rewarded()
        self.updates += 1
        mean = fmean(reward for _, reward in found) if found else 0.0
        batch = []
        for sample, reward in found:
            batch.append((replace(sample), reward, (reward - mean) * (1 + sample.trained) ** -0.5))
            sample.trained += 1
            sample.rests = self.updates + self._cooldown
            sample.uses = {}
            if not sample.items:
                self._forget(sample.row.trace)
        return batch

    def _rewarded(self) -> list[tuple[BufferedSample, float]]:
        rested = (sample for sample in self._samples.values() if sample.rests <= self.updates)
        rewards = ((sample, sample.reward(**self._settings)) for sample in rested)
        return [(sample, reward) for sample, reward in rewards if reward is not None]

    def _release(self, item: str) -> None:
        """The item has other words now: who wrote the old ones is not credited for it any more."""
        if (sequence := self._writer.pop(item, None)) is None:
            return
        sample = self._samples[sequence]
        del sample.items[item]
        sample.uses.pop(item, None)
        if not sample.items:
            self._forget(sequence)

    def _forget(self, sequence: str) -> None:
        for item in self._samples.pop(sequence).items:
            self._writer.pop(item, None)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {"updates": self.updates, "samples": [asdict(sample) for sample in self._samples.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.updates = int(state["updates"])
        self._samples, self._writer = {}, {}
        for saved in state["samples"]:
            uses = {item: [_use(use) for use in each] for item, each in saved["uses"].items()}
            sample = BufferedSample(row_of(saved["row"]), dict(saved["items"]), uses, saved["trained"], saved["rests"])
            self._samples[sample.row.trace] = sample
            self._writer.update(dict.fromkeys(sample.items, sample.row.trace))


def _use(saved: Mapping[str, Any]) -> Use:
    return Use(tuple(saved["shown"]), tuple(saved["control"]))


def row_of(saved: Mapping[str, Any]) -> Sample:
    """A row of plain values; checkpoints make lists of tuples."""
    allowed = tuple(None if each is None else tuple(each) for each in saved["allowed"])
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Sample(**{**saved, **flat, "allowed": allowed})


def to_streams(batch: Sequence[tuple[BufferedSample, float, float]]) -> list[PackedSequence]:
    """The sequences with their advantages, as a learner reads them."""
    return pack_samples((sample.row for sample, _, _ in batch), {s.row.trace: [advantage] for s, _, advantage in batch})
