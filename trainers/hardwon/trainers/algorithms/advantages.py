"""Credit: how much better than its siblings each turn of a trajectory was.

Pure functions from traces to one advantage a turn, registered by name; no tensors, no tokens, no
padding. Everywhere: a trace counts once in a baseline, whatever its length and however often it is
listed; traces of another task, role or arm are never its siblings; where there is nothing to compare
with, the advantage is 0. Turns that are in the same situation, with the same memory shown, share an
anchor. Where published code and paper differ, the paper is followed, and the docstring says so.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev, stdev

EPSILON = 1e-6
"""Added to a standard deviation that divides."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What credit may know of one turn."""

    reward: float = 0.0
    anchor: str = ""
    """The situation and the memory shown in it: turns with the same anchor are compared."""
    action: str = ""
    entropy: float = 0.0
    """Mean entropy of its tokens, in nats."""
    valid: bool = True
    novel: bool = True
    """The action was not taken before in this trajectory."""
    answer_probability: float = 0.0
    """exp of the mean log-probability of the true answer after this turn (IGPO)."""
    contribution: float = 0.0
    """What a progress estimator says the turn contributed to the outcome (SPA)."""
    tag: str = ""
    """What kind of reasoning it did: planning, explore, reflection (RLVMR)."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One trajectory of one role, as credit sees it."""

    id: str
    group: str
    """Task and seed: the siblings."""
    turns: tuple[Turn, ...]
    outcome: float
    role: str = "policy"
    arm: str = "control"
    prior: float = 0.0
    """Probability of the true answer before the first turn (IGPO)."""

    def returns(self, discount: float) -> list[float]:
        """Discounted reward-to-go of every turn: G_t = r_t + discount * G_{t+1}."""
        returns, following = [], 0.0
        for turn in reversed(self.turns):
            following = turn.reward + discount * following
            returns.append(following)
        return returns[::-1]


Advantages = dict[str, list[float]]
"""By trace id, one number a turn."""
Estimator = Callable[..., Advantages]
ESTIMATORS: dict[str, Estimator] = {}


def register_estimator(function: Estimator) -> Estimator:
    """Register an estimator under its name, with `-` for `_`."""
    ESTIMATORS[function.__name__.replace("_", "-")] = function
    return function


def group_siblings(traces: Iterable[Trace]) -> list[list[Trace]]:
    """Traces by group, role and arm; a trace listed twice counts once."""
    groups: dict[tuple[str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm), {})[trace.id] = trace
    return [list(group.values()) for group in groups.values()]


def _compare_outcomes(traces: Iterable[Trace], relative: Callable[[list[float]], list[float]]) -> Advantages:
    """The same advantage for every turn of a trace, from the outcomes of its siblings."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        for trace, value in zip(group, relative([trace.outcome for trace in group]), strict=True):
            advantages[trace.id] = [value] * len(trace.turns)
    return advantages


def center(values: list[float]) -> list[float]:
    """x - mean; a single value is 0."""
    mean = fmean(values)
    return [value - mean for value in values]


def standardize(values: list[float]) -> list[float]:
    """(x - mean) / (std + EPSILON), unbiased std; a single value, or equal values, are 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    spread = stdev(values) + EPSILON
    return [value / spread for value in center(values)]


@register_estimator
def grpo(traces: Sequence[Trace]) -> Advantages:
    """A = (R - mean) / std over the group (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    A lone trajectory gets 0; verl gives it its raw reward.
    """
    return _compare_outcomes(traces, standardize)


@register_estimator
def dr_grpo(traces: Sequence[Trace]) -> Advantages:
    """A = R - mean over the group, not divided (Liu et al. 2025, arXiv:2503.20783)."""
    return _compare_outcomes(traces, center)


@register_estimator
def rloo(traces: Sequence[Trace]) -> Advantages:
    """A = R - mean of the others = n / (n - 1) (R - mean) (Ahmadian et al. 2024, arXiv:2402.14740)."""
    return _compare_outcomes(traces, lambda values: [x * len(values) / max(1, len(values) - 1) for x in center(values)])


