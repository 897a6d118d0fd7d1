"""Reward of the verdicts about items: the measured effect of each item on outcomes.

The effect is the mean difference between the episodes that were shown an item and their siblings that were not. It is
shrunk while uses are few, and reduced by a cost for length. Verdicts wait in a buffer until there are enough.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from hardwon.trainers.algorithms.samples import PackedSequence, Sample, pack_samples
from hardwon.trainers.prompting.base import Verdicts

from .tuning import TUNING
from .verdicts import sort_words, weigh


@dataclass(frozen=True, slots=True)
class Use:
    """Outcomes in one group: of the episodes that were shown an item, and of those that were not."""

    shown: tuple[float, ...]
    control: tuple[float, ...]


def worth(uses: Iterable[Use], *, tokens: int = 0, cost: float = 0.05, length: int = 128) -> float | None:
    """Return the reward of an item, or None without informative uses.

        r(e) = clip(mean over consuming episodes of [R - mean of the control siblings], -1, 1) n / (n + shrinkage)
               - cost tokens / length

    Groups need consumers and control siblings.
    """
    informative = [use for use in uses if use.shown and use.control]
    n = sum(len(use.shown) for use in informative)
    if not n:
        return None
    value = sum((fmean(use.shown) - fmean(use.control)) * len(use.shown) for use in informative) / n
    return max(-1.0, min(1.0, value)) * n / (n + TUNING.shrinkage) - cost * tokens / length


def is_gain(uses: Sequence[Use]) -> bool:
    """Return whether an item helped: its mean difference over groups is above 0 by more than the standard error."""
    differences = [fmean(use.shown) - fmean(use.control) for use in uses if use.shown and use.control]
    if not differences:
        return False
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) > error


@dataclass(slots=True)
class BufferedVerdict:
    """A verdict about a candidate, and its reward once a trial has judged the candidate."""

    row: Sample
    tried: float
    """The probability with which the candidate is tried."""
    reward: float | None = None


class Buffer:
    """Verdicts waiting to be trained on, by the names of their candidates."""

    def __init__(self, *, ready: int = 16) -> None:
        """Create an empty buffer, which is ready with so many judged verdicts."""
        self._ready = ready
        self._verdicts: dict[str, BufferedVerdict] = {}

    def __len__(self) -> int:
        return len(self._verdicts)

    def add(self, row: Sample, tried: float) -> None:
        """Add a verdict whose candidate is tried. The oldest gives way where there are too many."""
        self._verdicts[row.trace] = BufferedVerdict(row, tried)
        while len(self._verdicts) > TUNING.max_buffered:
            del self._verdicts[next(iter(self._verdicts))]

    def settle(self, name: str, reward: float) -> None:
        """Set the reward of a candidate that was judged; ignore one without a buffered verdict."""
        if name in self._verdicts:
            self._verdicts[name].reward = reward

    def forget(self, name: str) -> None:
        """Drop the verdict about a candidate that can never be judged."""
        self._verdicts.pop(name, None)

    def ready(self) -> bool:
        """Return whether there are enough judged verdicts for an update."""
        return sum(verdict.reward is not None for verdict in self._verdicts.values()) >= self._ready

    def take(self) -> list[tuple[BufferedVerdict, float]]:
        """Remove and return the judged verdicts with their rewards.

        The other word of a verdict has a reward of 0, so the advantage is the reward itself.
        """
        batch = [(each, each.reward) for each in self._verdicts.values() if each.reward is not None]
        for verdict, _ in batch:
            del self._verdicts[verdict.row.trace]
        return batch

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the buffer as plain values."""
        return [asdict(verdict) for verdict in self._verdicts.values()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore the state that `state_dict` returned."""
        verdicts = (BufferedVerdict(row_of(saved["row"]), saved["tried"], saved["reward"]) for saved in state)
        self._verdicts = {verdict.row.trace: verdict for verdict in verdicts}


def row_of(saved: Mapping[str, Any]) -> Sample:
    """Return a sample from its saved values; checkpoints turn tuples into lists."""
    allowed = tuple(None if each is None else tuple(each) for each in saved["allowed"])
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Sample(**{**saved, **flat, "allowed": allowed})


def to_streams(batch: Sequence[tuple[BufferedVerdict, float]], verdicts: Verdicts) -> list[PackedSequence]:
    """Return a batch as packed sequences with their advantages."""
    rows, advantages = list[Sample](), dict[str, list[float]]()
    for verdict, reward in batch:
        row, weight = _choose_word(verdict, reward, verdicts)
        rows.append(row)
        advantages[row.trace] = [weight]
    return pack_samples(rows, advantages)


def _choose_word(verdict: BufferedVerdict, gain: float, verdicts: Verdicts) -> tuple[Sample, float]:
    """Return the better word of a verdict and its weight, as if every candidate had been tried."""
    yes, no = sort_words(verdicts, verdict.row)
    keeps, skips = weigh(yes, no, gain)
    # skipped candidates are tried less often, so each that is tried counts for those that are not
    share = max(verdict.tried, TUNING.min_trial_probability)
    return (yes, keeps / share) if keeps else (no, skips / share)
