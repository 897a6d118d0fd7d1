"""Snapshots: copies of a replica in the database, or in a folder beside it, from which others begin.

A new replica loads the newest snapshot and applies only the entries after it. After `forget`, the snapshot also stands
for entries whose content is erased. One snapshot of a namespace is kept, the newest.
"""

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from hardwon.memory.errors import HardwonError, LibraryError, LibraryUnwritable, NewerSchema
from hardwon.memory.privacy.private_files import open_new
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.migrations import APPLICATION_ID, SCHEMA_VERSION
from hardwon.memory.storage.schema_check import find_changes
from hardwon.memory.upkeep import forgetting
from hardwon.memory.upkeep.setup import namespace_number

from .entries import ERASED, open_codec, unpack
from .log import PAGE, Log
from .replica import UNUSABLE, EntryErased, Origin, Replica
from .storage import folders
from .storage.folders import SealedFile
from .storage.sealing import BrokenSeal

FEW = 100
"""Entries that a replica applies itself; only for more does it load a snapshot."""
MANY = 2000
"""Entries after which a new snapshot is worth its cost, at least; see `is_due`."""


class Snapshot(NamedTuple):
    """A snapshot in the database."""

    id: int
    position: int
    """Position of the replica of which it is a copy."""
    schema: int
    """Schema of the file."""
    keys: int
    """Version of the rules by which its situations are filed."""
    digest: str
    """Hash of the bytes of the file."""
    file: SealedFile | None = None
    """Its file in a folder; None if the content is in the database."""


def find(log: Log) -> Snapshot | None:
    """Return the newest snapshot of the namespace, or None."""
    rows = log.read(
        "SELECT id, pos, schema, keys, digest, folder, name, secret FROM hardwon.snapshots "
        "WHERE namespace = %(namespace)s ORDER BY pos DESC, id DESC LIMIT 1"
    )
    if not rows:
        return None
    ref, position, schema, keys, digest, folder, name, secret = rows[0]
    file = None if folder is None else SealedFile(folder, name, bytes(secret))
    return Snapshot(ref, position, schema, keys, digest, file)


def is_due(log: Log, position: int) -> bool:
    """Return whether the log has grown so much that a new snapshot is worth its cost: by a fifth, and by `MANY`."""
    newest = find(log)
    begun = newest.position if newest is not None and newest.keys == KEYS_VERSION else 0
    return position - begun >= max(MANY, begun // 5)


def is_worth_loading(log: Log, position: int) -> Snapshot | None:
    """Return a snapshot that spares a replica many entries, or None."""
    newest = find(log)
    if newest is None or newest.position - position < FEW:
        return None
    # A file of other keys is not what applying the entries gives; it is better than nothing only if they are erased.
    return newest if (newest.schema, newest.keys) == (SCHEMA_VERSION, KEYS_VERSION) else None


def load(log: Log, store: Store, snapshot: Snapshot) -> None:
    """Replace the content of a replica's file by a snapshot, in one transaction; other processes may have it open.

    Raises:
        NewerSchema: A newer version of hardwon stored the snapshot.
        LibraryError: The snapshot is damaged, or another one replaced it meanwhile.
        LibraryUnreachable: The server does not answer, or the folder of the file cannot be read.
    """
    if snapshot.schema > SCHEMA_VERSION or snapshot.keys > KEYS_VERSION:
        raise NewerSchema(
            f"the snapshot of {log.name} at position {snapshot.position} has schema {snapshot.schema}, but this "
            f"version of hardwon supports up to {SCHEMA_VERSION}. Update your clone of hardwon, then run: pip install ."
        )
    with _scratch(store.path) as folder:
        path = folder / "incoming.db"
        _download(log, snapshot, path)
        with closing(sqlite3.connect(path)) as source:
            _check(log, snapshot, source)
            with store.replacing() as target:
                source.backup(target)


def rebuild(log: Log, store: Store) -> None:
    """Fill a replica's file again, from a snapshot and the log, in one transaction."""
    with _scratch(store.path) as folder:
        path, position = folder / "rebuilt.db", 0
        with closing(Store(path)) as fresh:
            replica = Replica(fresh, namespace_number(fresh, log.namespace))
            replica.adopt(log.database, log.namespace)
            meta = store.rows("SELECT name, value FROM meta WHERE name IN ('embedder', 'fingerprint')")
            with fresh.transaction() as connection:
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta)
            head = log.assign()
            while position < head:
                entries = log.fetch(position)
                try:
                    position = replica.apply(entries)
                except EntryErased:
                    if (snapshot := find(log)) is None:
                        raise
                    load(log, fresh, snapshot)
                    position = replica.position
            forgetting.finish(fresh)
            fresh.shrink(rewrite=False)
        with closing(sqlite3.connect(path)) as source, store.replacing() as target:
            source.backup(target)


