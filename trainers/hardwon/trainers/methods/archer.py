"""ArCHer (arXiv:2402.19446)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "ArCHer",
    "arXiv:2402.19446",
    evidence="C",
    needs=("critic",),
    reading="the policy learns from the turns that were played; A is scaled by the critic's explained variance (own)",
)
def archer(traces: Sequence[Trace]) -> Advantages:
    """Return A = min(Q1, Q2) - min(V1, V2) of every turn, as the critic gives it (ArCHer, arXiv:2402.19446).

    It does not compare siblings, so one copy per world is enough. Before the critic's warm-up its signal is 0, and no
    policy step is made. A constant added to Q and V changes nothing.
    """
    return {
        trace.id: [0.0 if value is None else value for value in trace.read_signal("critic")]
        for group in group_siblings(traces)
        for trace in group
    }
