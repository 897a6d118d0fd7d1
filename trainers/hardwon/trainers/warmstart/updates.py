"""The updates of a warm start, with checkpoints of their own until the first iteration has one.

On one core, the warm start of a pretrained base takes an hour, and stage 1 of three roles half of one. A killed run
continues within the warm start, and at the next role of stage 1, bit for bit on a CPU.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardwon.trainers.algorithms.imitation import Imitation, WarmStartProgress
from hardwon.trainers.algorithms.samples import PackedSequence
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
    """Return the checkpoints inside a run's warm start. They are numbered by update."""
    return Checkpoints(out / FOLDER, keep=1)


def imitate(loop: TrainingLoop, config: WarmStartConfig, checkpoint: Path | None) -> bool:
    """Train the policy to imitate the exploring episodes, with checkpoints in between."""
    saved = time.monotonic()  # before the demonstrations are played, which takes its time as well
    imitation = _open(loop, config, checkpoint)
    progress = WarmStartProgress(imitation, loop.screen.tell)
    while not imitation.is_done:
        if loop.stopping:
            _save(loop, imitation)
            updates = f"{len(imitation.curve)} of {config.learning.updates}"
            loop.screen.tell(f"stopped and saved after update {updates} of the warm start; add --resume to continue.")
            return False
        imitation.update()
        progress()
        if time.monotonic() - saved >= SAVE_S and not imitation.is_done:
            _save(loop, imitation)
            saved = time.monotonic()
    report = imitation.report()
    spent = {"first": report.first, "last": report.last, "examples": report.examples, "cpu_s": report.cpu_s}
    loop.metrics.log(0, spent, kind="warmstart")
    return True


def save_studied(loop: TrainingLoop, roles: Sequence[str]) -> None:
    """Save a checkpoint after stage 1 of a role."""
    import torch

    def write(folder: Path) -> None:
        loop.write_checkpoint(folder)
        torch.save({"studied": list(roles)}, folder / STATE)

    warmstart = loop.config.warmstart
    imitated = warmstart.learning.updates if warmstart is not None and warmstart.imitates else 0
    open_checkpoints(loop.session.out).save(imitated + len(roles), write)


def list_studied(checkpoint: Path | None) -> tuple[str, ...]:
    """Return the roles whose stage 1 was over at a checkpoint inside the warm start."""
    if checkpoint is None:
        return ()
    import torch

    saved = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    return tuple(saved.get("studied", ()))


def finish(loop: TrainingLoop) -> None:
    """Save the checkpoint before the first iteration, and delete those inside the warm start and stage 1."""
    loop.save()
    shutil.rmtree(loop.session.out / FOLDER, ignore_errors=True)


def _open(loop: TrainingLoop, config: WarmStartConfig, checkpoint: Path | None) -> Imitation:
    """Return the updates, at their beginning or where a checkpoint left them."""
    model = loop.session.roles["policy"].model
    if checkpoint is None:
        return Imitation(model, demonstrate(loop, config.examples), config.learning, role="policy")
    import torch

    saved = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
    examples = [PackedSequence(**fields) for fields in saved["examples"]]
    imitation = Imitation(model, examples, config.learning, role="policy")
    imitation.load_state_dict(saved["updates"])
    return imitation


def _save(loop: TrainingLoop, imitation: Imitation) -> None:
    """Save a checkpoint inside the warm start."""
    import torch

    examples: list[dict[str, Any]] = [asdict(example) for example in imitation.examples]

    def write(folder: Path) -> None:
        loop.write_checkpoint(folder)
        torch.save({"examples": examples, "updates": imitation.state_dict()}, folder / STATE)

    open_checkpoints(loop.session.out).save(len(imitation.curve), write)
