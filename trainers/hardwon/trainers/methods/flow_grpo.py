"""Flow-GRPO (AgentFlow, arXiv:2510.05592), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "flow-grpo",
    "Flow-GRPO (AgentFlow)",
    "arXiv:2510.05592",
    evidence="C",
    reading="a mean over turns of token means; the released baseline runs over rows of turns and is not copied",
    settings={
        "roles.policy.learner.denominator": "turns",
        "roles.policy.credit.name": "grpo",
        "roles.policy.loss.kind": "ppo",
        "roles.policy.loss.high": 0.3,
        "roles.policy.loss.kl": 0.001,
    },
)
