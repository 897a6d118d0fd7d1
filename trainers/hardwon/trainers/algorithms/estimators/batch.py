"""Estimators that look at more than the outcomes of one group: the batch, tool calls, budgets, needless turns."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from hardwon.trainers.algorithms.advantages import (
    EPSILON,
    ESTIMATORS,
    Advantages,
    Trace,
    center,
    group_siblings,
    standardize,
)


@ESTIMATORS.add(
    "Lite PPO (tricks or traps)", "arXiv:2508.08221", evidence="N", reading="the batch is that of the update"
)
def lite(traces: Sequence[Trace]) -> Advantages:
    """Compute A = (R - group mean) / sd of the rewards of the batch (arXiv:2508.08221).

    Use it with the loss kind ppo and `denominator: tokens`. At a standard deviation of 0, all advantages are 0. Do not
    divide where rewards are concentrated: `dr-grpo` does not.
    """
    groups = group_siblings(traces)
    rewards = [trace.outcome for group in groups for trace in group]
    spread = stdev(rewards) if len(rewards) > 1 else 0.0
    advantages: Advantages = {}
    for group in groups:
        for trace, value in zip(group, center([trace.outcome for trace in group]), strict=True):
            advantages[trace.id] = [value / (spread + EPSILON) if spread else 0.0] * len(trace.turns)
    return advantages


@ESTIMATORS.add(
    "HDPO (Act Wisely)",
    "arXiv:2604.08545",
    evidence="C",
    reading="T counts turns; one surrogate of the sum, which equals the sum of two surrogates at a ratio of 1",
)
def hdpo(traces: Sequence[Trace], *, weight: float = 0.15, format: float = 0.1) -> Advantages:
    """Compute A = z(R) + weight z(1 / (T + 1) among the right) (HDPO, arXiv:2604.08545).

    R is (1 - format) right + format readable.

    T is the number of turns after the first one, so the shortest success is T = 0. The second term is 0 for wrong
    traces, and if fewer than two are right: it teaches few turns only among successes.

    Args:
        traces: Traces of any number of groups.
        weight: Weight of the efficiency term.
        format: Share of the reward for answers that were all actions.

    Returns:
        One advantage per turn, by trace id.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        rewards = [(1 - format) * trace.outcome + format * all(turn.action for turn in trace.turns) for trace in group]
        right = [trace for trace in group if trace.outcome > 0]
        efficiency = standardize([1 / max(1, len(trace.turns)) for trace in right])
        bonus = {trace.id: value for trace, value in zip(right, efficiency, strict=True)}
        for trace, own in zip(group, standardize(rewards), strict=True):
            advantages[trace.id] = [own + weight * bonus.get(trace.id, 0.0)] * len(trace.turns)
    return advantages


@ESTIMATORS.add(
    "HBPO",
    "arXiv:2507.15844",
    evidence="C",
    name="hbpo",
    method="hbpo",
    reading="the formula; the released code adds the second term twice; the scale 2L = 4 x the largest budget is own",
    settings={"tasks.compose.budgets": {}},
    example={"tasks.compose.budgets.turns": "3, 6"},
)
def hbpo(traces: Sequence[Trace], *, scale: float = 4.0) -> Advantages:
    """Compute A = z(R) over a task instance + (mean R of the budget - 4 cos(pi b / 2L)) (HBPO, arXiv:2507.15844).

    R is `reward_budget` for a right answer and 0 for a wrong one. Traces are compared across budgets: it needs the
    composer `budgets`, whose label names the budget b. L is `scale` / 2 times the largest budget.
    """
    groups: dict[tuple[str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm), {})[trace.id] = trace
    advantages: Advantages = {}
    for group in groups.values():
        budgets = {trace.id: _read_budget(trace.label) for trace in group.values()}
        half = scale / 2 * max(budgets.values())
        if not half:  # no trace had a budget, so there is no scale
            advantages |= {name: [0.0] * len(trace.turns) for name, trace in group.items()}
            continue
        rewards = {
            trace.id: reward_budget(len(trace.turns), budgets[trace.id], half) if trace.outcome > 0 else 0.0
            for trace in group.values()
        }
        own = dict(zip(group, standardize([rewards[name] for name in group]), strict=True))
        for name, trace in group.items():
            same = [rewards[other] for other in group if budgets[other] == budgets[name]]
            gap = fmean(same) - 4 * math.cos(math.pi * budgets[name] / (2 * half))
            advantages[name] = [own[name] + gap if len(group) > 1 else 0.0] * len(trace.turns)
    return advantages


def _read_budget(label: str) -> float:
    """Return the number at the end of a label, or 0 if it ends in none."""
    try:
        return float(label.rpartition(" ")[2])
    except ValueError:
        return 0.0


def reward_budget(length: float, budget: float, scale: float) -> float:
    """Return the reward of a right answer of a length under a budget (HBPO).

    It is min(4 cos(pi n / 2L) - |b - n| / L, 4 cos(pi b / 2L)) with n the length, b the budget and L the scale.
    """
    at_budget = 4 * math.cos(math.pi * budget / (2 * scale))
    return min(4 * math.cos(math.pi * length / (2 * scale)) - abs(budget - length) / scale, at_budget)


@ESTIMATORS.add(
    "DECS",
    "arXiv:2509.25827",
    evidence="C",
    needs=("redundant",),
    reading="positions are turns; a turn is redundant if cleaning drops it (a circle or a refused step)",
)
def decs(traces: Sequence[Trace], *, beta: float = 0.1, longest: int = 0) -> Advantages:
    """Compute the decoupled reward of every turn, centered by position in the group (DECS, arXiv:2509.25827).

    In a right trace, a needed turn earns R + beta and a redundant one R + beta (1 - length / longest). In a wrong trace
    every turn earns R. Redundant turns of wrong traces do nothing.

    Args:
        traces: Traces of any number of groups.
        beta: Weight of the length term.
        longest: Length at which a redundant turn earns only R; 0 takes the longest trace of the group.

    Returns:
        One advantage per turn, by trace id.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        most = longest or max(1, *(len(trace.turns) for trace in group))
        rewards = {trace.id: _reward_turns(trace, beta, most) for trace in group}
        for name, own in rewards.items():
            columns = [[other[t] for other in rewards.values() if t < len(other)] for t in range(len(own))]
            advantages[name] = [
                value - fmean(column) if len(column) > 1 else 0.0 for value, column in zip(own, columns, strict=True)
            ]
    return advantages


def _reward_turns(trace: Trace, beta: float, longest: int) -> list[float]:
    """Return the reward of every turn of a trace."""
    redundant, length = trace.read_signal("redundant"), len(trace.turns)
    if trace.outcome <= 0:
        return [trace.outcome] * length
    short = 1 - min(1.0, length / longest)
    return [trace.outcome + beta * (short if flag else 1.0) for flag in redundant]
