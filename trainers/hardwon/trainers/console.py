"""Progress of a run on stderr: a live table on a terminal, otherwise one line per iteration.

Quiet runs print nothing.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self


class EpisodeCount:
    """Counts the episodes that have ended, and tells the count now and then."""

    def __init__(
        self,
        total: int,
        tell: Callable[[str], None],
        every_s: float = 30.0,
        text: str = "played {} of {} episodes",
    ) -> None:
        self._total, self._tell, self._every_s, self._text = total, tell, every_s, text
        self._ended, self._last = 0, time.monotonic()

    def __call__(self) -> None:
        """Count one more episode."""
        self._ended += 1
        if time.monotonic() - self._last >= self._every_s and self._ended < self._total:
            self._last = time.monotonic()
            self._tell(self._text.format(self._ended, self._total))


class Screen:
    """Prints the metrics and messages of a run."""

    def __init__(self, iterations: int, arms: list[str], *, outcome: str = "success", quiet: bool = False) -> None:
        self._iterations, self._arms, self._outcome, self._quiet = iterations, arms, outcome, quiet
        self.begin(0)
        self._rows: list[dict[str, str]] = []
        self._live: Any = None

    def begin(self, iteration: int) -> None:
        """Start the estimate of the remaining time at this iteration."""
        self._begun, self._start = iteration, time.perf_counter()

    def tell(self, message: str) -> None:
        """Print a line of progress."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(message, markup=False, highlight=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def tell_from_signal(self, message: str) -> None:
        """Print a line of progress from a signal handler."""
        if not self._quiet:
            # The signal may have interrupted a print, and Python's buffered streams refuse a second one inside it.
            with contextlib.suppress(OSError):
                os.write(2, f"{message}\n".encode())

    def warn(self, message: str) -> None:
        """Print a warning, also where progress is not shown."""
        if self._live is not None:
            self._live.console.print(message, markup=False, highlight=False, style="bold red")
        else:
            print(message, file=sys.stderr, flush=True)

    def show(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics of an iteration."""
        if self._quiet:
            return
        row = self._row(iteration, metrics)
        if self._live is None:
            print("  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)
            return
        self._rows = [*self._rows, row][-12:]
        self._live.update(self._table())

    def _row(self, iteration: int, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return the formatted cells of an iteration, by column."""
        per_iteration = (time.perf_counter() - self._start) / max(1, iteration - self._begun)
        left = per_iteration * (self._iterations - iteration)
        return {
            "iteration": f"{iteration}/{self._iterations}",
            **{arm: _format_number(metrics.get(f"{self._outcome}/{arm}")) for arm in self._arms},
            "reward": _format_number(metrics.get("reward")),
            "kl": _format_number(metrics.get("policy/kl", metrics.get("policy/kl_old"))),
            "entropy": _format_number(metrics.get("policy/entropy")),
            "tokens/s": _format_number(metrics.get("tokens_per_second"), 0),
            "left": f"{int(left // 60)}:{int(left % 60):02}",
        }

    def _table(self) -> Any:
        """Return the table of the last iterations."""
        from rich.table import Table

        table = Table(box=None, header_style="bold")
        for name in self._rows[-1]:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row.values())
        return table

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        if console.is_terminal and not self._quiet:
            self._live = Live(console=console, auto_refresh=False, transient=False)
            self._live.auto_refresh = False  # no refresh thread beside torch: redraw once per iteration
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _format_number(value: float | None, digits: int = 2) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    """Return a number with fixed decimals, or a dash for None."""
    return "-" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"
