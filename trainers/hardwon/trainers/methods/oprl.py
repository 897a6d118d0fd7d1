"""iStar (OPRL, arXiv:2509.19199)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .blocks.levels import Per, combine_levels


@PARTS.add(
    "estimator",
    "iStar (OPRL)",
    "arXiv:2509.19199",
    evidence="P C",
    needs=("implicit",),
    example={"roles.policy.sources.implicit.lr": 0.0001},
)
def oprl(traces: Sequence[Trace], *, alpha: float = 1.0, per: Per = "turn") -> Advantages:
    """Compute A = z(R) + alpha z(r) with r_t = beta (log pi_phi(a_t) - log pi_old(a_t)) (arXiv:2509.19199).

    pi_phi is a model of its own, trained on pairs of a success and a failure; see the source `implicit`. The
    log-ratio is summed over the turn's tokens, as in the paper; the code takes the mean. Where all siblings succeeded
    or failed, the step term still speaks. A constant added to every r changes nothing.
    """
    return combine_levels(traces, "implicit", weight=alpha, per=per)
