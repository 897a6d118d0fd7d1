"""Estimators for trees: episodes that share their first turns, see `algorithms.composers.branching`.

A shared turn belongs to the trace that decided it. It is trained once, with a value that all traces through it share.
"""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev, stdev

from hardwon.trainers.algorithms.advantages import EPSILON, ESTIMATORS, Advantages, Trace, center, standardize

Node = tuple[str, ...]
"""The actions up to a situation of one task instance and arm."""


def group_trees(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group traces by group, role and arm, whatever they began with; a trace that is listed twice counts once."""
    groups: dict[tuple[str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm), {})[trace.id] = trace
    return [list(group.values()) for group in groups.values()]


def list_path(trace: Trace) -> Node:
    """Return all actions of a trace, those it began with included."""
    return (*trace.path, *(turn.action for turn in trace.turns))


def list_through(group: Sequence[Trace], owner: Trace, t: int) -> list[Trace]:
    """Return the traces of a group that contain turn t of a trace: itself and what branched off after it."""
    members = [owner]
    for trace in group:
        at, seen = trace, {trace.id}
        by_id = {other.id: other for other in group}
        step = owner.turns[t].step
        # up the branches: each of them must have kept the turn
        while at.id != owner.id and at.parent in by_id and at.parent not in seen and at.start > step:
            seen.add(at.parent)
            at = by_id[at.parent]
        if at.id == owner.id and trace.id != owner.id:
            members.append(trace)
    return members


@ESTIMATORS.add(
    "ARPO (credit)",
    "arXiv:2507.19849",
    evidence="C",
    name="arpo",
    tree=True,
    reading="the hard form: a shared turn has the mean advantage of the traces that share it; trained once",
    settings={"tasks.compose.arpo": {}},
    example={"tasks.compose.arpo.begun": 0.5},
)
def arpo(traces: Sequence[Trace], *, std: bool = False) -> Advantages:
    """Give every turn the mean advantage of the traces through it, all traces of a group compared (arXiv:2507.19849).

    A_i = R_i - mean over the group, divided by the standard deviation with `std`. Without branches it is dr-grpo, and
    grpo with `std`.
    """
    advantages: Advantages = {}
    for group in group_trees(traces):
        relative = standardize if std else center
        own = dict(zip((trace.id for trace in group), relative([trace.outcome for trace in group]), strict=True))
        for trace in group:
            shared = [list_through(group, trace, t) for t in range(len(trace.turns))]
            advantages[trace.id] = [fmean(own[other.id] for other in members) for members in shared]
    return advantages


@ESTIMATORS.add(
    "TreePS-RAG",
    "arXiv:2601.06922",
    evidence="N A",
    name="tree",
    tree=True,
    unseen="how local and global parts are combined: V(n) - V(parent), with V(n) - V(root) as an option",
    settings={"tasks.compose.tree": {}},
    example={"tasks.compose.tree.begun": 0.34},
)
def tree(traces: Sequence[Trace], *, globally: bool = False, root: bool = False) -> Advantages:
    """Compute A(n) = V(n) - V(parent of n), with V the mean outcome of the leaves below (TreePS-RAG, arXiv:2601.06922).

    A node is a sequence of actions, so siblings with equal actions are one child. The sum along a path is R - V(root).

    Args:
        traces: Traces of any number of groups.
        globally: Add V(n) - V(root).
        root: Divide by the square root of the number of leaves below n.

    Returns:
        One advantage per turn, by trace id.
    """
    advantages: Advantages = {}
    for group in group_trees(traces):
        leaves: dict[Node, list[float]] = {}
        for trace in group:
            path = list_path(trace)
            for depth in range(len(path) + 1):
                leaves.setdefault(path[:depth], []).append(trace.outcome)
        values = {node: fmean(outcomes) for node, outcomes in leaves.items()}
        for trace in group:
            path, own = list_path(trace), list[float]()
            for t in range(len(trace.turns)):
                node = path[: trace.start + t + 1]
                value = values[node] - values[node[:-1]] + (values[node] - values[()] if globally else 0.0)
                own.append(value / math.sqrt(len(leaves[node])) if root else value)
            advantages[trace.id] = own
    return advantages


@ESTIMATORS.add(
    "APPO (credit)",
    "arXiv:2606.12384",
    evidence="C",
    name="appo",
    tree=True,
    reading="O is 1 with one update per batch, so the factor 1 + b O is left out; branches themselves are not trained",
    settings={"tasks.compose.appo": {}},
)
def appo(traces: Sequence[Trace]) -> Advantages:
    """Add to a begun trace's z, up to each split, the mean z of the branches at the split (APPO, arXiv:2606.12384).

    z is taken in the group of begun traces, and for branches over all branches of the task instance, both with the
    population's standard deviation. Branches have advantage 0: they only tell what their prefix is worth.
    """
    advantages: Advantages = {}
    for group in group_trees(traces):
        begun = [trace for trace in group if not trace.parent]
        branches = [trace for trace in group if trace.parent]
        own = dict(zip((trace.id for trace in begun), _normalize([t.outcome for t in begun]), strict=True))
        below = dict(zip((trace.id for trace in branches), _normalize([t.outcome for t in branches]), strict=True))
        for trace in branches:
            advantages[trace.id] = [0.0] * len(trace.turns)
        for trace in begun:
            splits: dict[int, list[float]] = {}
            for branch in branches:
                if branch.parent == trace.id:
                    splits.setdefault(branch.start, []).append(below[branch.id])
            means = {start: fmean(values) for start, values in splits.items()}
            advantages[trace.id] = [
                own[trace.id] + sum(mean for start, mean in means.items() if turn.step < start) for turn in trace.turns
            ]
    return advantages


def _normalize(values: list[float]) -> list[float]:
    """Return (x - mean) / population standard deviation; fewer than two values, or equal ones, become 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    spread = pstdev(values) + EPSILON
    return [value / spread for value in center(values)]


@ESTIMATORS.add(
    "AEPO (credit)",
    "arXiv:2510.14545",
    evidence="F",
    name="aepo",
    needs=("entropy",),
    tree=True,
    reading="entropies of turns in place of tokens; the factor is clamped at 0, below which the sign would flip",
    settings={"tasks.compose.aepo": {}, "roles.policy.loss.kind": "aepo"},
)
def aepo(traces: Sequence[Trace], *, weight: float = 0.2) -> Advantages:
    """Scale the advantages of `arpo` by 1 + weight z(H), with z over all turns of the batch (AEPO, arXiv:2510.14545).

    Uncertain turns learn more. Where all entropies are equal, or only one is measured, the factor is 1.
    """
    entropies = {trace.id: trace.read_signal("entropy") for trace in traces}
    measured = [value for values in entropies.values() for value in values if value is not None]
    mean, spread = (fmean(measured), stdev(measured)) if len(measured) > 1 else (0.0, 0.0)
    advantages = arpo(traces, std=True)
    for name, values in entropies.items():
        factors = [
            1.0 if value is None or not spread else max(0.0, 1 + weight * (value - mean) / spread) for value in values
        ]
        advantages[name] = [factor * value for factor, value in zip(factors, advantages[name], strict=True)]
    return advantages
