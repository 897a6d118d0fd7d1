"""Checkpoints: one folder each, written atomically.

A checkpoint is written to a temporary folder. Every file is synced, a manifest with the digests is written
last, and a rename publishes the folder. A checkpoint that does not match its manifest is torn: it is logged
and skipped. The contents are up to the caller.
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
from hardwon.memory.privacy.private_files import open_new

Tell = Callable[[str], None]
"""Receives a line of progress now and then."""
MANIFEST = "manifest.json"
HISTORY = "history"
"""Folder in that of a run: the weights of the roles at regular iterations."""
DERIVED = "derived.json"
"""In a checkpoint that no training wrote: where its weights come from."""
_NEW = ".new-"


class Checkpoints:
    """The checkpoints of a run: the newest `keep` and the best one."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self._keep = folder, keep

    def save(self, iteration: int, write: Callable[[Path], None], score: float | None = None) -> Path:
        """Save a checkpoint, and delete old ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new, folder = self.folder / f"{_NEW}{iteration:06}", self.folder / f"{iteration:06}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        write(new)
        manifest = {"iteration": iteration, "score": score, "files": _digests(new)}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        # Sync children before their folder, and all of it before the rename that publishes the checkpoint.
        for path in sorted(new.rglob("*"), reverse=True):
            _sync(path)
        _sync(new)
        # a rename cannot replace a folder with files, so an older save of this iteration moves away first
        self._remove(folder)
        new.rename(folder)
        # makes the rename durable; only then may older checkpoints be deleted
        _sync(self.folder)
        self._prune()
        return folder

    def all(self, tell: Tell = lambda _: None) -> list[Path]:
        """Return the intact checkpoints, oldest first."""
        return [path for path in self._folders() if is_whole(path, tell)]

    def latest(self, tell: Tell = lambda _: None) -> Path | None:
        """Return the newest intact checkpoint, or None."""
        return next((path for path in reversed(self._folders()) if is_whole(path, tell)), None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score, the newest of equal ones, or None."""
        # by the manifests alone: this runs at every save, and digests read every file
        scored = [(score, path.name, path) for path in self._folders() if (score := _score(path)) is not None]
        return max(scored)[2] if scored else None

    def _folders(self) -> list[Path]:
        """Return all checkpoint folders, oldest first, whether intact or not."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def _prune(self) -> None:
        """Delete old checkpoints and leftovers of interrupted saves."""
        folders, best = self._folders(), self.best()
        for path in folders[: -self._keep]:
            if path != best:
                self._remove(path)
        for leftover in self.folder.glob(f"{_NEW}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        """Delete a checkpoint. It is renamed first, so an interrupted deletion leaves no torn checkpoint."""
        if path.exists():
            shutil.rmtree(path.replace(self.folder / f"{_NEW}{path.name}-removed"), ignore_errors=True)


def find(path: str | Path, tell: Tell = lambda _: None) -> Path:
    """Return a checkpoint by its own folder, or the newest one of a run's folder.

    Raises:
        ConfigError: There is none, or the given one is torn.
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        if not is_whole(path, tell):
            raise ConfigError(f"checkpoint {path} is torn; choose another one in the same folder.")
        return path
    latest = Checkpoints(path / "checkpoints").latest(tell) or Checkpoints(path).latest(tell)
    if latest is None:
        raise ConfigError(f"there is no checkpoint in {path}; give the folder of a run or of one of its checkpoints.")
    return latest


def is_whole(path: Path, tell: Tell = lambda _: None) -> bool:
    """Return whether all files of the manifest are present and unchanged; report the problem otherwise."""
    try:
        expected = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        if _digests(path) == expected:
            return True
        problem = "a file differs from what was written"
    except (OSError, ValueError, KeyError) as error:
        problem = f"its manifest cannot be read ({type(error).__name__})"
    tell(f"checkpoint {path} is torn and skipped: {problem}.")
    return False


def _score(path: Path) -> float | None:
    """Return the score in a checkpoint's manifest, or None."""
    with suppress(OSError, ValueError, KeyError):
        score = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["score"]
        return None if score is None else float(score)
    return None


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file except the manifest, by path relative to the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        path.relative_to(folder).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in files
    }


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, where the system allows it."""
    with suppress(PermissionError):  # Windows cannot open a folder
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- contents ---------------------------------------------------------------------------------------


def copy_library(source: str | Path, target: Path) -> None:
    """Copy a library that may be in use, with SQLite's backup. Only its user can read the copy."""
    target.unlink(missing_ok=True)
    open_new(target).close()
    uri = Path(source).absolute().as_uri()
    with (
        closing(sqlite3.connect(f"{uri}?mode=ro", uri=True)) as source_db,
        closing(sqlite3.connect(target)) as target_db,
    ):
        source_db.backup(target_db)
        target_db.execute("PRAGMA journal_mode = DELETE")  # leaves no -wal and -shm files


def copy_start(source: str, target: Path) -> None:
    """Copy the library that a run starts from: a library file, or what a shared library holds now."""
    if not source.startswith(("postgresql://", "postgres://")):
        copy_library(source, target)
        return
    from hardwon.memory.fleet.library import FleetLibrary

    with FleetLibrary.connect(source, read_only=True) as library:
        copy_library(library.admin.replica, target)


def put_library(source: Path, target: Path) -> None:
    """Replace a library by a snapshot, and delete its derived index so that it is rebuilt."""
    # SQLite would replay a stale -wal into the new database
    for extra in (f"{target}-wal", f"{target}-shm"):
        Path(extra).unlink(missing_ok=True)
    shutil.rmtree(f"{target}.index", ignore_errors=True)
    new = target.with_name(f"{_NEW}{target.name}")
    with source.open("rb") as saved, open_new(new) as copy:
        shutil.copyfileobj(saved, copy)
    new.replace(target)


def keep_weights(folder: Path, iteration: int, weights: Mapping[str, Any]) -> None:
    """Write the weights of all roles at an iteration to a history, in one step."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{iteration:06}.pt.new"
    torch.save(dict(weights), new)
    new.replace(folder / f"{iteration:06}.pt")


def read_history(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the weights of all roles by iteration."""
    import torch

    files = sorted(path for path in folder.glob("*.pt") if path.stem.isdecimal())
    return {int(path.stem): torch.load(path, map_location="cpu", weights_only=True) for path in files}


def random_states() -> dict[str, Any]:
    """Return the random states of torch, numpy and Python."""
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.random.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        # a tensor, because torch.load with weights_only rejects numpy arrays
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the states that `random_states` returned."""
    import numpy as np
    import torch

    torch.random.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
