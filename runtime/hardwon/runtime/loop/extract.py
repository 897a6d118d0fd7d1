"""Reading an episode when it is over: an extractor is asked, and what it asks for is put before the curator.

The extractor is asked before the episode is written, so that what it cost, and how it failed, is on
record with it. A model that gives nothing usable is noted there and stops nothing.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import PolicyFailure, UnknownName
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Operation, Return
from hardwon.runtime.interfaces.types import Usage


@dataclass(frozen=True, slots=True)
class Reading:
    """What an extractor made of an episode that is not written yet."""

    shown: tuple[Item, ...] = ()
    """The items that the episode was shown, into which updates point."""
    operations: tuple[Operation, ...] = ()
    usage: Usage = field(default_factory=Usage)
    told: Mapping[str, Any] = field(default_factory=dict)
    """For the episode's record."""


def read_episode(extractor: Extractor, trajectory: Trajectory, library: ExperienceLibrary) -> Reading:
    """Ask the extractor. Until the episode is written its steps have no ids: they get their numbers for it."""
    shown = _shown(trajectory, library)
    numbered = replace(trajectory, steps=tuple(replace(step, id=n) for n, step in enumerate(trajectory.steps)))
    try:
        found = extractor.extract(numbered, shown)
    except PolicyFailure as error:
        return Reading(shown, usage=getattr(error, "usage", Usage()), told={"failed": str(error)})
    told: dict[str, Any] = {"operations": [type(operation).__name__.lower() for operation in found]}
    if rejected := getattr(found, "rejected", ()):
        told["rejected"] = list(rejected)
    return Reading(shown, tuple(found), getattr(found, "usage", Usage()), told)


def carry_out(reading: Reading, trajectory_id: str, library: ExperienceLibrary) -> None:
    """Put the operations before the curator, with the ids that the steps got when they were written."""
    if reading.operations:
        recorded = library.trajectory(trajectory_id)
        library.apply(_with_ids(reading.operations, recorded), recorded, [item.id for item in reading.shown])


def _shown(trajectory: Trajectory, library: ExperienceLibrary) -> tuple[Item, ...]:
    """Each item once, in the order of their first showing."""
    shown = []
    for ref in dict.fromkeys(ref for step in trajectory.steps for ref in step.why.get("recalled", ())):
        with contextlib.suppress(UnknownName):
            shown.append(library.get(ref))
    return tuple(shown)


def _with_ids(operations: Sequence[Operation], recorded: Trajectory) -> list[Operation]:
    """What is no step of the episode gets an id that no step has, and is rejected for it."""
    ids = {n: step.id for n, step in enumerate(recorded.steps) if step.id is not None}

    def renamed(operation: Operation) -> Operation:
        if isinstance(operation, Return):
            return operation
        evidence = tuple(ids.get(number, -1) for number in operation.item.provenance)
        return replace(operation, item=replace(operation.item, provenance=evidence))

    return [renamed(operation) for operation in operations]
