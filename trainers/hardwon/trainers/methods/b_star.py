"""B-STaR (temperature, arXiv:2412.17256), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "b-star",
    "B-STaR (temperature)",
    "arXiv:2412.17256",
    evidence="C",
    reading="temperatures are compared by the rollouts of two iterations in a row, in place of a search over 64 "
    "samples of many queries; no bound on rewards, because rollouts are credited and not selected",
    example={"explore.tries": 3},
    settings={"run.balance": True},
)
