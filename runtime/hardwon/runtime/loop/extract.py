"""Extraction from a finished episode: run the extractor and pass its operations to the curator.

The extractor runs before the episode is written, so that its cost and its errors are recorded with the episode. A model
without a usable answer is recorded too, and the episode is still stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.parts.reading import bind, find_counterpart, load_shown_items
from hardwon.memory.records import Operation, Return
from hardwon.runtime.interfaces.usage import ModelUsage


@dataclass(frozen=True, slots=True)
class ExtractorRun:
    """The result of running an extractor on an episode that is not written yet."""

    shown: tuple[Item, ...] = ()
    """The items that the episode was shown; updates refer to them by position."""
    operations: tuple[Operation, ...] = ()
    usage: ModelUsage = field(default_factory=ModelUsage)
    report: Mapping[str, Any] = field(default_factory=dict)
    """The report that is recorded with the episode: names of the operations, rejections, or the failure."""


def read_episode(extractor: Extractor, trajectory: Trajectory, library: ExperienceLibrary) -> ExtractorRun:
    """Run the extractor on an episode.

    Steps get their ids when the episode is written. Until then the extractor sees their numbers as ids.
    """
    seen_items = load_shown_items(trajectory, library.items)
    numbered = replace(trajectory, steps=tuple(replace(step, id=n) for n, step in enumerate(trajectory.steps)))
    try:
        operations = bind(extractor, find_counterpart(trajectory, library.episodes)).extract(numbered, seen_items)
    except PolicyFailure as error:
        return ExtractorRun(seen_items, usage=getattr(error, "usage", ModelUsage()), report={"failed": str(error)})
    report: dict[str, Any] = {"operations": [type(operation).__name__.lower() for operation in operations]}
    if rejected := getattr(operations, "rejected", ()):
        report["rejected"] = list(rejected)
    return ExtractorRun(seen_items, tuple(operations), getattr(operations, "usage", ModelUsage()), report)


def carry_out(reading: ExtractorRun, trajectory_id: str, library: ExperienceLibrary) -> None:
    """Pass the operations to the curator, with the step ids that the written episode received."""
    if reading.operations:
        recorded = library.episodes.get(trajectory_id)
        library.apply(_replace_numbers(reading.operations, recorded), recorded, [item.id for item in reading.shown])


def _replace_numbers(operations: Sequence[Operation], recorded: Trajectory) -> list[Operation]:
    """Return the operations with step numbers replaced by ids.

    A number that is not a step of the episode becomes -1, which the curator rejects.
    """
    ids = {n: step.id for n, step in enumerate(recorded.steps) if step.id is not None}

    def replace_numbers(operation: Operation) -> Operation:
        if isinstance(operation, Return):
            return operation
        evidence = tuple(ids.get(number, -1) for number in operation.item.provenance)
        return replace(operation, item=replace(operation.item, provenance=evidence))

    return [replace_numbers(operation) for operation in operations]
