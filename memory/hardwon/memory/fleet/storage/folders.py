"""The folder of fsspec that holds the snapshots of a database, if its owner chose one.

A file is sealed with a key of its own, which is in the row of its snapshot. So whoever may read the folder alone reads
nothing, and the transaction that deletes the row erases the content, whenever the file is deleted.

The database lists files that nobody needs: a file from before it is written until its snapshot is committed, and a
replaced one. So a process that is killed in between leaves no file behind for good.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from hardwon.memory.errors import (
    ConfigError,
    HardwonError,
    LibraryError,
    LibraryUnreachable,
    MissingExtra,
    require_extra,
)
from hardwon.memory.fleet.log import Log

from .sealing import KEY_BYTES, PART, BrokenSeal, seal, unseal

DATABASE = "database"
"""In place of a folder: snapshots are in the database."""
UPLOAD_S = 3600
"""Seconds that writing a file may take; afterwards another process deletes it."""
_ROW = "folder"
"""Row of the table `meta` with the number of the folder of new snapshots. Only the owner of the schema writes it."""

logger = logging.getLogger("hardwon.memory")


class FileMissing(LibraryUnreachable):
    """The folder does not have a file."""


class SealedFile(NamedTuple):
    """The file of a snapshot: where it is, and its key."""

    folder: int
    """Number of the folder in the database."""
    name: str
    key: bytes


class Folder:
    """The files of one namespace in a folder of fsspec."""

    def __init__(self, log: Log, number: int, url: str) -> None:
        self.number, self._url = number, url
        # The name of a file comes from a row that a tenant may write, so it cannot leave the folder of its namespace.
        self._home = f"{url.rstrip('/')}/{log.database}/{log.number}"

    @contextmanager
    def _open(self, name: str, verb: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path of a file; errors name the file and the next step."""
        address = f"{self._home}/{name}"
        try:
            yield _open_folder(address)
        except (HardwonError, BrokenSeal):
            raise
        except FileNotFoundError:
            raise FileMissing(
                f"{address}, the file of a snapshot, is missing. Check the folder, or store another snapshot on a host "
                "that has a replica: hardwon memory snapshot ADDRESS"
            ) from None
        except Exception as error:  # each storage has errors of its own
            raise LibraryUnreachable(
                f"{address} cannot be {verb} ({type(error).__name__}: {str(error)[:200]}). Check the folder, and that "
                "fsspec finds the credentials on this host."
            ) from error

    def write(self, name: str, packed: Path, key: bytes) -> None:
        """Write a sealed copy of a file."""
        with self._open(name, "written") as (system, path), packed.open("rb") as source:
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            with system.open(path, "wb") as target:
                for part in seal(iter(lambda: source.read(PART), b""), key):
                    target.write(part)

    def read(self, file: SealedFile) -> Iterator[bytes]:
        """Yield the content of a file."""
        with self._open(_check(file.name), "read") as (system, path), system.open(path, "rb") as source:
            yield from unseal(partial(_read_whole, source.read), file.key)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with suppress(FileMissing), self._open(_check(name), "deleted") as (system, path):
            system.rm_file(path)


