"""The extractor's answer: one sentence that it writes after it has read a whole episode.

    lessons = await LessonWriter(engine, prompts).write(trajectory, samples=4)

It reads the task, every step with what it showed, the outcome, and the advice that the agent had. A sentence carries
its own condition, so the item is filed under nothing but its words.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hardwon.memory import Failure, Item, Step, Trajectory
from hardwon.memory.records import Kind
from hardwon.memory.trust.instructions import instruction_in
from hardwon.runtime.llm.prompts import clean
from hardwon.trainers.algorithms.outcomes import name_outcome
from hardwon.trainers.algorithms.samples import Ids, Sample
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.prompting.base import PromptFormat, Query

from .tuning import TUNING

ROLE = "extractor"
"""Default role whose weights write."""
OUTCOMES = "success failure ."
"""Words for the outcome of an episode."""
GRADES = " ".join(["score reward -0", *map(str, range(-9, 100)), *(f"0{digit}" for digit in range(10))])
"""Words for a graded outcome, such as `score 0.75`."""
MARKS = " ".join(["-> ( )", *(failure.value for failure in Failure)])
"""Words that a description of steps adds to those of the episode."""
MAX_TOKENS = 48
"""Default limit of a lesson."""


@dataclass(frozen=True, slots=True)
class Written:
    """One sampled lesson."""

    row: Sample
    item: Item | None
    """The lesson; None if the answer is none."""
    problem: str = ""
    """Why it is no lesson: empty, too long, control tokens, an instruction."""


class LessonWriter:
    """Writes lessons about episodes with the weights of a role."""

    def __init__(
        self, engine: Engine, prompts: PromptFormat, *, role: str = ROLE, max_tokens: int = MAX_TOKENS
    ) -> None:
        """Create a writer on an engine."""
        self._engine, self._prompts, self._role, self._max_tokens = engine, prompts, role, max_tokens

    async def write(
        self, trajectory: Trajectory, *, samples: int = 1, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """Return so many lessons about an episode, sampled concurrently."""
        names = [f"{salt}/{trajectory.id}/{number}" for number in range(samples)]
        return list(await asyncio.gather(*(self._sample(trajectory, name, greedy) for name in names)))

    async def _sample(self, trajectory: Trajectory, name: str, greedy: bool) -> Written:
        """Return one lesson."""
        request = Request(
            self.ask(trajectory),
            self._role,
            max_tokens=self._max_tokens,
            stop=(self._prompts.end,),
            temperature=0.0 if greedy else 1.0,
            chance=random.Random(name),
        )
        completion = await self._engine.generate(request)
        text = " ".join(self._prompts.read(completion.tokens).split()).rstrip(" .")
        problem = self._find_problem(text, completion.tokens)
        item = None if problem else build_item(text, trajectory, f"{self._role}/{completion.version}")
        return Written(_build_row(request, completion, name), item, problem)

    def ask(self, trajectory: Trajectory) -> Ids:
        """Return the tokens of the question about an episode."""
        steps = trajectory.steps[-TUNING.steps_read :]
        sections = {
            "task": steps[0].pre.task,
            "observation": clean(steps[0].pre.observation, TUNING.characters_read),
            "steps": [describe_step(step) for step in steps],
            "recalled": list(dict.fromkeys(step.why.memory for step in steps if step.why.memory)),
            "outcome": name_outcome(trajectory, unknown="failure"),
        }
        return self._prompts.query(Query("write", sections))

    def answer(self, text: str) -> Ids:
        """Return the tokens of a lesson as an answer."""
        return self._prompts.text(text)

    def _find_problem(self, text: str, tokens: Ids) -> str:
        """Return why an answer is no lesson; empty for one that is."""
        if not tokens or tokens[-1] != self._prompts.end:
            return "too long"
        if not any(map(str.isalnum, text)):
            return "empty"
        if {*tokens[:-1]} & {*self._prompts.tokenizer.added_tokens_decoder}:
            return "control tokens"
        return "an instruction" if instruction_in(text) else ""


def describe_step(step: Step) -> str:
    """Return a step with what it showed, such as `open door -> It is locked.`."""
    result = clean(step.post.feedback or step.post.observation, TUNING.characters_read)
    failed = "" if step.diagnosis.success else f" ({step.diagnosis.failure.value})"
    return f"{step.action} -> {' '.join(result.split())}{failed}"


def build_item(text: str, trajectory: Trajectory, writer: str) -> Item:
    """Return a lesson as an item: an insight after a success, a warning after a failure.

    A graded outcome of at least one half is nearer to a success.
    """
    kind: Kind = "insight" if (trajectory.outcome or 0.0) >= 0.5 else "warning"
    evidence: Sequence[int] = [step.id for step in trajectory.steps if step.id is not None]
    return Item(kind, text, provenance=tuple(evidence), source="model", writer=writer)


def _build_row(request: Request, completion: Completion, name: str) -> Sample:
    """Return the sample of a completion, as a trace of its own."""
    fields = (request.role, completion.version, "", "", "", name, 0)
    return Sample(request.prompt, completion.tokens, completion.logprobs, completion.mask, completion.allowed, *fields)
