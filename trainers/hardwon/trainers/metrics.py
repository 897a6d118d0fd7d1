"""Metrics: always one JSON line per iteration, and TensorBoard if installed.

A resumed run appends to the same files. Lines after its checkpoint are dropped first, so that no iteration
appears twice.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FILE = "metrics.jsonl"


class Metrics:
    """Writes metrics by iteration into a run's folder."""

    def __init__(self, out: Path, *, begun: int | None = None) -> None:
        """Open the files."""
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / FILE
        keep_until(self.path, -1 if begun is None else begun)
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _open_tensorboard(out / "tensorboard", begun)

    def log(self, iteration: int, values: Mapping[str, float], kind: str = "train") -> None:
        """Write the metrics of an iteration; `kind` is train, eval or warmstart. Non-finite values become null."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"iteration": iteration, "kind": kind, **plain}) + "\n")
        # a killed process must not lose the lines of finished iterations
        self._file.flush()
        finite = {f"{kind}/{name}": value for name, value in plain.items() if value is not None}
        if self._board is not None:
            for name, value in finite.items():
                self._board.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Flush and close all outputs."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read(out: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Return the logged lines of one kind, in order."""
    lines = (out / FILE).read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def is_worse(rows: Sequence[Mapping[str, Any]], figure: str, reference: str) -> bool:
    """Return whether a figure was lower than another one by more than two standard errors."""
    pairs = [
        (row[figure], row[reference]) for row in rows if row.get(figure) is not None and row.get(reference) is not None
    ]
    differences: list[float] = [value - other for value, other in pairs]
    # Smallest number of iterations from which two arms are compared.
    if len(differences) < 5:
        return False
    error: float = statistics.stdev(differences) / len(differences) ** 0.5
    return statistics.fmean(differences) < -2 * error


def keep_until(path: Path, iteration: int) -> None:
    """Drop the lines after an iteration, and malformed lines."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["iteration"] <= iteration:
                kept.append(line)
        except (ValueError, KeyError):  # a line that a crash cut short
            continue
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    # atomic: a crash leaves either the old log or the new one
    new.replace(path)


def _open_tensorboard(folder: Path, begun: int | None) -> Any:
    """Return a TensorBoard writer, or None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # TensorBoard hides the events of earlier writers from purge_step on, which a resumed run writes again.
    return SummaryWriter(str(folder), purge_step=0 if begun is None else begun + 1)
