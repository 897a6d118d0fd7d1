"""Reward of the sequences that write items: the measured effect of each item on outcomes.

The effect is the mean difference between the episodes that used an item and their control siblings. It is
shrunk while uses are few, and reduced by a cost for length; keeping nothing has reward 0. Sequences wait in a
buffer until there are enough. Each item credits only the one sequence that wrote it.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples
from hardwon.trainers.prompting.base import Verdicts

from .tuning import TUNING
from .verdicts import sort_words, weigh

Measure = Literal["difference", "sign", "outcome"]
"""Reward of a use: outcome with the item minus control, the sign of that, or the outcome alone mapped to -1 and 1."""


# -- reward of an item ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """Outcomes in one group: of the episodes that were shown an item, and of those without guidance."""

    shown: tuple[float, ...]
    control: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        """Return each consumer's outcome minus the mean of the control outcomes, which must not be empty."""
        return [outcome - fmean(self.control) for outcome in self.shown]


def worth(
    uses: Iterable[Use],
    *,
    tokens: int = 0,
    measure: Measure = "difference",
    cost: float = 0.05,
    length: int = 128,
) -> float | None:
    """Return the reward of an item, or None without informative uses.

        r(e) = clip(mean over consuming episodes of [R - mean of the control siblings], -1, 1) n / (n + shrinkage)
               - cost tokens / length

    Groups need consumers and control siblings, except with the measure `outcome`, which makes no comparison.
    `outcome` and `sign` are baselines from the literature; they also reward useless items.
    """
    informative = [use for use in uses if use.shown and (use.control or measure == "outcome")]
    n = sum(len(use.shown) for use in informative)
    if not n:
        return None
    value = sum(_value(use, measure) * len(use.shown) for use in informative) / n
    return max(-1.0, min(1.0, value)) * n / (n + TUNING.shrinkage) - cost * tokens / length


def _value(use: Use, measure: Measure) -> float:
    """Return the reward of one use."""
    if measure == "outcome":
        return fmean(2.0 * outcome - 1.0 for outcome in use.shown)
    difference = fmean(use.shown) - fmean(use.control)
    return difference if measure == "difference" else float((difference > 0) - (difference < 0))


def is_gain(uses: Sequence[Use]) -> bool:
    """Return whether an item helped: its mean difference over groups is above 0 by more than the standard error."""
    differences = [fmean(use.shown) - fmean(use.control) for use in uses if use.shown and use.control]
    if not differences:
        return False
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) > error


def of_group(outcomes: Mapping[str | None, Sequence[float]]) -> dict[str, Use]:
    """Return the use of each item in a group, from the outcomes by shown item; None means control."""
    control = tuple(outcomes.get(None, ()))
    return {item: Use(tuple(outcomes_with), control) for item, outcomes_with in outcomes.items() if item is not None}


def consumed(trajectory: Trajectory, items_sent: Mapping[str, str] = MappingProxyType({})) -> list[str | None]:
    """Return the ids of the items that an episode was shown.

    Returns [None] for an episode without guidance, and an empty list for one with guidance other than items.
    """
    items: list[str | None] = [items_sent[trajectory.id]] if trajectory.id in items_sent else []
    for step in trajectory.steps:
        items += step.why.recalled or ()
    if not items and any(step.why.similar or step.why.memory for step in trajectory.steps):
        return []
    return list(dict.fromkeys(items)) or [None]


def uses_of(
    rollouts: Iterable[Rollout], items_sent: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[str, str, Use]]:
    """Return (group, item, use) for every item shown in a group; failed episodes do not count."""
    groups: dict[str, dict[str | None, list[float]]] = {}
    for rollout in rollouts:
        if rollout.outcome is not None:
            for item in consumed(rollout.trajectory, items_sent):
                groups.setdefault(rollout.group, {}).setdefault(item, []).append(rollout.outcome)
    return [(group, item, use) for group, outcomes in groups.items() for item, use in of_group(outcomes).items()]


