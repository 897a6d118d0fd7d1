"""Bearer tokens: who may call, for which namespaces, and with which rights.

    tokens = Tokens.beside(Path("experience.db"))
    secret = tokens.add("ci", namespaces=["acme"], record=True)        # returned once, never stored
    tokens.caller(secret).may("acme", "record")

The file holds SHA-256 hashes. A token has 256 random bits, so its hash cannot be brute-forced, and a slow hash or a
salt would add nothing. A running server reads the file again whenever it changes.

A library that once had a token never opens without one. The library itself remembers this (`closed`), so revoking the
last token, or deleting, emptying or damaging the token file, locks everybody out. A new token restores access.
"""

import hashlib
import json
import logging
import os
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, UnknownName
from hardwon.memory.storage.database import Store
from hardwon.memory.trust.intake import writer_name
from hardwon.memory.upkeep.file_queries import is_marked, mark
from hardwon.memory.validation import check_id, check_new_id

PREFIX = "hardwon_"
"""Prefix of every token, so that a leaked one is recognized."""
SUFFIX = ".tokens"
"""Suffix of the token file, after the library's file name."""


Right = Literal["read", "log", "record", "write"]
RIGHTS: tuple[Right, ...] = ("read", "log", "record", "write")
"""Use experience in general words; read recorded episodes and items word for word; add episodes and feedback as an
untrusted writer; change everything.

`log` includes `read`, and `write` includes all others. `record` does not include `read`.
"""
_VERBS: dict[Right, str] = {"read": "read", "log": "read the log of", "record": "record", "write": "write"}
_MARK = "had_tokens"
"""Name of the row in the library's `meta` table that records that the library had a token."""

logger = logging.getLogger("hardwon.http")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and its rights."""

    id: str
    name: str
    namespaces: tuple[str, ...] | None
    """Exact names; None for every namespace."""
    rights: frozenset[Right]

    @property
    def write(self) -> bool:
        """Return whether the caller may change everything."""
        return "write" in self.rights

    @property
    def writer(self) -> str:
        """Return the name under which the library stores the caller's data. A client cannot choose it."""
        return "http" if self.namespaces is None and self.id == "local" else writer_name("token", self.name)

    def may(self, namespace: str | None, right: Right) -> bool:
        """Return whether the caller has a right. `namespace` None asks for data that belongs to no namespace."""
        return right in self.rights and (self.namespaces is None or namespace in self.namespaces)

    def must(self, namespace: str | None, right: Right) -> None:
        """Check that the caller has a right."""
        if not self.may(namespace, right):
            where = f"namespace {namespace!r}" if namespace is not None else "data of all namespaces"
            raise LibraryForbidden(
                f"the token {self.name!r} may not {_VERBS[right]} {where}; it may {rights_text(self.rights)}. "
                "Create a token with this right: hardwon serve token add"
            )


def rights_text(rights: frozenset[Right]) -> str:
    """Format rights for messages: `read`, `read and record`, `write`."""
    if "write" in rights:
        return "write"
    return " and ".join(right for right in RIGHTS if right in rights) or "do nothing"


def rights_of(*, read: bool, record: bool, write: bool, log: bool | None = None) -> frozenset[Right]:
    """Return the rights of a token."""
    if write:
        return frozenset(RIGHTS)
    log = read and not record if log is None else log
    wanted: dict[Right, bool] = {"read": read or log, "log": log, "record": record}
    return frozenset(right for right, granted in wanted.items() if granted)


LOCAL = Caller("local", "local", None, frozenset(RIGHTS))
"""Caller for any program on this machine, if the server listens only locally and never had tokens."""


