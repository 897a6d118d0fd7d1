"""The folder of the runs of a library, and the file of each run.

`TOKEN.lock` is held by one process as long as it lives, and `TOKEN.RUN.jsonl` is a run of that process.
`paused.RUN.jsonl` is a run that waits for a person, and may go on in another process. `finished.RUN.jsonl` is one that
is over, and could not be recorded because the library was busy.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.private_files import FILE_MODE
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.memory.records import Step, Trajectory
from hardwon.memory.upkeep.write_buffer import BROKEN, pack_episode, unpack_episode

from .lines import StepWriter, read_steps
from .locks import LOCKS, Locked

ABANDONED = "abandoned"
"""Ending of an episode whose run stopped without a word."""
PAUSED_S = 7 * 24 * 3600.0
"""Seconds after which a run that waits for a person counts as abandoned."""
LATE_S = 0.1
"""Seconds that the line of a step of `add_soon` may take."""
_PAUSED, _FINISHED = "paused", "finished"

logger = logging.getLogger("hardwon.memory")


class OpenRuns:
    """The runs of one library handle that are not over."""

    def __init__(self, path: str, namespace: str) -> None:
        self._folder = None if path == ":memory:" else Path(f"{path}.runs")
        self._namespace = namespace
        self._open: dict[str, OpenRun] = {}
        self._late: set[OpenRun] = set()
        self._timer: threading.Timer | None = None

    def begin(self, episode: str, describe: Callable[[], Trajectory]) -> "OpenRun":
        """Return the run of an episode; nothing is on the disk before its first step."""
        run = self._open[episode] = OpenRun(self._folder, self._namespace, episode, describe)
        run.on_close = lambda: self._open.pop(episode, None)
        run.on_late = self._write_soon
        return run

    def _write_soon(self, run: "OpenRun") -> None:
        self._late.add(run)
        if self._timer is None:
            self._timer = threading.Timer(LATE_S, self._write_late)
            self._timer.daemon = True
            self._timer.start()

    def _write_late(self) -> None:
        self._timer = None  # a run that comes from now on starts the next one
        with suppress(KeyError):
            while True:
                self._late.pop().add()

    def has_abandoned(self) -> bool:
        """Return whether `record_abandoned` would find a run."""
        return any(True for _ in self._find_abandoned())

    def record_abandoned(self, record: Callable[[Trajectory], object]) -> None:
        """Record the runs of processes that are gone, those that nobody continued, and those that are finished."""
        for file in self._find_abandoned():
            _record_file(file, record)
        if self._folder is not None:
            with suppress(OSError):  # runs of others are in it
                self._folder.rmdir()

    def close(self, record: Callable[[Trajectory], object]) -> None:
        """Record the runs of this handle that are not over, and remove the lock if this process has no other runs."""
        for run in list(self._open.values()):
            run.add()
            if run.file and (file := Path(run.file)).exists():
                _record_file(file, record)
        self._open.clear()
        if self._folder is not None:
            LOCKS.release(self._folder)

    def _find_abandoned(self) -> Iterator[Path]:
        if self._folder is None or not self._folder.is_dir():
            return
        for lock in self._folder.glob("*.lock"):
            with suppress(OSError), Locked(lock):  # held: its process lives
                yield from filter(self._is_own, sorted(self._folder.glob(f"{lock.stem}.*.jsonl")))
                if not any(self._folder.glob(f"{lock.stem}.*.jsonl")):
                    lock.unlink(missing_ok=True)
        yield from filter(self._is_own, self._folder.glob(f"{_FINISHED}.*.jsonl"))
        oldest = time.time() - PAUSED_S
        for file in filter(self._is_own, self._folder.glob(f"{_PAUSED}.*.jsonl")):
            if file.stat().st_mtime < oldest:
                yield file

    def _is_own(self, file: Path) -> bool:
        """Return whether a run belongs to this namespace."""
        with suppress(OSError, ValueError, LookupError), file.open(encoding="utf-8") as lines:
            return bool(json.loads(list(islice(lines, 2))[1])["namespace"] == self._namespace)
        return False


class OpenRun:
    """The file of a run that is not over. A file that cannot be written is logged and never stops the run."""

    def __init__(self, folder: Path | None, namespace: str, episode: str, describe: Callable[[], Trajectory]) -> None:
        self._folder, self._namespace, self._episode, self._describe = folder, namespace, episode, describe
        self._digest = hashlib.blake2b(episode.encode(errors="replace"), digest_size=12).hexdigest()
        self._paused = f"{folder}/{_PAUSED}.{self._digest}.jsonl"
        self._writer = StepWriter()
        self._is_paused = False
        self.file = ""
        """Path of the file, once there is a step. Building a `Path` takes as long as a write."""
        self.on_close: Callable[[], object] = lambda: None
        """Called when the file is removed."""
        self.on_late: Callable[[OpenRun], object] = lambda run: run.add()
        """Called when steps wait to be appended."""
        self._waiting: list[Step] = []
        self._lock = threading.Lock()

    def add(self, *steps: Step) -> None:
        """Append steps, after those that wait."""
        with self._lock:
            steps, self._waiting = (*self._waiting, *steps), []
            if self._folder is None or not steps:
                return
            try:
                if not self.file:
                    self.file = self._begin(self._folder)
                _append(self.file, "\n".join(map(self._writer.encode, steps)))
            except (OSError, *BROKEN) as error:
                self._writer.start_over()
                logger.warning("steps of episode %s are not on the disk yet: %s", self._episode, error)

    def add_soon(self, *steps: Step) -> None:
        """Append steps within `LATE_S` seconds, by a thread: for an agent whose steps take little more than a line."""
        if self._folder is not None:
            with self._lock:
                self._waiting += steps
            self.on_late(self)

    def pause(self) -> None:
        """Keep the steps for a process that continues the run, perhaps days later."""
        if self.file:
            with suppress(OSError):
                os.rename(self.file, self._paused)  # noqa: PTH104
            self.file, self._is_paused = "", True

    def finish(self, episode: Trajectory) -> bool:
        """Keep the whole episode until the library can be written; return whether that is possible.

        The next one that opens or evolves the library records it.
        """
        if self._folder is None:
            return False
        file, writer = self._folder / f"{_FINISHED}.{self._digest}.jsonl", StepWriter()
        part = file.with_suffix(".part")
        try:
            LOCKS.take(self._folder)
            part.unlink(missing_ok=True)
            head = self._encode_head(replace(episode, steps=()))
            _append(str(part), "\n".join([head, *map(writer.encode, episode.steps)]))
            part.rename(file)
        except (OSError, *BROKEN) as error:
            logger.warning("episode %s could not be kept on the disk: %s", self._episode, error)
            return False
        self.close()
        return True

    def close(self) -> None:
        """Remove the file: the episode is recorded, or nobody wants it."""
        with self._lock:
            self._waiting = []
            for file in (self.file, self._paused) if self._folder is not None else ():
                with suppress(OSError):
                    os.unlink(file)  # noqa: PTH108
        self.on_close()

    def _begin(self, folder: Path) -> str:
        file = f"{folder}/{LOCKS.take(folder)}.{self._digest}.jsonl"
        with suppress(FileNotFoundError):
            if self._is_paused:
                os.rename(self._paused, file)  # noqa: PTH104
                return file
        # Whoever continues the run of another process, or one that could not be recorded, begins anew with all steps.
        for beginning in (self._paused, file):
            with suppress(FileNotFoundError):
                os.unlink(beginning)  # noqa: PTH108
        self._writer.start_over()
        _append(file, self._encode_head(self._describe()))
        return file

    def _encode_head(self, episode: Trajectory) -> str:
        header = pack_episode(redact_trajectory(episode))
        return json.dumps({"namespace": self._namespace, "episode": self._episode, "header": header})


def _append(file: str, line: str) -> None:
    # Opened for each write, which takes 3 µs: a process may have more runs than it may have open files. The line break
    # comes first, so that a line that was cut does not spoil the next one.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        data = f"\n{line}".encode(errors="replace")
        if os.write(descriptor, data) < len(data):
            raise OSError(f"{file} takes only a part of a line")
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
    """Return the episode of a run, or None if it has no step."""
    _, head, *lines = file.read_text(encoding="utf-8", errors="replace").split("\n") or ["", ""]
    steps = tuple(read_steps(lines))
    fields = json.loads(head)
    header = unpack_episode(fields["header"], fields["episode"])
    if not steps:
        return None
    episode = replace(header, steps=steps)
    return episode if file.name.startswith(_FINISHED) else replace(episode, success=None, score=0.0, ending=ABANDONED)
