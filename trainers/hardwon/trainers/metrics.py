"""Metrics: a line of JSON an iteration always, TensorBoard where it is installed, Weights & Biases when asked.

A run that goes on continues the same files: what was written after the checkpoint it goes on from is
dropped first, so that no iteration is there twice.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hardwon.memory.errors import MissingExtra

FILE = "metrics.jsonl"


class Metrics:
    """Writes numbers by iteration into a run's folder."""

    def __init__(self, out: Path, *, begun: int | None = None, wandb: str | None = None, config: Any = None) -> None:
        """`begun`: the iteration that the run goes on from; None begins anew. `wandb`: a project's name."""
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / FILE
        keep_until(self.path, -1 if begun is None else begun)
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _tensorboard(out / "tensorboard", begun)
        self._wandb = _wandb(wandb, out, config) if wandb else None

    def log(self, iteration: int, values: Mapping[str, float], kind: str = "train") -> None:
        """The numbers of an iteration; `kind` is train, eval or warmstart. One that is not finite is null."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"iteration": iteration, "kind": kind, **plain}) + "\n")
        self._file.flush()
        known = {f"{kind}/{name}": value for name, value in plain.items() if value is not None}
        if self._board is not None:
            for name, value in known.items():
                self._board.add_scalar(name, value, iteration)
        if self._wandb is not None:
            self._wandb.log({"iteration": iteration, **known})

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read(out: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of a run, in order."""
    lines = (out / FILE).read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def keep_until(path: Path, iteration: int) -> None:
    """Drop the lines after an iteration, and one that was torn."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["iteration"] <= iteration:
                kept.append(line)
        except (ValueError, KeyError):
            continue
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    new.replace(path)


def _tensorboard(folder: Path, begun: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # TensorBoard itself hides what an earlier writer wrote at and after the step to purge from
    return SummaryWriter(str(folder), purge_step=0 if begun is None else begun + 1)


def _wandb(project: str, out: Path, config: Any) -> Any:
    try:
        import wandb  # type: ignore[import-not-found,unused-ignore]
    except ImportError as missing:
        raise MissingExtra(
            "wandb is not installed. Install it with: pip install wandb; or leave run.wandb null."
        ) from missing
    known = out / "wandb-run"
    name = known.read_text(encoding="utf-8").strip() if known.exists() else None
    run: Any = wandb.init(project=project, id=name, resume="allow", dir=str(out), config=config)
    known.write_text(f"{run.id}\n", encoding="utf-8")
    return run
