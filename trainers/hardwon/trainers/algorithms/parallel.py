"""Several processes, one learner: the first one plays and decides, all of them compute gradients.

    accelerate launch --num_processes 4 -m hardwon.trainers CONFIG.yaml

The first process is the run: episodes, credit, library, checkpoints. Before its first update the others
read its checkpoint; then they wait for streams. Each takes a share of an update's streams; denominators
are those of all of them, gradients are added up, and every process makes the same step. What is trained
is whole in every process; with `--use_fsdp` the frozen base under the adapters is sharded by FSDP2.
"""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.errors import ConfigError

from .samples import PackedSequence

Job = tuple[str, Any]
"""What the others are to do: ("start", checkpoint), ("step", (role, streams, loss)) or ("end", None)."""


@dataclass(slots=True)
class Team:
    """The processes of one run."""

    rank: int
    size: int
    shards: bool = False
    """Whether the frozen base is sharded: then all processes must go through it equally often."""
    active: bool = False
    """Whether the others wait for streams."""
    learners: dict[str, Any] = field(default_factory=dict)

    def broadcast_job(self, job: Job) -> None:
        """The first process says what is to be done."""
        import torch.distributed as dist

        dist.broadcast_object_list([job], src=0)

    def receive_job(self) -> Job:
        """What the first process says."""
        import torch.distributed as dist

        said: list[Any] = [None]
        dist.broadcast_object_list(said, src=0)
        job: Job = said[0]
        return job

    def select_share(self, streams: Sequence[PackedSequence]) -> list[PackedSequence]:
        """This process's part of the streams, about as many tokens as any other's."""
        order = sorted(range(len(streams)), key=lambda at: (-len(streams[at]), at))
        return [streams[at] for at in sorted(order[self.rank :: self.size])]

    def find_max(self, number: int) -> int:
        """The largest of the numbers that the processes have."""
        import torch.distributed as dist

        found: list[Any] = [0] * self.size
        dist.all_gather_object(found, number)
        return int(max(found))

    def all_reduce(self, parameters: Iterable[Any], values: Mapping[str, float]) -> dict[str, float]:
        """The gradients of all processes, in place, in one message; and their values."""
        import torch
        import torch.distributed as dist

        held = list(parameters)
        for parameter in held:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in held])
        dist.all_reduce(flat)
        at = 0
        for parameter in held:
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, dict(values))
        return {name: sum(one.get(name, 0.0) for one in told) for name in {name: None for one in told for name in one}}

    def shard_base(self, model: Any) -> None:
        """Spread the frozen weights of every layer over the processes; adapters stay whole. Once for a model."""
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from transformers.modeling_layers import GradientCheckpointingLayer

        trained = {parameter for name, parameter in model.named_parameters() if ".lora_" in name}
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer) and not isinstance(layer, FSDPModule):
                fully_shard(layer, ignored_params=trained & set(layer.parameters()))


_TEAM: list[Team | None] = []


def get_team() -> Team | None:
    """The processes of this run where `accelerate launch` started several; None alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not _TEAM:
        import torch
        from accelerate import PartialState  # type: ignore[import-untyped]

        state = PartialState(cpu=not torch.cuda.is_available())
        shards = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
        _TEAM.append(Team(state.process_index, state.num_processes, shards))
    return _TEAM[0]


def check_sharding(config: Any) -> None:
    """Raises ConfigError for settings with which the base cannot be sharded."""
    ours = get_team()
    if ours is None or not ours.shards:
        return
    if config.model.adapter is None or config.engine.kind != "server":
        raise ConfigError(
            f"the base is to be sharded (--use_fsdp), model.adapter is {config.model.adapter} and engine.kind "
            f"{config.engine.kind}; it needs adapters, and a vLLM server that generates: a sharded base cannot."
        )


def run_worker(ours: Team, restore: Any) -> None:
    """What every process but the first does, to the end of the run. `restore` opens a checkpoint's stage."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first process says when it is over
    stage = None
    try:
        while (job := ours.receive_job())[0] != "end":
            what, given = job
            if what == "start":
                stage = restore(given)
                ours.active = True
            else:
                role, streams, loss = given
                ours.learners[role].step(streams, loss)
    finally:
        signal.signal(signal.SIGTERM, before)
        if stage is not None:
            stage.close()
