"""Advantage estimators: how much better each turn was than comparable turns of its group.

Estimators are pure functions from traces to one advantage per turn; each is a file of `hardwon.trainers.methods`. They
use no tensors, tokens or padding. Common rules:

- A trace counts once in a baseline, whatever its length and however often it is listed.
- Only traces with the same group, role, arm and root are compared; estimators of trees compare those of one tree.
- Without anything to compare with, the advantage is 0.
- Turns in the same situation with the same memory share an anchor.

Where a paper and its published code differ, the code here follows the paper and the docstring says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any, Literal

from .signals import UnfedSignal, Values

EPSILON = 1e-6
"""Added to every standard deviation that is a divisor."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The facts about one turn that an estimator may use."""

    reward: float = 0.0
    anchor: str = ""
    """Key of the situation and the memory shown in it. Turns with the same anchor are compared."""
    action: str = ""
    valid: bool = True
    novel: bool = True
    """Whether the action is new in this trajectory."""
    tokens: int = 0
    """Number of sampled tokens that were a choice."""
    logprob: float = 0.0
    """Log-probability of the turn's tokens at sampling."""
    step: int = 0
    """Number of the step in the episode, which counts the steps before the policy's first decision."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One trajectory of one role, reduced to the facts that estimators use."""

    id: str
    group: str
    """Key of the task instance. Traces of one group are siblings."""
    turns: tuple[Turn, ...]
    outcome: float
    role: str = "policy"
    arm: str = "control"
    signals: Mapping[str, Values] = field(default_factory=dict)
    """Values per turn that sources gave, by name; None where nothing can be said."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Values of the whole trace that sources gave, by name."""
    tags: tuple[str, ...] = ()
    """Kind of reasoning of every turn: planning, explore or reflection (RLVMR)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Structured findings of sources, such as a checklist."""
    root: str = ""
    """Key of how the episode began; empty for a plain one. Only traces with equal roots are siblings."""
    parent: str = ""
    """Id of the trace that the steps before the first turn were taken from, if any."""
    path: tuple[str, ...] = ()
    """The actions of the steps before the first turn."""
    label: str = ""
    """What a composer distinguishes the episode by."""

    @property
    def start(self) -> int:
        """Return the number of steps before the first turn."""
        return len(self.path)

    def node(self, t: int) -> tuple[str, str, tuple[str, ...]]:
        """Return the key of the situation before turn t: the task instance, the arm and all actions so far."""
        return self.group, self.arm, (*self.path, *(turn.action for turn in self.turns[:t]))

    def read_signal(self, name: str) -> Values:
        """Return the values of a signal, one per turn.

        Raises:
            UnfedSignal: No source gave the signal.
        """
        if name not in self.signals:
            raise UnfedSignal(
                f"trace {self.id!r} has no signal {name!r}, only {sorted(self.signals) or 'none'}. Configure a source "
                "that gives it under roles.policy.sources."
            )
        values = tuple(self.signals[name])
        if len(values) != len(self.turns):
            raise ValueError(f"signal {name!r} of trace {self.id!r} has {len(values)} values, not {len(self.turns)}.")
        return values

    def returns(self, discount: float) -> list[float]:
        """Return the discounted reward-to-go of every turn: G_t = r_t + discount * G_{t+1}."""
        returns, following = [], 0.0
        for turn in reversed(self.turns):
            following = turn.reward + discount * following
            returns.append(following)
        return returns[::-1]


Advantages = dict[str, list[float]]
"""One advantage per turn, by trace id."""
Scale = Literal["z", "c", "loo", "raw"]
"""How values are compared: standardized, centered, against the mean of the others, or not at all."""


def group_siblings(traces: Iterable[Trace]) -> list[list[Trace]]:
    """Group traces by group, role, arm and root. A trace that is listed twice counts once.

    A trace that began in another way, such as from a prefix, is never the baseline of a whole one.
    """
    groups: dict[tuple[str, str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm, trace.root), {})[trace.id] = trace
    return [list(group.values()) for group in groups.values()]


def compare_outcomes(traces: Iterable[Trace], relative: Callable[[list[float]], list[float]]) -> Advantages:
    """Give every turn of a trace the same advantage, computed from the outcomes of its siblings."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        for trace, value in zip(group, relative([trace.outcome for trace in group]), strict=True):
            advantages[trace.id] = [value] * len(trace.turns)
    return advantages


def center(values: list[float]) -> list[float]:
    """Subtract the mean from each value. A single value becomes 0."""
    mean = fmean(values)
    return [value - mean for value in values]


def standardize(values: list[float]) -> list[float]:
    """Return (x - mean) / (std + EPSILON) with the unbiased std. A single value, or equal values, become 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    spread = stdev(values) + EPSILON
    return [value / spread for value in center(values)]


def compute_spread(advantages: Mapping[str, Sequence[float]]) -> float:
    """Return the population standard deviation over all turns. At 0 the batch has no learning signal."""
    flat = [value for values in advantages.values() for value in values]
    return pstdev(flat) if flat else 0.0
