"""TP-GRPO (arXiv:2507.23317)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings, standardize
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.verdicts import RIGHT


@PARTS.add(
    "estimator",
    "TP-GRPO",
    "arXiv:2507.23317",
    evidence="N",
    needs=("steps",),
    unseen="alpha: 1",
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def tp_grpo(traces: Sequence[Trace], *, alpha: float = 1.0) -> Advantages:
    """Compute the advantages of TP-GRPO ("Good Learners Think Their Thinking", arXiv:2507.23317).

    With o = z of +1 for a right trace and -1 for a wrong one, and r_c = alpha x the group's accuracy: a right trace
    gets o for right thoughts and o - r_c for wrong ones; a wrong trace gets o for thoughts that its wrong answer rests
    on (label 1) and 0 for the others. A thought is a run of equal labels, so splitting a step into two with the same
    label changes nothing. A turn without a label counts as a right thought of a right trace, and gets 0 in a wrong one.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        right = [trace.outcome > 0 for trace in group]
        scaled = standardize([1.0 if flag else -1.0 for flag in right])
        penalty = alpha * fmean(right) if len(group) > 1 else 0.0
        for trace, is_right, own in zip(group, right, scaled, strict=True):
            labels = trace.read_signal("steps")
            if is_right:
                advantages[trace.id] = [own - penalty * (v is not None and v <= RIGHT) for v in labels]
            else:
                advantages[trace.id] = [own * (v is not None and v > RIGHT) for v in labels]
    return advantages
