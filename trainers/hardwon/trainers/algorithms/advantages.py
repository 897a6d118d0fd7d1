"""Advantage estimators: how much better each turn was than comparable turns of its group.

Estimators are pure functions from traces to one advantage per turn, registered by name. They use no
tensors, tokens or padding. Common rules:

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

from .catalog import Registry
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
Estimator = Callable[..., Advantages]
ESTIMATORS: Registry[Estimator] = Registry("estimator")
"""Estimators by name. Importing `algorithms.estimators` registers all of them."""
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


@ESTIMATORS.add("GRPO", "arXiv:2402.03300", evidence="C")
def grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = (R - mean) / std over the group (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    A trajectory without siblings gets 0. In verl it keeps its raw reward.
    """
    return compare_outcomes(traces, standardize)


@ESTIMATORS.add(
    "Dr. GRPO",
    "arXiv:2503.20783",
    evidence="C",
    settings={"roles.policy.learner.denominator": "constant", "roles.policy.learner.constant": 32},
)
def dr_grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean over the group, without division by the std (Liu et al. 2025, arXiv:2503.20783)."""
    return compare_outcomes(traces, center)


@ESTIMATORS.add("RLOO", "arXiv:2402.14740", evidence="C")
def rloo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean of the other traces = n / (n - 1) (R - mean).

    Ahmadian et al. 2024, arXiv:2402.14740.
    """
    # max: a trace without siblings would divide by 0; its centered value is 0 already
    return compare_outcomes(traces, lambda values: [x * len(values) / max(1, len(values) - 1) for x in center(values)])


