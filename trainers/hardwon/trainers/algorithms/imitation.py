"""Warm start: imitation of trajectories that went well, so that a run begins where it can learn.

Format before reward: a policy that cannot yet say an action learns nothing from outcomes. Chosen
trajectories are cleaned of what should not be imitated, shown with and without memory, rendered by
the caller and learnt by cross-entropy on the tokens of the actions. Stop early: one that knows its
examples by heart has nothing left to try. This file plays no episode and writes no text.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from hardwon.memory import Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.trainers.models.adapters import parameters_of

from .learner import Learner, LearnerSettings, LossSettings
from .samples import PackedSequence, Sample, pack_samples

Render = Callable[[Trajectory, str | None], Sequence[Sample]]
"""Rows of a trajectory's turns, exactly as the policy would have them, with this memory shown or none."""
POOL = 16
"""Batches that are sorted by length among themselves; the rest is chance."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Which trajectories are imitated, and how they are shown."""

    failures: bool = False
    """Also those that did not succeed; excluded ones never."""
    failed_steps: bool = False
    """Keep the steps that the environment refused."""
    circles: Literal["drop", "explore", "keep"] = "drop"
    """What led back to a state that the trajectory had been in. `explore` keeps it in copies without memory,
    which show how to look around, and drops it in those with memory, which show how to go straight there."""
    max_turns: int | None = None
    """Copies that are longer, once cleaned, are left out; None for no bound."""
    copies: int = 1
    """How often each is shown."""
    memory_share: float = 0.7
    """Share of the copies that show their memory, where they have one: with all, it would only work with memory."""
    restricted: bool = False
    """Learn to choose among the actions that were possible; else to say them among all words."""
    seed: int = 0
    """Of the draw of copies with memory."""

    def __post_init__(self) -> None:
        if not 0 <= self.memory_share <= 1:
            raise ConfigError(f"memory_share is {self.memory_share}; it is a share, from 0 to 1.")
        if self.copies < 1:
            raise ConfigError(f"copies is {self.copies}; use 1 or more.")


def build_examples(
    trajectories: Iterable[Trajectory],
    render: Render,
    settings: Examples | None = None,
    *,
    memory: Callable[[Trajectory], str | None] = lambda _: None,
) -> list[PackedSequence]:
    """The trajectories worth imitating as streams, every action with the advantage 1.

    `memory` says what would have been shown in an episode; None or empty where nothing would. A
    trajectory's copies with memory are a fixed number, whose remainder is drawn.
    """
    settings = settings or Examples()
    chance = random.Random(settings.seed)
    made: list[PackedSequence] = []
    for trajectory in trajectories:
        if trajectory.success is None or not (trajectory.success or settings.failures):
            continue
        text = memory(trajectory)
        share = settings.memory_share * settings.copies
        shown = int(share) + (chance.random() < share - int(share)) if text else 0
        for number in range(settings.copies):
            reads = text if number < shown else None
            path = clean_trajectory(trajectory, settings, remembering=reads is not None)
            if not path.steps or (settings.max_turns is not None and len(path.steps) > settings.max_turns):
                continue
            rows = render(path, reads)
            # copies are traces of their own, or the second would be merged with or counted as the first
            copy = [_relabel(row, f"{trajectory.id}#{number}", settings.restricted) for row in rows]
            made += pack_samples(copy, {row.trace: [1.0] * len(copy) for row in copy})
    return made


def clean_trajectory(trajectory: Trajectory, settings: Examples, *, remembering: bool = False) -> Trajectory:
    """The trajectory without the steps that should not be imitated, in a copy with memory or without."""
    steps = [step for step in trajectory.steps if step.action and (settings.failed_steps or step.diagnosis.success)]
    if settings.circles == "drop" or (settings.circles == "explore" and remembering):
        steps = without_circles(steps)
    return replace(trajectory, steps=tuple(steps))


