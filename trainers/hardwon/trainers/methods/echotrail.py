"""EchoTrail: exploration by curiosity with a critic and a memory, which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "echotrail",
    "EchoTrail (exploration)",
    "EchoTrail: exploration by curiosity with a critic and a memory",
    evidence="A N",
    reading="the rarest action of a state; the critic is the diagnosis: successes without circles and failed steps are "
    "kept",
    unseen="when exploration turns to a target: it ends at the first success",
    settings={"explore.policy": "curious", "explore.tries": 4},
)
