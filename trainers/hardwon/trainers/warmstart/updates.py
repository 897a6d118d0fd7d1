"""The updates of a warm start, with checkpoints of their own until the first iteration has one.

On one core, the warm start of a pretrained base takes an hour, and stage 1 of three roles half of one. A killed run
continues within the warm start or the stage 1 of a role, bit for bit on a CPU.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.trainers.algorithms.imitation import Imitation, make_updates
from hardwon.trainers.checkpoint import Checkpoints
from hardwon.trainers.config.schema import WarmStartConfig
from hardwon.trainers.loop import TrainingLoop

from .demonstrations import demonstrate

FOLDER = "warmstart"
"""Folder in that of a run with the newest checkpoint inside the warm start; it is deleted after the warm start."""
STATE = "warmstart.pt"
"""In such a checkpoint: the examples and the state of the updates."""
SAVE_S = 300.0
"""Seconds between two checkpoints: a kill loses as many at most."""


def open_checkpoints(out: Path) -> Checkpoints:
    """Return the checkpoints inside a run's warm start. They are numbered in order, those of the policy by update."""
    return Checkpoints(out / FOLDER, keep=1)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a warm start is."""

    is_past_imitation: bool = False
    """Whether the policy has imitated, if it is to."""
    studied: tuple[str, ...] = ()
    """Roles whose stage 1 is over."""
    begun: Mapping[str, Any] | None = None
    """The updates so far, of the policy or of the role that comes next."""


def read_progress(checkpoint: Path | None) -> Progress:
    """Return how far the warm start was at a checkpoint inside it."""
    if checkpoint is None:
        return Progress()
    import torch

    saved = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    begun = saved if "updates" in saved else None
    return Progress("studied" in saved, tuple(saved.get("studied", ())), begun)


class Saver:
    """Saves the updates of the policy or of a role now and then, and when the run is to stop."""

    def __init__(self, loop: TrainingLoop, done: Mapping[str, Any]) -> None:
        """Begin now, before the examples are built, which takes its time as well."""
        self._loop, self._done, self._saved = loop, done, time.monotonic()

    def __call__(self, imitation: Imitation) -> bool:
        """Return whether the updates are to go on."""
        if self._loop.stopping or time.monotonic() - self._saved >= SAVE_S:
            _save(self._loop, {**self._done, **imitation.write_state()}, len(imitation.curve))
            self._saved = time.monotonic()
        return not self._loop.stopping


def imitate(loop: TrainingLoop, config: WarmStartConfig, begun: Mapping[str, Any] | None) -> bool:
    """Train the policy to imitate the exploring episodes, with checkpoints in between."""
    saver, model = Saver(loop, {}), loop.session.roles["policy"].model
    budget = loop.config.roles["policy"].learner.budget
    if begun is None:
        examples = demonstrate(loop, config.examples)
        imitation = Imitation(model, examples, config.learning, role="policy", budget=budget)
    else:
        imitation = Imitation.restore(begun, model, config.learning, role="policy", budget=budget)
    if not make_updates(imitation, loop.screen.tell, saver):
        updates = f"{len(imitation.curve)} of {config.learning.updates}"
        loop.screen.tell(f"stopped and saved after update {updates} of the warm start; add --resume to continue.")
        return False
    report = imitation.report()
    spent = {"first": report.first, "last": report.last, "examples": report.examples, "cpu_s": report.cpu_s}
    loop.metrics.log(0, spent, kind="warmstart")
    return True


def save_studied(loop: TrainingLoop, roles: Sequence[str]) -> None:
    """Save a checkpoint after stage 1 of a role."""
    _save(loop, {"studied": list(roles)}, 1)


def finish(loop: TrainingLoop) -> None:
    """Save the checkpoint before the first iteration, and delete those inside the warm start and stage 1."""
    loop.save()
    shutil.rmtree(loop.session.out / FOLDER, ignore_errors=True)


def _save(loop: TrainingLoop, state: Mapping[str, Any], number: int) -> None:
    """Save a checkpoint inside the warm start."""
    import torch

    def write(folder: Path) -> None:
        loop.write_checkpoint(folder)
        torch.save(dict(state), folder / STATE)

    checkpoints = open_checkpoints(loop.session.out)
    latest = checkpoints.latest()
    checkpoints.save(number if latest is None else max(number, int(latest.name) + 1), write)
