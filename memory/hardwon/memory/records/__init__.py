"""Immutable records of the library: states, steps, episodes, items, and the results of recall and admission.

The records are frozen dataclasses without storage or search. A `Trajectory` is one episode: its `Step`s and its
outcome. It never changes once it is recorded. An `Item` is one piece of knowledge learned from steps.
"""

from .episodes import (
    BOUND as BOUND,
    Diagnosis as Diagnosis,
    Fact as Fact,
    Failure as Failure,
    State as State,
    Step as Step,
    Trajectory as Trajectory,
    Trust as Trust,
    bounded as bounded,
)
from .knowledge import (
    KINDS as KINDS,
    MIN_SKILL_STEPS as MIN_SKILL_STEPS,
    SOURCES as SOURCES,
    Add as Add,
    Item as Item,
    Kind as Kind,
    Operation as Operation,
    Return as Return,
    Summary as Summary,
    Update as Update,
    Usage as Usage,
)
from .results import (
    Admission as Admission,
    Estimate as Estimate,
    EvolutionReport as EvolutionReport,
    Hit as Hit,
    Outcome as Outcome,
    Problem as Problem,
    Recollection as Recollection,
    Verdict as Verdict,
)
