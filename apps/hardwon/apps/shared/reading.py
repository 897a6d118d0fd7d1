"""Read a recorded episode with an extractor, in a server that recorded it for somebody else."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from hardwon.memory import Admission, ExperienceLibrary
from hardwon.memory.errors import HardwonError
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.parts.reading import bind, find_counterpart, load_shown_items

Lease = Callable[[], AbstractContextManager[ExperienceLibrary]]
"""Opens the library."""


def read_recorded(episode: str, extractor: Extractor, *, reading: Lease, recording: Lease) -> list[Admission] | None:
    """Read one episode and apply what the extractor proposes.

    The library is not open while the extractor reads, which may take seconds.
    """
    with reading() as library:
        trajectory = library.episodes.get(episode)
        if trajectory.success is None or not trajectory.steps or "extraction" in trajectory.meta:
            return None
        seen_items = load_shown_items(trajectory, library.items)
        extractor = bind(extractor, find_counterpart(trajectory, library.episodes))
    operations = extractor.extract(trajectory, seen_items)
    with recording() as library:
        return list(library.apply(operations, trajectory, [item.id for item in seen_items]))


def read_all(
    episodes: Iterable[str], extractor: Extractor, library: ExperienceLibrary, *, on_failure: Callable[[str], None]
) -> int:
    """Read recorded episodes one after another, and return the number of lessons that the curator took."""
    lessons = 0
    for ref in episodes:
        try:
            read = read_recorded(
                ref, extractor, reading=lambda: nullcontext(library), recording=lambda: nullcontext(library)
            )
        except HardwonError as error:
            on_failure(f"episode {ref} was not read: {error}")
            continue
        lessons += sum(admission.status != "rejected" for admission in read or ())
    return lessons
