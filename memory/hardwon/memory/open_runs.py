"""Runs that are not over: their steps are on the disk before the episode is recorded.

Each step is appended to a file of its run, in the folder `experience.db.runs/` beside the library, without waiting for
the disk: a killed process loses nothing, a crash of the machine may lose the last steps. The file is removed when the
episode is recorded. What a process left behind is recorded at the next opening of the library, with an unknown outcome.

    TOKEN.lock          held by one process as long as it lives
    TOKEN.RUN.jsonl     a run of that process
    paused.RUN.jsonl    a run that waits for a person, and may go on in another process
"""

import fcntl
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.private_files import FILE_MODE, FOLDER_MODE
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.memory.records import State, Step, Trajectory
from hardwon.memory.upkeep.write_buffer import BROKEN, pack_episode, unpack_episode

ABANDONED = "abandoned"
"""Ending of an episode whose run stopped without a word."""
PAUSED_S = 7 * 24 * 3600.0
"""Seconds after which a run that waits for a person counts as abandoned."""
_PAUSED = "paused"
_FOLLOWS = "="
"""Begins the line of a step whose state before is the state after the step of the last line."""

logger = logging.getLogger("hardwon.memory")


class OpenRuns:
    """The runs of one library handle that are not over."""

    def __init__(self, path: str, namespace: str) -> None:
        self._folder = None if path == ":memory:" else Path(f"{path}.runs")
        self._namespace = namespace
        self._open: dict[str, OpenRun] = {}

    def begin(self, episode: str) -> "OpenRun":
        """Return the run of an episode; nothing is on the disk before its first step."""
        run = self._open[episode] = OpenRun(
            self._folder, self._namespace, episode, lambda: self._open.pop(episode, None)
        )
        return run

    def has_abandoned(self) -> bool:
        """Return whether `record_abandoned` would find a run."""
        return any(True for _ in self._find_abandoned())

    def record_abandoned(self, record: Callable[[Trajectory], object]) -> None:
        """Record the runs of processes that are gone, and those that nobody continued."""
        for file in self._find_abandoned():
            _record_file(file, record)
        if self._folder is not None:
            with suppress(OSError):  # runs of others are in it
                self._folder.rmdir()

    def close(self, record: Callable[[Trajectory], object]) -> None:
        """Record the runs of this handle that are not over, and remove the lock if this process has no other runs."""
        for run in list(self._open.values()):
            if run.file is not None and run.file.exists():
                _record_file(run.file, record)
        self._open.clear()
        if self._folder is not None:
            _LOCKS.release(self._folder)

    def _find_abandoned(self) -> Iterator[Path]:
        if self._folder is None or not self._folder.is_dir():
            return
        for lock in self._folder.glob("*.lock"):
            with suppress(OSError), _Locked(lock):  # held: its process lives
                yield from filter(self._is_own, sorted(self._folder.glob(f"{lock.stem}.*.jsonl")))
                if not any(self._folder.glob(f"{lock.stem}.*.jsonl")):
                    lock.unlink(missing_ok=True)
        oldest = time.time() - PAUSED_S
        for file in filter(self._is_own, self._folder.glob(f"{_PAUSED}.*.jsonl")):
            if file.stat().st_mtime < oldest:
                yield file

    def _is_own(self, file: Path) -> bool:
        """Return whether a run belongs to this namespace."""
        with suppress(OSError, ValueError, LookupError), file.open(encoding="utf-8") as lines:
            return bool(json.loads(next(lines, "null"))["namespace"] == self._namespace)
        return False


