"""RELEX (arXiv:2605.21468), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "relex",
    "RELEX",
    "arXiv:2605.21468",
    evidence="C",
    reading="`hardwon train CONFIG --extrapolate STEP` reads the history; of a LoRA, the product B A is extrapolated",
    settings={"run.history": 1},
)
