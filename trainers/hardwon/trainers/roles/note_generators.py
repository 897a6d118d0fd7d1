"""Writers of an extractor: choose among texts that an episode offers, or generate free text.

    written = await KeepOrSkip(engine, prompts, ways).read(trajectory, seen_items=())
    written = await Writes(engine, prompts).read(trajectory, shown)

Each sequence is kept with its tokens, so that the measured effect of an item trains the sequence that wrote it.
A writer only proposes operations (add, update, return); the library decides on admission.
"""

import asyncio
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hardwon.memory import Item, State, Step, Trajectory
from hardwon.memory.learning.extraction import MAX_OPERATIONS
from hardwon.memory.learning.skill_mining import find_preparation, without_circles
from hardwon.memory.records import Add, Kind, Operation, Return, Update
from hardwon.runtime.guidance.lessons import render_lesson
from hardwon.trainers.algorithms.outcomes import name_outcome
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.prompting.base import PromptFormat, Query
from hardwon.trainers.prompting.compact import CompactFormat

from .tuning import TUNING

ROLE = "extractor"
"""Default role whose weights write."""
WORDS = f"add update return : {' '.join(map(str, range(1, 10)))}"
"""Words that `Writes` adds to its texts; a word tokenizer must know them."""
OUTCOMES = "success failure ."
"""Words for the outcome of an episode."""
GRADES = " ".join(["score reward -0", *map(str, range(-9, 100)), *(f"0{digit}" for digit in range(10))])
"""Words for a graded outcome, such as `score 0.75`."""
_OPERATION = re.compile(r"(add|update|return)\s*((?:\d+\s+)*)(?::\s*(.*))?")


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
    """One sampled sequence and the operations that it proposes."""

    row: Sample
    operations: tuple[Operation, ...]
    keeps: float = 1.0
    """Probability of keeping the candidate."""
    offered: Item | None = None
    """The candidate of the verdict, whether it was kept or skipped; None for free text."""

    @property
    def items(self) -> tuple[Item, ...]:
        """Return the proposed items."""
        return tuple(operation.item for operation in self.operations if not isinstance(operation, Return))


