"""Cache files beside a library, so that indexes and value tables need not be rebuilt at every start.

The folder `experience.db.index/` holds a few files per namespace. Each file starts with a checksum of the rest. Its
header records the library, the position in the change log, and the code or embedder that built it. SQLite stays the
source of truth. A missing file only costs time. A stale or corrupt file is logged once, skipped and rebuilt. You can
delete the folder without losing data. Libraries in memory or in a read-only folder have no cache files.

    magic (8 bytes) | blake2b of the rest (32) | length of the header (8) | header, JSON | arrays
"""

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.errors import LibraryBusy
from hardwon.memory.privacy.private_files import FOLDER_MODE, open_new

from .database import Store

Arrays = Mapping[str, NDArray[Any]]
FORMAT = 1
"""Version of the file format. Files of any other version are skipped."""
SAVE_AFTER = 2000
"""Rows that a file may lag behind the library before it is rewritten. Reading them takes about 50 ms."""
OTHER_MAKE = "it was built by"
"""Prefix of the message about a file that was built by another embedder or another version of the code."""
_MAGIC = b"tacitidx"
_HEAD = len(_MAGIC) + 32 + 8

logger = logging.getLogger("hardwon.memory")


@dataclass(frozen=True, slots=True)
class Saved:
    """The arrays of a cache file and the id of the last row that they cover."""

    last: int
    count: int
    arrays: Arrays


class CacheFile:
    """The cache files of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        # Read before any data: arrays that still hold what is forgotten later must never be saved.
        self._generation = store.freshness.changes
        self.folder = None if store.path == ":memory:" else Path(f"{store.path}.index")

    @property
    def writable(self) -> bool:
        """Return whether a file may be written now: never inside a transaction or while a copy is being read."""
        # A rollback, or the end of an in-memory copy, would leave a file about rows that never existed.
        is_final = not (self._store.read_only or self._store.copied or self._store.connection.in_transaction)
        return self.folder is not None and is_final

    def path(self, name: str) -> Path | None:
        """Return the path of a cache file, whether or not it exists."""
        return self.folder and self.folder / f"{self._namespace}-{name}"

    def load(self, name: str, builder: str) -> Saved | None:
        """Return the content of a cache file; log and delete a file that is stale or corrupt."""
        path = self.path(name)
        if path is None or not path.exists():
            return None
        content = self._read(path, builder)
        if isinstance(content, Saved):
            return content
        # Merging worlds changes the ids that this file depends on, so a mismatch there is expected.
        is_expected = name == "world-values" and content.startswith(OTHER_MAKE)
        level = logging.DEBUG if is_expected else logging.WARNING
        logger.log(level, "%s was skipped: %s. It will be rebuilt from the library.", path, content)
        if not self._store.read_only:
            with suppress(OSError):
                path.unlink()
        return None

    def problem(self, name: str, builder: str) -> str | None:
        """Return the reason why an existing file cannot be used, or None if it is usable or missing."""
        path = self.path(name)
        content = self._read(path, builder) if path is not None and path.exists() else None
        return content if isinstance(content, str) else None

    def save(self, name: str, builder: str, last: int, count: int, arrays: Arrays) -> bool:
        """Write a cache file atomically."""
        path = self.path(name)
        if path is None or not self.writable or self._store.freshness.generation() != self._generation:
            return False  # the arrays may still contain experience that was forgotten in the meantime
        library = read_library_id(self._store)
        if not library:
            return False
        seq, change = _read_last_change(self._store)
        header = {
            "format": FORMAT,
            "library": library,
            "namespace": self._namespace,
            "made": builder,
            "generation": self._generation,
            "seq": seq,
            "change": change,
            "last": last,
            "count": count,
            "arrays": [[key, array.dtype.str, len(array)] for key, array in arrays.items()],
        }
        try:
            _write(path, json.dumps(header).encode(), arrays)
        except OSError as error:
            logger.info("%s was not written (%s).", path, error)
            return False
        if self._store.freshness.generation() != self._generation:  # experience was forgotten during the write
            path.unlink(missing_ok=True)
            return False
        return True

    def drop(self, name: str | None = None) -> None:
        """Delete one cache file, or all files of this namespace."""
        if self.folder is not None:
            for path in self.folder.glob(f"{self._namespace}-{name or '*'}"):
                with suppress(OSError):
                    path.unlink()

    def _read(self, path: Path, builder: str) -> Saved | str:
        """Return the content of a file, or the reason why it cannot be used."""
        try:
            content = path.read_bytes()
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        body = memoryview(content)[_HEAD - 8 :]
        if len(content) < _HEAD or content[: len(_MAGIC)] != _MAGIC:
            return "it is not an index file"
        # Before anything is parsed: flipped bits could pass as numbers or make FAISS fail in native code.
        if hashlib.blake2b(body, digest_size=32).digest() != content[len(_MAGIC) : _HEAD - 8]:
            return "its checksum is wrong"
        at = _HEAD + int.from_bytes(content[_HEAD - 8 : _HEAD], "little")
        header = json.loads(content[_HEAD:at])
        if (mismatch := self._find_mismatch(header, builder)) is not None:
            return mismatch
        # `frombuffer` returns views of `content`, so the arrays are not copied.
        arrays = {}
        for key, kind, length in header["arrays"]:
            dtype = np.dtype(kind)
            arrays[key] = np.frombuffer(content, dtype, length, at)
            at += _pad_size(dtype.itemsize * length)
        return Saved(header["last"], header["count"], arrays)

    def _find_mismatch(self, header: Mapping[str, Any], builder: str) -> str | None:
        """Return how a file's header differs from the current library, or None if it matches."""
        if header["format"] != FORMAT:
            return f"it has format {header['format']}, not {FORMAT}"
        if header["library"] != read_library_id(self._store) or header["namespace"] != self._namespace:
            return "it belongs to another library"
        if header["made"] != builder:
            return f"{OTHER_MAKE} {header['made']}, not by {builder}"
        if header.get("generation", 0) != self._generation:
            return "experience was forgotten or graded after it was written"
        # A restored backup has the same id but a different change log after the point of the backup.
        if header["seq"] and _read_change(self._store, header["seq"]) != header["change"]:
            return "the library's history differs"
        return None


