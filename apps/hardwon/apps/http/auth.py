"""Bearer tokens: who may call, for which namespaces, to read or to write.

    tokens = Tokens(Path("experience.db.tokens"))
    secret = tokens.add("ci", namespaces=["acme"], write=False)        # told once, never stored
    tokens.caller(secret).may("acme", write=False)

The file holds SHA-256 hashes. A token is 256 random bits, so its hash cannot be searched for, and a slow
hash or a salt would add nothing. The file is read again when it changes: a running server follows it.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryForbidden, UnknownName

PREFIX = "hardwon_"
"""Begins every token, so that one left in a text is recognised."""
SUFFIX = ".tokens"
"""After the name of the library's file."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a request comes from, and what it may do."""

    id: str
    name: str
    namespaces: tuple[str, ...] | None
    """Exact names; None is every one."""
    write: bool

    def may(self, namespace: str | None, *, write: bool) -> bool:
        """Whether this is allowed; `namespace` None asks for what belongs to no namespace."""
        return (self.write or not write) and (self.namespaces is None or namespace in self.namespaces)

    def must(self, namespace: str | None, *, write: bool) -> None:
        """Raise LibraryForbidden where it is not allowed."""
        if not self.may(namespace, write=write):
            what = "write" if write else "read"
            where = f"namespace {namespace!r}" if namespace is not None else "what belongs to no single namespace"
            raise LibraryForbidden(
                f"the token {self.name!r} may not {what} {where}. Make one that may with: hardwon serve token add"
            )


LOCAL = Caller("local", "local", None, True)
"""Any program of this machine, where the server listens to no other and has no tokens."""


class Tokens:
    """The tokens of one library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._callers: dict[str, Caller] = {}

    @classmethod
    def beside(cls, library: Path) -> "Tokens":
        """Those in the file beside a library."""
        return cls(library.with_name(library.name + SUFFIX))

    def add(self, name: str, *, namespaces: Sequence[str] | None = None, write: bool = False) -> str:
        """Make a token and return it; it cannot be had again. Raises ConfigError for a name that is taken."""
        if not name.strip() or name in {caller.name for caller in self.callers()}:
            raise ConfigError(f"a token is named {name!r} already, or this is no name. Give another one.")
        secret = PREFIX + secrets.token_urlsafe(32)
        names = None if namespaces is None else tuple(dict.fromkeys(namespaces))
        self._write({**self._read(), _hash(secret): Caller(secrets.token_hex(4), name, names, write)})
        return secret

    def revoke(self, ref: str) -> Caller:
        """Take a token away, by its name or id. Raises UnknownName."""
        known = self._read()
        for digest, caller in known.items():
            if ref in (caller.name, caller.id):
                self._write({other: kept for other, kept in known.items() if other != digest})
                return caller
        raise UnknownName.of("token", ref, [caller.name for caller in known.values()])

    def callers(self) -> list[Caller]:
        """All of them, the oldest first."""
        return list(self._read().values())

    def caller(self, secret: str) -> Caller | None:
        """Whose token this is; None where it is nobody's."""
        return self._read().get(_hash(secret))

    def __contains__(self, caller: Caller) -> bool:
        return caller in self._read().values()

    def _read(self) -> dict[str, Caller]:
        try:
            status = self.path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen != self._seen:
                rows = json.loads(self.path.read_text(encoding="utf-8"))["tokens"]
                self._callers, self._seen = {row["sha256"]: _caller(row) for row in rows}, seen
        except FileNotFoundError:
            self._callers, self._seen = {}, None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self.path} does not hold tokens ({error}). Restore it, or remove it.") from error
        return self._callers

    def _write(self, callers: dict[str, Caller]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [{"sha256": digest, "written_at": at, **asdict(caller)} for digest, caller in callers.items()]
        new = self.path.with_name(self.path.name + ".new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({"tokens": rows}, indent=2) + "\n")
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error}). Check its folder's permissions.") from error


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _caller(row: dict[str, Any]) -> Caller:
    names = row["namespaces"]
    return Caller(row["id"], row["name"], None if names is None else tuple(names), bool(row["write"]))
