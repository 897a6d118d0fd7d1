"""Runs in a folder: training runs with a `metrics.jsonl`, experiments of `hardwon run` with an `episodes.jsonl`.

A run in progress appends whole lines, and `Tail` returns each of them once. A run that resumes from a checkpoint first
truncates its file; then `Tail` starts again from the beginning.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from hardwon.memory.errors import UnknownName
from hardwon.trainers.metrics import FILE as METRICS

EPISODES = "episodes.jsonl"
KINDS = {"train": METRICS, "run": EPISODES}
READ_BYTES = 1 << 20
LONGEST_LINE = 16 << 20
"""Largest line in bytes; longer ones are passed over."""


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs in a folder, newest first."""
    rows = []
    for kind, file in _files(folder):
        status = file.stat()
        rows.append(
            {
                "name": str(file.parent.relative_to(folder)),
                "kind": kind,
                "lines": file.read_bytes().count(b"\n"),
                "changed_at": datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds"),
            }
        )
    return sorted(rows, key=lambda row: (row["changed_at"], row["name"]), reverse=True)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for kind, name in KINDS.items():
        for depth in range(3):
            yield from ((kind, file) for file in folder.glob("*/" * depth + name) if file.is_file())


def find_run(folder: Path, name: str) -> tuple[str, Path]:
    """Return the kind of a run and the file of its lines."""
    runs = {str(file.parent.relative_to(folder)): (kind, file) for kind, file in _files(folder)}
    if name not in runs:
        raise UnknownName.of("run", name, runs)
    return runs[name]


class Tail:
    """The lines of a file that are new since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        """Return new lines with JSON objects: about a MiB of them, or one longer line."""
        try:
            if self._path.stat().st_size < self._at:
                self._at = 0
            with self._path.open("rb") as file:
                # Until something is found: an empty result means that there is nothing new.
                while whole := self._read(file):
                    if lines := [line for line in whole.decode(errors="replace").split("\n") if _is_json(line)]:
                        return lines
        except FileNotFoundError:
            pass
        return []

    def _read(self, file: BinaryIO) -> bytes:
        """Return the next whole lines and move past them; empty if there is none yet."""
        file.seek(self._at)
        content = file.read(READ_BYTES)
        whole = content[: content.rfind(b"\n") + 1]  # an unfinished line is read again later
        if not whole and len(content) == READ_BYTES:
            whole = self._read_long(file, content)
        self._at += len(whole)
        return whole

    def _read_long(self, file: BinaryIO, content: bytes) -> bytes:
        """Return a line that is longer than READ_BYTES; empty if it is unfinished.

        Of a line beyond LONGEST_LINE, only the line break is returned.
        """
        content += file.readline(LONGEST_LINE - len(content))
        if content.endswith(b"\n"):
            return content
        size = len(content)
        while part := file.readline(READ_BYTES):
            size += len(part)
            if part.endswith(b"\n"):
                self._at += size - 1
                return b"\n"
        return b""


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