def due(behind: int, covered: int) -> bool:
    """Return whether a file that covers `covered` rows and lags `behind` rows should be rewritten."""
    return behind >= max(SAVE_AFTER, 0.05 * covered)


def drop_indices(store: Store) -> None:
    """Delete the vector and text indexes of every namespace; keep value tables, which need no embedder."""
    if store.path != ":memory:":
        for path in Path(f"{store.path}.index").glob("*-*"):
            if not path.name.endswith("-values"):
                path.unlink(missing_ok=True)


def read_library_id(store: Store) -> str:
    """Return the unique id of a library, creating it if needed; empty if it has none and cannot be written."""
    rows = store.rows("SELECT value FROM meta WHERE name = 'id'")
    if not rows and not store.read_only:
        # A cache file can wait for the next save, but no read waits for another writer.
        with suppress(LibraryBusy), store.transaction(wait_s=0.0) as connection:
            _write_id(connection)
        # Read it again: another process may have written its id first.
        rows = store.rows("SELECT value FROM meta WHERE name = 'id'")
    return str(rows[0][0]) if rows else ""


def _write_id(connection: Connection) -> None:
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('id', ?)", (uuid.uuid4().hex,))


def _read_last_change(store: Store) -> tuple[int, str]:
    """Return the sequence number and the content of the last entry in the change log."""
    rows = store.rows("SELECT seq, at || ' ' || ref FROM changes ORDER BY seq DESC LIMIT 1")
    return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")


def _read_change(store: Store, seq: int) -> str | None:
    rows = store.rows("SELECT at || ' ' || ref FROM changes WHERE seq = ?", (seq,))
    return str(rows[0][0]) if rows else None


def _pad_size(size: int) -> int:
    """Return `size` rounded up to a multiple of eight bytes, so that every array is aligned."""
    return -(-size // 8) * 8


def _write(path: Path, header: bytes, arrays: Arrays) -> None:
    """Write a temporary file, sync it and rename it, so that readers see either the old file or the new one."""
    path.parent.mkdir(FOLDER_MODE, exist_ok=True)
    # JSON ignores trailing spaces. The fixed part before the header has 48 bytes, so the arrays stay aligned.
    header += b" " * (_pad_size(len(header)) - len(header))
    parts = [len(header).to_bytes(8, "little"), header]
    for array in arrays.values():
        content = np.ascontiguousarray(array).tobytes()
        parts.append(content + bytes(_pad_size(len(content)) - len(content)))
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    # The temporary file must be in the same folder: a rename is atomic only within one file system.
    new = path.parent / f".new-{uuid.uuid4().hex}"
    try:
        with open_new(new, exclusive=True) as file:
            file.write(_MAGIC + digest.digest())
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _remove_abandoned(path.parent)


def _remove_abandoned(folder: Path) -> None:
    """Delete temporary files of writers that were killed."""
    for path in folder.glob(".new-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > 3600.0:
                path.unlink()
