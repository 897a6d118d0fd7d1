"""AEPO, loss (arXiv:2510.14545), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "aepo-clip",
    "AEPO, loss",
    "arXiv:2510.14545",
    evidence="F",
    reading="the clip alone; the composer and the estimator `aepo` are the branching and the credit",
    settings={"roles.policy.learner.epochs": 2, "roles.policy.loss.kind": "aepo", "roles.policy.loss.high": 0.28},
)
