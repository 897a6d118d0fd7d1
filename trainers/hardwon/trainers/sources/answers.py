"""Sources by log-probabilities of the policy: of the true answer, and of the next action with a hidden observation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, Protocol, runtime_checkable

from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import compute_logprobs
from hardwon.trainers.algorithms.samples import Ids, PackedSequence, Rollout, Sample, pack_samples
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.models.adapters import activate

from .base import SourceParts, Untrained, list_turns
from .policy import measure_entropies


@runtime_checkable
class Answered(Protocol):
    """An environment whose tasks have a true answer."""

    def answer(self, task: str, seed: int) -> str:
        """Return the true answer of a task instance; empty if it has none."""
        ...


def measure_rows(parts: SourceParts, rows: Sequence[Sample]) -> list[float | None]:
    """Return the mean log-probability of the choices of each row under the current policy; None without a choice."""
    activate(parts.model, "policy")
    sequences: list[PackedSequence] = []
    for number, row in enumerate(rows):
        # a name of its own for each row: rows that extend each other would be merged
        trace = f"{number}"
        sequences += pack_samples([replace(row, trace=trace)], {trace: [1.0]})
    values = compute_logprobs(parts.model, sequences, budget=parts.budget, temperature=parts.temperature)
    return [fmean(own) if (own := value.tolist()) else None for value in values]


def list_last_rows(rollout: Rollout) -> list[Sample]:
    """Return the last sample of every turn of the policy, which is its action."""
    rows = {row.turn: row for row in rollout.rows if row.role == "policy"}
    return [rows[turn] for turn in list_turns(rollout)]


@PARTS.add("source", "Probability of the true answer", gives=("answer",), name="answer", method="igpo")
class AnswerSource(Untrained):
    """Probability of the true answer after every turn, by the policy.

    p_t = exp(mean log p(answer | prompt after turn t)), and p_0 before the first turn is the score (IGPO). The answer
    takes the place of the next action, as token ids. After the last turn there is no prompt, so nothing is known there.
    """

    def __init__(self, parts: SourceParts, *, of: Literal["world", "route"] = "world") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            of: world is the environment's own answer(task, seed), and route the actions of an explored success of the
                task instance; instances without one have no signal.
        """
        super().__init__(parts)
        self._of = of
        if of == "world" and not isinstance(parts.environment, Answered):
            raise ConfigError(
                f"the environment {getattr(parts.environment, 'name', '')} has no method answer(task, seed), so "
                "roles.policy.sources.answer has nothing to measure; set its `of` to route, which takes the actions of "
                "an explored success."
            )
        self.spent: dict[str, float] = {}
        self.rates: dict[str, float] = {}

    def _find_answer(self, rollout: Rollout) -> Ids:
        """Return the tokens of the answer of a rollout's task; empty if there is none."""
        if self._of == "world":
            environment: Any = self._parts.environment
            task, _, seed = rollout.group.rpartition("#")
            text = environment.answer(task, int(seed))
        else:
            best = self._parts.find_reference(rollout)
            steps = [] if best is None else without_circles([s for s in best.steps if s.action and s.diagnosis.success])
            text = " ".join(step.action for step in steps)
        return self._parts.prompts.text(text) if text else ()

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the probability of the answer after every turn."""
        rollouts = [rollout for group in groups for rollout in group]
        places: list[tuple[str, int]] = []
        rows: list[Sample] = []
        for rollout in rollouts:
            answer = self._find_answer(rollout)
            for number, row in enumerate(list_last_rows(rollout)):
                if answer:
                    n = len(answer)
                    fields = ("policy", row.version, row.arm, "", "", row.trace, row.turn)
                    places.append((rollout.trajectory.id, number))
                    rows.append(Sample(row.prompt, answer, (0.0,) * n, (True,) * n, (None,) * n, *fields))
        means = dict(zip(places, measure_rows(self._parts, rows), strict=True)) if rows else {}
        self.spent = {"tokens": float(sum(len(row.prompt) + len(row.completion) for row in rows))}
        signals = {rollout.trajectory.id: _to_probabilities(rollout, means) for rollout in rollouts}
        self.rates = {"still": _measure_still(signals.values())}
        return signals


def _measure_still(signals: Iterable[Signals]) -> float:
    """Return the share of turns that changed the probability of the answer by nothing; 0 without any known change."""
    gains = []
    for own in signals:
        pairs = pairwise((own.trace.get("answer"), *own.turns["answer"]))
        gains += [after - before for before, after in pairs if before is not None and after is not None]
    # A change of a probability below this counts as none.
    return sum(abs(gain) < 1e-9 for gain in gains) / max(1, len(gains))


def _to_probabilities(rollout: Rollout, means: Mapping[tuple[str, int], float | None]) -> Signals:
    """Return the probabilities before the first turn and after every turn."""
    name, number = rollout.trajectory.id, len(list_turns(rollout))
    values = [None if (mean := means.get((name, t))) is None else math.exp(mean) for t in range(number)]
    after = (*values[1:], None)
    return Signals({"answer": after}, {} if not values or values[0] is None else {"answer": values[0]})


@PARTS.add("source", "Confidence", gives=("confidence",), name="confidence", method="spae")
class ConfidenceSource(Untrained):
    """exp of minus the mean entropy of the next action's choices, by the policy.

    After the last turn nothing is known (SPAE). The authors sample probes of ten tokens; here the action that was taken
    next is the probe.
    """

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the confidence after every turn."""
        rollouts = [rollout for group in groups for rollout in group]
        measured = measure_entropies(self._parts, rollouts)
        signals = {}
        for rollout in rollouts:
            entropies = [measured.get((rollout.trajectory.id, turn)) for turn in list_turns(rollout)]
            after = [None if entropy is None else math.exp(-entropy) for entropy in entropies[1:]]
            signals[rollout.trajectory.id] = Signals({"confidence": (*after, None) if entropies else ()})
        return signals


@PARTS.add("source", "Use of observations", gives=("observation",), name="observation", method="infopo")
class ObservationSource(Untrained):
    """How much the observation after a turn changed the log-probability of the next action, by the policy.

    I_t = mean log p(next action | observation) - the same with the observation hidden (InfoPO). It is one
    teacher-forced sample of a divergence, and may be negative. The last turn has none, and neither has a turn without a
    choice after it.
    """

    def __init__(self, parts: SourceParts) -> None:
        super().__init__(parts)
        self._hidden = parts.prompts.hide()
        self.spent: dict[str, float] = {}

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return what the observation after every turn changed."""
        rollouts = [rollout for group in groups for rollout in group]
        places: list[tuple[str, int]] = []
        rows: list[Sample] = []
        for rollout in rollouts:
            for number, (before, after) in enumerate(pairwise(list_last_rows(rollout))):
                seen = before.prompt + before.completion
                if after.prompt[: len(seen)] == seen and any(after.mask):
                    places.append((rollout.trajectory.id, number))
                    rows += [after, replace(after, prompt=seen + self._hidden)]
        means = measure_rows(self._parts, rows) if rows else []
        gains = {
            key: None if open_ is None or hidden is None else open_ - hidden
            for key, open_, hidden in zip(places, means[::2], means[1::2], strict=True)
        }
        self.spent = {"tokens": float(sum(len(row.prompt) + len(row.completion) for row in rows))}
        return {
            rollout.trajectory.id: Signals(
                {"observation": tuple(gains.get((rollout.trajectory.id, t)) for t in range(len(list_turns(rollout))))}
            )
            for rollout in rollouts
        }
