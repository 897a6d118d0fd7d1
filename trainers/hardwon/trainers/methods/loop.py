"""LOOP (arXiv:2502.01600), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "loop",
    "LOOP",
    "arXiv:2502.01600",
    evidence="N P",
    reading="leave-one-out advantages without a standard deviation, a ratio per token, epochs of minibatches",
    settings={
        "roles.policy.learner.epochs": 2,
        "roles.policy.learner.minibatches": 2,
        "roles.policy.credit.name": "rloo",
        "roles.policy.loss.kind": "ppo",
        "roles.policy.loss.high": 0.28,
        "roles.policy.loss.kl": 0.0,
    },
)