def unaided(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Return the usable rollouts without guidance."""
    return [
        rollout
        for rollout in rollouts
        if rollout.outcome is not None and rollout.trajectory.steps and consumed(rollout.trajectory) == [None]
    ]


# -- buffer of written sequences ----------------------------------------------------------------


@dataclass(slots=True)
class BufferedSample:
    """A sequence, the items that it wrote, and their uses since it was last trained on."""

    row: Sample
    items: dict[str, int] = field(default_factory=dict)
    """Number of tokens of each item's text, by id. Empty for a sequence that kept nothing."""
    uses: dict[str, list[Use]] = field(default_factory=dict)
    trained: int = 0
    """Updates that used the sequence."""
    rests: int = 0
    """First update that may use the sequence again."""
    settled: dict[str, float] = field(default_factory=dict)
    """Rewards of the items that a trial has judged, by id. Their uses do not count."""
    tried: float | None = None
    """For a verdict about a candidate: the probability with which the candidate is tried. None for other sequences."""

    def reward(self, **settings: Any) -> float | None:
        """Return the mean reward of the used or judged items.

        It is 0 if the sequence kept nothing, and None if no item was used or some items are still to be judged.
        """
        if not self.items:
            return 0.0
        if self.settled and self.settled.keys() < self.items.keys():
            return None
        rewards = [
            self.settled.get(item, worth(self.uses.get(item, ()), tokens=tokens, **settings))
            for item, tokens in self.items.items()
        ]
        defined = [value for value in rewards if value is not None]
        return fmean(defined) if defined else None


class Buffer:
    """Sequences waiting to be trained on; each item's credit goes to the sequence that wrote it."""

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
        """Create an empty buffer."""
        self._ready, self._cooldown, self._capacity = ready, cooldown, capacity
        self._settings = {"measure": measure, "cost": cost, "length": length}
        self._samples: dict[str, BufferedSample] = {}
        self._writer: dict[str, str] = {}
        self.updates = 0
        """Number of batches taken."""

    def __len__(self) -> int:
        return len(self._samples)

    def wrote(
        self, row: Sample, items: Mapping[str, int], rewritten: Collection[str] = (), *, tried: float | None = None
    ) -> None:
        """Add a sequence with the items that it wrote.

        An item of an earlier sequence keeps that owner, unless its text was rewritten.
        """
        for item in rewritten:
            self._release(item)
        own_items = {item: tokens for item, tokens in items.items() if item not in self._writer}
        if items and not own_items:
            return
        self._samples[row.trace] = BufferedSample(row, own_items, tried=tried)
        self._writer.update(dict.fromkeys(own_items, row.trace))
        while len(self._samples) > self._capacity:
            self._forget(next(iter(self._samples)))

    def used(self, item: str, use: Use) -> None:
        """Add a use of an item; ignore items without a buffered sequence."""
        if sequence := self._writer.get(item):
            self._samples[sequence].uses.setdefault(item, []).append(use)

    def settle(self, item: str, reward: float) -> None:
        """Set the reward of an item that was judged; ignore items without a buffered sequence."""
        if sequence := self._writer.get(item):
            self._samples[sequence].settled[item] = reward

    def forget(self, item: str) -> None:
        """Drop an item that can never be judged, and its sequence if it wrote nothing else."""
        self._release(item)

    def ready(self) -> bool:
        """Return whether there are enough rewarded sequences for an update."""
        return len(self._rewarded()) >= self._ready

    def take(self) -> list[tuple[BufferedSample, float, float]]:
        """Return a batch of (sequence, reward, advantage).

        The advantage is the reward minus the batch mean, times (1 + uses in training)^-1/2. The other word of a verdict
        about a tried candidate has a reward of 0, so its advantage is the reward itself. Taken sequences rest for
        `cooldown` updates and start with new uses; sequences that kept nothing, or were judged, are removed.
        """
        rewarded = self._rewarded()
        self.updates += 1
        compared = [reward for sample, reward in rewarded if sample.tried is None]
        mean = fmean(compared) if compared else 0.0
        batch = []
        for sample, reward in rewarded:
            # a copy: the next lines reset the buffered sample
            baseline = mean if sample.tried is None else 0.0
            batch.append((replace(sample), reward, (reward - baseline) * (1 + sample.trained) ** -0.5))
            sample.trained += 1
            sample.rests = self.updates + self._cooldown
            sample.uses = {}
            if not sample.items or sample.settled:
                self._forget(sample.row.trace)
        return batch

    def _rewarded(self) -> list[tuple[BufferedSample, float]]:
        """Return the sequences that are not resting and have a reward."""
        rested = (sample for sample in self._samples.values() if sample.rests <= self.updates)
        rewards = ((sample, sample.reward(**self._settings)) for sample in rested)
        return [(sample, reward) for sample, reward in rewards if reward is not None]

    def _release(self, item: str) -> None:
        """Remove an item from its owner, because its text changed."""
        if (sequence := self._writer.pop(item, None)) is None:
            return
        sample = self._samples[sequence]
        del sample.items[item]
        sample.uses.pop(item, None)
        sample.settled.pop(item, None)
        if not sample.items:
            self._forget(sequence)

    def _forget(self, sequence: str) -> None:
        """Remove a sequence and its items."""
        for item in self._samples.pop(sequence).items:
            self._writer.pop(item, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer as plain values."""
        return {"updates": self.updates, "samples": [asdict(sample) for sample in self._samples.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.updates = int(state["updates"])
        self._samples, self._writer = {}, {}
        for saved in state["samples"]:
            uses = {item: [_use(use) for use in each] for item, each in saved["uses"].items()}
            fields = (dict(saved["items"]), uses, saved["trained"], saved["rests"])
            # absent in checkpoints from before candidates were tried
            trial = (dict(saved.get("settled", {})), saved.get("tried"))
            sample = BufferedSample(row_of(saved["row"]), *fields, *trial)
            self._samples[sample.row.trace] = sample
            self._writer.update(dict.fromkeys(sample.items, sample.row.trace))


def _use(saved: Mapping[str, Any]) -> Use:
    """Return a use from its saved values."""
    return Use(tuple(saved["shown"]), tuple(saved["control"]))


def row_of(saved: Mapping[str, Any]) -> Sample:
    """Return a sample from its saved values; checkpoints turn tuples into lists."""
    allowed = tuple(None if each is None else tuple(each) for each in saved["allowed"])
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Sample(**{**saved, **flat, "allowed": allowed})


def to_streams(
    batch: Sequence[tuple[BufferedSample, float, float]], verdicts: Verdicts | None = None
) -> list[PackedSequence]:
    """Return a batch as packed sequences with their advantages."""
    rows, advantages = list[Sample](), dict[str, list[float]]()
    for sample, _, advantage in batch:
        row, weight = sample.row, advantage
        if sample.tried is not None and verdicts is not None:
            row, weight = _choose_word(sample, advantage, verdicts)
        rows.append(row)
        advantages[row.trace] = [weight]
    return pack_samples(rows, advantages)


def _choose_word(sample: BufferedSample, gain: float, verdicts: Verdicts) -> tuple[Sample, float]:
    """Return the better word of a verdict and its weight, as if every candidate had been tried."""
    yes, no = sort_words(verdicts, sample.row)
    keeps, skips = weigh(yes, no, gain)
    # skipped candidates are tried less often, so each that is tried counts for those that are not
    share = max(sample.tried or 0.0, TUNING.min_trial_probability)
    return (yes, keeps / share) if keeps else (no, skips / share)
