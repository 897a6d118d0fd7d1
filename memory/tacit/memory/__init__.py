"""What the agent knows: experience records, the library that keeps them, and recall.

This portion knows nothing of prompts, models, graphs or torch.
"""

from .errors import TacitError as TacitError
from .library import ExperienceLibrary as ExperienceLibrary
from .records import (
    Admission as Admission,
    Diagnosis as Diagnosis,
    Estimate as Estimate,
    EvolutionReport as EvolutionReport,
    Failure as Failure,
    Hit as Hit,
    Item as Item,
    Problem as Problem,
    Recollection as Recollection,
    State as State,
    Step as Step,
    Trajectory as Trajectory,
    Usage as Usage,
    Verdict as Verdict,
)