@register_estimator
def reinforce(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """A_t = G_t - mean over the group of G_0 (Williams 1992, with a group baseline)."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: trace.returns(discount) for trace in group}
        baseline = fmean(values[0] if values else 0.0 for values in returns.values())
        for trace_id, values in returns.items():
            advantages[trace_id] = [value - baseline if len(group) > 1 else 0.0 for value in values]
    return advantages


@register_estimator
def gigpo(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0, std: bool = False) -> Advantages:
    """A = A_E + omega A_S (Feng et al. 2025, GiGPO, arXiv:2505.10978).

    A_E compares outcomes in the group, each trajectory once (the released code weighs it by its
    steps); A_S compares the discounted returns of turns with the same anchor; alone at an anchor is 0.
    """
    relative = standardize if std else center
    episode = _compare_outcomes(traces, relative)
    step = _compare_at_anchors(traces, discount, relative, lambda trace, t: trace.turns[t].anchor)
    return {name: [e + omega * s for e, s in zip(episode[name], step[name], strict=True)] for name in episode}


@register_estimator
def slea(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0) -> Advantages:
    """SLEA-RL (arXiv:2603.18079): GiGPO with means alone, anchored in the clusters that retrieval uses."""
    return gigpo(traces, discount=discount, omega=omega, std=False)


def _compare_at_anchors(
    traces: Iterable[Trace],
    discount: float,
    relative: Callable[[list[float]], list[float]],
    anchor: Callable[[Trace, int], object],
) -> Advantages:
    """For each turn, its return against those of all turns of its siblings with the same anchor."""
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


@register_estimator
def hgpo(traces: Sequence[Trace], *, discount: float = 0.95, history: int = 2, alpha: float = 1.0) -> Advantages:
    """A = sum_k w_k A_k over contexts of k = 0..history earlier anchors, w_k ~ (k + 1)^alpha (HGPO).

    Weights are normalised over all levels, as in the paper (the released code renormalises over the
    levels that are not 0 and begins at 2); a turn alone at a level adds 0 there.
    """
    weights = [(k + 1) ** alpha for k in range(history + 1)]
    total: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for k, weight in enumerate(weights):
        level = _compare_at_anchors(traces, discount, standardize, lambda trace, t, k=k: _build_context(trace, t, k))  # type: ignore[misc]
        for name, values in level.items():
            total[name] = [a + weight / sum(weights) * b for a, b in zip(total[name], values, strict=True)]
    return total


def _build_context(trace: Trace, t: int, k: int) -> tuple[str, ...] | tuple[str, int]:
    """The anchor with the k before it; a turn with less history is alone at that level."""
    if t < k:
        return trace.id, t
    return tuple(turn.anchor for turn in trace.turns[t - k : t + 1])


@register_estimator
def salt(traces: Sequence[Trace], *, history: int = 0) -> Advantages:
    """Trajectories as a graph: the GRPO advantage, averaged over the trajectories that share an edge (SALT).

    An edge is an anchor, the action taken, the anchor that followed, and `history` anchors before.
    Shared edges are neutral and get the mean; an edge that one trajectory alone took keeps its own.
    """
    own = grpo(traces)
    advantages: Advantages = {}
    for group in group_siblings(traces):
        shared: dict[object, dict[str, float]] = {}
        for trace in group:
            for t in range(len(trace.turns)):
                shared.setdefault(_build_edge(trace, t, history), {})[trace.id] = own[trace.id][t]
        for trace in group:
            edges = (shared[_build_edge(trace, t, history)] for t in range(len(trace.turns)))
            advantages[trace.id] = [fmean(edge.values()) for edge in edges]
    return advantages


def _build_edge(trace: Trace, t: int, history: int) -> tuple[object, ...]:
    after = trace.turns[t + 1].anchor if t + 1 < len(trace.turns) else f"end {trace.outcome}"
    return (*(turn.anchor for turn in trace.turns[max(0, t - history) : t + 1]), trace.turns[t].action, after)


@register_estimator
def empg(traces: Sequence[Trace], *, k: float = 1.0, future: float = 1.0, zeta: float = 0.05) -> Advantages:
    """A_t = A g(H_t) + zeta f(H_{t+1}), then less its mean over the batch (EMPG).

    g(H) = exp(-k H) / mean exp(-k H) and f(H) = exp(-future H), with H min-max normalised over the
    batch: sure turns weigh more, and turns that lead to sure ones are paid.
    """
    base = grpo(traces)
    batch = [trace for group in group_siblings(traces) for trace in group]
    entropies = [turn.entropy for trace in batch for turn in trace.turns]
    if not entropies:
        return base
    low, span = min(entropies), (max(entropies) - min(entropies)) or 1.0
    scaled = {trace.id: [(turn.entropy - low) / span for turn in trace.turns] for trace in batch}
    sureness = fmean(math.exp(-k * h) for values in scaled.values() for h in values)
    shaped: Advantages = {}
    for trace in batch:
        hs = scaled[trace.id]
        ahead = [zeta * math.exp(-future * h) for h in hs[1:]] + [0.0]
        shaped[trace.id] = [
            a * math.exp(-k * h) / sureness + f for a, h, f in zip(base[trace.id], hs, ahead, strict=True)
        ]
    mean = fmean(a for values in shaped.values() for a in values)
    return {name: [a - mean for a in values] for name, values in shaped.items()}


@register_estimator
def rlvmr(traces: Sequence[Trace], *, bonus: float = 1.0, share: float = 0.5) -> Advantages:
    """(1 - share) A_outcome + share A_tag, the tag rewards standardised among turns of the same tag (RLVMR).

    By rule: planning pays in an episode that succeeded; explore pays for an action not taken before;
    reflection pays where the turn before was invalid and this one is another action.
    """
    outcome = grpo(traces)
    advantages: Advantages = {}
    for group in group_siblings(traces):
        tagged: dict[str, list[tuple[str, int, float]]] = {}
        for trace in group:
            advantages[trace.id] = [(1 - share) * a for a in outcome[trace.id]]
            for t, turn in enumerate(trace.turns):
                if turn.tag:
                    tagged.setdefault(turn.tag, []).append((trace.id, t, bonus * _is_tag_earned(trace, t)))
        for turns in tagged.values():
            for (name, t, _), value in zip(turns, standardize([reward for *_, reward in turns]), strict=True):
                advantages[name][t] += share * value
    return advantages


def _is_tag_earned(trace: Trace, t: int) -> bool:
    turn = trace.turns[t]
    if turn.tag == "planning":
        return trace.outcome > 0
    if turn.tag == "explore":
        return turn.novel
    before = trace.turns[t - 1] if t else None
    return turn.tag == "reflection" and before is not None and not before.valid and before.action != turn.action


@register_estimator
def spa(traces: Sequence[Trace], *, grounding: float = 0.5) -> Advantages:
    """Step rewards that sum to the outcome, plus a bonus for what could be executed (SPA-RL).

    r_t = c_t + (R - sum c) / T + grounding * valid_t; the advantage is its undiscounted return
    against the siblings' at the same turn. The released data step overwrites c with a leave-one-out
    outcome baseline; the paper does not.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: _redistribute(trace, grounding) for trace in group}
        for trace_id, values in returns.items():
            others = [[other[t] for other in returns.values() if t < len(other)] for t in range(len(values))]
            advantages[trace_id] = [
                value - fmean(column) if len(column) > 1 else 0.0 for value, column in zip(values, others, strict=True)
            ]
    return advantages


