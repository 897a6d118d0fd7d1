"""Opening a library: the number of its namespace and its own embedder; and another embedder for all of it."""

from collections.abc import Callable
from pathlib import Path

from hardwon.memory.errors import UnknownName
from hardwon.memory.retrieval.embedders import Embedder, RememberedEmbedder, open_embedder, refuse_other
from hardwon.memory.storage.cache_files import drop_indices
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import namespace_id

from . import integrity
from .write_buffer import file_all


def namespace_number(store: Store, name: str) -> int:
    """The number of a namespace, which is made where it is new and the library may be written."""
    known = store.rows("SELECT id FROM namespaces WHERE name = ?", (name,))
    if known:
        return int(known[0][0])
    if store.read_only:
        names = [row[0] for row in store.rows("SELECT name FROM namespaces")]
        raise UnknownName.of("namespace", name, names)
    with store.transaction() as connection:
        return namespace_id(connection, name)


def reembed(
    path: str | Path, embedder: str | Embedder, on_embedded: Callable[[int, int], None] = lambda done, of: None
) -> Embedder:
    """Make `embedder` the library's own and embed all of it, in every namespace; goes on where a killed one stopped.

    `on_embedded` is told how many of how many texts are embedded, each time some were written.
    """
    chosen = open_embedder(embedder)
    store = Store(path)
    try:
        with store.transaction() as connection:
            if store.rows("SELECT value FROM meta WHERE name = 'fingerprint'") != [(chosen.fingerprint,)]:
                connection.execute("DELETE FROM vectors")
                _write_down(store, chosen)
                drop_indices(store)
        file_all(store)
        integrity.embed_all(store, chosen, on_embedded)
    finally:
        store.close()
    return chosen


def agree_on_embedder(store: Store, wanted: str | Embedder | None) -> Embedder:
    """The library's own embedder; another one is refused with the command that re-embeds."""
    known = dict(store.rows("SELECT name, value FROM meta WHERE name IN ('embedder', 'fingerprint')"))
    if known and wanted is None:
        return RememberedEmbedder(known["embedder"], known["fingerprint"], store.path)
    embedder = open_embedder(wanted)
    if known:
        refuse_other(embedder, known["embedder"], known["fingerprint"], store.path)
    if known or store.read_only:
        return embedder
    with store.transaction() as connection:
        taken = connection.execute("SELECT 1 FROM meta WHERE name = 'fingerprint'").fetchone()
        if not taken:
            _write_down(store, embedder)
    return agree_on_embedder(store, embedder) if taken else embedder  # another process was first


def _write_down(store: Store, embedder: Embedder) -> None:
    store.connection.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        [("embedder", embedder.name), ("fingerprint", embedder.fingerprint)],
    )
