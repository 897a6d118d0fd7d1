"""Advantage estimators: how much better each turn was than comparable turns of its group.

Estimators are pure functions from traces to one advantage per turn, registered by name. They use no
tensors, tokens or padding. Common rules:

- A trace counts once in a baseline, whatever its length and however often it is listed.
- Only traces with the same group, role and arm are compared.
- Without anything to compare with, the advantage is 0.
- Turns in the same situation with the same memory share an anchor.

Where a paper and its published code differ, the code here follows the paper and the docstring says so.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev, stdev

EPSILON = 1e-6
"""Added to every standard deviation that is a divisor."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The facts about one turn that an estimator may use."""

    reward: float = 0.0
    anchor: str = ""
    """Key of the situation and the memory shown in it. Turns with the same anchor are compared."""
    action: str = ""
    entropy: float = 0.0
    """Mean entropy of the turn's tokens, in nats."""
    valid: bool = True
    novel: bool = True
    """Whether the action is new in this trajectory."""
    answer_probability: float = 0.0
    """exp of the mean log-probability of the true answer after this turn (IGPO)."""
    contribution: float = 0.0
    """Contribution of the turn to the outcome, by a progress estimator (SPA)."""
    tag: str = ""
    """Kind of reasoning in the turn: planning, explore or reflection (RLVMR)."""


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
    prior: float = 0.0
    """Probability of the true answer before the first turn (IGPO)."""

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
ESTIMATORS: dict[str, Estimator] = {}


def register_estimator(function: Estimator) -> Estimator:
    """Register an estimator in `ESTIMATORS` under its function name, with `-` for `_`."""
    ESTIMATORS[function.__name__.replace("_", "-")] = function
    return function


def group_siblings(traces: Iterable[Trace]) -> list[list[Trace]]:
    """Group traces by group, role and arm. A trace that is listed twice counts once."""
    groups: dict[tuple[str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm), {})[trace.id] = trace
    return [list(group.values()) for group in groups.values()]


def _compare_outcomes(traces: Iterable[Trace], relative: Callable[[list[float]], list[float]]) -> Advantages:
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


@register_estimator
def grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = (R - mean) / std over the group (Shao et al. 2024, arXiv:2402.03300, section 4.1.2).

    A trajectory without siblings gets 0. In verl it keeps its raw reward.
    """
    return _compare_outcomes(traces, standardize)


@register_estimator
def dr_grpo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean over the group, without division by the std (Liu et al. 2025, arXiv:2503.20783)."""
    return _compare_outcomes(traces, center)