class Writer(Protocol):
    """Protocol of a writer: reads an episode and proposes items."""

    async def read(
        self, trajectory: Trajectory, seen_items: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """Read an episode."""
        ...


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
    """A writer that keeps or skips each candidate with one verdict."""

    def __init__(
        self,
        engine: Engine,
        prompts: PromptFormat,
        candidates: Callable[[Trajectory], Sequence[Candidate]] | None = None,
        *,
        role: str = ROLE,
        outcome: bool = False,
    ) -> None:
        """Create a writer on an engine.

        Args:
            engine: Generates the tokens.
            prompts: Encodes the question.
            candidates: Returns the texts that an episode offers; by default `offer` with the compact format, and
                `lessons` otherwise.
            role: The engine's role whose weights write.
            outcome: Include the outcome of the episode in the prompt.
        """
        self._engine, self._prompts, self._role = engine, prompts, role
        self.candidates = candidates or (offer if isinstance(prompts, CompactFormat) else lessons)
        """Returns what an episode offers."""
        self._outcome = outcome
        self._verdicts = prompts.verdicts("keep")

    async def read(
        self, trajectory: Trajectory, seen_items: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """Return one sequence per candidate, sampled concurrently. The shown items are not used."""
        candidates = self.candidates(trajectory)
        return list(
            await asyncio.gather(
                *(
                    self._judge(candidate, trajectory, f"{salt}/{trajectory.id}/{n}", greedy)
                    for n, candidate in enumerate(candidates)
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
        keeps = math.exp(sum(completion.logprobs))
        item = item_of(candidate.text, trajectory, candidate.steps, self._role, completion.version)
        if candidate.kind is not None:
            item = replace(item, kind=candidate.kind)
        if completion.tokens == self._verdicts.no:
            return Written(_row(request, completion, name), (Return(),), 1.0 - keeps, item)
        return Written(_row(request, completion, name), (Add(item),), keeps, item)

    def ask(self, candidate: Candidate, trajectory: Trajectory) -> Ids:
        """Return the tokens of the question about a candidate of an episode."""
        return self.prompt(candidate, name_outcome(trajectory, unknown="failure") if self._outcome else "")

    def prompt(self, candidate: Candidate, ended: str = "") -> Ids:
        """Return the tokens of the question: the task, the lesson, the outcome if it is given, and the place."""
        seen = candidate.seen
        sections = {"task": seen.task, "lesson": candidate.text}
        if ended:
            sections["outcome"] = ended
        sections |= {"observation": seen.observation, "location": seen.location}
        return self._prompts.query(Query("keep", sections))


class Writes:
    """A writer of free text: up to MAX_OPERATIONS operations per episode.

    With the compact format, an operation is `<item> add : TEXT`, `<item> update 1 2 : TEXT` or `<item> return`; text
    before the first one is ignored, so the model can reason first. A chat model writes lines; see `parse_lines`.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptFormat,
        *,
        grammar: Callable[[Trajectory], Sequence[str] | None] = lambda _: None,
        reads: Callable[[Trajectory], str] | None = None,
        role: str = ROLE,
        max_tokens: int = 96,
    ) -> None:
        """Create a writer on an engine.

        Args:
            engine: Generates the tokens.
            prompts: Encodes the episode.
            grammar: Returns the answers that an episode allows; None allows any text.
            reads: Returns the text of an episode to read; default: its transcript.
            role: The engine's role whose weights write.
            max_tokens: Maximum number of tokens per episode.
        """
        self._engine, self._prompts, self._grammar, self._reads = engine, prompts, grammar, reads
        self._role, self._max_tokens = role, max_tokens

    async def read(
        self, trajectory: Trajectory, seen_items: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """Return the single sequence written about an episode."""
        name = f"{salt}/{trajectory.id}"
        request = Request(
            self.prompt(trajectory, seen_items),
            self._role,
            self._allowed(trajectory),
            max_tokens=self._max_tokens,
            temperature=0.0 if greedy else 1.0,
            stop=(self._prompts.end,),
            chance=random.Random(name),
        )
        completion = await self._engine.generate(request)
        writer = (self._role, completion.version)
        return [Written(_row(request, completion, name), tuple(self._parse(completion.tokens, trajectory, *writer)))]

    def _parse(self, tokens: Ids, trajectory: Trajectory, role: str, version: int) -> list[Operation]:
        """Return the operations in an answer."""
        if isinstance(self._prompts, CompactFormat):
            return parse_operations(str(self._prompts.tokenizer.decode(tokens)), trajectory, role, version)
        return parse_lines(self._prompts.read(tokens), trajectory, role, version)

    def prompt(self, trajectory: Trajectory, seen_items: Sequence[Item] = ()) -> Ids:
        """Return the tokens of the shown items, the outcome and the episode."""
        items = tuple(text_of(item) for item in seen_items)
        if self._reads is not None:
            return self._prompts.query(Query("write", {"recalled": items, "steps": self._reads(trajectory)}))
        # an unknown outcome is that of answers that are no actions, which is the model's own failure
        ended = name_outcome(trajectory, unknown="failure")
        sections: dict[str, str | tuple[str, ...]] = {"recalled": items, "outcome": ended}
        if not isinstance(self._prompts, CompactFormat):  # a compact episode begins with its task
            sections = {"task": trajectory.steps[0].pre.task, **sections}
        return self._prompts.query(Query("write", sections, trajectory))

    def lesson(self, trajectory: Trajectory, answer: str, name: str, seen_items: Sequence[Item] = ()) -> Sample:
        """Return an answer as a sample to imitate."""
        tokens = self._prompts.text(answer)
        n = len(tokens)
        return Sample(
            self.prompt(trajectory, seen_items),
            tokens,
            (0.0,) * n,
            (True,) * n,
            self._sets(trajectory, tokens),
            self._role,
            0,
            "",
            "",
            "",
            name,
            0,
        )

    def _allowed(self, trajectory: Trajectory) -> Trie | None:
        """Return the allowed answers as a trie, or None for free text."""
        answers = self._grammar(trajectory)
        if answers is None:
            return None
        return Trie({self._prompts.text(answer) for answer in answers})

    def _sets(self, trajectory: Trajectory, prefix: Ids) -> tuple[Allowed, ...]:
        """Return the allowed tokens at each position of an answer."""
        trie = self._allowed(trajectory)
        return tuple(None if trie is None else trie.allowed(prefix[:n]) for n in range(len(prefix)))


def parse_operations(text: str, trajectory: Trajectory, role: str = ROLE, version: int = 0) -> list[Operation]:
    """Return the operations in a text; a malformed one becomes `Return`.

    Text before the first `<item>` is ignored. The library checks item indices when it applies the operations.
    """
    _, *parts = (part.strip() for part in text.removesuffix("<end>").split("<item>"))
    operations = [_parse_operation(part, trajectory, role, version) for part in parts if part]
    return operations[:MAX_OPERATIONS] or [Return("the text was empty")]


_LINE = re.compile(r"(lesson|replace|nothing)\b\s*((?:\d+[\s,]*)*)(?::\s*(.*))?", re.IGNORECASE)
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+")


def parse_lines(text: str, trajectory: Trajectory, role: str = ROLE, version: int = 0) -> list[Operation]:
    """Return the operations in the lines of an answer; a line in another form becomes a `Return` with the reason.

    A line is `lesson: TEXT`, `replace 2: TEXT` with the numbers of shown lessons, or `nothing`.
    """
    _, _, answer = text.rpartition("</think>")
    lines = (_BULLET.sub("", line.strip()) for line in answer.splitlines())
    operations = [_parse_line(line, trajectory, role, version) for line in lines if line]
    return operations[:MAX_OPERATIONS] or [Return("the answer was empty")]


def _parse_line(line: str, trajectory: Trajectory, role: str, version: int) -> Operation:
    """Return one operation from its line."""
    match = _LINE.fullmatch(line)
    name, numbers, text = match.groups() if match else ("", "", "")
    if name.lower() == "nothing":
        return Return(text or "")
    if not text or (name.lower() == "replace") != bool(numbers):
        return Return(f"not in the form `lesson: TEXT`, `replace 2: TEXT` or `nothing`: {line}")
    item = item_of(text, trajectory, _find_evidence(trajectory), role, version)
    # the model counts the shown lessons from 1
    return Update(tuple(int(number) - 1 for number in re.findall(r"\d+", numbers)), item) if numbers else Add(item)


def _find_evidence(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the ids of all steps of an episode."""
    return tuple(step.id for step in trajectory.steps if step.id is not None)


def _parse_operation(part: str, trajectory: Trajectory, role: str, version: int) -> Operation:
    """Return one operation from its text."""
    match = _OPERATION.fullmatch(part)
    name, numbers, text = match.groups() if match else ("", "", "")
    if name == "return":
        return Return(text or "")
    if not text or (name == "update") != bool(numbers):
        return Return(f"malformed operation: {part}")
    item = item_of(text, trajectory, _find_evidence(trajectory), role, version)
    # the model counts the shown items from 1
    return Update(tuple(int(number) - 1 for number in numbers.split()), item) if numbers else Add(item)


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


def text_of(item: Item) -> str:
    """Return the words of an item that are shown."""
    return f"{item.title} {item.body}".strip()


def _row(request: Request, completion: Completion, name: str) -> Sample:
    """Return the sample of a completion, as a trace of its own."""
    fields = (request.role, completion.version, "", "", "", name, 0)
    return Sample(request.prompt, completion.tokens, completion.logprobs, completion.mask, completion.allowed, *fields)
