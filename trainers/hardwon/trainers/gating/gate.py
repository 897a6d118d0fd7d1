"""The gate: before an episode, whoever will act says of each item whether it wants it (Complementary RL).

It accepts, refines the words, or rejects; every answer is logged. An episode that rejected what it
was to be shown was shown nothing: it counts as control, not as a consumer, and the item is neither
blamed nor praised for it. The gate changes no item and learns nothing. Who answers is a record of what
items were worth (here), the policy itself (`gate_policy`), or code of one's own.
"""

import asyncio
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, Protocol, runtime_checkable

from hardwon.memory import Item
from hardwon.memory.errors import UnknownName
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint, replace_recollection
from hardwon.runtime.interfaces.types import Context, Usage
from hardwon.trainers.config.schema import GateConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.rollouts.rollout import current_session
from hardwon.trainers.rollouts.transcript import Transcript

REMEMBERED = 32
"""Newest differences of an item that are remembered."""
SCORED = 128
"""Newest outcomes of a task that are remembered."""
KNOWN = 20_000
"""Items, and tasks, of which something is remembered; the one that was heard of longest ago goes."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer, the refined text where there is one, and why."""

    answer: Literal["accept", "refine", "reject"]
    text: str = ""
    why: str = ""
    usage: Usage = field(default_factory=Usage)
    """What it cost to ask."""


Record = Sequence[float]
"""What a text was worth so far: the differences of the episodes that consumed it to their control siblings."""


class Gate(Protocol):
    """Judges texts before they are shown."""

    def judge(self, task: str, text: str, record: Record) -> Judgement:
        """What to do with a text on this task."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A text before it is shown, and all that is known of it."""

    context: Context
    """The situation in which it would be: the task, and the episode so far."""
    text: str
    record: Record = ()
    scores: Record = ()
    """How episodes of the same task ended that were shown nothing, in [0, 1]."""


@runtime_checkable
class AwaitedGate(Protocol):
    """A gate that waits for a model."""

    async def ajudge(self, question: Question) -> Judgement:
        """What to do with the text."""
        ...


class ByRecord:
    """Rejects what did harm: a mean difference below `floor` over at least `least` episodes."""

    def __init__(self, *, least: int = 4, floor: float = -0.1) -> None:
        self._least, self._floor = least, floor

    def judge(self, task: str, text: str, record: Record) -> Judgement:
        """Accept, or reject with the figures."""
        if len(record) < self._least or fmean(record) >= self._floor:
            return Judgement("accept")
        return Judgement("reject", why=f"success {fmean(record):+.2f} over {len(record)} episodes that were shown it")


class Gated:
    """Asks a gate, logs what it answers, and remembers what each item was worth so far."""

    def __init__(self, gate: Gate | AwaitedGate) -> None:
        self._gate = gate
        self._records: dict[str, list[float]] = {}
        self._scores: dict[str, list[float]] = {}
        self._judged: dict[tuple[str, str], Judgement] = {}
        self.answers: list[dict[str, Any]] = []
        """Every answer since the last `drained`."""

    async def judged(self, context: Context, text: str, *, item: str = "") -> Judgement:
        """The answer, whose text is what is to be shown: as it is, or refined; empty where it was rejected.

        An item is its text unless named; in an episode it is asked about once, and what was said then stands.
        """
        task, asked = context.state.task, (current_session(), item or text)
        if (known := self._judged.get(asked)) is not None:
            return replace(known, usage=Usage())
        question = Question(context, text, self._records.get(item or text, ()), self._scores.get(task, ()))
        if isinstance(self._gate, AwaitedGate):
            said = await self._gate.ajudge(question)
        else:
            said = self._gate.judge(task, text, question.record)
        shown = {"accept": text, "refine": said.text or text, "reject": None}[said.answer]
        self.answers.append(
            {"task": task, "item": item, "text": text, "answer": said.answer, "shown": shown, "why": said.why}
        )
        judged = replace(said, text=shown or "")
        if current_session():
            self._judged[asked] = judged
        return judged

    def learned(self, item: str, differences: Iterable[float]) -> None:
        """What it was worth in another group: the outcome of each consumer less the mean of its control siblings."""
        _remember(self._records, item, differences, REMEMBERED)

    def scored(self, task: str, outcomes: Iterable[float]) -> None:
        """How more episodes of a task ended that were shown nothing."""
        _remember(self._scores, task, outcomes, SCORED)

    def drained(self) -> list[dict[str, Any]]:
        """The answers since the last time, equal ones once with how many `times`."""
        times = Counter(tuple(answer.items()) for answer in self.answers)
        self.answers.clear()
        self._judged.clear()
        return [{**dict(answer), "times": number} for answer, number in times.items()]

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on exactly, as plain values."""
        return {"records": _copied(self._records), "scores": _copied(self._scores)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._records, self._scores = _copied(state["records"]), _copied(state.get("scores", {}))


def _remember(known: dict[str, list[float]], key: str, values: Iterable[float], most: int) -> None:
    known[key] = [*known.pop(key, ()), *values][-most:]
    while len(known) > KNOWN:
        del known[next(iter(known))]


def _copied(known: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {key: list(values) for key, values in known.items()}


class GatedGuidance:
    """Guidance of the items that a gate lets pass: what is rejected is not shown, and not named as shown."""

    def __init__(self, inner: Guidance, gated: Gated) -> None:
        self._inner, self._gated = inner, gated

    async def apropose(self, context: Context) -> Hint | None:
        """What the inner guidance makes of those; a refined item has the refined words."""
        kept, spent = [], Usage()
        for hit in context.recollection.items:  # one after another: an engine's session asks for one thing at a time
            if not isinstance(hit.what, Item):
                continue
            text = f"{hit.what.title} {hit.what.body}".strip()
            judged = await self._gated.judged(context, text, item=hit.what.id)
            spent += judged.usage
            if judged.answer == "refine":
                kept.append(replace(hit, what=replace(hit.what, title=judged.text, body="")))
            elif judged.answer == "accept":
                kept.append(hit)
        left = replace(context.recollection, items=tuple(kept))
        hint = await apropose_hint(self._inner, replace_recollection(context, left))
        if not spent.calls:
            return hint
        return replace(hint or Hint(""), usage=(hint or Hint("")).usage + spent)

    def propose(self, context: Context) -> Hint | None:
        """The same, for a loop that does not await."""
        return asyncio.run(self.apropose(context))


def open_gate(config: GateConfig, engine: Engine, transcript: Transcript) -> Gated | None:
    """The gate of the settings: none, record, policy, or MODULE:CLASS of one of your own."""
    kind = config.kind
    if kind == "none":
        return None
    if kind == "record":
        return Gated(ByRecord(least=config.least, floor=config.floor))
    if kind == "policy":
        from .gate_policy import PolicyGate

        return Gated(PolicyGate(engine, transcript))
    module, colon, name = kind.partition(":")
    try:
        if not colon:
            raise UnknownName.of("gate", kind, ["none", "record", "policy", "MODULE:CLASS"])
        return Gated(getattr(importlib.import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise UnknownName(
            f"gate.kind is {kind!r}: {error}. Name a module that can be imported and its class."
        ) from error