def _check(name: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", name):
        raise LibraryError(f"{name!r:.60} is no name of a snapshot's file. Delete its row from hardwon.snapshots.")
    return name


def _read_whole(read: Callable[[int], bytes], size: int) -> bytes:
    """Read exactly `size` bytes, or all that are left: a storage may return fewer than it was asked for."""
    parts: list[bytes] = []
    while size > 0 and (part := read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _open_folder(url: str) -> tuple[Any, str]:
    """Return the file system and the path of an address."""
    with require_extra("storage"):
        import fsspec
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # the package of this storage; fsspec names it
        raise MissingExtra(f"{url} needs another package: {error}") from error
    except ValueError as error:
        raise ConfigError(
            f"{url} is no folder of fsspec ({error}). Give for example s3://BUCKET/FOLDER, file:///FOLDER or "
            f"{DATABASE!r}."
        ) from error
    return system, str(path)


def choose(log: Log, url: str) -> None:
    """Let new snapshots of all namespaces of a database be stored in a folder, after trying it."""
    if url == DATABASE:
        log.write("DELETE FROM hardwon.meta WHERE name = %(name)s", {"name": _ROW})
        return
    if "://" not in url or urlsplit(url).password:
        address = url.replace(urlsplit(url).password or "\0", "[password]")
        raise ConfigError(
            f"{address} is no folder for all hosts. Give an address such as s3://BUCKET/FOLDER without a password: "
            f"every host has its own credentials. {DATABASE!r} stands for the database."
        )
    _try_out(Folder(log, 0, url))
    with log.writing():
        ((number,),) = log.write(
            "INSERT INTO hardwon.folders(url) VALUES (%(url)s) ON CONFLICT (url) DO UPDATE SET url = excluded.url "
            "RETURNING id",
            {"url": url},
        )
        log.write(
            "INSERT INTO hardwon.meta VALUES (%(name)s, %(value)s) ON CONFLICT (name) DO UPDATE SET "
            "value = excluded.value",
            {"name": _ROW, "value": str(number)},
        )


def _try_out(folder: Folder) -> None:
    name = uuid4().hex
    folder.write(name, Path(os.devnull), os.urandom(KEY_BYTES))
    folder.delete(name)


def find(log: Log, number: int) -> Folder:
    """Return a folder by its number."""
    ((url,),) = log.read("SELECT url FROM hardwon.folders WHERE id = %(id)s", {"id": number})
    return Folder(log, number, url)


def upload(log: Log, packed: Path) -> SealedFile | None:
    """Write a file into the folder of new snapshots; return it, or None if snapshots are in the database.

    If the folder cannot be written, a snapshot is stored in the database: `forget` must not wait for a storage.
    """
    rows = log.read("SELECT value FROM hardwon.meta WHERE name = %(name)s", {"name": _ROW})
    if not rows:
        return None
    file = SealedFile(int(rows[0][0]), uuid4().hex, os.urandom(KEY_BYTES))
    log.write(
        "INSERT INTO hardwon.unneeded VALUES (%(namespace)s, %(folder)s, %(name)s, "
        "clock_timestamp() + make_interval(secs => %(seconds)s))",
        {"folder": file.folder, "name": file.name, "seconds": UPLOAD_S},
    )
    try:
        find(log, file.folder).write(file.name, packed, file.key)
    except (LibraryUnreachable, MissingExtra) as error:
        logger.warning("%s The snapshot is stored in the database instead.", error)
        return None
    return file


def claim(log: Log, file: SealedFile) -> None:
    """Keep a file; called in the transaction that stores its snapshot."""
    if not log.write(
        "DELETE FROM hardwon.unneeded WHERE namespace = %(namespace)s AND folder = %(folder)s AND name = %(name)s "
        "AND due > clock_timestamp() RETURNING 1",
        {"folder": file.folder, "name": file.name},
    ):
        raise LibraryUnreachable(
            f"a snapshot of {log.name} was not written into its folder within {UPLOAD_S} s. Try again, or store it in "
            f"the database: hardwon memory snapshot ADDRESS --folder {DATABASE}"
        )


def delete_unneeded(log: Log) -> None:
    """Delete the files that nobody needs. What cannot be deleted now is tried again after the next snapshot."""
    # Marked first: a file that is being stored is either kept before this statement, or not any more.
    rows = log.write(
        "UPDATE hardwon.unneeded SET due = '-infinity' WHERE namespace = %(namespace)s AND due <= clock_timestamp() "
        "RETURNING folder, name"
    )
    for number, name in rows:
        try:
            find(log, number).delete(name)
        except HardwonError as error:
            logger.warning("%s It is tried again after the next snapshot.", error)
            continue
        log.write(
            "DELETE FROM hardwon.unneeded WHERE namespace = %(namespace)s AND folder = %(folder)s AND name = %(name)s",
            {"folder": number, "name": name},
        )