class Tokens:
    """The tokens of one library."""

    def __init__(self, path: Path, library: Path | None = None) -> None:
        """Use the token file at `path`."""
        self.path = path
        self._library = library
        self._seen: tuple[int, ...] | None = None
        self._callers: dict[str, Caller] = {}
        self._unreadable = ""
        self._marked: Store | None = None
        self._closed = False

    @classmethod
    def beside(cls, library: Path) -> "Tokens":
        """Return the tokens in the file beside a library."""
        return cls(library.with_name(library.name + SUFFIX), library)

    @classmethod
    def of(cls, library: Path | str) -> "Tokens":
        """Return the tokens of a library: beside its file, or for a shared one in the user's data on this machine."""
        if isinstance(library, Path):
            return cls.beside(library)
        from hardwon.memory.fleet.places import find_access_file

        return cls.beside(find_access_file(library))

    def add(
        self,
        name: str,
        *,
        namespaces: Sequence[str] | None = None,
        write: bool = False,
        record: bool = False,
        read: bool | None = None,
        log: bool | None = None,
    ) -> str:
        """Create a token. The secret is returned once and cannot be retrieved later."""
        rights = rights_of(read=not record if read is None else read, record=record, write=write, log=log)
        if not rights:
            raise ConfigError(f"the token {name!r} would have no rights. Grant it read, record or write.")
        names = None if namespaces is None else tuple(dict.fromkeys(namespaces))
        check_id("token name", name)  # it is the writer of what the token records
        check_new_id("token name", name)
        for each in names or ():
            check_id("namespace", each)
        secret = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as tokens:
            if _same_name(name) in {"", *(_same_name(caller.name) for caller in tokens.values())}:
                raise ConfigError(
                    f"the token name {name!r} is empty, or in use in this or another spelling. Choose another name."
                )
            self._write({**tokens, _hash(secret): Caller(secrets.token_hex(4), name, names, rights)})
        return secret

    def revoke(self, ref: str) -> Caller:
        """Revoke a token by its name or id, and return its caller."""
        with self._changing() as tokens:
            for digest, caller in tokens.items():
                if ref in (caller.name, caller.id):
                    self._write({key: value for key, value in tokens.items() if key != digest})
                    return caller
            raise UnknownName.of("token", ref, [caller.name for caller in tokens.values()])

    def callers(self) -> list[Caller]:
        """Return the callers of all tokens, oldest first."""
        self._read()
        if self._unreadable:
            raise ConfigError(self._unreadable)
        return list(self._callers.values())

    def has_any(self) -> bool:
        """Return whether there is a usable token. False if the file cannot be read."""
        return bool(self._read())

    def caller(self, secret: str) -> Caller | None:
        """Return the caller of a token, or None if the token is unknown."""
        # Looked up by hash, so that the timing of the comparison reveals nothing usable of a secret.
        return self._read().get(_hash(secret))

    def __contains__(self, caller: Caller) -> bool:
        """Return whether an admitted caller may stay: its token is valid, or the library is still open."""
        return not self.closed() if caller is LOCAL else caller in self._read().values()

    def closed(self) -> bool:
        """Return whether the library has or ever had a token. Then no caller is admitted without one."""
        # Never reset: a closed library does not open again, and requests then skip the query.
        if not self._closed:
            self._closed = os.path.lexists(self.path) or self._is_marked()
        return self._closed

    def remember(self) -> None:
        """Mark the library as closed if there is a token file, which may predate the mark."""
        if os.path.lexists(self.path):
            self._closed = True
            with suppress(LibraryError):  # a read-only library: only this process remembers
                self._mark()

    def _is_marked(self) -> bool:
        if self._library is None or not self._library.exists():
            return False
        if self._marked is None:
            self._marked = Store(self._library, read_only=True)
        return is_marked(self._marked, _MARK)

    def _mark(self) -> None:
        if self._library is None or not self._library.exists() or self._is_marked():
            return
        store = Store(self._library)
        try:
            with store.transaction() as connection:
                mark(connection, _MARK)
        finally:
            store.close()

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Caller]]:
        """Lock the library and yield the current tokens, so that only one process changes them at a time."""
        if self._library is None or not self._library.exists():
            self.callers()
            yield dict(self._callers)
            return
        store = Store(self._library)
        try:
            with store.transaction() as connection:
                self.callers()
                mark(connection, _MARK)  # first: without the mark, deleting the token file would open the library
                yield dict(self._callers)
        finally:
            store.close()

    def _read(self) -> dict[str, Caller]:
        """Return the tokens in the file, or none if it cannot be read. Reads only if the file has changed."""
        try:
            status = self.path.stat()
            # The inode and ctime reveal a replacement of the same size within the resolution of mtime.
            seen = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return self._callers
            # Before parsing: a damaged token file must close the library, too.
            self._closed = True
            text = self.path.read_text(encoding="utf-8")
            rows = json.loads(text)["tokens"] if text.strip() else []
            self._callers, self._unreadable = {row["sha256"]: _caller(row) for row in rows}, ""
            self._seen = seen  # only after success: a file that was read half-written is read again
        except FileNotFoundError:
            # `_closed` stays set: deleting the token file must not open the library.
            self._callers, self._seen, self._unreadable = {}, None, ""
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            self._callers = {}
            unreadable = (
                f"{self.path} does not hold tokens ({type(error).__name__}: {str(error)[:200]}), so nobody may call. "
                "Restore it, or remove it and create new tokens: hardwon serve token add"
            )
            if unreadable != self._unreadable:
                logger.error(unreadable)
            self._unreadable = unreadable
        return self._callers

    def _write(self, callers: dict[str, Caller]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [
            {
                "sha256": digest, "written_at": at, "id": caller.id, "name": caller.name,
                "namespaces": caller.namespaces,
                "rights": [right for right in RIGHTS if right in caller.rights], "write": "write" in caller.rights,
                "log": "log" in caller.rights,
            }
            for digest, caller in callers.items()
        ]  # fmt: skip
        new = self.path.with_name(self.path.name + ".new")
        try:
            with suppress(FileNotFoundError):
                new.unlink()  # a file left by a crash may have another mode
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({"tokens": rows}, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # Atomic: after a crash, the path holds either the old tokens or the new ones.
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error}). Check its folder's permissions.") from error


def _same_name(name: str) -> str:
    """Return the form in which two token names count as one: as stored with episodes, without case or width."""
    return writer_name("", unicodedata.normalize("NFKC", name).casefold()).removeprefix(":")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _caller(row: dict[str, Any]) -> Caller:
    rights: frozenset[Right]
    names, listed = row["namespaces"], row.get("rights")
    if listed is None:  # written by a version without the `record` right
        rights = rights_of(read=True, record=False, write=bool(row["write"]))
    else:
        # Without "log", the row is from a version in which every reader could read the log.
        rights = rights_of(
            read="read" in listed, record="record" in listed, write="write" in listed, log=row.get("log")
        )
    return Caller(row["id"], row["name"], None if names is None else tuple(names), rights)
