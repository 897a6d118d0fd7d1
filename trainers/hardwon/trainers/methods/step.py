"""STeP (partial masking, arXiv:2505.20023), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "step",
    "STeP (partial masking)",
    "arXiv:2505.20023",
    evidence="N",
    reading="the correction is the episode's own later step in the same situation; no teacher writes reflections",
    settings={"warmstart.examples.wrong": "correct"},
)
