"""Stage 1 of a role: it imitates right answers, one of two words or a lesson, before it learns from outcomes.

    stage = SupervisedStage(parts, "admission", decider, WarmStart(updates=64, batch=2, lr=5e-4))
    stage.learn(marked, tell)       # questions about explored episodes whose right answers are known
    await stage.describe()          # P(right) on the questions that were held out

A pretrained base answers the same whatever it reads. Stage 1 makes the answer depend on the text, in minutes. The
outcomes of episodes decide afterwards.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hardwon.trainers.algorithms.imitation import Imitation, WarmStart, WarmStartReport, make_updates
from hardwon.trainers.algorithms.samples import Ids, Sample, WordChoice, pack_samples
from hardwon.trainers.engines.base import Request
from hardwon.trainers.gating.deciding import Decider
from hardwon.trainers.models.adapters import copy_adapter, has_adapters

from .base import Parts
from .tuning import TUNING

POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Marked:
    """A question with its right answer."""

    prompt: Ids
    is_yes: bool | None
    """Which of two words is right; None if the answer is a text."""
    about: str
    """The subject. All questions about one subject are learned from, or all are held out."""
    answer: Ids = ()
    """The tokens of a text."""


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

    def __init__(self, parts: Parts, role: str, decider: Decider | None, learning: WarmStart | None) -> None:
        """Create the stage of a role, which answers with one of two words or, without a decider, with a text."""
        self._parts, self._role, self._decider, self.learning = parts, role, decider, learning
        self.teaches = learning is not None
        """Whether the role has a stage 1, in this process or before the run was resumed."""
        self.goes_on: Callable[[Imitation], bool] = lambda _: True
        """Asked before each update; False stops the stage."""
        self.begun: Mapping[str, Any] | None = None
        """The updates of an earlier process that was stopped in this stage; None if it begins."""
        self.is_stopped = False
        """Whether the stage was stopped before its last update."""
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
        if self.begun is None and has_adapters(model) and POLICY in model.peft_config:
            copy_adapter(model, POLICY, self._role)
        learned, held_out = split_marked(marked)
        balanced = balance(held_out, TUNING.measured, self._parts.seed) if self._decider is not None else []
        self._held_out = balanced or held_out[: TUNING.measured]
        if not learned or self.learning is None:
            return None
        yes = f", {sum(map(_is_yes, learned))} yes" if self._decider is not None else ""
        tell(f"{self._role}: {len(learned)} questions with known answers{yes}")
        rows = [self.build_example(each, f"lesson/{number}") for number, each in enumerate(learned)]
        return self.imitate(rows, tell)

    def imitate(self, rows: Sequence[Sample], tell: Callable[[str], None]) -> WarmStartReport:
        """Train the role to imitate samples, or go on where an earlier process was stopped."""
        assert self.learning is not None
        model, budget = self._parts.model, self._parts.config.learner.budget
        role = self._role if has_adapters(model) else ""
        if self.begun is not None:
            imitation = Imitation.restore(
                self.begun, model, self.learning, role=role, seed=self._parts.seed, budget=budget
            )
        else:
            examples = pack_samples(rows, {row.trace: [1.0] for row in rows})
            imitation = Imitation(model, examples, self.learning, role=role, seed=self._parts.seed, budget=budget)
        self.is_stopped = not make_updates(imitation, lambda line: tell(f"{self._role}: {line}"), self.goes_on)
        return imitation.report()

    def build_example(self, marked: Marked, name: str) -> Sample:
        """Return the right answer to a question as a sample to imitate."""
        if self._decider is None:
            n = len(marked.answer)
            fields = (self._role, 0, "", "", "", name, 0)
            return Sample(marked.prompt, marked.answer, (0.0,) * n, (True,) * n, (None,) * n, *fields)
        decision = WordChoice(marked.prompt, float(bool(marked.is_yes)), 0)
        return self._decider.build_word(decision, bool(marked.is_yes), name)

    async def measure(self) -> float:
        """Return the mean probability of the right answers to the held-out questions; of texts, how many are equal."""
        return fmean(await asyncio.gather(*map(self._grade, self._held_out)))

    async def _grade(self, marked: Marked) -> float:
        """Return the probability of the right word, or whether a text that is written greedily is the right one."""
        if self._decider is not None:
            p_yes = (await self._decider.ask(marked.prompt)).p_yes
            return p_yes if marked.is_yes else 1.0 - p_yes
        end = (self._parts.prompts.end,)
        request = Request(marked.prompt, self._role, max_tokens=len(marked.answer) + 1, temperature=0.0, stop=end)
        return float((await self._parts.engine.generate(request)).tokens == marked.answer)

    async def describe(self) -> str:
        """Return in words how often the role is right, or why this was not measured."""
        if self.learning is None:
            return ""
        if not self._held_out:
            return (
                f"WARNING: {self._role} was not measured: there are fewer than two explored situations whose right "
                f"answer is known. Explore more task instances, or set roles.{self._role}.settings.distil=0."
            )
        right = await self.measure()
        if self._decider is None:
            return (
                f"{self._role}: {right:.2f} of {len(self._held_out)} lessons that it did not learn from are its "
                "teacher's, word for word."
            )
        yes = sum(map(_is_yes, self._held_out))
        return (
            f"{self._role}: P(right) is {right:.2f} on {len(self._held_out)} questions that it did not learn from, "
            f"{yes} of which have the answer yes."
        )


def _is_yes(marked: Marked) -> bool:
    """Return whether the right answer is yes."""
    return bool(marked.is_yes)


def plan_stage(updates: int, batch: int, lr: float) -> WarmStart | None:
    """Return the updates of stage 1; None for 0 of them."""
    return WarmStart(updates=updates, batch=batch, lr=lr) if updates else None
