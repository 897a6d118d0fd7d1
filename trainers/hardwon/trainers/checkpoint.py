"""Checkpoints: one folder each, whole or not there.

What is written goes to a temporary folder; every file and its folder is synced, a manifest with the
sizes and digests is written last, and a rename makes it a checkpoint. One whose manifest does not
hold was torn and is passed over with a word. This file knows files, not what is in them.
"""

import hashlib
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError

Tell = Callable[[str], None]
MANIFEST = "manifest.json"
_NEW = ".new-"


class Checkpoints:
    """The checkpoints of a run: the newest `keep` and the best."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self._keep = folder, keep

    def save(self, iteration: int, write: Callable[[Path], None], score: float | None = None) -> Path:
        """What `write` puts into a folder becomes the checkpoint of an iteration; older ones go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new, there = self.folder / f"{_NEW}{iteration:06}", self.folder / f"{iteration:06}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        write(new)
        manifest = {"iteration": iteration, "score": score, "files": _digests(new)}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for path in sorted(new.rglob("*"), reverse=True):
            _sync(path)
        _sync(new)
        self._remove(there)
        new.rename(there)
        _sync(self.folder)
        self._prune()
        return there

    def all(self, tell: Tell = lambda _: None) -> list[Path]:
        """Those that are whole, oldest first."""
        return [path for path in self._folders() if is_whole(path, tell)]

    def latest(self, tell: Tell = lambda _: None) -> Path | None:
        """The newest that is whole."""
        return next((path for path in reversed(self._folders()) if is_whole(path, tell)), None)

    def best(self) -> Path | None:
        """The one with the highest score; of equals the newest."""
        scored = [(score, path.name, path) for path in self._folders() if (score := _score(path)) is not None]
        return max(scored)[2] if scored else None

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdigit() and path.is_dir())

    def _prune(self) -> None:
        folders, best = self._folders(), self.best()
        for path in folders[: -self._keep]:
            if path != best:
                self._remove(path)
        for left in self.folder.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        """Its name goes first: killed half-way, it is no checkpoint any more."""
        if path.exists():
            shutil.rmtree(path.replace(self.folder / f"{_NEW}{path.name}-removed"), ignore_errors=True)


def find(path: str | Path, tell: Tell = lambda _: None) -> Path:
    """A checkpoint: the folder itself, or the newest of a run's folder. Raises ConfigError."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        if not is_whole(path, tell):
            raise ConfigError(f"checkpoint {path} is torn; choose another one beside it.")
        return path
    found = Checkpoints(path / "checkpoints").latest(tell) or Checkpoints(path).latest(tell)
    if found is None:
        raise ConfigError(f"there is no checkpoint in {path}; give a run's folder or one of its checkpoints.")
    return found


def is_whole(path: Path, tell: Tell = lambda _: None) -> bool:
    """Whether every file of the manifest is there as it was written."""
    try:
        expected = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        if _digests(path) == expected:
            return True
        differing = "a file differs from what was written"
    except (OSError, ValueError, KeyError) as error:
        differing = f"its manifest cannot be read ({type(error).__name__})"
    tell(f"checkpoint {path} is torn and passed over: {differing}.")
    return False


def _score(path: Path) -> float | None:
    with suppress(OSError, ValueError, KeyError):
        score = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["score"]
        return None if score is None else float(score)
    return None


def _digests(folder: Path) -> dict[str, str]:
    """Digest of every file but the manifest, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        path.relative_to(folder).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in files
    }


def _sync(path: Path) -> None:
    """On disk when this returns; not every system can do so with a folder."""
    with suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- what is in them --------------------------------------------------------------------------------


def copy_library(source: str | Path, target: Path) -> None:
    """A consistent copy of a library that may be in use, by SQLite's own backup."""
    target.unlink(missing_ok=True)
    uri = Path(source).absolute().as_uri()
    with closing(sqlite3.connect(f"{uri}?mode=ro", uri=True)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)
        here.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it


def put_library(source: Path, target: Path) -> None:
    """Make a library what it was in a snapshot; what was derived of it is made anew."""
    for beside in (f"{target}-wal", f"{target}-shm"):
        Path(beside).unlink(missing_ok=True)
    shutil.rmtree(f"{target}.index", ignore_errors=True)
    new = target.with_name(f"{_NEW}{target.name}")
    shutil.copyfile(source, new)
    new.replace(target)


def random_states() -> dict[str, Any]:
    """Where the chance of torch, numpy and python stands."""
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.random.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Go on from there."""
    import numpy as np
    import torch

    torch.random.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
