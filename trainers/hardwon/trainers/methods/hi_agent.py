"""Hi-Agent (foresight, arXiv:2510.14388), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "hi-agent",
    "Hi-Agent (foresight)",
    "arXiv:2510.14388",
    evidence="A",
    reading="minimal reading: `roles.guide.settings.credit: foresight` credits a text by the next action's reward and "
    "the change of the state's value, the mean outcome of the siblings that came there",
    example={"arms.control": 2},
    settings={
        "arms.guided": 4,
        "guidance.guided": "role",
        "roles.guide.learner.lr": 0.001,
        "roles.guide.settings.ready": 18,
        "roles.guide.settings.distil": 40,
        "roles.guide.settings.credit": "foresight",
    },
)