class OpenRun:
    """The file of a run that is not over. A file that cannot be written is logged and never stops the run."""

    def __init__(self, folder: Path | None, namespace: str, episode: str, on_close: Callable[[], object]) -> None:
        self._folder, self._namespace, self._episode, self._on_close = folder, namespace, episode, on_close
        self._digest = hashlib.blake2b(episode.encode(errors="replace"), digest_size=12).hexdigest()
        self.file: Path | None = None
        """The file, once there is a step."""
        self._post: State | None = None
        """The state after the last step."""
        self._is_paused = False

    def add(self, episode: Trajectory) -> None:
        """Append a step: the episode as it is known now, with this step alone."""
        if self._folder is None:
            return
        (step,) = episode.steps
        follows, self._post = step.pre == self._post, step.post
        if follows:  # written before, with the last step
            step = replace(step, pre=step.post)
        try:
            part = replace(episode, steps=(step,), success=None, score=0.0, ending=ABANDONED)
            text = pack_episode(redact_trajectory(part))
            if self.file is None:
                self.file = self._begin(self._folder)
            _append(self.file, f"{_FOLLOWS if follows else ''}{text}")
        except (OSError, *BROKEN) as error:
            logger.warning("a step of episode %s is not on the disk yet: %s", self._episode, error)

    def pause(self) -> None:
        """Keep the steps for a process that continues the run, perhaps days later."""
        if self._folder is not None and self.file is not None:
            with suppress(OSError):
                self.file.rename(self._paused(self._folder))
            self.file, self._is_paused = None, True

    def close(self) -> None:
        """Remove the file: the episode is recorded, or nobody wants it."""
        for file in (self.file, self._paused(self._folder) if self._folder else None):
            if file is not None:
                with suppress(OSError):
                    file.unlink()
        self._on_close()

    def _begin(self, folder: Path) -> Path:
        file, paused = folder / f"{_LOCKS.take(folder)}.{self._digest}.jsonl", self._paused(folder)
        if self._is_paused and paused.exists():
            paused.rename(file)
        else:  # a process that continues the run of another one begins anew, with all steps
            paused.unlink(missing_ok=True)
            _append(file, json.dumps({"namespace": self._namespace, "episode": self._episode}))
        return file

    def _paused(self, folder: Path) -> Path:
        return folder / f"{_PAUSED}.{self._digest}.jsonl"


def _append(file: Path, line: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        os.write(descriptor, f"{line}\n".encode(errors="replace"))
    finally:
        os.close(descriptor)


def _record_file(file: Path, record: Callable[[Trajectory], object]) -> None:
    """Record the run of a file, and remove the file; it stays if the library cannot be written."""
    try:
        if (episode := _read_run(file)) is not None:
            record(episode)
    except (ConfigError, *BROKEN) as error:
        logger.warning("the run in %s is dropped, because it was recorded before or never can be: %s", file, error)
    except Exception as error:
        logger.warning("the run in %s waits for the next opening of the library: %s", file, error)
        return
    file.unlink(missing_ok=True)


def _read_run(file: Path) -> Trajectory | None:
    """Return the episode of a run, or None if it has no step; a line that was cut by a kill is skipped."""
    head, *lines = file.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    steps: list[Step] = []
    part: Trajectory | None = None
    for line in lines:
        with suppress(*BROKEN):
            part = unpack_episode(line.removeprefix(_FOLLOWS), str(json.loads(head)["episode"]))
            (step,) = part.steps
            pre = steps[-1].post if line.startswith(_FOLLOWS) and steps else step.pre
            steps.append(replace(step, pre=pre, t=len(steps)))
    return replace(part, steps=tuple(steps)) if part is not None else None


class _Locked:
    """The lock of a process that is gone.

    Raises:
        BlockingIOError: The process lives.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


class _Locks:
    """The locks by which other processes see that this one lives, one per folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Path, tuple[str, int]] = {}
        os.register_at_fork(after_in_child=self._drop)

    def take(self, folder: Path) -> str:
        """Return the token of this process in a folder, which it creates if necessary."""
        with self._lock:
            while folder not in self._held:
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                token = uuid.uuid4().hex[:16]
                with suppress(FileNotFoundError):  # another process removed the empty folder meanwhile
                    descriptor = os.open(folder / f"{token}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if os.fstat(descriptor).st_nlink:
                        self._held[folder] = token, descriptor
                    else:  # another process took it for the lock of one that is gone
                        os.close(descriptor)
            return self._held[folder][0]

    def release(self, folder: Path) -> None:
        """Remove the lock and the folder, unless this process still has runs there."""
        with self._lock, suppress(OSError):
            if folder in self._held and not any(folder.glob(f"{self._held[folder][0]}.*.jsonl")):
                token, descriptor = self._held.pop(folder)
                (folder / f"{token}.lock").unlink(missing_ok=True)
                os.close(descriptor)
                folder.rmdir()

    def _drop(self) -> None:
        """Leave the locks to the parent in a forked process, so that they end with the parent."""
        self._lock = threading.Lock()
        for _, descriptor in self._held.values():
            os.close(descriptor)
        self._held = {}


_LOCKS = _Locks()
