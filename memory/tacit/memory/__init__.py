"""What the agent knows: experience records, the library that keeps them, and recall.

This portion knows nothing of prompts, models, graphs or torch.
"""

from .errors import TacitError as TacitError
from .library import ExperienceLibrary as ExperienceLibrary
from .records import (
    Add as Add,
    Admission as Admission,
    Diagnosis as Diagnosis,
    Estimate as Estimate,
    EvolutionReport as EvolutionReport,
    Failure as Failure,
    Hit as Hit,
    Item as Item,
    Operation as Operation,
    Problem as Problem,
    Recollection as Recollection,
    Return as Return,
    Segment as Segment,
    State as State,
    Step as Step,
    Summary as Summary,
    Trajectory as Trajectory,
    Update as Update,
    Usage as Usage,
    Verdict as Verdict,
)
