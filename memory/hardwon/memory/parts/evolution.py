"""Learning from recorded episodes: items from counts, by rules, and lessons that an extractor reads from the words."""

from collections.abc import Callable, Sequence
from sqlite3 import Connection

from hardwon.memory import items as catalogue
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.learning.consolidation import admit_within_limits
from hardwon.memory.learning.curator import expire
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Admission, EvolutionReport, Item, Operation, Trajectory

from . import reading
from .episodes import LibraryEpisodes
from .file import LibraryFile
from .items import LibraryItems, make_curator

Reasoned = Sequence[tuple[Item, str]]
"""Items to change, each with the reason."""


def learn_by_rules(file: LibraryFile, items: LibraryItems, get_episode: Callable[[str], Trajectory]) -> EvolutionReport:
    """Propose items from counts, and retire or weaken items that no longer hold, in one transaction."""
    file.distiller.load(get_episode)  # other threads recall meanwhile
    with file.lock:
        derived = file.caught_up()
        file.distiller.read(get_episode)
        file.distiller.resume(derived)
        proposals = file.distiller.proposals(derived.statistics.values, derived.support, derived.words.structural)
        unpinned = [item for item in derived.items.by_id.values() if not item.pinned]
        released, weakened = file.distiller.review(derived.statistics.values, unpinned)
        released_ids = {item.id for item, _ in released}
        # a released item leaves use in this call: do not also retire it as idle
        idle = [(item, why) for item, why in file.distiller.idle(derived, unpinned) if item.id not in released_ids]
        aging = any(item.ttl is not None for item in unpinned)
        # no empty transaction: it would take the write lock from all other processes
        if not (proposals or released or weakened or idle or aging):
            return EvolutionReport()
        try:
            with file.transaction() as connection:
                admissions = admit_within_limits(make_curator(file, items, connection), proposals)
                # an admission may have merged new evidence into an idle item, which is then in use again
                needed = {admission.item_id for admission in admissions}
                idle = [(item, why) for item, why in idle if item.id not in needed]
                _write_changes(connection, file.number, released, weakened, idle)
                file.distiller.reopen(item for item, _ in idle)
                expired = expire(connection, file.number, derived.words.clock.time) if aging else []
                file.distiller.save(connection, derived)
        except BaseException:  # the proposals were rolled back: the next call must propose them again
            file.distiller.start_over()
            file.discard()
            raise
        retired = (*(item.id for item, _ in (*released, *idle)), *expired)
        return EvolutionReport(tuple(admissions), retired, len(proposals))


def _write_changes(connection: Connection, number: int, released: Reasoned, weakened: Reasoned, idle: Reasoned) -> None:
    """Retire and weaken items, each with its reason."""
    for item, why in released:
        catalogue.retire(connection, number, item.id, why)
    for item, why in weakened:
        catalogue.weaken(connection, number, item, GUARDRAILS.weakening, why)
    for item, why in idle:
        catalogue.retire(connection, number, item.id, why, until_needed=True)


def learn_from_words(
    file: LibraryFile,
    items: LibraryItems,
    episodes: LibraryEpisodes,
    apply: Callable[[Sequence[Operation], Trajectory, Sequence[str]], list[Admission]],
    extractor: Extractor,
) -> list[Admission]:
    """Let an extractor read new episodes, and return one admission per proposal."""
    numbers = reading.find_unread(file.filed(), file.number)
    admissions, finished, failed = reading.read_episodes(
        episodes, items, apply, extractor, list(numbers), file.unreadable
    )
    if failed:
        file.unreadable.add(failed)  # the next call tries the others
    if finished:
        with file.lock, file.store.transaction() as connection:
            reading.set_last_read(connection, file.number, numbers[finished[-1]])
    return admissions
