"""HiMAC (micro, arXiv:2603.00977)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, center, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "HiMAC (micro)",
    "arXiv:2603.00977",
    evidence="A P",
    reading="minimal reading: the blueprint is the guide's text; with `roles.guide.settings.credit: himac` its credit "
    "is the centered mean outcome of its executions, and `phase` alternates the two roles",
    settings={
        "arms.guided": 4,
        "guidance.guided": "role",
        "roles.guide.learner.lr": 0.001,
        "roles.guide.settings.ready": 18,
        "roles.guide.settings.distil": 40,
        "roles.guide.settings.credit": "himac",
        "roles.guide.settings.executions": 2,
    },
    example={"arms.control": 2},
)
def himac(traces: Sequence[Trace]) -> Advantages:
    """Compute A = R - mean outcome of the executions of the same blueprint (HiMAC, arXiv:2603.00977).

    Executions of a blueprint begin in the same situation with the same text, so their first anchors are equal.
    """
    advantages: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for group in group_siblings(traces):
        blueprints: dict[str, list[Trace]] = {}
        for trace in group:
            blueprints.setdefault(trace.turns[0].anchor if trace.turns else "", []).append(trace)
        for executions in blueprints.values():
            for trace, value in zip(executions, center([execution.outcome for execution in executions]), strict=True):
                advantages[trace.id] = [value] * len(trace.turns)
    return advantages
