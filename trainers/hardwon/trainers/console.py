"""Progress of a run on stderr, one line per iteration. Quiet runs print warnings alone."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping


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

    def begin(self, iteration: int) -> None:
        """Start the estimate of the remaining time at this iteration."""
        self._begun, self._start = iteration, time.perf_counter()

    def tell(self, message: str) -> None:
        """Print a line of progress."""
        if not self._quiet:
            print(message, file=sys.stderr, flush=True)

    def tell_from_signal(self, message: str) -> None:
        """Print a line of progress from a signal handler."""
        if not self._quiet:
            # The signal may have interrupted a print, and Python's buffered streams refuse a second one inside it.
            with contextlib.suppress(OSError):
                os.write(2, f"{message}\n".encode())

    def warn(self, message: str) -> None:
        """Print a warning, also where progress is not shown."""
        print(message, file=sys.stderr, flush=True)

    def show(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics of an iteration."""
        row = self._row(iteration, metrics)
        self.tell("  ".join(f"{name} {value}" for name, value in row.items()))

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


def _format_number(value: float | None, digits: int = 2) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    """Return a number with fixed decimals, or a dash for None."""
    return "-" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"