@register_estimator
def rloo(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean of the other traces = n / (n - 1) (R - mean).

    Ahmadian et al. 2024, arXiv:2402.14740.
    """
    # max: a trace without siblings would divide by 0; its centered value is 0 already
    return _compare_outcomes(traces, lambda values: [x * len(values) / max(1, len(values) - 1) for x in center(values)])


@register_estimator
def reinforce(traces: Sequence[Trace], *, discount: float = 1.0) -> Advantages:
    """Compute A_t = G_t - mean over the group of G_0 (Williams 1992, with a group baseline)."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: trace.returns(discount) for trace in group}
        baseline = fmean(values[0] if values else 0.0 for values in returns.values())
        for trace_id, values in returns.items():
            advantages[trace_id] = [value - baseline if len(group) > 1 else 0.0 for value in values]
    return advantages


@register_estimator
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
    episode = _compare_outcomes(traces, relative)
    step = _compare_at_anchors(traces, discount, relative, lambda trace, t: trace.turns[t].anchor)
    return {name: [e + omega * s for e, s in zip(episode[name], step[name], strict=True)] for name in episode}


@register_estimator
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


@register_estimator
def hgpo(traces: Sequence[Trace], *, discount: float = 0.95, history: int = 2, alpha: float = 1.0) -> Advantages:
    """Compute A = sum_k w_k A_k over contexts of k = 0..history earlier anchors, w_k ~ (k + 1)^alpha (HGPO).

    Weights are normalized over all levels, as in the paper. The released code normalizes over the levels
    that are not 0 and starts at level 2. A turn that is alone at a level gets 0 from it.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the step returns.
        history: Longest context, in earlier anchors.
        alpha: Exponent of the level weights; 0 weights all levels equally.

    Returns:
        One advantage per turn, by trace id.
    """
    weights = [(k + 1) ** alpha for k in range(history + 1)]
    total: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for k, weight in enumerate(weights):
        level = _compare_at_anchors(traces, discount, standardize, lambda trace, t, k=k: _build_context(trace, t, k))  # type: ignore[misc]
        for name, values in level.items():
            total[name] = [a + weight / sum(weights) * b for a, b in zip(total[name], values, strict=True)]
    return total


def _build_context(trace: Trace, t: int, k: int) -> tuple[str, ...] | tuple[str, int]:
    """Return the anchor of turn t with the k anchors before it."""
    if t < k:
        return trace.id, t  # too little history for this level: a unique key, so the turn is compared with none
    return tuple(turn.anchor for turn in trace.turns[t - k : t + 1])


@register_estimator
def salt(traces: Sequence[Trace], *, history: int = 0) -> Advantages:
    """Average the GRPO advantage over all sibling trajectories that share an edge (SALT).

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


@register_estimator
def empg(traces: Sequence[Trace], *, k: float = 1.0, future: float = 1.0, zeta: float = 0.05) -> Advantages:
    """Compute A_t = A g(H_t) + zeta f(H_{t+1}), minus its mean over the batch (EMPG).

    g(H) = exp(-k H) / mean exp(-k H) and f(H) = exp(-future H), with the entropy H min-max normalized
    over the batch. Confident turns get more weight, and turns that lead to confident ones get a bonus.

    Args:
        traces: Traces of any number of groups.
        k: Sharpness of the entropy weight g.
        future: Sharpness of the bonus f.
        zeta: Weight of the bonus.

    Returns:
        One advantage per turn, by trace id.
    """
    base = grpo(traces)
    batch = [trace for group in group_siblings(traces) for trace in group]
    entropies = [turn.entropy for trace in batch for turn in trace.turns]
    if not entropies:
        return base
    low, span = min(entropies), (max(entropies) - min(entropies)) or 1.0  # equal entropies all become 0
    scaled = {trace.id: [(turn.entropy - low) / span for turn in trace.turns] for trace in batch}
    confidence = fmean(math.exp(-k * h) for values in scaled.values() for h in values)
    shaped: Advantages = {}
    for trace in batch:
        hs = scaled[trace.id]
        ahead = [zeta * math.exp(-future * h) for h in hs[1:]] + [0.0]
        shaped[trace.id] = [
            a * math.exp(-k * h) / confidence + f for a, h, f in zip(base[trace.id], hs, ahead, strict=True)
        ]
    mean = fmean(a for values in shaped.values() for a in values)
    return {name: [a - mean for a in values] for name, values in shaped.items()}


@register_estimator
def rlvmr(traces: Sequence[Trace], *, bonus: float = 1.0, share: float = 0.5) -> Advantages:
    """Mix the outcome advantage with rewards for reasoning tags (RLVMR).

    A = (1 - share) A_outcome + share A_tag, with tag rewards standardized among turns of the same tag.
    The rewards follow three rules. `planning` is rewarded in a successful episode, `explore` for an action
    that is new in the trajectory. `reflection` is rewarded after an invalid turn if the action changes.

    Args:
        traces: Traces of any number of groups.
        bonus: Reward of a turn that meets the rule of its tag.
        share: Weight of the tag advantage, from 0 to 1.

    Returns:
        One advantage per turn, by trace id.
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
    """Redistribute the outcome over the turns and add a bonus for executable actions (SPA-RL).

    r_t = c_t + (R - sum c) / T + grounding * valid_t. The advantage is the undiscounted return minus the
    mean return of the siblings at the same turn. The released code overwrites c with a leave-one-out
    outcome baseline; the paper does not.

    Args:
        traces: Traces of any number of groups.
        grounding: Bonus of a valid action.

    Returns:
        One advantage per turn, by trace id.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        returns = {trace.id: _redistribute(trace, grounding) for trace in group}
        for trace_id, values in returns.items():
            # siblings may be shorter: each turn is compared with those that got as far
            columns = [[sibling[t] for sibling in returns.values() if t < len(sibling)] for t in range(len(values))]
            advantages[trace_id] = [
                value - fmean(column) if len(column) > 1 else 0.0 for value, column in zip(values, columns, strict=True)
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
    """Compute returns of information gain (IGPO).

    r_t = p(answer | after t) - p(answer | before t); the last turn's reward is the outcome. Rewards are
    standardized over the group's turns first and discounted afterward, as in the paper. One release of
    the code did it in the opposite order.
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
    probabilities = [trace.prior, *(turn.answer_probability for turn in trace.turns)]
    gains = [after - before for before, after in pairwise(probabilities)]
    return [*gains[:-1], trace.outcome] if gains else []


def compute_spread(advantages: Mapping[str, Sequence[float]]) -> float:
    """Return the population standard deviation over all turns. At 0 the batch has no learning signal."""
    flat = [value for values in advantages.values() for value in values]
    return pstdev(flat) if flat else 0.0
