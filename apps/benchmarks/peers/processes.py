"""Run one phase of one system in a child process, read its events, and stop it after a time limit."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hardwon.memory.errors import HardwonError

SCRIPTS = Path(__file__).parent
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_POOLS, "1") | {"OMP_WAIT_POLICY": "PASSIVE"}


class ScriptDied(HardwonError, RuntimeError):
    """A process ended before it reported everything; the message quotes its last line on stderr."""


class Phase:
    """A running phase; leaving the context kills the process.

    Args:
        python: Python executable that runs the script.
        script: Name of the script in this folder, and its variant.
        phase: Name of the phase.
        folder: Working directory and storage of the system. Created if missing.
        data: Folder of the texts and vectors.
        arguments: Arguments of the phase, passed as JSON.
        limit_s: Seconds after which the process is killed.
    """

    def __init__(
        self,
        python: Path,
        script: tuple[str, str],
        phase: str,
        folder: Path,
        data: Path,
        arguments: Sequence[Any],
        limit_s: float,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._phase, self._folder = phase, folder
        # A file instead of a pipe: a pipe that nobody reads would block the process once it is full.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [str(python), str(SCRIPTS), *script, phase, str(folder), str(data), *map(json.dumps, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            # PYTHONPATH would expose packages of the benchmark's environment to the peer's Python.
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ONE_THREAD,
            cwd=folder,
        )
        self._limit_s = limit_s
        self._is_late = False
        # The reader blocks on stdout, so the time limit needs a thread of its own.
        self._timer = threading.Timer(limit_s, self._stop)
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                # Closing tries again to write a line that a dead process did not read.
                with suppress(BrokenPipeError):
                    stream.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the process until it ends.

        Raises:
            ScriptDied: If the process exits with an error or was killed.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        if self._process.wait():
            raise ScriptDied(self._describe_end())

    def until(self, name: str) -> Any:
        """Read events until one has the given name, and return its value.

        Raises:
            ScriptDied: If the process ends first.
        """
        for event in self.events():
            if name in event:
                return event[name]
        raise ScriptDied(f"{self._phase}: the process ended before it reported {name!r}")

    def go(self, line: object = "go") -> None:
        """Write the line that the process waits for to its stdin."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; the next read raises its error
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def _stop(self) -> None:
        self._is_late = True
        self._process.kill()

    def _describe_end(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        if self._is_late:
            return f"{self._phase}: stopped after {self._limit_s:.0f} s"
        code = self._process.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{self._phase}: {lines[-1].strip().replace(str(self._folder), '.') if lines else ended}"
