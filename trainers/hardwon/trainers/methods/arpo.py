"""ARPO (arXiv:2507.19849)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, center, standardize
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.branching import EntropyBranching
from .blocks.trees import group_trees


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


@PARTS.add(
    "estimator",
    "ARPO (credit)",
    "arXiv:2507.19849",
    evidence="C",
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


@PARTS.add(
    "composer",
    "ARPO (branching)",
    "arXiv:2507.19849",
    evidence="C",
    name="arpo",
    needs=("entropy",),
    tree=True,
    reading="entropy per free token of the next turn, by the log of its choices; a branch redraws that turn",
)
class Arpo(EntropyBranching):
    """Branches where the policy became less certain, with half of the group begun (ARPO, arXiv:2507.19849)."""
