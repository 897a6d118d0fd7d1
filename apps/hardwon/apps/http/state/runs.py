"""Runs in a folder: training runs with a `metrics.jsonl`, experiments of `hardwon run` with an `episodes.jsonl`.

A run in progress appends whole lines, and `Tail` returns each of them once. A run that resumes from a checkpoint first
truncates its file; then `Tail` starts again from the beginning.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.trainers.metrics import FILE as METRICS

EPISODES = "episodes.jsonl"
KINDS = {"train": METRICS, "run": EPISODES}
DEPTH = 2
"""Levels of subfolders that are searched for runs."""
READ_BYTES = 1 << 20


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
        for depth in range(DEPTH + 1):
            yield from ((kind, file) for file in folder.glob("*/" * depth + name) if file.is_file())


def find_run(folder: Path, name: str) -> tuple[str, Path]:
    """Return the kind of a run and the file of its lines.

    Raises:
        UnknownName: The folder has no such run.
    """
    known = {str(file.parent.relative_to(folder)): (kind, file) for kind, file in _files(folder)}
    if name not in known:
        raise UnknownName.of("run", name, known)
    return known[name]


class Tail:
    """The lines of a file that are new since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        """Return new whole lines, at most a MiB of them. Lines that are not JSON objects are skipped."""
        try:
            if self._path.stat().st_size < self._at:
                self._at = 0
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        # An unfinished line is read again later. A line longer than READ_BYTES would stall the tail.
        whole = read[: read.rfind(b"\n") + 1]
        self._at += len(whole)
        return [line for line in whole.decode(errors="replace").split("\n") if _is_json(line)]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
