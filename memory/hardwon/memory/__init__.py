"""The memory package: records of experience, the library that stores them, and recall.

It does not depend on prompts, models, graphs or torch. Names are imported on first use, so that importing errors or
records does not load the library and its dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import HardwonError as HardwonError
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
    from .upkeep.forgetting import ForgetReceipt as ForgetReceipt

_HOMES = {
    "Add": "records",
    "Admission": "records",
    "Diagnosis": "records",
    "Estimate": "records",
    "EvolutionReport": "records",
    "ExperienceLibrary": "library",
    "Failure": "records",
    "ForgetReceipt": "upkeep.forgetting",
    "Hit": "records",
    "Item": "records",
    "Operation": "records",
    "Problem": "records",
    "Recollection": "records",
    "Return": "records",
    "Segment": "records",
    "State": "records",
    "Step": "records",
    "Summary": "records",
    "HardwonError": "errors",
    "Trajectory": "records",
    "Update": "records",
    "Usage": "records",
    "Verdict": "records",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    """List the public names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
