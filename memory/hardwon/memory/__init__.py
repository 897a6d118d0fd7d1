"""The memory package: records of experience, the library that stores them, and recall.

It does not depend on prompts, models, graphs or torch. Names are imported on first use, so that importing errors or
records does not load the library and its dependencies.
"""

from typing import TYPE_CHECKING

from .lazy_names import attach_names

if TYPE_CHECKING:
    from .errors import HardwonError as HardwonError
    from .grading.grades import Grade as Grade
    from .library import ExperienceLibrary as ExperienceLibrary
    from .reasons import Reasons as Reasons
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
        Outcome as Outcome,
        Problem as Problem,
        Recollection as Recollection,
        Return as Return,
        State as State,
        Step as Step,
        Summary as Summary,
        Trajectory as Trajectory,
        Update as Update,
        Usage as Usage,
        Verdict as Verdict,
    )
    from .upkeep.forgetting import ForgetReceipt as ForgetReceipt

__all__, __getattr__, __dir__ = attach_names(__name__)
