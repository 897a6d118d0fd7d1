"""One phase of one system as a process: started, read line by line, killed on request, never waited for in vain."""

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
    """A process ended before it had told everything; the message has its last words."""


class Phase:
    """A running phase. Leaving the context ends it, whatever it is doing."""

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
        self._told: dict[str, Any] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [str(python), str(SCRIPTS), *script, phase, str(folder), str(data), *map(json.dumps, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ONE_THREAD,
            cwd=folder,
        )
        self._limit_s = limit_s
        self._late = False
        self._timer = threading.Timer(limit_s, self._stop)
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, one event after another. Raises ScriptDied if it does not end well."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self._told.update(event)
            yield event
        if self._process.wait():
            raise ScriptDied(self._last_words())

    def until(self, name: str) -> Any:
        """Read on to the event that has this name, and return its value. Raises ScriptDied."""
        for event in self.events():
            if name in event:
                return event[name]
        raise ScriptDied(f"{self._phase}: it ended before it was {name}")

    def last(self, name: str) -> Any:
        """What it told last under a name that it has told."""
        return self._told[name]

    def told(self) -> dict[str, Any]:
        """All events from the beginning to the end, as one. Raises ScriptDied."""
        for _ in self.events():
            pass
        return self._told

    def go(self, line: object = "go") -> None:
        """Give it the line that it waits for."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; what it told says why
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def stay_on_one_core(self) -> None:
        """Keep to the first core there is, where the system can: what takes turns there is equally fast."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, {min(os.sched_getaffinity(0))})

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def _stop(self) -> None:
        self._late = True
        self._process.kill()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        if self._late:
            return f"{self._phase}: stopped after {self._limit_s:.0f} s"
        code = self._process.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{self._phase}: {lines[-1].strip().replace(str(self._folder), '.') if lines else ended}"
