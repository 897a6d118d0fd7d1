"""Go-Explore (intelligent, arXiv:2405.15143), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "go-explore",
    "Go-Explore (intelligent)",
    "arXiv:2405.15143",
    evidence="C",
    reading="the state chosen least often is next, without a model; what is found serves warm start and demonstrations",
    settings={"explore.policy": "archive", "explore.tries": 125},
)
