"""Data-parallel training: the first process plays and decides, all processes compute gradients.

    accelerate launch --num_processes 4 -m hardwon.trainers CONFIG.yaml

The first process owns the run: episodes, credit, library and checkpoints. Before its first update, the
workers read its checkpoint; then they wait for sequences. Each process takes a share of an update's
sequences. Denominators are counted over all of them, gradients are summed, and every process makes the
same step. Trainable parameters are replicated in every process. With `--use_fsdp`, FSDP2 shards the
frozen base under the adapters.

A learner talks to `Processes` and does not know how many there are: `SingleProcess` keeps everything here,
a `ProcessGroup` shares the sequences and sums the gradients.
"""

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hardwon.memory.errors import ConfigError

from .samples import PackedSequence
from .settings import LossSettings

Job = tuple[str, Any]
"""A job for the workers: ("start", checkpoint), ("step", (role, sequences, loss, temperature)) or ("end", None)."""


ParallelStep = Callable[..., Any]
"""The training step of a role."""


class Processes(Protocol):
    """The processes that make one training step together, seen from one of them."""

    def share_step(
        self, role: str, sequences: Sequence[PackedSequence], loss: LossSettings, temperature: float
    ) -> Sequence[PackedSequence]:
        """Start the step in all processes and return the sequences that this one reads."""
        ...

    def check_loss(self, loss: LossSettings, *, order: str = "together") -> None:
        """Check that these processes can compute the loss.

        Raises:
            ConfigError: The loss needs log-probabilities that a sharded base cannot give.
        """
        ...

    def count_idle_passes(self, passes: int) -> int:
        """Return how many empty passes this process must add to its own."""
        ...

    def sum_update(self, parameters: Iterable[Any], totals: Mapping[str, float]) -> Mapping[str, float]:
        """Sum the gradients over all processes in place, and return the sums of their totals by name."""
        ...


class SingleProcess:
    """The only process of a run: it reads everything and has nobody to wait for."""

    def share_step(
        self, role: str, sequences: Sequence[PackedSequence], loss: LossSettings, temperature: float
    ) -> Sequence[PackedSequence]:
        """Return all sequences."""
        return sequences

    def check_loss(self, loss: LossSettings, *, order: str = "together") -> None:
        """Accept every loss."""

    def count_idle_passes(self, passes: int) -> int:
        """Return 0."""
        return 0

    def sum_update(self, parameters: Iterable[Any], totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return the totals unchanged."""
        return totals


@dataclass(slots=True)
class ProcessGroup:
    """The processes of one run, seen from one of them."""

    rank: int
    size: int
    shards: bool = False
    """Whether the frozen base is sharded. Then all processes must run the same number of forward passes."""
    active: bool = False
    """Whether the workers wait for sequences."""
    steps: dict[str, ParallelStep] = field(default_factory=dict)
    """The training step of each role, for the jobs of a worker."""

    # -- one training step; alone until the workers wait ------------------------------------------------

    def share_step(
        self, role: str, sequences: Sequence[PackedSequence], loss: LossSettings, temperature: float
    ) -> Sequence[PackedSequence]:
        """Send the step to the workers, if this is the first process, and return this process's share."""
        if not self.active:
            return sequences
        if self.rank == 0:
            self.broadcast_job(("step", (role, sequences, loss, temperature)))
        return self.select_share(sequences)

    def check_loss(self, loss: LossSettings, *, order: str = "together") -> None:
        """Check that a sharded base can compute the loss.

        Raises:
            ConfigError: The loss needs log-probabilities of before the step, or has terms.
        """
        if self.active and order != "together":
            raise ConfigError(
                f"learner.order is {order}, which makes its updates in one process; train with one, or use together."
            )
        if self.active and loss.terms:
            raise ConfigError(
                f"the loss has the terms {', '.join(loss.terms)}, which read a whole batch in one process; train with "
                "one process, or remove roles.policy.loss.terms."
            )
        if self.active and self.shards and (loss.kl or loss.old == "trainer"):
            raise ConfigError(
                "a sharded base cannot compute log-probabilities before the step. Set loss.kl=0 and loss.old=sampled."
            )

    def count_idle_passes(self, passes: int) -> int:
        """Return how many empty passes this process must add: a sharded base is gathered in every pass of all."""
        return self.find_max(passes) - passes if self.active and self.shards else 0

    def sum_update(self, parameters: Iterable[Any], totals: Mapping[str, float]) -> Mapping[str, float]:
        """Sum the gradients over all processes in place, and return the sums of their totals by name."""
        return self.all_reduce(parameters, totals) if self.active else totals

    # -- messages ---------------------------------------------------------------------------------------

    def broadcast_job(self, job: Job) -> None:
        """Send a job from the first process to all workers."""
        import torch.distributed as dist

        dist.broadcast_object_list([job], src=0)

    def receive_job(self) -> Job:
        """Wait for the next job from the first process."""
        import torch.distributed as dist

        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0)
        job: Job = received[0]
        return job

    def select_share(self, sequences: Sequence[PackedSequence]) -> list[PackedSequence]:
        """Return this process's share of the sequences. All shares have about as many tokens."""
        # every rank-th of the sequences by length: shares get about equal numbers of tokens
        order = sorted(range(len(sequences)), key=lambda at: (-len(sequences[at]), at))
        return [sequences[at] for at in sorted(order[self.rank :: self.size])]

    def find_max(self, number: int) -> int:
        """Return the largest `number` over all processes."""
        import torch.distributed as dist

        numbers: list[Any] = [0] * self.size
        dist.all_gather_object(numbers, number)
        return int(max(numbers))

    def all_reduce(self, parameters: Iterable[Any], values: Mapping[str, float]) -> dict[str, float]:
        """Sum the gradients of all processes in place, in one message, and sum their values by name."""
        import torch
        import torch.distributed as dist

        trained = list(parameters)
        for parameter in trained:
            if parameter.grad is None:
                # a process without any sequence has no gradients, but must take part
                parameter.grad = torch.zeros_like(parameter)
        # one message for all gradients: the latency of a message dominates for adapters
        flat = torch.cat([parameter.grad.flatten() for parameter in trained])
        dist.all_reduce(flat)
        at = 0
        for parameter in trained:
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, dict(values))
        # the union: a process without sequences reports no sums, but must return the same names
        names = {name: None for each in gathered for name in each}
        return {name: sum(each.get(name, 0.0) for each in gathered) for name in names}

    def shard_base(self, model: Any) -> None:
        """Shard the frozen weights of every layer over the processes. Adapters stay whole. Idempotent."""
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from transformers.modeling_layers import GradientCheckpointingLayer

        adapters = {parameter for name, parameter in model.named_parameters() if ".lora_" in name}
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer) and not isinstance(layer, FSDPModule):
                # adapters are left out: every process holds and updates them whole
                fully_shard(layer, ignored_params=adapters & set(layer.parameters()))


