"""Runs in a folder: training runs by their `metrics.jsonl`, experiments of `hardwon run` by their `episodes.jsonl`.

A run that is going on appends whole lines; `Tail` gives each once, and a run that goes on from a checkpoint,
which makes its file shorter first, from its beginning again.
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
"""Folders below the folder of runs in which runs are found."""
READ_BYTES = 1 << 20


def found(folder: Path) -> list[dict[str, Any]]:
    """The runs in a folder, the newest first."""
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


def file_of(folder: Path, name: str) -> tuple[str, Path]:
    """The kind of a run and the file of its lines. Raises UnknownName for anything but a run of this folder."""
    known = {str(file.parent.relative_to(folder)): (kind, file) for kind, file in _files(folder)}
    if name not in known:
        raise UnknownName.of("run", name, known)
    return known[name]


class Tail:
    """The lines of a file that are new since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        """New whole lines, at most a MiB of them; those that are no JSON are left out."""
        try:
            if self._path.stat().st_size < self._at:
                self._at = 0
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read(READ_BYTES)
        except FileNotFoundError:
            return []
        whole = read[: read.rfind(b"\n") + 1]
        self._at += len(whole)
        return [line for line in whole.decode(errors="replace").split("\n") if _is_json(line)]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
