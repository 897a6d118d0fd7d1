"""The journal of a coding agent's session: one file of JSON lines, which hooks append to and a recorder takes over.

This module imports nothing but the standard library: it runs before every tool call.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from hardwon.apps.shared.remarks import read_request

HOME = "HARDWON_HOME"
"""Variable with the folder of journals and of the default library."""
_KEPT_S = 7 * 24 * 3600
"""Seconds after which a journal that nobody recorded is removed."""
_RECORDED = ".recorded"
"""Suffix of the last turn of a session that is recorded."""


def find_home() -> Path:
    """Return the folder of journals and of the default library, created if it does not exist."""
    home = Path(os.environ.get(HOME) or Path.home() / ".hardwon")
    home.mkdir(parents=True, exist_ok=True)
    return home


def default_library() -> str:
    """Return the library of hooks that name none."""
    return os.environ.get("HARDWON_LIBRARY") or str(find_home() / "coding.db")


def log_failure(error: BaseException) -> None:
    """Write a line about a failure; a log that cannot be written is no reason to fail either."""
    try:
        log = find_home() / "hooks.log"
        mode = "w" if log.exists() and log.stat().st_size > 1_000_000 else "a"
        with log.open(mode, encoding="utf-8", errors="replace") as file:
            when = time.strftime("%Y-%m-%dT%H:%M:%S")
            file.write(f"{when} {os.getpid()} {type(error).__name__}: {' '.join(str(error).split())[:500]}\n")
    except OSError:
        pass


class Journal:
    """The journal of one session, for one library."""

    def __init__(self, library: str, session: str) -> None:
        # Digests, because a session's name comes from outside and must not choose the path.
        name = hashlib.blake2b(library.encode(errors="replace"), digest_size=8).hexdigest()
        self.folder = find_home() / "hooks" / name
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest = hashlib.blake2b(session.encode(errors="replace"), digest_size=12).hexdigest()
        self.path = self.folder / f"{digest}.jsonl"

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry; one write, so that entries of parallel hooks do not mix."""
        origin = {"at": time.time(), "host": os.uname().nodename, "agent": os.getppid()}
        data = json.dumps({**origin, **entry}, ensure_ascii=False).encode(errors="replace") + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, data)
        finally:
            os.close(file)

    def read(self) -> list[dict[str, Any]]:
        """Return the entries of the current turn."""
        return list(read_entries(self.path))

    def take(self) -> Path | None:
        """Take the entries of the current turn away for recording, and return their file; None if there are none."""
        moved = self.path.with_name(f"{self.path.stem}.{time.time_ns()}.pending")
        try:
            self.path.rename(moved)
        except FileNotFoundError:
            return None
        return moved

    def interrupt(self, call_id: str = "") -> None:
        """Note that a call or the turn was stopped, if there is a turn."""
        if self.path.exists():
            self.append({"kind": "interrupt", "id": call_id})

    def take_abandoned(self) -> None:
        """Take the turns of other sessions whose agents ended without a word; what they led to is unknown."""
        for path in self.folder.glob("*.jsonl"):
            if path != self.path and _is_abandoned(path):
                other = copy(self)
                other.path = path
                other.interrupt()
                other.take()

    def pending(self) -> list[Path]:
        """Return the files that wait to be recorded, oldest first, of all sessions; very old files are removed."""
        waiting = []
        for path in sorted([*self.folder.glob("*.pending"), *self.folder.glob(f"*{_RECORDED}")]):
            if path.stat().st_mtime < time.time() - _KEPT_S:
                path.unlink(missing_ok=True)
            elif path.suffix != _RECORDED:
                waiting.append(path)
        return waiting

    def keep(self, path: Path) -> None:
        """Keep the entries of a turn that is recorded, because it goes on if another hook refuses the stop."""
        first = read_turn(path)[0]
        with suppress(FileNotFoundError):  # another recorder was faster
            if first == path:
                for earlier in _find_recorded(path):
                    earlier.unlink(missing_ok=True)
                path.rename(path.with_suffix(_RECORDED))
            else:
                moved = path.rename(path.with_suffix(".moved"))
                with first.open("ab") as file:
                    file.write(moved.read_bytes())
                moved.unlink()

    @property
    def guards(self) -> Path:
        """Return the file with the calls that guardrails forbid, which saves most hooks from opening the library."""
        return self.folder / "guards.json"

    @property
    def lessons(self) -> Path:
        """Return the file with the lessons that a session begins with."""
        return self.folder / "lessons.json"

    def read_lessons(self, library: str, namespace: str) -> str | None:
        """Return the lessons that a session begins with; None if the library changed since they were written."""
        with suppress(OSError, ValueError):
            of, state, text = json.loads(self.lessons.read_bytes())
            if of == namespace and state and state == find_state(library):
                return str(text)
        return None


def has_library(library: str) -> bool:
    """Return whether a library exists, or is served elsewhere."""
    return "://" in library or Path(library).exists()


def find_state(library: str) -> list[int]:
    """Return numbers that change with the file of a library and its log; empty if there is no file."""
    state = []
    for path in (library, f"{library}-wal"):
        with suppress(OSError):
            stat = Path(path).stat()
            if stat.st_size:  # readers create an empty log
                state += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return state


def write_file(path: Path, value: Any) -> None:
    """Write a JSON file in one step, as hooks may read it at any time."""
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(path)


def read_turn(path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the file in which a turn begins and the entries of the turn.

    Calls without a request belong to the turn before, if one of this session is recorded.
    """
    entries, earlier = list(read_entries(path)), _find_recorded(path)
    if not earlier or any(entry.get("kind") == "prompt" for entry in entries):
        return path, entries
    return earlier[-1], [*read_entries(earlier[-1]), *entries]


def _find_recorded(path: Path) -> list[Path]:
    """Return the files of turns of the same session that are recorded."""
    return sorted(path.parent.glob(f"{path.name.partition('.')[0]}.*{_RECORDED}"))


def _is_abandoned(path: Path) -> bool:
    """Return whether the agent that called the hooks of a turn has ended, or has not called any for a day."""
    try:
        # Seconds without a hook after which a turn is over, where nothing shows that the agent still runs.
        if path.stat().st_mtime < time.time() - 24 * 3600:
            return True
    except FileNotFoundError:
        return False
    entries = list(read_entries(path))
    callers = {(entry.get("host"), entry.get("agent")) for entry in entries}
    if len(entries) < 2 or len(callers) != 1:  # some agents start hooks through a shell, which ends with each
        return False
    host, agent = callers.pop()
    return host == os.uname().nodename and isinstance(agent, int) and not _is_running(agent)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        pass
    return True


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal; a line that was cut is skipped."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def read_last_request(transcript: str) -> str:
    """Return the last text of a user in a transcript, which is the request that its agent works on."""
    request = ""
    for line in read_entries(Path(transcript)):
        message = line.get("message")
        if line.get("type") != "user" or not isinstance(message, dict) or line.get("isMeta"):
            continue
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        request = read_request("\n".join(texts)) or request
    return request


def may_be_forbidden(guards: Path, namespace: str, action: str) -> bool:
    """Return whether a guardrail may forbid an action, by the file of guards; True if the file cannot tell.

    The namespaces of a library share the file, so one that another namespace wrote last cannot tell.
    """
    try:
        of, patterns = json.loads(guards.read_bytes())
    except FileNotFoundError:
        return False  # no episode has been recorded yet
    except (OSError, TypeError, ValueError):
        return True
    if of != namespace:
        return True
    if not patterns:
        return False
    from hardwon.memory.situations.actions import is_of

    return any(is_of(str(pattern), action) for pattern in patterns)
