"""ScalingInter (AgentGym-RL, arXiv:2509.08755), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "scaling-inter",
    "ScalingInter (AgentGym-RL)",
    "arXiv:2509.08755",
    evidence="C",
    reading="evaluations play the full horizon; `share/cut` is the share of episodes that the horizon cuts off",
    example={"environment.max_steps": 8, "schedule": {"environment.max_steps": [[0, 4], [5, 6], [10, 8]]}},
    settings={"environment.max_steps": 20, "schedule": {"environment.max_steps": [[0, 6], [100, 13], [200, 20]]}},
)
