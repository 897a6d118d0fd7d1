"""Experiments: arms on identical seeds that learn on one fold and are tested, frozen, on another.

`plan` defines one, `runner` runs it, `folder` keeps its results, `versions` says what they depend on, and `seeds` reads
the ranges that a person types.
"""

from .folder import ResultRow as ResultRow
from .plan import BASELINE as BASELINE, LEARNER as LEARNER, SETUPS as SETUPS, ExperimentPlan as ExperimentPlan
from .runner import (
    interval as interval,
    run_plan as run_plan,
    summarise as summarise,
    training_order as training_order,
)

__all__ = [
    "BASELINE", "LEARNER", "SETUPS", "ExperimentPlan", "ResultRow", "interval", "run_plan", "summarise",
    "training_order",
]  # fmt: skip
