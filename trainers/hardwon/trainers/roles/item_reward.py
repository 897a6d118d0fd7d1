"""Reward of the sequences that write items: the measured effect of each item on outcomes.

The effect is the mean difference between the episodes that used an item and their control siblings. It is
shrunk while uses are few, and reduced by a cost for length; keeping nothing has reward 0. Sequences wait in a
buffer until there are enough. Each item credits only the one sequence that wrote it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples

SHRINK = 2.0
"""An item with n uses counts n / (n + SHRINK) of its mean effect."""

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

        r(e) = clip(mean over consuming episodes of [R - mean of the control siblings], -1, 1) n / (n + SHRINK)
               - cost tokens / length

    Groups need consumers and control siblings, except with the measure `outcome`, which makes no comparison.
    `outcome` and `sign` are baselines from the literature; they also reward useless items.

    Args:
        uses: Outcomes by group.
        tokens: Number of tokens of the item's text.
        measure: How a use is rewarded.
        cost: Cost of `length` tokens, in units of success.
        length: Number of tokens that cost `cost`.
    """
    informative = [use for use in uses if use.shown and (use.control or measure == "outcome")]
    n = sum(len(use.shown) for use in informative)
    if not n:
        return None
    value = sum(_value(use, measure) * len(use.shown) for use in informative) / n
    return max(-1.0, min(1.0, value)) * n / (n + SHRINK) - cost * tokens / length


def _value(use: Use, measure: Measure) -> float:
    """Return the reward of one use."""
    if measure == "outcome":
        return fmean(2.0 * outcome - 1.0 for outcome in use.shown)
    difference = fmean(use.shown) - fmean(use.control)
    return difference if measure == "difference" else float((difference > 0) - (difference < 0))


def of_group(outcomes: Mapping[str | None, Sequence[float]]) -> dict[str, Use]:
    """Return the use of each item in a group, from the outcomes by shown item; None means control."""
    control = tuple(outcomes.get(None, ()))
    return {item: Use(tuple(outcomes_with), control) for item, outcomes_with in outcomes.items() if item is not None}


def consumed(trajectory: Trajectory, items_sent: Mapping[str, str] = MappingProxyType({})) -> list[str | None]:
    """Return the ids of the items that an episode was shown.

    Returns [None] for an episode without guidance, and an empty list for one with guidance other than items.

    Args:
        trajectory: The episode.
        items_sent: By trajectory id, the item that was shown without recall from the library.
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

    def reward(self, **settings: Any) -> float | None:
        """Return the mean reward of the used items; 0 if it kept nothing, None if no item was used."""
        if not self.items:
            return 0.0
        rewards = [worth(self.uses.get(item, ()), tokens=tokens, **settings) for item, tokens in self.items.items()]
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
        """Create an empty buffer.

        Args:
            ready: Rewarded sequences per update.
            cooldown: Updates for which a trained sequence is skipped.
            capacity: Maximum number of sequences; the oldest are dropped.
            measure: How a use is rewarded.
            cost: Cost of `length` tokens, in units of success.
            length: Number of tokens that cost `cost`.
        """
        self._ready, self._cooldown, self._capacity = ready, cooldown, capacity
        self._settings = {"measure": measure, "cost": cost, "length": length}
        self._samples: dict[str, BufferedSample] = {}
        self._writer: dict[str, str] = {}
        self.updates = 0
        """Number of batches taken."""

    def __len__(self) -> int:
        return len(self._samples)

    def wrote(self, row: Sample, items: Mapping[str, int], rewritten: Collection[str] = ()) -> None:
        """Add a sequence with the items that it wrote.

        An item of an earlier sequence keeps that owner, unless its text was rewritten.

        Args:
            row: The sequence.
            items: Number of tokens of each item, by id; empty if it kept nothing.
            rewritten: Ids of the items whose text this sequence replaced.
        """
        for item in rewritten:
            self._release(item)
        own_items = {item: tokens for item, tokens in items.items() if item not in self._writer}
        if items and not own_items:
            return
        self._samples[row.trace] = BufferedSample(row, own_items)
        self._writer.update(dict.fromkeys(own_items, row.trace))
        while len(self._samples) > self._capacity:
            self._forget(next(iter(self._samples)))

    def used(self, item: str, use: Use) -> None:
        """Add a use of an item; ignore items without a buffered sequence."""
        if sequence := self._writer.get(item):
            self._samples[sequence].uses.setdefault(item, []).append(use)

    def ready(self) -> bool:
        """Return whether there are enough rewarded sequences for an update."""
        return len(self._rewarded()) >= self._ready

    def take(self) -> list[tuple[BufferedSample, float, float]]:
        """Return a batch of (sequence, reward, advantage).

        The advantage is the reward minus the batch mean, times (1 + uses in training)^-1/2. Taken sequences rest for
        `cooldown` updates and start with new uses; sequences that kept nothing are removed.
        """
        rewarded = self._rewarded()
        self.updates += 1
        mean = fmean(reward for _, reward in rewarded) if rewarded else 0.0
        batch = []
        for sample, reward in rewarded:
            # a copy: the next lines reset the buffered sample
            batch.append((replace(sample), reward, (reward - mean) * (1 + sample.trained) ** -0.5))
            sample.trained += 1
            sample.rests = self.updates + self._cooldown
            sample.uses = {}
            if not sample.items:
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
            sample = BufferedSample(row_of(saved["row"]), dict(saved["items"]), uses, saved["trained"], saved["rests"])
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


def to_streams(batch: Sequence[tuple[BufferedSample, float, float]]) -> list[PackedSequence]:
    """Return a batch as packed sequences with their advantages."""
    return pack_samples((sample.row for sample, _, _ in batch), {s.row.trace: [advantage] for s, _, advantage in batch})
