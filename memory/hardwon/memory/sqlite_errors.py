"""Convert errors of SQLite to errors of the library, which name the file, the cause and the next step.

SQLite reports a full disk for three causes: the disk of the library, the folder of its temporary files, and a quota.
It reports a disk error if a file may not grow or if memory runs out. This module looks at the machine to tell them
apart.
"""

import os
import shutil
import sqlite3
from pathlib import Path

from .errors import ConfigError, HardwonError, LibraryBusy, LibraryDamaged, LibraryError, LibraryUnwritable, NotALibrary

INVALID_TEXT = "Could not decode to UTF-8"
"""Prefix of Python's message about text that is not valid UTF-8."""
TRANSLATED = (sqlite3.Error, OverflowError, UnicodeEncodeError, MemoryError)
"""The errors that `translate_error` takes."""
ROOM_BYTES = 64 * 2**20
"""A disk with less free space counts as full. Another process may have freed some since the error."""
_VERIFY = "hardwon memory verify"
_TEMPORARY = ("/var/tmp", "/usr/tmp", "/tmp", ".")
"""Folders in which SQLite puts its temporary files, if the environment names none."""


def translate_error(error: BaseException, path: str, *, read_only: bool, busy_s: float) -> HardwonError:
    """Return the library error for one of the errors in `TRANSLATED`."""
    if isinstance(error, MemoryError):
        return _explain_memory(path, str(error) or "out of memory")
    if isinstance(error, UnicodeEncodeError):
        return ConfigError(
            f"{path}: {error.object!r:.60} contains a lone surrogate, which is not valid Unicode. Remove it."
        )
    if isinstance(error, OverflowError):
        return LibraryError(f"{path}: an integer does not fit into 64 bits ({error}). Use a smaller one.")
    code, message = getattr(error, "sqlite_errorname", None) or "", str(error)
    if message.startswith((INVALID_TEXT, "malformed JSON")):
        return LibraryDamaged(f"{path} was damaged after it was written ({message:.80}). Run: {_VERIFY}")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LibraryBusy(f"{path} has been locked by another writer for {busy_s:.3g} s. Stop it, then try again.")
    if code.startswith("SQLITE_FULL"):
        return _explain_full(path)
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        how = "read" if read_only else "written"
        return LibraryUnwritable(
            f"{path} cannot be {how} ({message}). Check the permissions of the file and its folder."
        )
    if code.startswith("SQLITE_IOERR"):
        return _explain_input_output(path, code, message)
    if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return make_damaged_error(path, f"is damaged or not a SQLite database ({message})")
    if message.startswith("no such "):
        return make_damaged_error(path, f"has lost a part of its schema ({message})")
    return LibraryError(f"{path}: {message}")


def make_damaged_error(path: str, words: str) -> NotALibrary:
    """Return the error for a file that cannot be used, with the ways to what it holds."""
    return NotALibrary(
        f"{path} {words}. Restore a copy, or save what can be read with: hardwon memory export {path} FILE"
    )


def _explain_full(path: str) -> LibraryUnwritable:
    """Return the error for a full disk: that of the library, that of temporary files, or one that looks free now."""
    folder, temporary = Path(path).absolute().parent, _find_temporary_folder()
    free = _measure_free(folder)
    if free is None or free < ROOM_BYTES:
        return LibraryUnwritable(f"the disk of {path} is full. Free some space, then try again.")
    free_for_temporary = _measure_free(temporary)
    if free_for_temporary is not None and free_for_temporary < ROOM_BYTES:
        return LibraryUnwritable(
            f"{path}: the folder of SQLite's temporary files, {temporary}, is full ({free_for_temporary / 1e6:,.0f} MB "
            "free). Free some space there, or set SQLITE_TMPDIR to another folder, then try again."
        )
    return LibraryUnwritable(
        f"{path}: SQLite reported a full disk, but {free / 1e9:,.1f} GB are free in {folder} now. Either the disk was "
        "full for a moment, or a quota limits what you may write. Check the quota (`quota -s`), then try again."
    )


def _explain_memory(path: str, words: str) -> LibraryError:
    return LibraryError(
        f"{path}: there was not enough memory ({words}). The transaction was rolled back. Stop other processes or use "
        "fewer workers, then try again."
    )


def _explain_input_output(path: str, code: str, message: str) -> LibraryError:
    """Return the error for a failed read or write of a file."""
    if code in ("SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMMAP"):
        return _explain_memory(path, f"{message}, {code}")
    if code == "SQLITE_IOERR_WRITE" and (limit := _read_file_limit()) is not None:
        return LibraryUnwritable(
            f"{path}: a file of the library may not grow beyond {limit / 1e6:,.0f} MB in this process. Raise the limit "
            "(`ulimit -f`), then try again."
        )
    return LibraryUnwritable(
        f"{path}: the disk reported an error ({message}, {code}). The transaction was rolled back."
    )


def _read_file_limit() -> int | None:
    """Return the largest size in bytes of a file that this process may write; None without a limit."""
    try:
        import resource  # not on every system
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def _measure_free(folder: Path) -> int | None:
    """Return the free space of the disk of a folder, in bytes; None if it cannot be read."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _find_temporary_folder() -> Path:
    """Return the folder in which SQLite puts temporary files: the first that exists and may be written."""
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    candidates = [Path(folder) for folder in (*named, *_TEMPORARY) if folder]
    return next((folder for folder in candidates if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)), Path())
