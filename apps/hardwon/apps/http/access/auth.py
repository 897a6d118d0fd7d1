"""Bearer tokens: who may call, for which namespaces, to read, to record or to write.

    tokens = Tokens.beside(Path("experience.db"))
    secret = tokens.add("ci", namespaces=["acme"], record=True)        # told once, never stored
    tokens.caller(secret).may("acme", "record")

The file holds SHA-256 hashes. A token is 256 random bits, so its hash cannot be searched for, and a slow
hash or a salt would add nothing. The file is read again when it changes: a running server follows it.

A library that once had a token is closed for good: the library itself remembers it (`closed`), so that revoking the
last token, or deleting, emptying or damaging the token file, lets nobody in. A new token is the way back.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, UnknownName
from hardwon.memory.storage.database import Store

PREFIX = "hardwon_"
"""Begins every token, so that one left in a text is recognised."""
SUFFIX = ".tokens"
"""After the name of the library's file."""


Right = Literal["read", "record", "write"]
RIGHTS: tuple[Right, ...] = ("read", "record", "write")
"""Look; add episodes and feedback as a writer who is not trusted, and nothing else; change everything.

`write` includes the other two; `record` does not include `read`.
"""
_MARK = "had_tokens"
"""The row of the library's `meta` table that says it once had a token."""

