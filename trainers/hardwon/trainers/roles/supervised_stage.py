"""Stage 1 of a role that answers with one of two words: it imitates right answers before it learns from outcomes.

    stage = SupervisedStage(parts, "extractor", prompts.verdicts("keep"), WarmStart(updates=64, batch=2, lr=5e-4))
    stage.learn(marked, tell)       # questions about explored episodes whose right answers are known
    await stage.describe()          # P(right) on the questions that were held out

A pretrained base answers the same whatever it reads. Stage 1 makes the answer depend on the text, in minutes. The
outcomes of episodes decide afterwards.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hardwon.trainers.algorithms.imitation import WarmStart, WarmStartReport, warm_start
from hardwon.trainers.algorithms.samples import Ids, Sample, pack_samples
from hardwon.trainers.engines.base import Request
from hardwon.trainers.models.adapters import copy_adapter, has_adapters
from hardwon.trainers.prompting.base import Verdicts

from .base import Parts
from .tuning import TUNING
from .verdicts import build_row

POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Marked:
    """A question with its right answer."""

    prompt: Ids
    is_yes: bool
    about: str
    """The subject. All questions about one subject are learned from, or all are held out."""


def split_marked(marked: Sequence[Marked]) -> tuple[list[Marked], list[Marked]]:
    """Return the questions to learn from, and those to measure.

    One of `TUNING.held_out` subjects is measured; of fewer, one; and none of a single one.
    """
    subjects = list(dict.fromkeys(each.about for each in marked))
    every = max(2, min(TUNING.held_out, len(subjects)))
    held_out = {subject for number, subject in enumerate(subjects) if number % every == every - 1}
    return [each for each in marked if each.about not in held_out], [each for each in marked if each.about in held_out]


def balance(marked: Sequence[Marked], most: int, seed: int) -> list[Marked]:
    """Return at most so many questions in random order, as many with the answer yes as with no."""
    chance = random.Random(seed)
    shuffled = chance.sample(list(marked), len(marked))
    sides = [[each for each in shuffled if each.is_yes is answer] for answer in (True, False)]
    n = min(most // 2, *map(len, sides))
    return [each for pair in zip(sides[0][:n], sides[1][:n], strict=True) for each in pair]


class SupervisedStage:
    """Teaches a role right answers, and measures what it has learned."""

    def __init__(self, parts: Parts, role: str, verdicts: Verdicts, learning: WarmStart | None) -> None:
        """Create the stage of a role."""
        self._parts, self._role, self._verdicts, self.learning = parts, role, verdicts, learning
        self.teaches = learning is not None
        """Whether the role has a stage 1, in this process or before the run was resumed."""
        self._is_over = False
        self._held_out: Sequence[Marked] = ()

    def skip(self) -> None:
        """Leave the weights as they are: stage 1 was finished before the run was resumed."""
        self._is_over, self.learning = True, None

    def learn(self, marked: Sequence[Marked], tell: Callable[[str], None]) -> WarmStartReport | None:
        """Imitate the right answers to most questions, and hold out the others; return None if nothing is learned.

        An adapter begins as the policy's is after its warm start, which has learned to read what is remembered: SmolLM2
        then tells recollections apart after 64 updates of 2, and from its own weights not after 40 updates of 8.
        """
        if self._is_over:
            return None
        model = self._parts.model
        if has_adapters(model) and POLICY in model.peft_config:
            copy_adapter(model, POLICY, self._role)
        learned, held_out = split_marked(marked)
        self._held_out = balance(held_out, TUNING.measured, self._parts.seed) or held_out[: TUNING.measured]
        if not learned or self.learning is None:
            return None
        tell(f"{self._role}: {len(learned)} questions with known answers, {sum(each.is_yes for each in learned)} yes")
        rows = [self.build_example(each, f"lesson/{number}") for number, each in enumerate(learned)]
        return imitate(self._parts, self._role, rows, self.learning, tell)

    def build_example(self, marked: Marked, name: str) -> Sample:
        """Return the right answer to a question as a sample to imitate."""
        word = self._verdicts.yes if marked.is_yes else self._verdicts.no
        return build_row(self._verdicts, word, 1.0, prompt=marked.prompt, role=self._role, version=0, trace=name)

    async def measure(self) -> float:
        """Return the mean probability of the right answers to the held-out questions."""
        requests = [Request(each.prompt, self._role, self._verdicts.trie, temperature=0.0) for each in self._held_out]
        answers = await asyncio.gather(*map(self._parts.engine.generate, requests))
        right = 0.0
        for answer, each in zip(answers, self._held_out, strict=True):
            probability = math.exp(sum(answer.logprobs))
            right += probability if (answer.tokens == self._verdicts.yes) == each.is_yes else 1.0 - probability
        return right / len(self._held_out)

    async def describe(self) -> str:
        """Return in words how often the role is right, or why this was not measured."""
        if self.learning is None:
            return ""
        if not self._held_out:
            return (
                f"WARNING: {self._role} was not measured: there are fewer than two explored situations whose right "
                f"answer is known. Explore more task instances, or set roles.{self._role}.settings.distil=0."
            )
        right, yes = await self.measure(), sum(each.is_yes for each in self._held_out)
        return (
            f"{self._role}: P(right) is {right:.2f} on {len(self._held_out)} questions that it did not learn from, "
            f"{yes} of which have the answer yes."
        )


@runtime_checkable
class SupervisedRole(Protocol):
    """A role that may have a stage 1 before it learns from outcomes."""

    @property
    def supervised(self) -> SupervisedStage:
        """Stage 1 of this role."""
        ...

    async def report_accuracy(self) -> str:
        """Return what stage 1 has reached, in words; empty if there is nothing to tell."""
        ...


def plan_stage(updates: int, batch: int, lr: float, seed: int) -> WarmStart | None:
    """Return the updates of stage 1; None for 0 of them."""
    return WarmStart(updates=updates, batch=batch, lr=lr, seed=seed) if updates else None


def imitate(
    parts: Parts, role: str, rows: Sequence[Sample], learning: WarmStart, tell: Callable[[str], None]
) -> WarmStartReport:
    """Train a role to imitate samples."""
    examples = pack_samples(rows, {row.trace: [1.0] for row in rows})
    adapter = role if has_adapters(parts.model) else ""
    return warm_start(parts.model, examples, learning, lambda line: tell(f"{role}: {line}"), role=adapter)