def _download(log: Log, snapshot: Snapshot, path: Path) -> None:
    codec, total = open_codec(), hashlib.blake2b(digest_size=16)
    unpacker = codec.ZstdDecompressor().decompressobj()
    try:
        with open_new(path) as file:
            for chunk in _read_chunks(log, snapshot):
                content = unpacker.decompress(chunk)
                total.update(content)
                file.write(content)
    except (codec.ZstdError, BrokenSeal):
        pass  # its hash differs, too
    except HardwonError:  # some are OSErrors: the server or the folder does not answer
        raise
    except OSError as error:
        raise LibraryUnwritable(f"{path}: {error.strerror}. Free some space, then try again.") from error
    if total.hexdigest() != snapshot.digest:
        raise LibraryError(
            f"the snapshot of {log.name} at position {snapshot.position} is damaged, or was replaced meanwhile. "
            "Try again; if it stays, delete its row from hardwon.snapshots."
        )


def _read_chunks(log: Log, snapshot: Snapshot) -> Iterator[bytes]:
    if snapshot.file is not None:
        yield from folders.find(log, snapshot.file.folder).read(snapshot.file)
        return
    query = "SELECT content FROM hardwon.chunks WHERE snapshot = %(snapshot)s AND number = %(number)s"
    for number in count():
        rows = log.read(query, {"snapshot": snapshot.id, "number": number})
        if not rows:
            return
        yield bytes(rows[0][0])


def _check(log: Log, snapshot: Snapshot, source: sqlite3.Connection) -> None:
    """Check that a file is what its row says: a replica of this log at that position."""
    (application,) = source.execute("PRAGMA application_id").fetchone()
    (schema,) = source.execute("PRAGMA user_version").fetchone()
    # before anything is read from its tables, which may be views
    is_library = (application, schema) == (APPLICATION_ID, snapshot.schema)
    if is_library and (changes := find_changes(source, schema, "")):
        raise LibraryError(
            f"the snapshot of {log.name} at position {snapshot.position} was changed by another program: {changes}. "
            "Delete its row from hardwon.snapshots."
        )
    rows = source.execute("SELECT value FROM meta WHERE name = 'replica'").fetchall() if is_library else []
    origin = json.loads(rows[0][0])[:3] if rows else []
    if origin != [log.database, log.namespace, snapshot.position]:
        raise LibraryError(
            f"the snapshot of {log.name} at position {snapshot.position} is the file of another log ({origin}). "
            "Delete its row from hardwon.snapshots."
        )


def save(log: Log, store: Store, number: int, *, erase: Sequence[int] = ()) -> int:
    """Store a copy of a replica in place of the older one; return its position."""
    with _scratch(store.path) as folder:
        path = folder / "outgoing.db"
        store.copy_to(path)
        with closing(Store(path)) as copy:
            with copy.transaction() as connection:
                connection.execute("UPDATE receipts SET erased = 1")  # a copy has no free pages
                connection.execute("DELETE FROM ratings")
            origin = Replica(copy, number).origin
            copy.shrink(rewrite=False)
        packed = folder / "outgoing.zst"
        digest = _compress(path, packed)
        file = folders.upload(log, packed)
        with log.writing():
            _insert(log, packed, file, digest, origin)
            if erase:
                log.write("SELECT hardwon.erase(%(namespace)s, %(entries)s)", {"entries": list(erase)})
                log.write("DELETE FROM hardwon.vectors WHERE namespace = %(namespace)s")
    folders.delete_unneeded(log)
    return origin.position


