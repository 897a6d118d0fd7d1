"""SLEA-RL (arXiv:2603.18079)."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS

from .gigpo import gigpo


@PARTS.add("estimator", "SLEA-RL", "arXiv:2603.18079", evidence="C")
def slea(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0) -> Advantages:
    """Compute the SLEA-RL advantage (arXiv:2603.18079): GiGPO without std.

    The anchors are the situation clusters that retrieval uses.
    """
    return gigpo(traces, discount=discount, omega=omega, std=False)