def _redistribute(trace: Trace, grounding: float) -> list[float]:
    if not trace.turns:
        return []
    left = (trace.outcome - sum(turn.contribution for turn in trace.turns)) / len(trace.turns)
    rewards = [turn.contribution + left + grounding * turn.valid for turn in trace.turns]
    return [sum(rewards[t:]) for t in range(len(rewards))]


@register_estimator
def igpo(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """Information gain: r_t = p(answer | after t) - p(answer | before), the last turn's is the outcome (IGPO).

    Rewards are standardised over the group's turns first and discounted after, as in the paper (an
    upload of the code did it the other way round).
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        rewards = {trace.id: _compute_gains(trace) for trace in group}
        flat = [r for values in rewards.values() for r in values]
        scaled = iter(standardize(flat) if len(group) > 1 else [0.0] * len(flat))
        for trace_id, values in rewards.items():
            own, following = [next(scaled) for _ in values], 0.0
            for t in range(len(own) - 1, -1, -1):
                following = own[t] = own[t] + discount * following
            advantages[trace_id] = own
    return advantages


def _compute_gains(trace: Trace) -> list[float]:
    known = [trace.prior, *(turn.answer_probability for turn in trace.turns)]
    gains = [after - before for before, after in pairwise(known)]
    return [*gains[:-1], trace.outcome] if gains else []


def compute_spread(advantages: Mapping[str, Sequence[float]]) -> float:
    """Population standard deviation over all turns: 0 when a batch teaches nothing."""
    flat = [value for values in advantages.values() for value in values]
    return pstdev(flat) if flat else 0.0
