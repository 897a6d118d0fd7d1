"""What an extractor may keep of an episode, and its decision about each: keep or skip.

    verdicts = await KeepOrSkip(engine, prompts).read(trajectory)

Each verdict is kept with its tokens, so that the measured effect of an item trains it.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hardwon.memory import Item, State, Step, Trajectory
from hardwon.memory.learning.skill_mining import find_preparation, without_circles
from hardwon.memory.records import Kind
from hardwon.runtime.guidance.lessons import render_lesson
from hardwon.trainers.algorithms.outcomes import name_outcome
from hardwon.trainers.algorithms.samples import Ids, Sample
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.prompting.base import PromptFormat, Query
from hardwon.trainers.prompting.compact import CompactFormat

from .tuning import TUNING

ROLE = "extractor"
"""Default role whose weights write."""
OUTCOMES = "success failure ."
"""Words for the outcome of an episode."""
GRADES = " ".join(["score reward -0", *map(str, range(-9, 100)), *(f"0{digit}" for digit in range(10))])
"""Words for a graded outcome, such as `score 0.75`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that an episode offers, with the state to judge it by."""

    text: str
    seen: State
    steps: tuple[int, ...] = ()
    """Ids of the supporting steps."""
    kind: Kind | None = None
    """Kind of the item; None for an insight after a success and a warning after a failure."""
    finding: str = ""
    """The text without the steps that led there, by which lessons with other paths are compared."""


@dataclass(frozen=True, slots=True)
class Written:
    """One sampled verdict about a candidate."""

    row: Sample
    item: Item
    """The candidate, whether it was kept or skipped."""
    keeps: float
    """Probability of keeping it."""
    is_kept: bool


def ways(trajectory: Trajectory) -> list[Candidate]:
    """Return the path without loops to each place that an episode reached: `kitchen : move east .`."""
    candidates: dict[str, Candidate] = {}
    steps = trajectory.steps
    for number, step in enumerate(steps, 1):
        place = step.post.location
        if place and place != steps[0].pre.location and place not in candidates:
            kept = without_circles(steps[:number])
            evidence = tuple(step.id for step in kept if step.id is not None)
            candidates[place] = Candidate(format_path(kept), step.post, evidence)
    return list(candidates.values())


def lessons(trajectory: Trajectory) -> list[Candidate]:
    """Return the lessons of an episode's decisive steps: those with a reward, and the first failure of each action.

    They are lines such as `put milk in fridge: rewarded`, for any environment; see `rendering.render_lesson`. A
    rewarded step comes with the steps that prepared it. Those with the largest rewards are kept.
    """
    candidates: dict[str, tuple[float, Candidate]] = {}
    for number, step in enumerate(trajectory.steps):
        finding = render_lesson(step)
        if not finding or finding in candidates:
            continue
        preparation = find_preparation(trajectory.steps[: number + 1]) if _kind_of(step) == "insight" else []
        text = render_lesson(step, preparation)
        evidence = tuple(each.id for each in (*preparation, step) if each.id is not None)
        candidates[finding] = abs(step.reward), Candidate(text, step.pre, evidence, _kind_of(step), finding)
    best = sorted(candidates.items(), key=lambda each: -each[1][0])[: TUNING.max_lessons]
    kept = {finding for finding, _ in best}
    return [each for finding, (_, each) in candidates.items() if finding in kept]


def _kind_of(step: Step) -> Kind:
    """Return the kind of lesson that a step teaches."""
    return "insight" if step.diagnosis.success and step.reward > 0 else "warning"


def offer(trajectory: Trajectory) -> list[Candidate]:
    """Return the paths to the places of an episode or, without places, its lessons."""
    return ways(trajectory) or lessons(trajectory)


def format_path(steps: Sequence[Step]) -> str:
    """Return steps as a text of places and actions."""
    return " ".join(f"{step.pre.location.lower()} : {step.action} ." for step in steps)


class KeepOrSkip:
    """Keeps or skips each candidate of an episode with one verdict."""

    def __init__(self, engine: Engine, prompts: PromptFormat, *, role: str = ROLE) -> None:
        """Create a writer on an engine, whose weights of `role` decide."""
        self._engine, self._prompts, self._role = engine, prompts, role
        self.candidates = offer if isinstance(prompts, CompactFormat) else lessons
        """Returns what an episode offers."""
        self._verdicts = prompts.verdicts("keep")

    async def read(self, trajectory: Trajectory, *, salt: str = "", greedy: bool = False) -> list[Written]:
        """Return one verdict per candidate, sampled concurrently."""
        return list(
            await asyncio.gather(
                *(
                    self._judge(candidate, trajectory, f"{salt}/{trajectory.id}/{n}", greedy)
                    for n, candidate in enumerate(self.candidates(trajectory))
                )
            )
        )

    async def _judge(self, candidate: Candidate, trajectory: Trajectory, name: str, greedy: bool) -> Written:
        """Return the decision about one candidate."""
        request = Request(
            self.ask(candidate, trajectory),
            self._role,
            self._verdicts.trie,
            temperature=0.0 if greedy else 1.0,
            chance=random.Random(name),
        )
        completion = await self._engine.generate(request)
        sampled, is_kept = math.exp(sum(completion.logprobs)), completion.tokens == self._verdicts.yes
        item = item_of(candidate.text, trajectory, candidate.steps, self._role, completion.version)
        if candidate.kind is not None:
            item = replace(item, kind=candidate.kind)
        return Written(_row(request, completion, name), item, sampled if is_kept else 1.0 - sampled, is_kept)

    def ask(self, candidate: Candidate, trajectory: Trajectory) -> Ids:
        """Return the tokens of the question about a candidate of an episode."""
        return self.prompt(candidate, name_outcome(trajectory, unknown="failure"))

    def prompt(self, candidate: Candidate, ended: str = "") -> Ids:
        """Return the tokens of the question: the task, the lesson, the outcome if it is given, and the place."""
        seen = candidate.seen
        sections = {"task": seen.task, "lesson": candidate.text}
        if ended:
            sections["outcome"] = ended
        sections |= {"observation": seen.observation, "location": seen.location}
        return self._prompts.query(Query("keep", sections))


def item_of(text: str, trajectory: Trajectory, evidence: tuple[int, ...], role: str, version: int) -> Item:
    """Return a text as an item: an insight after a success, a warning after a failure.

    A graded outcome of at least one half is nearer to a success.
    """
    first = trajectory.steps[0].pre
    return Item(
        "insight" if (trajectory.outcome or 0.0) >= 0.5 else "warning",
        text,
        when_to_use=first.task,
        signatures=(first.signature,),
        locations=(first.location,) if first.location else (),
        provenance=evidence,
        source="model",
        writer=f"{role}/{version}",
    )


def _row(request: Request, completion: Completion, name: str) -> Sample:
    """Return the sample of a completion, as a trace of its own."""
    fields = (request.role, completion.version, "", "", "", name, 0)
    return Sample(request.prompt, completion.tokens, completion.logprobs, completion.mask, completion.allowed, *fields)
