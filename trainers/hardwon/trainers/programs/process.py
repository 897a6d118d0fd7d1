"""Run a program for one episode, with its children, and never longer than allowed."""

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from hardwon.memory.errors import ConfigError

SHOWN_CHARS = 2000
"""Characters at the end of a program's output that are kept."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    code: int | None
    """Its exit code; None if it was stopped at the time limit."""
    output: str
    """The end of what it printed, stdout and stderr together."""

    @property
    def problem(self) -> str:
        """Return why the episode is broken: program_hung, program_crashed, or empty."""
        return "program_hung" if self.code is None else "program_crashed" if self.code else ""


async def run_command(command: str, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command to its end, and end every process that it leaves behind."""
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"program.command {command!r} cannot be started: {error}. Check its path.") from error
        code: int | None = None
        try:
            with suppress(TimeoutError):
                code = await asyncio.wait_for(process.wait(), timeout_s)
        finally:
            await _end_group(process)
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - 4 * SHOWN_CHARS))
        return Ended(code, output.read().decode(errors="replace")[-SHOWN_CHARS:].strip())


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End the program and the processes that it started, which share its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            # Seconds between the request to end and the end by force.
            await asyncio.wait_for(process.wait(), 2.0)
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        await process.wait()
