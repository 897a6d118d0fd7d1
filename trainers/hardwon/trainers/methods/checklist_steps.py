"""CM2 (steps, arXiv:2602.12268)."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.checklists import read_checklist

from .blocks.levels import scale_turns


@PARTS.add(
    "estimator",
    "CM2 (steps)",
    "arXiv:2602.12268",
    evidence="P C",
    needs=("items",),
    method="checklist-steps",
    reading="the default of the paper is the trace level, the shaper `checklist`; finer credit collapsed earlier",
    example={
        "roles.policy.sources.items.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.items.file": "examples/methods/checklist.json",
    },
)
def checklist(traces: Sequence[Trace], *, std: bool = False) -> Advantages:
    """Compute A_t = weighted mean over the open items c of r~_{c,t} - b_c (CM2, arXiv:2602.12268, step variant).

    An item is open at a turn if it is not satisfied yet and its dependencies were satisfied before the turn. r~ is 1
    if it is paid at this turn or later, and b_c is the share of siblings in which it is ever paid. A turn without an
    open item gets 0. The order of the items does not matter.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        lists = {trace.id: read_checklist(trace) for trace in group}
        shares: Mapping[str, float] = {
            item.name: fmean(item.name in own.paid for own in lists.values() if own is not None)
            for flag in lists.values()
            if flag is not None
            for item in flag.items
        }
        values: dict[str, list[float | None]] = {}
        for trace in group:
            own = lists[trace.id]
            if own is None or len(group) < 2:
                values[trace.id] = [None] * len(trace.turns)
                continue
            gains = {item.name: (item.name in own.paid) - shares[item.name] for item in own.items}
            values[trace.id] = [own.average_open(t, gains) for t in range(len(trace.turns))]
        scaled = scale_turns(values, "z") if std else values
        for name, per_turn in scaled.items():
            advantages[name] = [0.0 if value is None else value for value in per_turn]
    return advantages
