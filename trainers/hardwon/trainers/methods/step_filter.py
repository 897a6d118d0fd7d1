"""Step-level filtering (step-level filtering of imitated episodes), which is settings of a run."""

from hardwon.trainers.algorithms.catalog import PARTS

PARTS.add_settings(
    "step-filter",
    "Step-level filtering",
    "step-level filtering of imitated episodes",
    evidence="C",
    reading="steps are rated by the diagnosis in place of a judge: failed ones and circles are context alone",
    settings={"warmstart.examples.wrong": "filter"},
)
