"""Writers: how an extractor speaks. It chooses among texts that an episode offers, or says its own.

    written = await KeepOrSkip(engine, transcript, ways).read(trajectory, shown=())
    written = await Writes(engine, transcript).read(trajectory, shown)

What was said is kept as a row, token by token, so that what an item turns out to be worth can train
the very sequence that wrote it. A writer asks for operations (add, update, return); it admits
nothing: that is the library's. It learns nothing either.
"""

import asyncio
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hardwon.memory import Item, State, Step, Trajectory
from hardwon.memory.learning.extraction import MAX_OPERATIONS
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.memory.records import Add, Operation, Return, Update
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.rollouts.transcript import Transcript, compact

ROLE = "extractor"
"""The role whose weights write, unless told."""
WORDS = f"add update return : {' '.join(map(str, range(1, 10)))}"
"""What `Writes` says beside its texts; a word tokenizer must know it."""
OUTCOMES = "success failure ."
"""How an episode ended, where whoever writes is told."""
_OPERATION = re.compile(r"(add|update|return)\s*((?:\d+\s+)*)(?::\s*(.*))?")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that an episode offers, with the state that speaks for or against keeping it."""

    text: str
    seen: State
    steps: tuple[int, ...] = ()
    """Ids of the steps that are its evidence."""


@dataclass(frozen=True, slots=True)
class Written:
    """One sequence as it was sampled, and what it asks for."""

    row: Sample
    operations: tuple[Operation, ...]
    keeps: float = 1.0
    """Probability with which it keeps what it speaks of."""

    @property
    def items(self) -> tuple[Item, ...]:
        """What it wants to be kept."""
        return tuple(one.item for one in self.operations if not isinstance(one, Return))


class Writer(Protocol):
    """Reads an episode and says what is worth keeping, in sequences of its own."""

    async def read(
        self, trajectory: Trajectory, shown: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """What was said of it; `salt` tells this reading's chance from another's, and names its sequences."""
        ...


def ways(trajectory: Trajectory) -> list[Candidate]:
    """The way to each place that an episode came to, without its circles: `kitchen : move east .`"""
    found: dict[str, Candidate] = {}
    steps = trajectory.steps
    for number, step in enumerate(steps, 1):
        place = step.post.location
        if place and place != steps[0].pre.location and place not in found:
            kept = without_circles(steps[:number])
            evidence = tuple(one.id for one in kept if one.id is not None)
            found[place] = Candidate(format_path(kept), step.post, evidence)
    return list(found.values())


def format_path(steps: Sequence[Step]) -> str:
    """Steps as a text of places and what to do there."""
    return " ".join(f"{step.pre.location.lower()} : {step.action} ." for step in steps)


class KeepOrSkip:
    """One token for each candidate: keep it, or skip it."""

    def __init__(
        self,
        engine: Engine,
        transcript: Transcript,
        candidates: Callable[[Trajectory], Sequence[Candidate]] = ways,
        *,
        role: str = ROLE,
        outcome: bool = False,
    ) -> None:
        """outcome: it is told how the episode ended."""
        self._engine, self._transcript, self._candidates, self._role = engine, transcript, candidates, role
        self._outcome = outcome
        (self._keep,), (self._skip,) = (_ids(transcript, word) for word in ("<keep>", "<skip>"))
        self._either = Trie([(self._keep, transcript.end), (self._skip, transcript.end)])

    async def read(
        self, trajectory: Trajectory, shown: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """A sequence for each candidate; all at once. What was shown does not matter to it."""
        offered = self._candidates(trajectory)
        return list(
            await asyncio.gather(
                *(self._judge(one, trajectory, f"{salt}/{trajectory.id}/{n}", greedy) for n, one in enumerate(offered))
            )
        )

    async def _judge(self, candidate: Candidate, trajectory: Trajectory, name: str, greedy: bool) -> Written:
        ended = _ended(trajectory) if self._outcome else ""
        request = Request(
            self.prompt(candidate, ended),
            self._role,
            self._either,
            temperature=0.0 if greedy else 1.0,
            chance=random.Random(name),
        )
        said = await self._engine.generate(request)
        keeps = math.exp(said.logprobs[0])
        if said.tokens[0] == self._skip:
            return Written(_row(request, said, name), (Return(),), 1.0 - keeps)
        item = item_of(candidate.text, trajectory, candidate.steps, self._role, said.version)
        return Written(_row(request, said, name), (Add(item),), keeps)

    def prompt(self, candidate: Candidate, ended: str = "") -> Ids:
        """`<task> find coin . <memory> kitchen : move east . <see> hall . coin . <at> hall <item>`"""
        seen = candidate.seen
        text = f"<task> {compact(seen.task)} <memory> {candidate.text} {ended}<see> {compact(seen.observation)}"
        return _ids(self._transcript, f"{text} <at> {seen.location.lower()} <item>")


class Writes:
    """Says its own text: up to MAX_OPERATIONS of `<item> add : TEXT`, `<item> update 1 2 : TEXT`, `<item> return`.

    It may think aloud before the first of them.
    """

    def __init__(
        self,
        engine: Engine,
        transcript: Transcript,
        *,
        grammar: Callable[[Trajectory], Sequence[str] | None] = lambda _: None,
        reads: Callable[[Trajectory], str] | None = None,
        role: str = ROLE,
        max_tokens: int = 96,
    ) -> None:
        """grammar: the answers that an episode allows; None leaves all words free.

        reads: the words of the episode that are read; else its transcript, as the policy had it.
        """
        self._engine, self._transcript, self._grammar, self._reads = engine, transcript, grammar, reads
        self._role, self._max_tokens = role, max_tokens

    async def read(
        self, trajectory: Trajectory, shown: Sequence[Item] = (), *, salt: str = "", greedy: bool = False
    ) -> list[Written]:
        """One sequence."""
        name = f"{salt}/{trajectory.id}"
        request = Request(
            self.prompt(trajectory, shown),
            self._role,
            self._allowed(trajectory),
            max_tokens=self._max_tokens,
            temperature=0.0 if greedy else 1.0,
            stop=(self._transcript.end,),
            chance=random.Random(name),
        )
        said = await self._engine.generate(request)
        text = str(self._transcript.tokenizer.decode(said.tokens))
        writer = (self._role, said.version)
        return [Written(_row(request, said, name), tuple(parse_operations(text, trajectory, *writer)))]

    def prompt(self, trajectory: Trajectory, shown: Sequence[Item] = ()) -> Ids:
        """The items that were shown, then how the episode ended, then the episode."""
        items = "".join(f"<memory> {text_of(item)} " for item in shown)
        if self._reads is not None:
            return _ids(self._transcript, f"{items}{self._reads(trajectory)} <act>")
        last = trajectory.steps[-1]
        begun = _ids(self._transcript, f"{items}{_ended(trajectory)}")
        return begun + self._transcript.prompt(trajectory.steps, last.post, None)

    def lesson(self, trajectory: Trajectory, answer: str, name: str, shown: Sequence[Item] = ()) -> Sample:
        """What it should have said, as a row to imitate."""
        said = (*_ids(self._transcript, answer), self._transcript.end)
        n = len(said)
        return Sample(
            self.prompt(trajectory, shown),
            said,
            (0.0,) * n,
            (True,) * n,
            self._sets(trajectory, said),
            self._role,
            0,
            "",
            "",
            "",
            name,
            0,
        )

    def _allowed(self, trajectory: Trajectory) -> Trie | None:
        answers = self._grammar(trajectory)
        if answers is None:
            return None
        return Trie({(*_ids(self._transcript, answer), self._transcript.end) for answer in answers})

    def _sets(self, trajectory: Trajectory, said: Ids) -> tuple[Allowed, ...]:
        trie = self._allowed(trajectory)
        return tuple(None if trie is None else trie.allowed(said[:n]) for n in range(len(said)))


def parse_operations(text: str, trajectory: Trajectory, role: str = ROLE, version: int = 0) -> list[Operation]:
    """What was said, as operations; what cannot be understood returns. Indices are checked where they are applied.

    What comes before the first `<item>` was thought aloud and is not asked for.
    """
    _, *parts = (part.strip() for part in text.removesuffix("<end>").split("<item>"))
    operations = [_parse_operation(part, trajectory, role, version) for part in parts if part]
    return operations[:MAX_OPERATIONS] or [Return("nothing was said")]


def _parse_operation(part: str, trajectory: Trajectory, role: str, version: int) -> Operation:
    match = _OPERATION.fullmatch(part)
    name, numbers, text = match.groups() if match else ("", "", "")
    if name == "return":
        return Return(text or "")
    if not text or (name == "update") != bool(numbers):
        return Return(f"not understood: {part}")
    evidence = tuple(step.id for step in trajectory.steps if step.id is not None)
    item = item_of(text, trajectory, evidence, role, version)
    return Update(tuple(int(number) - 1 for number in numbers.split()), item) if numbers else Add(item)


def item_of(text: str, trajectory: Trajectory, evidence: tuple[int, ...], role: str, version: int) -> Item:
    """A text as an item, on the evidence of these steps: what a success teaches is insight, a failure's is warning."""
    first = trajectory.steps[0].pre
    return Item(
        "insight" if trajectory.success else "warning",
        text,
        when_to_use=first.task,
        signatures=(first.signature,),
        locations=(first.location,) if first.location else (),
        provenance=evidence,
        source="model",
        writer=f"{role}/{version}",
    )


def text_of(item: Item) -> str:
    """The words of an item that are shown."""
    return f"{item.title} {item.body}".strip()


def _ended(trajectory: Trajectory) -> str:
    return f"<see> {'success' if trajectory.success else 'failure'} . "


def _ids(transcript: Transcript, text: str) -> Ids:
    return tuple(transcript.tokenizer(text, add_special_tokens=False).input_ids)


def _row(request: Request, said: Completion, name: str) -> Sample:
    """The row of a sequence, which is a trace of its own."""
    known = (request.role, said.version, "", "", "", name, 0)
    return Sample(request.prompt, said.tokens, said.logprobs, said.mask, said.allowed, *known)