@ESTIMATORS.add(
    "REINFORCE",
    "Williams 1992",
    evidence="P",
    example={"roles.policy.credit.settings.discount": 0.95},
)
def reinforce(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """Compute A_t = G_t - mean over the group of G_0 (Williams 1992, with a group baseline)."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: trace.returns(discount) for trace in group}
        baseline = fmean(values[0] if values else 0.0 for values in returns.values())
        for trace_id, values in returns.items():
            advantages[trace_id] = [value - baseline if len(group) > 1 else 0.0 for value in values]
    return advantages


@ESTIMATORS.add("GiGPO", "arXiv:2505.10978", evidence="C")
def gigpo(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0, std: bool = False) -> Advantages:
    """Compute A = A_E + omega A_S (Feng et al. 2025, GiGPO, arXiv:2505.10978).

    A_E compares the outcomes of the group and counts each trajectory once. The released code weights a
    trajectory by its number of steps. A_S compares the discounted returns of turns with the same anchor.
    It is 0 for a turn that is alone at its anchor.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the step returns.
        omega: Weight of the step advantage A_S.
        std: Divide both advantages by their std.

    Returns:
        One advantage per turn, by trace id.
    """
    relative = standardize if std else center
    episode = compare_outcomes(traces, relative)
    step = _compare_at_anchors(traces, discount, relative, lambda trace, t: trace.turns[t].anchor)
    return {name: [e + omega * s for e, s in zip(episode[name], step[name], strict=True)] for name in episode}


@ESTIMATORS.add("SLEA-RL", "arXiv:2603.18079", evidence="C")
def slea(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0) -> Advantages:
    """Compute the SLEA-RL advantage (arXiv:2603.18079): GiGPO without std.

    The anchors are the situation clusters that retrieval uses.
    """
    return gigpo(traces, discount=discount, omega=omega, std=False)


def _compare_at_anchors(
    traces: Iterable[Trace],
    discount: float,
    relative: Callable[[list[float]], list[float]],
    anchor: Callable[[Trace, int], object],
) -> Advantages:
    """Compare the return of each turn with those of all sibling turns that have the same anchor."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        places: dict[object, list[tuple[str, int]]] = {}
        returns = {trace.id: trace.returns(discount) for trace in group}
        for trace in group:
            advantages[trace.id] = [0.0] * len(trace.turns)
            for t in range(len(trace.turns)):
                places.setdefault(anchor(trace, t), []).append((trace.id, t))
        for turns in places.values():
            for (name, t), value in zip(turns, relative([returns[n][t] for n, t in turns]), strict=True):
                advantages[name][t] = value
    return advantages


@ESTIMATORS.add(
    "HGPO",
    "arXiv:2602.22817",
    evidence="C",
    example={"roles.policy.credit.settings.history": 2, "roles.policy.credit.settings.episode": 1.0},
)
def hgpo(
    traces: Sequence[Trace],
    *,
    discount: float = 0.95,
    history: int = 2,
    alpha: float = 1.0,
    episode: float = 0.0,
) -> Advantages:
    """Compute A = sum_k w_k A_k over contexts of k = 0..history anchors, w_k ~ (k + 1)^alpha (arXiv:2602.22817).

    Weights are normalized over all levels, as in the paper. The released code normalizes over the levels
    that are not 0 and starts at level 2. A turn that is alone at a level gets 0 from it.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the step returns.
        history: Longest context, in earlier anchors.
        alpha: Exponent of the level weights; 0 weights all levels equally.
        episode: Weight of the comparison of outcomes, without which a batch that shares no state teaches nothing.

    Returns:
        One advantage per turn, by trace id.
    """
    weights = [(k + 1) ** alpha for k in range(history + 1)]
    total: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for k, weight in enumerate(weights):
        level = _compare_at_anchors(traces, discount, standardize, lambda trace, t, k=k: _build_context(trace, t, k))  # type: ignore[misc]
        for name, values in level.items():
            total[name] = [a + weight / sum(weights) * b for a, b in zip(total[name], values, strict=True)]
    if episode:
        for name, values in grpo(traces).items():
            total[name] = [a + episode * b for a, b in zip(total[name], values, strict=True)]
    return total


def _build_context(trace: Trace, t: int, k: int) -> tuple[str, ...] | tuple[str, int]:
    """Return the anchor of turn t with the k anchors before it."""
    if t < k:
        return trace.id, t  # too little history for this level: a unique key, so the turn is compared with none
    return tuple(turn.anchor for turn in trace.turns[t - k : t + 1])


@ESTIMATORS.add("SALT", "arXiv:2510.20022", evidence="P")
def salt(traces: Sequence[Trace], *, history: int = 0) -> Advantages:
    """Average the GRPO advantage over all sibling trajectories that share an edge (arXiv:2510.20022).

    The group's trajectories form a graph. An edge consists of an anchor, the action, the next anchor, and
    `history` earlier anchors. An edge that only one trajectory took keeps its own advantage.
    """
    own = grpo(traces)
    advantages: Advantages = {}
    for group in group_siblings(traces):
        shared: dict[object, dict[str, float]] = {}
        for trace in group:
            for t in range(len(trace.turns)):
                # by trace id, so a trajectory that takes an edge twice counts once in its mean
                shared.setdefault(_build_edge(trace, t, history), {})[trace.id] = own[trace.id][t]
        for trace in group:
            edges = (shared[_build_edge(trace, t, history)] for t in range(len(trace.turns)))
            advantages[trace.id] = [fmean(edge.values()) for edge in edges]
    return advantages


def _build_edge(trace: Trace, t: int, history: int) -> tuple[object, ...]:
    # the last edge leads to the outcome, so trajectories that ended differently never share it
    after = trace.turns[t + 1].anchor if t + 1 < len(trace.turns) else f"end {trace.outcome}"
    return (*(turn.anchor for turn in trace.turns[max(0, t - history) : t + 1]), trace.turns[t].action, after)


def compute_spread(advantages: Mapping[str, Sequence[float]]) -> float:
    """Return the population standard deviation over all turns. At 0 the batch has no learning signal."""
    flat = [value for values in advantages.values() for value in values]
    return pstdev(flat) if flat else 0.0