def _relabel(row: Sample, trace: str, restricted: bool) -> Sample:
    """The row with every token to be learnt among all, or the choices among what was possible."""
    if restricted:
        return replace(row, trace=trace)
    n = len(row.completion)
    return replace(row, trace=trace, mask=(True,) * n, allowed=(None,) * n)


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """How the examples are learnt."""

    updates: int = 150
    """Of the optimiser, in all; the learning rate falls linearly to 0 by the last."""
    batch: int = 16
    """Streams of an update, of about the same length."""
    lr: float = 2e-3
    """Learning rate at its highest; for an adapter of a big model a tenth of this or less."""
    warmup: int = 5
    """Updates over which it rises."""
    weight_decay: float = 0.01
    """As in LearnerSettings."""
    budget: int = 4096
    """Tokens of a micro-batch."""
    recompute: bool = False
    """Gradient checkpointing."""
    seed: int = 0
    """Of the order of the examples."""

    def __post_init__(self) -> None:
        if self.updates < 1 or self.batch < 1:
            raise ConfigError(f"updates is {self.updates} and batch {self.batch}; use 1 or more.")


@dataclass(frozen=True, slots=True)
class Report:
    """What a warm start did."""

    curve: tuple[float, ...]
    """Loss of every update in nats a token, before it."""
    examples: int
    epochs: float
    """Times that an example was seen, on average."""
    tokens: int
    """Read, padding not counted."""
    cpu_s: float
    wall_s: float

    @property
    def first(self) -> float:
        """Mean loss of the first tenth of the updates."""
        return self._mean(slice(None, max(1, len(self.curve) // 10)))

    @property
    def last(self) -> float:
        """Mean loss of the last tenth."""
        return self._mean(slice(-max(1, len(self.curve) // 10), None))

    def _mean(self, part: slice) -> float:
        values = self.curve[part]
        return sum(values) / len(values)


def warm_start(
    model: Any,
    examples: Sequence[PackedSequence],
    settings: WarmStart | None = None,
    tell: Callable[[str], None] = lambda _: None,
    *,
    role: str = "",
    parameters: Mapping[str, nn.Parameter] | None = None,
) -> Report:
    """Train the model, or the adapter of a role, on the examples; `tell` hears of the progress ten times."""
    settings = settings or WarmStart()
    if not examples:
        raise ConfigError("there are no examples to imitate: no trajectory passed the filters; see Examples.")
    learner = Learner(model, parameters or parameters_of(model, role), _to_learner_settings(settings), role=role)
    wall, cpu, tokens, curve = time.perf_counter(), time.process_time(), 0, []
    batches = iterate_batches(examples, settings.batch, random.Random(settings.seed))
    for number in range(1, settings.updates + 1):
        metrics = learner.step(next(batches), LossSettings(kind="imitation"))
        curve.append(metrics["loss"])
        tokens += int(metrics["tokens"])
        if number % max(1, settings.updates // 10) == 0:
            tell(f"warm start: update {number} of {settings.updates}, loss {curve[-1]:.3f}")
    return Report(
        tuple(curve),
        len(examples),
        settings.updates * min(settings.batch, len(examples)) / len(examples),
        tokens,
        time.process_time() - cpu,
        time.perf_counter() - wall,
    )


def _to_learner_settings(settings: WarmStart) -> LearnerSettings:
    return LearnerSettings(
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        warmup=settings.warmup,
        decay=settings.updates,
        budget=settings.budget,
        recompute=settings.recompute,
    )


def iterate_batches(
    parts: Sequence[PackedSequence], size: int, chance: random.Random
) -> Iterator[list[PackedSequence]]:
    """Batches without end, of streams of about the same length; every stream once before any twice.

    Sorted among POOL batches drawn by chance, so that what is learnt together changes, and padding is little.
    """
    while True:
        order = chance.sample(list(parts), len(parts))
        batches = []
        for start in range(0, len(order), POOL * size):
            pool = sorted(order[start : start + POOL * size], key=len)
            batches += [pool[at : at + size] for at in range(0, len(pool), size)]
        yield from chance.sample(batches, len(batches))
