"""Opening a library: its namespace and its embedder, and the switch to another embedder."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hardwon.memory.errors import UnknownName
from hardwon.memory.retrieval.embedders import Embedder, RememberedEmbedder, open_embedder, refuse_other
from hardwon.memory.storage.cache_files import drop_indices
from hardwon.memory.storage.database import BUSY_TIMEOUT_S, Store
from hardwon.memory.storage.episodes import namespace_id
from hardwon.memory.validation import check_no_secret

from . import integrity
from .write_buffer import file_all


def namespace_number(store: Store, name: str, *, wait_s: float = BUSY_TIMEOUT_S) -> int:
    """Return the id of a namespace, creating it if the library is writable.

    Raises:
        LibraryBusy: It is new, and another process holds the lock for longer than `wait_s`.
    """
    rows = store.rows("SELECT id FROM namespaces WHERE name = ?", (name,))
    if rows:
        return int(rows[0][0])
    if store.read_only:
        names = [str(row[0]) for row in store.rows("SELECT name FROM namespaces")]
        raise UnknownName.of("namespace", name, names)
    check_no_secret("namespace", name)
    with store.transaction(wait_s=wait_s) as connection:
        return namespace_id(connection, name)


def reembed(
    path: str | Path, embedder: str | Embedder, on_embedded: Callable[[int, int], None] = lambda done, of: None
) -> Embedder:
    """Switch the library to another embedder and embed all texts in every namespace.

    An interrupted call can be repeated and continues where it stopped.
    """
    chosen = open_embedder(embedder)
    with closing(Store(path)) as store:
        with store.transaction() as connection:
            # Only the first call drops vectors; a repeated one continues where an interrupted one stopped.
            if store.rows("SELECT value FROM meta WHERE name = 'fingerprint'") != [(chosen.fingerprint,)]:
                connection.execute("DELETE FROM vectors")
                _store_embedder(store, chosen)
                drop_indices(store)
        # States of buffered episodes exist only once these are stored, and must be embedded as well.
        file_all(store)
        integrity.embed_all(store, chosen, on_embedded)
    return chosen


def agree_on_embedder(store: Store, wanted: str | Embedder | None) -> Embedder:
    """Return the library's embedder; a new library adopts `wanted`."""
    stored = dict(store.rows("SELECT name, value FROM meta WHERE name IN ('embedder', 'fingerprint')"))
    if stored and wanted is None:
        return RememberedEmbedder(stored["embedder"], stored["fingerprint"], store.path)
    embedder = open_embedder(wanted)
    if stored:
        refuse_other(embedder, stored["embedder"], stored["fingerprint"], store.path)
        if stored["fingerprint"] != embedder.fingerprint:  # of an earlier version: the library keeps it
            return RememberedEmbedder(stored["embedder"], stored["fingerprint"], store.path, embedder)
    if stored or store.read_only:
        return embedder
    with store.transaction() as connection:
        # Check again inside the transaction: another process may have been first.
        is_set = connection.execute("SELECT 1 FROM meta WHERE name = 'fingerprint'").fetchone()
        if not is_set:
            _store_embedder(store, embedder)
    return agree_on_embedder(store, embedder) if is_set else embedder


def _store_embedder(store: Store, embedder: Embedder) -> None:
    store.connection.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        [("embedder", embedder.name), ("fingerprint", embedder.fingerprint)],
    )
