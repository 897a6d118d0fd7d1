"""ExpRL (process): the paper has no identifier."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "ExpRL (process)",
    "ExpRL: verification against a hidden reference",
    evidence="N C",
    needs=("score",),
    reading="a trace with an unreadable score is left out: its advantages are 0",
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def exprl(traces: Sequence[Trace]) -> Advantages:
    """Compute A_t = s_t - s_{t-1} and A_1 = s_1 - s_T, with the prefix scores s in [0, 1] of a judge (ExpRL).

    The judge sees a reference that the policy never sees. There is no comparison in the group: the advantages of a
    trace sum to 0, and a constant added to all its scores changes nothing. A trace of one turn gets 0.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        for trace in group:
            scores = [s for s in trace.read_signal("score") if s is not None]
            if len(scores) < len(trace.turns) or not scores:
                advantages[trace.id] = [0.0] * len(trace.turns)
                continue
            advantages[trace.id] = [s - scores[t - 1] for t, s in enumerate(scores)]  # t - 1 = -1 is the last one
    return advantages