_TEAM: list[ProcessGroup | None] = []


def get_team() -> ProcessGroup | None:
    """Return the processes that `accelerate launch` started for this run, or None in a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not _TEAM:
        import torch
        from accelerate import PartialState  # type: ignore[import-untyped]

        # starts torch.distributed and waits for all processes, so at most once and only under a launcher
        state = PartialState(cpu=not torch.cuda.is_available())
        shards = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
        _TEAM.append(ProcessGroup(state.process_index, state.num_processes, shards))
    return _TEAM[0]


def join_processes(role: str, step: ParallelStep) -> Processes:
    """Return the processes of this run, and give the workers among them the training step of a role."""
    team = get_team()
    if team is None:
        return SingleProcess()
    team.steps[role] = step
    return team


def run_empty_pass(model: Any, role: str) -> None:
    """Run forward and backward over a dummy sequence with zero gradient."""
    from .logprobs import collate, forward, get_device_and_dtype

    device, dtype = get_device_and_dtype(model)
    empty = PackedSequence((0, 0), (False, True), (0.0,) * 2, (0.0,) * 2, (None,) * 2, role, "", 0)
    values, _ = forward(model, collate([empty], device, dtype))
    # backward too: the sharded weights are gathered again there, which all processes must join
    (0.0 * values.sum()).backward()  # type: ignore[no-untyped-call]


def check_sharding(config: Any) -> None:
    """Check that the base can be sharded if sharding is requested.

    Raises:
        ConfigError: The base is to be sharded without adapters or without a vLLM server.
    """
    team = get_team()
    if team is None or not team.shards:
        return
    if config.model.adapter is None or config.engine.url is None:
        raise ConfigError(
            f"--use_fsdp shards the base, but model.adapter is {config.model.adapter} and engine.url is "
            f"{config.engine.url}. Set both, the adapter to a rank: a sharded base cannot generate."
        )


def run_worker(team: ProcessGroup, restore: Any) -> None:
    """Run the jobs of the first process until it ends the run. For every process but the first."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first process handles the signal and ends the workers
    session = None
    try:
        while (job := team.receive_job())[0] != "end":
            kind, payload = job
            if kind == "start":
                session = restore(payload)
                # from now on learners share their steps; the warm start ran in the first process alone
                team.active = True
            else:
                role, sequences, loss, temperature = payload
                team.steps[role](sequences, loss, temperature=temperature)
    finally:
        signal.signal(signal.SIGTERM, before)
        if session is not None:
            session.close()
