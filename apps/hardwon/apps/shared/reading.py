"""Read a recorded episode with an extractor, in a server that recorded it for somebody else."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from hardwon.memory import Admission, ExperienceLibrary
from hardwon.memory.learning.extraction import Extractor
from hardwon.runtime.loop.extract import load_shown_items

Lease = Callable[[], AbstractContextManager[ExperienceLibrary]]
"""Opens the library."""


def read_recorded(episode: str, extractor: Extractor, *, reading: Lease, recording: Lease) -> list[Admission] | None:
    """Read one episode and apply what the extractor proposes.

    The library is not open while the extractor reads, which may take seconds.

    Args:
        episode: Id of the episode.
        extractor: Proposes the items.
        reading: Opens the library for reading.
        recording: Opens the library for adding what was proposed.

    Returns:
        An admission for each operation, or None if there was nothing to read: an agent with an extractor of its own has
        read its episode already, and an unknown outcome teaches nothing.
    """
    with reading() as library:
        trajectory = library.trajectory(episode)
        seen_items = load_shown_items(trajectory, library)
    if trajectory.success is None or not trajectory.steps or "extraction" in trajectory.meta:
        return None
    operations = extractor.extract(trajectory, seen_items)
    with recording() as library:
        return list(library.apply(operations, trajectory, [item.id for item in seen_items]))
