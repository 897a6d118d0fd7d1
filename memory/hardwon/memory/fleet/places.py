"""Places of the files of shared libraries on this host, and notes about them for when their server is down.

The folder of a replica has a note that names the database it was filled from. So the replica is found again by the
address alone, and a replica of another database is never read in its place.
"""

import json
import logging
import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from hardwon.memory.errors import LibraryUnreachable, LibraryUnwritable, OtherReplica
from hardwon.memory.privacy.private_files import FOLDER_MODE, find_cache, open_new
from hardwon.memory.storage.database import Store

from .schema import install
from .session import ServerSession

NOTE = "origin.json"
"""Name of the note in a replica's folder. Its time of change is that of the last answer of the server."""

logger = logging.getLogger("hardwon.memory")


class Note(NamedTuple):
    """Which log a replica was filled from."""

    identity: str
    """The address, with what libpq adds to it, and without the password; see `ServerSession.identity`."""
    database: str
    """Random id of the database."""
    namespace: str


def find_folder(database: str, namespace: str) -> Path:
    """Return the default folder of a replica, named after the database and the namespace."""
    return find_cache() / f"{database}-{quote(namespace, safe='')}"


def create_folder(folder: Path) -> Path:
    """Create a folder that only this user may read, if it does not exist, and return it."""
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise LibraryUnwritable(
            f"the folder {folder} cannot be created ({error.strerror}). Give another one, or check its rights."
        ) from error
    return folder


# -- notes ----------------------------------------------------------------------------------------


def write_note(folder: Path, note: Note, *, age_s: float = 0.0) -> None:
    """Note from which log a replica was filled, and when it last held everything that was in it."""
    path = folder / NOTE
    try:
        if read_note(folder) != note:
            scratch = folder / f"{NOTE}.{os.getpid()}"
            with suppress(FileNotFoundError):
                scratch.unlink()
            with open_new(scratch) as file:
                file.write(json.dumps(note).encode())
            scratch.replace(path)
        moment = time.time() - age_s
        os.utime(path, (moment, moment))
    except OSError as error:  # the replica works without it; only opening needs the server then
        logger.info("%s cannot be written: %s", path, error.strerror)


def read_note(folder: Path) -> Note | None:
    """Return the note in a folder; None if there is none, or it cannot be read."""
    try:
        values = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(values, list) and len(values) == len(Note._fields) and all(isinstance(each, str) for each in values):
        return Note(*values)
    return None


def read_age_s(folder: Path) -> float:
    """Return the seconds since the replica in a folder last held everything that was in its log, as far as noted."""
    try:
        return max(0.0, time.time() - (folder / NOTE).stat().st_mtime)
    except OSError:
        return 0.0


def find_notes(identity: str) -> dict[str, Note]:
    """Return the notes of this user's cache for an address, by namespace.

    If the address led to several databases over time, these are the notes of the last one.
    """
    folders = [path.parent for path in find_cache().glob(f"*/{NOTE}")]
    notes = [(read_age_s(folder), note) for folder in folders if (note := read_note(folder)) is not None]
    matching = sorted(pair for pair in notes if pair[1].identity == identity)
    return {note.namespace: note for _, note in matching if note.database == matching[0][1].database}


# -- the namespaces of a database -----------------------------------------------------------------


class Directory:
    """The namespaces of a database that the role may read. Safe to use from several threads."""

    def __init__(self, url: str, *, create: bool = False, offline: bool = False) -> None:
        """Connect, and install the schema if it is missing and `create` is set."""
        self._session, self._create = ServerSession(url), create
        self.name = self._session.name
        self.database = ""
        self._is_checked = False
        self._names: list[str] = []
        try:
            self._names = self._read()
        except LibraryUnreachable:
            notes = find_notes(self._session.identity) if offline else {}
            if not notes:
                self.close()
                raise
            self._names, self.database = sorted(notes), next(iter(notes.values())).database
        except BaseException:
            self.close()
            raise

    def _read(self) -> list[str]:
        if not self._is_checked:
            install(self._session, self._create)
            database = str(self._session.run("SELECT value FROM hardwon.meta WHERE name = 'database'")[0][0])
            if self.database not in ("", database):
                raise OtherReplica(
                    f"{self.name} is another database ({database}) than the one that this host has replicas of "
                    f"({self.database}). Check the address; to use the new database, start this program again."
                )
            self.database, self._is_checked = database, True
        return [name for (name,) in self._session.run("SELECT name FROM hardwon.namespaces ORDER BY name")]

    def names(self) -> list[str]:
        """Return the namespaces, sorted: those of the last call while the server does not answer."""
        try:
            self._names = self._read()
        except LibraryUnreachable as error:
            logger.info("the list of namespaces may be old: %s", error)
        return self._names

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def list_namespaces(url: str) -> list[str]:
    """Return the namespaces that the role may read, sorted."""
    with closing(Directory(url)) as directory:
        return directory.names()


def find_access_file(url: str) -> Path:
    """Return a library file of this user in which a server of a shared library keeps who may call it; created if new.

    It is not in the cache, which may be deleted.
    """
    directory = Directory(url, offline=True)
    directory.close()
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    path = create_folder(data / "hardwon" / directory.database) / "access.db"
    Store(path).close()
    return path
