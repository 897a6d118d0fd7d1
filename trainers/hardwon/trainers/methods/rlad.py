"""RLAD (solver, arXiv:2510.02263)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, center, compare_outcomes
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "RLAD (solver)",
    "arXiv:2510.02263",
    evidence="A P",
    reading="the generator of abstractions is the guide with `reads: task, credit: rlad`; a filter for texts that "
    "state the answer is not implemented",
    settings={
        "arms.guided": 3,
        "guidance.guided": "role",
        "roles.guide.learner.lr": 0.001,
        "roles.guide.settings.ready": 18,
        "roles.guide.settings.distil": 40,
        "roles.guide.settings.credit": "rlad",
        "roles.guide.settings.reads": "task",
        "roles.guide.settings.says": "words",
        "roles.guide.settings.length": 8,
    },
    example={"arms.control": 3},
)
def rlad(traces: Sequence[Trace]) -> Advantages:
    """Compute the centered outcome of solvers that were shown an abstraction; others get 0 (RLAD, arXiv:2510.02263).

    Solvers without an abstraction, in the arm `control`, still count in the loss, where a KL term holds them.
    """
    advantages = compare_outcomes(traces, center)
    plain = [trace for trace in traces if trace.arm == "control"]
    return {**advantages, **{trace.id: [0.0] * len(trace.turns) for trace in plain}}
