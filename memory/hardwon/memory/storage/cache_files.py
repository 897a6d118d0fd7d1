"""Files beside a library that save rebuilding what is derived from it; never trusted over it.

`experience.db.index/` holds a few files a namespace. Each begins with a checksum of all that
follows and says of which library, of which moment of its history, and how it was made. A file that
is missing costs time; one that is damaged, or of another library, moment or making, is said once,
and passed over. Losing the folder loses nothing. A library in memory, or in a folder that may not
be written, has none.

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

from hardwon.memory.privacy.private_files import FOLDER_MODE, open_new

from .database import Store

Arrays = Mapping[str, NDArray[Any]]
FORMAT = 1
"""Of these files; one of another format is passed over."""
SAVE_AFTER = 2000
"""Rows that a file may be behind before it is written anew: reading them takes some 50 ms."""
SAVE_SHARE = 0.05
"""The same as a share of the rows that it covers, so that a large file is not written at every closing."""
ABANDONED_S = 3600.0
"""Age after which a half-written file is nobody's."""
OTHER_MAKE = "it was made by"
"""Begins what is said of a file whose content depends on something that has changed."""
_MAGIC = b"tacitidx"
_HEAD = len(_MAGIC) + 32 + 8

logger = logging.getLogger("hardwon.memory")


@dataclass(frozen=True, slots=True)
class Saved:
    """A file's arrays and the last row that they cover."""

    last: int
    count: int
    arrays: Arrays


class Sidecar:
    """The files of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._generation = store.generation()
        self.folder = None if store.path == ":memory:" else Path(f"{store.path}.index")

    @property
    def writable(self) -> bool:
        """Whether a file may be written now: not of what may be taken back, by a transaction or with a copy."""
        writable = not (self._store.read_only or self._store.copied or self._store.connection.in_transaction)
        return self.folder is not None and writable

    def path(self, name: str) -> Path | None:
        """Where a file is, or would be."""
        return self.folder and self.folder / f"{self._namespace}-{name}"

    def load(self, name: str, made: str) -> Saved | None:
        """A file's content if it is whole and of this library; said once if it is there and is not."""
        path = self.path(name)
        if path is None or not path.exists():
            return None
        found = self._read(path, made)
        if isinstance(found, Saved):
            return found
        usual = name == "world-values" and found.startswith(OTHER_MAKE)  # worlds were united since
        level = logging.DEBUG if usual else logging.WARNING
        logger.log(level, "%s is passed over: %s. It is rebuilt from the library.", path, found)
        if not self._store.read_only:
            with suppress(OSError):
                path.unlink()
        return None

    def problem(self, name: str, made: str) -> str | None:
        """What is wrong with a file that is there."""
        path = self.path(name)
        found = self._read(path, made) if path is not None and path.exists() else None
        return found if isinstance(found, str) else None

    def save(self, name: str, made: str, last: int, count: int, arrays: Arrays) -> bool:
        """Write a file whole or not at all; whether it was. What cannot be written is done without."""
        path = self.path(name)
        if path is None or not self.writable or self._store.generation() != self._generation:
            return False  # what was forgotten meanwhile is still in the arrays
        seq, change = _moment(self._store)
        header = {
            "format": FORMAT,
            "library": library_id(self._store),
            "namespace": self._namespace,
            "made": made,
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
        if self._store.generation() != self._generation:  # forgotten while it was written
            path.unlink(missing_ok=True)
            return False
        return True

    def drop(self, name: str | None = None) -> None:
        """Delete one file, or all of this namespace."""
        if self.folder is not None:
            for path in self.folder.glob(f"{self._namespace}-{name or '*'}"):
                with suppress(OSError):
                    path.unlink()

    def _read(self, path: Path, made: str) -> Saved | str:
        """The content, or what is wrong with it."""
        try:
            content = path.read_bytes()
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        body = memoryview(content)[_HEAD - 8 :]
        if len(content) < _HEAD or content[: len(_MAGIC)] != _MAGIC:
            return "it is not a file of an index"
        if hashlib.blake2b(body, digest_size=32).digest() != content[len(_MAGIC) : _HEAD - 8]:
            return "its checksum is wrong"
        at = _HEAD + int.from_bytes(content[_HEAD - 8 : _HEAD], "little")
        header = json.loads(content[_HEAD:at])
        if (wrong := self._foreign(header, made)) is not None:
            return wrong
        arrays = {}
        for key, kind, length in header["arrays"]:
            dtype = np.dtype(kind)
            arrays[key] = np.frombuffer(content, dtype, length, at)
            at += _padded(dtype.itemsize * length)
        return Saved(header["last"], header["count"], arrays)

    def _foreign(self, header: Mapping[str, Any], made: str) -> str | None:
        """Why a whole file is not of this library as it is now."""
        if header["format"] != FORMAT:
            return f"it has format {header['format']}, not {FORMAT}"
        if header["library"] != library_id(self._store) or header["namespace"] != self._namespace:
            return "it is of another library"
        if header["made"] != made:
            return f"{OTHER_MAKE} {header['made']}, not by {made}"
        if header.get("generation", 0) != self._generation:
            return "something was forgotten since"
        if header["seq"] and _change(self._store, header["seq"]) != header["change"]:
            return "the library's history is another"
        return None


def due(behind: int, covered: int) -> bool:
    """Whether a file so many rows behind, of so many covered, is to be written anew."""
    return behind >= max(SAVE_AFTER, SAVE_SHARE * covered)


def drop_indices(store: Store) -> None:
    """Delete the indices of every namespace; values, which depend on no embedder, stay."""
    if store.path != ":memory:":
        for path in Path(f"{store.path}.index").glob("*-*"):
            if not path.name.endswith("-values"):
                path.unlink(missing_ok=True)


def library_id(store: Store) -> str:
    """What tells this library from any other; given to it when first asked for. Empty where that cannot be."""
    known = store.rows("SELECT value FROM meta WHERE name = 'id'")
    if not known and not store.read_only:
        with store.transaction() as connection:
            _give_id(connection)
        known = store.rows("SELECT value FROM meta WHERE name = 'id'")
    return str(known[0][0]) if known else ""


def _give_id(connection: Connection) -> None:
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('id', ?)", (uuid.uuid4().hex,))


def _moment(store: Store) -> tuple[int, str]:
    """The last line of the change log."""
    rows = store.rows("SELECT seq, at || ' ' || ref FROM changes ORDER BY seq DESC LIMIT 1")
    return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")


def _change(store: Store, seq: int) -> str | None:
    rows = store.rows("SELECT at || ' ' || ref FROM changes WHERE seq = ?", (seq,))
    return str(rows[0][0]) if rows else None


def _padded(size: int) -> int:
    """Arrays begin at multiples of eight bytes."""
    return -(-size // 8) * 8


def _write(path: Path, header: bytes, arrays: Arrays) -> None:
    """Temporary file, fsync, rename: a reader finds the old file or the new one."""
    path.parent.mkdir(FOLDER_MODE, exist_ok=True)
    header += b" " * (_padded(len(header)) - len(header))
    parts = [len(header).to_bytes(8, "little"), header]
    for array in arrays.values():
        content = np.ascontiguousarray(array).tobytes()
        parts.append(content + bytes(_padded(len(content)) - len(content)))
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
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
    _sweep(path.parent)


def _sweep(folder: Path) -> None:
    """Delete what killed writers left."""
    for left in folder.glob(".new-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