logger = logging.getLogger("hardwon.http")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a request comes from, and what it may do."""

    id: str
    name: str
    namespaces: tuple[str, ...] | None
    """Exact names; None is every one."""
    rights: frozenset[Right]

    @property
    def write(self) -> bool:
        """Whether it may change everything."""
        return "write" in self.rights

    @property
    def writer(self) -> str:
        """The name under which the library keeps what it adds; a client cannot choose it."""
        return "http" if self.namespaces is None and self.id == "local" else f"token:{self.name}"

    def may(self, namespace: str | None, right: Right) -> bool:
        """Whether this is allowed; `namespace` None asks for what belongs to no namespace."""
        return right in self.rights and (self.namespaces is None or namespace in self.namespaces)

    def must(self, namespace: str | None, right: Right) -> None:
        """Raise LibraryForbidden where it is not allowed."""
        if not self.may(namespace, right):
            where = f"namespace {namespace!r}" if namespace is not None else "what belongs to no single namespace"
            raise LibraryForbidden(
                f"the token {self.name!r} may not {right} {where}; it may {rights_text(self.rights)}. "
                "Make one that may with: hardwon serve token add"
            )


def rights_text(rights: frozenset[Right]) -> str:
    """Return rights as people read them: `read`, `read and record`, `write`."""
    if "write" in rights:
        return "write"
    return " and ".join(right for right in RIGHTS if right in rights) or "do nothing"


def rights_of(*, read: bool, record: bool, write: bool) -> frozenset[Right]:
    """Return the rights of a token; to write includes the others."""
    if write:
        return frozenset(RIGHTS)
    wanted: dict[Right, bool] = {"read": read, "record": record}
    return frozenset(right for right, granted in wanted.items() if granted)


LOCAL = Caller("local", "local", None, frozenset(RIGHTS))
"""Any program of this machine, where the server listens to no other and never had tokens."""


class Tokens:
    """The tokens of one library."""

    def __init__(self, path: Path, library: Path | None = None) -> None:
        """Keep tokens in the file at `path`; `library` remembers that there were some."""
        self.path = path
        self._library = library
        self._seen: tuple[int, ...] | None = None
        self._callers: dict[str, Caller] = {}
        self._unreadable = ""
        self._marked: Store | None = None
        self._closed = False

    @classmethod
    def beside(cls, library: Path) -> "Tokens":
        """Return those in the file beside a library."""
        return cls(library.with_name(library.name + SUFFIX), library)

    def add(
        self,
        name: str,
        *,
        namespaces: Sequence[str] | None = None,
        write: bool = False,
        record: bool = False,
        read: bool | None = None,
    ) -> str:
        """Make a token and return it; it cannot be had again. Raises ConfigError for a name that is taken.

        `read` is granted unless the token is to record alone.
        """
        rights = rights_of(read=not record if read is None else read, record=record, write=write)
        if not rights:
            raise ConfigError(f"the token {name!r} could do nothing. Let it read, record or write.")
        names = None if namespaces is None else tuple(dict.fromkeys(namespaces))
        secret = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as known:
            if not name.strip() or name in {caller.name for caller in known.values()}:
                raise ConfigError(f"a token is named {name!r} already, or this is no name. Give another one.")
            self._write({**known, _hash(secret): Caller(secrets.token_hex(4), name, names, rights)})
        return secret

    def revoke(self, ref: str) -> Caller:
        """Take a token away, by its name or id. Raises UnknownName."""
        with self._changing() as known:
            for digest, caller in known.items():
                if ref in (caller.name, caller.id):
                    self._write({other: kept for other, kept in known.items() if other != digest})
                    return caller
            raise UnknownName.of("token", ref, [caller.name for caller in known.values()])

    def callers(self) -> list[Caller]:
        """Return all of them, the oldest first. Raises ConfigError where the file holds no tokens."""
        self._read()
        if self._unreadable:
            raise ConfigError(self._unreadable)
        return list(self._callers.values())

    def has_any(self) -> bool:
        """Return whether anybody has a token; nobody has where the file cannot be read."""
        return bool(self._read())

    def caller(self, secret: str) -> Caller | None:
        """Return whose token this is; None where it is nobody's."""
        return self._read().get(_hash(secret))

    def __contains__(self, caller: Caller) -> bool:
        """Return whether a caller who was let in may stay: the token is not revoked, or the library is open still."""
        return not self.closed() if caller is LOCAL else caller in self._read().values()

    def closed(self) -> bool:
        """Return whether the library has, or ever had, a token: then nobody comes in without one."""
        if not self._closed:
            self._closed = os.path.lexists(self.path) or self._is_marked()
        return self._closed

    def remember(self) -> None:
        """Note in the library that there is a token file, which may be older than the note."""
        if os.path.lexists(self.path):
            self._closed = True
            with suppress(LibraryError):  # a library that is only read: this process remembers it
                self._mark()

    def _is_marked(self) -> bool:
        if self._library is None or not self._library.exists():
            return False
        if self._marked is None:
            self._marked = Store(self._library, read_only=True)
        return bool(self._marked.rows("SELECT 1 FROM meta WHERE name = ?", (_MARK,)))

    def _mark(self) -> None:
        if self._library is None or not self._library.exists() or self._is_marked():
            return
        store = Store(self._library)
        try:
            with store.transaction() as connection:
                _note(connection)
        finally:
            store.close()

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Caller]]:
        """Give the tokens that there are to be replaced, one writer at a time: the library's lock is theirs too."""
        if self._library is None or not self._library.exists():
            self.callers()
            yield dict(self._callers)
            return
        store = Store(self._library)
        try:
            with store.transaction() as connection:
                self.callers()
                _note(connection)  # first: a token file without the note could be deleted to open the library
                yield dict(self._callers)
        finally:
            store.close()

    def _read(self) -> dict[str, Caller]:
        """Return the tokens in the file, none where it cannot be read; it is read again when it has changed."""
        try:
            status = self.path.stat()
            seen = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return self._callers
            self._closed = True
            text = self.path.read_text(encoding="utf-8")
            rows = json.loads(text)["tokens"] if text.strip() else []
            self._callers, self._unreadable = {row["sha256"]: _caller(row) for row in rows}, ""
            self._seen = seen
        except FileNotFoundError:
            self._callers, self._seen, self._unreadable = {}, None, ""
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            self._callers = {}
            unreadable = (
                f"{self.path} does not hold tokens ({type(error).__name__}: {str(error)[:200]}), so nobody may call. "
                "Restore it, or remove it and make new ones with: hardwon serve token add"
            )
            if unreadable != self._unreadable:
                logger.error(unreadable)
            self._unreadable = unreadable
        return self._callers

    def _write(self, callers: dict[str, Caller]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [
            {
                "sha256": digest, "written_at": at, "id": one.id, "name": one.name, "namespaces": one.namespaces,
                "rights": [right for right in RIGHTS if right in one.rights], "write": "write" in one.rights,
            }
            for digest, one in callers.items()
        ]  # fmt: skip
        new = self.path.with_name(self.path.name + ".new")
        try:
            with suppress(FileNotFoundError):
                new.unlink()  # one that a crash left may have another mode
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({"tokens": rows}, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error}). Check its folder's permissions.") from error


def _note(connection: Any) -> None:
    connection.execute("INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)", (_MARK, "yes"))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _caller(row: dict[str, Any]) -> Caller:
    rights: frozenset[Right]
    names, told = row["namespaces"], row.get("rights")
    if told is None:  # a file of a version that had no `record`
        rights = rights_of(read=True, record=False, write=bool(row["write"]))
    else:
        rights = frozenset(right for right in RIGHTS if right in told)
    return Caller(row["id"], row["name"], None if names is None else tuple(names), rights)
