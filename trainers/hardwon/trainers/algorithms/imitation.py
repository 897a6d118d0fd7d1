"""Warm start: imitation of successful trajectories before reinforcement learning.

A policy that cannot produce an action in the right format gets no reward to learn from. Selected
trajectories are cleaned, rendered by the caller with and without memory, and learned by cross-entropy
on the action tokens. Stop early: a policy that has memorized its examples explores too little. This
module plays no episodes and renders no text.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from hardwon.memory import Step, Trajectory
from hardwon.memory.errors import CannotLearn
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.trainers.models.adapters import parameters_of

from .learner import Learner, LearnerSettings, LossSettings
from .outcomes import OutcomeKind, measure_outcome
from .samples import PackedSequence, Sample, pack_samples

RenderExample = Callable[[Trajectory, str | None], Sequence[Sample]]
"""Renders the samples of a trajectory's turns exactly as the policy would see them, with this memory or none."""
POOL = 16
"""Number of random batches that are sorted by length together."""
EVERY_S = 30.0
"""Seconds after which the next update of a warm start is told, if none was told since."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Which trajectories are imitated, and with which memory."""

    failures: bool = False
    """Also imitate trajectories that did not succeed. Excluded ones are never imitated."""
    wrong: Literal["drop", "filter", "correct"] = "drop"
    """What to do with failed steps, and with those that lead back to an earlier state. drop: leave them out. filter:
    keep them in the context and out of the loss (step-level filtering). correct: do so with failed steps that a later
    step in the same situation corrects, and leave out the others (STeP)."""
    max_turns: int | None = None
    """Leave out trajectories with more turns than this after cleaning; None for no limit."""
    copies: int = 1
    """Copies of each trajectory."""
    memory_share: float = 0.7
    """Share of the copies that show memory, for trajectories that have one. Below 1, so that the policy also works
    without memory.
    """
    renamed: float = 0.0
    """Share of the copies with memory in which things have each other's names, so that a hint must be read and places
    cannot be remembered. Only where actions are listed, and not for compact prompts.
    """

    def count_with_memory(self) -> int:
        """Return the number of copies with memory."""
        return round(self.memory_share * self.copies)


def build_examples(
    trajectories: Iterable[Trajectory],
    render: RenderExample,
    settings: Examples | None = None,
    *,
    memory: Callable[[Trajectory], str | None] = lambda _: None,
    outcome: OutcomeKind = "success",
) -> list[PackedSequence]:
    """Build training sequences from the trajectories worth imitating. Every action has the advantage 1.

    Args:
        trajectories: Candidates; see `settings` for the filters.
        render: Renders the samples of a trajectory with the given memory, or without.
        settings: Filters and number of copies.
        memory: Returns the memory that the episode would have been shown; None or empty for none. The
            number of copies with memory is fixed per trajectory, and its fraction is drawn at random.
        outcome: What counts as the outcome of a trajectory; those with an outcome above 0 are worth imitating.

    Returns:
        The packed sequences of all copies.
    """
    settings = settings or Examples()
    chance = random.Random(0)
    sequences: list[PackedSequence] = []
    for trajectory in trajectories:
        value = measure_outcome(trajectory, outcome)
        if value is None or not (value > 0 or settings.failures):
            continue
        text = memory(trajectory)
        share = settings.memory_share * settings.copies
        # the fraction of the share becomes one more copy with that probability
        with_memory = int(share) + (chance.random() < share - int(share)) if text else 0
        for number in range(settings.copies):
            prompt_memory = text if number < with_memory else None
            path = clean_trajectory(trajectory)
            path, weights = keep_context(trajectory, path, settings.wrong)
            if not any(weights) or (settings.max_turns is not None and len(path.steps) > settings.max_turns):
                continue
            samples = render(path, prompt_memory)
            # each copy is a trace of its own: otherwise the copies would be packed or counted as one
            copy = [
                _mask(ask_all(replace(sample, trace=f"{trajectory.id}#{number}")), weights[sample.turn])
                for sample in samples
            ]
            sequences += pack_samples(copy, {sample.trace: [1.0] * len(copy) for sample in copy})
    return sequences


