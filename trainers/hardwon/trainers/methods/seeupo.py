"""SeeUPO (arXiv:2602.06554), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "seeupo",
    "SeeUPO",
    "arXiv:2602.06554",
    evidence="F A",
    reading="a turn's old log-probabilities are read right before its update, so its ratio begins at 1; factors go by "
    "episode, where the reproduction's balancing of the batch mixes rows",
    settings={
        "roles.policy.learner.order": "reverse-turns",
        "roles.policy.credit.name": "dr-grpo",
        "roles.policy.loss.kind": "gspo",
        "roles.policy.loss.ratio": "turn",
        "roles.policy.loss.kl": 0.002,
    },
)