def _insert(log: Log, packed: Path, file: SealedFile | None, digest: str, origin: Origin) -> None:
    """Insert the row of a snapshot and, unless it has a file, its content; delete the rows of older ones."""
    if file is not None:
        folders.claim(log, file)
    ((ref,),) = log.write(
        "INSERT INTO hardwon.snapshots(namespace, pos, entry, schema, keys, digest, folder, name, secret) VALUES "
        "(%(namespace)s, %(pos)s, %(entry)s, %(schema)s, %(keys)s, %(digest)s, %(folder)s, %(name)s, %(key)s) "
        "RETURNING id",
        {
            "pos": origin.position, "entry": origin.entry, "schema": SCHEMA_VERSION, "keys": KEYS_VERSION,
            "digest": digest, **(dict.fromkeys(SealedFile._fields) if file is None else file._asdict()),
        },
    )  # fmt: skip
    if file is None:
        with packed.open("rb") as source:
            for number, chunk in enumerate(iter(lambda: source.read(2**20), b"")):
                log.write(
                    "INSERT INTO hardwon.chunks VALUES (%(ref)s, %(number)s, %(chunk)b)",
                    {"ref": ref, "number": number, "chunk": chunk},
                )
    log.write(
        "WITH old AS (DELETE FROM hardwon.snapshots WHERE namespace = %(namespace)s AND id <> %(ref)s "
        "AND pos <= %(pos)s RETURNING namespace, folder, name) "
        "INSERT INTO hardwon.unneeded SELECT *, clock_timestamp() FROM old WHERE folder IS NOT NULL",
        {"ref": ref, "pos": origin.position},
    )


def _compress(path: Path, packed: Path) -> str:
    """Compress a file into another one, and return the hash of its content."""
    total = hashlib.blake2b(digest_size=16)
    # Level of compression: the file is large, and a new host waits for it.
    compressor = open_codec().ZstdCompressor(level=3)
    with (
        path.open("rb") as source,
        open_new(packed) as target,
        compressor.stream_writer(target, closefd=False) as packer,
    ):
        while content := source.read(2**20):
            total.update(content)
            packer.write(content)
    return total.hexdigest()


@contextmanager
def _scratch(path: str) -> Iterator[Path]:
    """Yield a folder beside a file, where there is as much space as for the file itself."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="snapshot-", dir=Path(path).parent)
    except OSError as error:
        raise LibraryUnwritable(
            f"{Path(path).parent} cannot be written ({error.strerror}). Free some space."
        ) from error
    with folder as name:
        yield Path(name)


def list_erasable(log: Log, store: Store, number: int, position: int) -> list[int]:
    """Return the ids of the entries up to a position whose content `forget` made obsolete; empty if none is.

    These are the episodes that the replica does not hold any more, and, because their texts may come from them, all
    entries of other kinds. The snapshot holds what they lead to.
    """
    by = {"position": position, "erased": ERASED}
    where = (
        "FROM hardwon.log JOIN hardwon.positions ON log.id = log_id WHERE log.namespace = %(namespace)s "
        "AND positions.namespace = %(namespace)s AND pos <= %(position)s AND format <> %(erased)s"
    )
    if not log.read(f"SELECT 1 {where} AND kind = 'forget' LIMIT 1", by):
        return []
    rest = [int(ref) for (ref,) in log.read(f"SELECT id {where} AND kind <> 'episode'", by)]
    held = {ref for (ref,) in store.rows("SELECT id FROM trajectories WHERE namespace = ?", (number,))}
    held |= {ref for (ref,) in store.rows("SELECT ref FROM inbox WHERE namespace = ?", (number,))}
    episodes = log.read(f"SELECT id, key {where} AND kind = 'episode'", by)
    return rest + [int(ref) for ref, key in episodes if key.partition(":")[2] not in held]


def count_quoting(log: Log, text: str) -> int:
    """Return how many entries hold a text that the replicas may have deleted already: of a bank or of a store."""
    has_text, count, after = forgetting.build_text_matcher(text), 0, 0
    query = (
        "SELECT pos, payload, format FROM hardwon.positions JOIN hardwon.log ON log.id = log_id "
        "WHERE positions.namespace = %(namespace)s AND log.namespace = %(namespace)s AND pos > %(after)s "
        "AND kind IN ('bank', 'store') AND format <> %(erased)s ORDER BY pos LIMIT %(limit)s"
    )
    while rows := log.read(query, {"after": after, "erased": ERASED, "limit": PAGE}):
        after = rows[-1][0]
        for _, payload, number in rows:
            with suppress(*UNUSABLE):
                count += has_text(*forgetting.walk_strings(unpack(bytes(payload), number)))
    return count
