"""Reading: let an extractor read recorded episodes, with the items that they were shown and one to compare with."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from sqlite3 import Connection

from hardwon.memory.errors import HardwonError, UnknownName
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Admission, Item, Operation, Trajectory
from hardwon.memory.records.episodes import read_outcome
from hardwon.memory.situations.keys import content_words
from hardwon.memory.storage.database import Store

from .episodes import LibraryEpisodes
from .items import LibraryItems

logger = logging.getLogger("hardwon.memory")


def bind(extractor: Extractor, counterpart: Trajectory | None) -> Extractor:
    """Return the extractor with an episode to compare with, if it compares episodes."""
    comparing = getattr(extractor, "comparing", None)
    if comparing is None or counterpart is None:
        return extractor
    bound: Extractor = comparing(lambda trajectory: counterpart)
    return bound


def find_counterpart(trajectory: Trajectory, episodes: LibraryEpisodes) -> Trajectory | None:
    """Return the newest episode of the most similar task that ended the other way, or graded far apart, or None.

    Only episodes are compared whose words are trusted as far as those of the episode itself.
    """
    if trajectory.success is None or not trajectory.steps:
        return None
    own = trajectory.outcome or 0.0
    # Share of common words from which two tasks are compared.
    words, best, chosen = content_words(trajectory.task), 0.5, None
    environment = trajectory.meta.get("environment")
    try:
        rows = episodes.find(limit=300)
    except HardwonError:  # a client of a server may not read the log
        return None
    for row in rows:
        outcome = read_outcome(row)
        # Difference from which two outcomes are compared.
        if outcome is None or row["id"] == trajectory.id or abs(outcome - own) < 0.5:
            continue
        if row["trust"] != "trusted" and (row["trust"], row["writer"]) != (trajectory.trust, trajectory.writer):
            continue
        if row["meta"].get("environment") != environment or not row["n_steps"]:
            continue
        other = content_words(row["task"])
        likeness = 1.0 if row["task"] == trajectory.task else len(words & other) / max(1, len(words | other))
        if likeness > best or (chosen is None and likeness >= best):
            best, chosen = likeness, row["id"]
    return episodes.get(chosen) if chosen is not None else None


def load_shown_items(trajectory: Trajectory, items: LibraryItems) -> tuple[Item, ...]:
    """Return the active items that the episode was shown, each once, in the order of their first use.

    An item that was retired meanwhile is left out: an update of it would bring it back.
    """
    used_items = []
    for ref in dict.fromkeys(ref for step in trajectory.steps for ref in step.why.recalled or ()):
        with suppress(UnknownName):  # another process may have deleted it
            used_items.append(items.get(ref))
    return tuple(item for item in used_items if item.status == "active")


def read_episodes(
    episodes: LibraryEpisodes,
    items: LibraryItems,
    apply: Callable[[Sequence[Operation], Trajectory, Sequence[str]], list[Admission]],
    extractor: Extractor,
    ids: Sequence[str],
    failed: Collection[str] = (),
) -> tuple[list[Admission], list[str], str]:
    """Let an extractor read recorded episodes, oldest first, until it fails at one."""
    admissions: list[Admission] = []
    finished: list[str] = []
    for ref in ids:
        episode = episodes.get(ref)
        if episode.success is not None and episode.steps and "extraction" not in episode.meta and ref not in failed:
            used_items = load_shown_items(episode, items)
            try:
                operations = bind(extractor, find_counterpart(episode, episodes)).extract(episode, used_items)
            except HardwonError as error:
                logger.warning("the extractor failed at episode %s: %s", ref, error)
                return admissions, finished, ref
            admissions += apply(operations, episode, [item.id for item in used_items])
        finished.append(ref)
    return admissions, finished, ""


# ---- the episodes that were read: all up to one row of the change log


def find_unread(store: Store, namespace: int) -> dict[str, int]:
    """Return the oldest episodes that no extractor has read, at most 20, with their rows in the change log."""
    last = _load_last_read(store.connection, namespace)
    new = store.rows(
        "SELECT seq, ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'trajectory' ORDER BY seq LIMIT ?",
        (last, namespace, 20),
    )
    return {ref: seq for seq, ref in new}


def set_last_read(connection: Connection, namespace: int, seq: int) -> None:
    """Remember that the episodes up to a row of the change log were read."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"extracted-{namespace}", str(seq)))


def mark_read(connection: Connection, namespace: int, episode: str) -> None:
    """Remember that an extractor read an episode, if all older episodes with an outcome were read."""
    last = _load_last_read(connection, namespace)
    (seq,) = connection.execute(
        "SELECT MIN(seq) FROM changes WHERE namespace = ? AND ref = ? AND what = 'trajectory'", (namespace, episode)
    ).fetchone()
    if seq is None or seq <= last:
        return
    older = connection.execute(
        "SELECT 1 FROM changes AS c JOIN trajectories AS t ON t.namespace = c.namespace AND t.id = c.ref "
        "WHERE c.seq > ? AND c.seq < ? AND c.namespace = ? AND c.what = 'trajectory' AND t.success IS NOT NULL LIMIT 1",
        (last, seq, namespace),
    ).fetchone()
    if older is None:
        set_last_read(connection, namespace, seq)


def _load_last_read(connection: Connection, namespace: int) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (f"extracted-{namespace}",)).fetchone()
    return int(row[0]) if row else 0