def clean_trajectory(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory without the steps that failed or that led back to an earlier state."""
    steps = [step for step in trajectory.steps if step.action and step.diagnosis.success]
    return replace(trajectory, steps=tuple(without_circles(steps)))


def keep_context(trajectory: Trajectory, clean: Trajectory, wrong: str) -> tuple[Trajectory, list[bool]]:
    """Return the steps of an example, and whether each of them is imitated; the others are context."""
    if wrong == "drop":
        return clean, [True] * len(clean.steps)
    worth = {id(step) for step in clean.steps}
    chosen = [
        step
        for number, step in enumerate(trajectory.steps)
        if step.action and (id(step) in worth or wrong == "filter" or _is_corrected(trajectory.steps, number))
    ]
    return replace(trajectory, steps=tuple(chosen)), [id(step) in worth for step in chosen]


def _is_corrected(steps: Sequence[Step], number: int) -> bool:
    """Return whether a step failed, and a later one in the same situation did not."""
    wrong = steps[number]
    later = (step for step in steps[number + 1 :] if step.pre.signature == wrong.pre.signature)
    return not wrong.diagnosis.success and any(step.action and step.diagnosis.success for step in later)


def _mask(sample: Sample, is_imitated: bool) -> Sample:
    """Return the sample; one that is not imitated is context alone."""
    return sample if is_imitated else replace(sample, mask=(False,) * len(sample.completion))


def ask_all(sample: Sample) -> Sample:
    """Return the sample with every token trained against the whole vocabulary."""
    n = len(sample.completion)
    return replace(sample, mask=(True,) * n, allowed=(None,) * n)


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """How the examples are learned."""

    updates: int = 150
    """Updates in total. The learning rate falls linearly to 0 at the last one."""
    batch: int = 16
    """Sequences of an update, of similar length."""
    lr: float = 2e-3
    """Peak learning rate; for an adapter of a large model, a tenth of this or less."""


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """Results of a warm start."""

    curve: tuple[float, ...]
    """Loss before every update, in nats per token."""
    examples: int
    epochs: float
    """Mean number of times that an example was used."""
    tokens: int
    """Tokens read, without padding."""
    cpu_s: float
    wall_s: float

    @property
    def first(self) -> float:
        """Return the mean loss of the first tenth of the updates, in nats per token."""
        return self._mean(slice(None, max(1, len(self.curve) // 10)))

    @property
    def last(self) -> float:
        """Return the mean loss of the last tenth of the updates, in nats per token."""
        return self._mean(slice(-max(1, len(self.curve) // 10), None))

    def _mean(self, part: slice) -> float:
        values = self.curve[part]
        return sum(values) / len(values)


class Imitation:
    """The updates of a warm start, made one by one, so that they can be saved and continued in between."""

    def __init__(
        self,
        model: Any,
        examples: Sequence[PackedSequence],
        settings: WarmStart | None = None,
        *,
        role: str = "",
        parameters: Mapping[str, nn.Parameter] | None = None,
        seed: int = 0,
        budget: int = LearnerSettings.budget,
    ) -> None:
        """Prepare the updates; the seed is that of the order of the examples, the budget that of a micro-batch.

        Raises:
            CannotLearn: There are no examples.
        """
        self.settings, self.examples = settings or WarmStart(), examples
        if not examples:
            raise CannotLearn(
                "no trajectory passed the filters, so there are no examples to imitate. Loosen the filters of Examples "
                "(warmstart.examples of a run), such as max_turns."
            )
        parameters = parameters or parameters_of(model, role)
        self._learner = Learner(
            model, parameters, _to_learner_settings(self.settings, budget), role=role, weight_decay=0.01
        )
        self._batches = iterate_batches(examples, self.settings.batch, random.Random(seed))
        self.curve: list[float] = []
        """Loss before every update so far, in nats per token."""
        self._tokens, self._cpu_s, self._wall_s = 0, 0.0, 0.0

    @property
    def is_done(self) -> bool:
        """Return whether all updates were made."""
        return len(self.curve) >= self.settings.updates

    def update(self) -> None:
        """Make the next update."""
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = self._learner.step(next(self._batches), LossSettings(kind="imitation"))
        self.curve.append(metrics["loss"])
        self._tokens += int(metrics["tokens"])
        self._cpu_s += time.process_time() - cpu
        self._wall_s += time.perf_counter() - wall

    def report(self) -> WarmStartReport:
        """Return the loss curve so far with counts and times."""
        used = len(self.curve) * min(self.settings.batch, len(self.examples))
        return WarmStartReport(
            tuple(self.curve),
            len(self.examples),
            used / len(self.examples),
            self._tokens,
            self._cpu_s,
            self._wall_s,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact continuation needs besides the parameters and the examples."""
        return {
            "learner": self._learner.state_dict(),
            "curve": self.curve,
            "spent": [self._tokens, self._cpu_s, self._wall_s],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue new updates of the same examples from a state that `state_dict` returned."""
        self._learner.load_state_dict(state["learner"])
        self.curve = [*state["curve"]]
        self._tokens, self._cpu_s, self._wall_s = state["spent"]
        for _ in self.curve:  # their order depends on the seed and the lengths alone
            next(self._batches)

    def write_state(self) -> dict[str, Any]:
        """Return the examples and the state of the updates, to be saved."""
        return {"examples": [asdict(example) for example in self.examples], "updates": self.state_dict()}

    @classmethod
    def restore(cls, state: Mapping[str, Any], model: Any, settings: WarmStart, **how: Any) -> "Imitation":
        """Return the updates where they were when `write_state` was called; the model has its weights of then."""
        imitation = cls(model, [PackedSequence(**fields) for fields in state["examples"]], settings, **how)
        imitation.load_state_dict(state["updates"])
        return imitation


class WarmStartProgress:
    """Tells how far a warm start is: after every tenth of its updates, and at least every `EVERY_S` seconds."""

    def __init__(self, imitation: Imitation, tell: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._imitation, self._tell, self._every_s = imitation, tell, every_s
        self._first, self._start = len(imitation.curve), time.monotonic()
        self._last = self._start

    def __call__(self) -> None:
        """Tell the number of the last update, its loss and the time left, if it is time to."""
        curve, updates, now = self._imitation.curve, self._imitation.settings.updates, time.monotonic()
        number = len(curve)
        if number % max(1, updates // 10) and now - self._last < self._every_s:
            return
        self._last = now
        left = (now - self._start) / max(1, number - self._first) * (updates - number)
        self._tell(
            f"warm start: update {number} of {updates}, loss {curve[-1]:.3f}, {left // 60:.0f}:{left % 60:02.0f} left"
        )


def make_updates(
    imitation: Imitation, tell: Callable[[str], None], goes_on: Callable[[Imitation], bool] = lambda _: True
) -> bool:
    """Make the updates that are left, as long as they are to go on; return whether all were made."""
    progress = WarmStartProgress(imitation, tell)
    while not imitation.is_done:
        if not goes_on(imitation):
            return False
        imitation.update()
        progress()
    return True


def _to_learner_settings(settings: WarmStart, budget: int) -> LearnerSettings:
    return LearnerSettings(
        lr=settings.lr,
        warmup=5,
        decay=settings.updates,
        budget=budget,
    )


def iterate_batches(
    parts: Sequence[PackedSequence], size: int, chance: random.Random
) -> Iterator[list[PackedSequence]]:
    """Yield batches of sequences of similar length, without end. Each epoch uses every sequence once.

    Sequences are sorted by length within pools of POOL random batches. This keeps padding low while
    batches still vary between epochs.
    """
    while True:
        order = chance.sample(list(parts), len(parts))
        batches = []
        for start in range(0, len(order), POOL * size):
            pool = sorted(order[start : start + POOL * size], key=len)
            batches += [pool[at : at + size] for at in range(0, len(pool), size)]
        # shuffled again: within a pool, the batches are in order of length
        yield from chance.sample(batches, len(batches))
