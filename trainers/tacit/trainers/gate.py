"""The gate: before an episode, whoever will act says of each item whether it wants it (Complementary RL).

It accepts, refines the words, or rejects; every answer is logged. An episode that rejected what it
was to be shown was shown nothing: it counts as control, not as a consumer, and the item is neither
blamed nor praised for it. The gate changes no item and learns nothing.
"""

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, Protocol

from tacit.memory import Item
from tacit.memory.errors import UnknownName
from tacit.runtime.guidance import Guidance, Hint, recalling
from tacit.runtime.protocols import Context

REMEMBERED = 32
"""Newest differences of an item that are remembered."""
KNOWN = 20_000
"""Items whose record is remembered; the one that was used longest ago goes."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer, the refined text where there is one, and why."""

    answer: Literal["accept", "refine", "reject"]
    text: str = ""
    why: str = ""


Record = Sequence[float]
"""What a text was worth so far: the differences of the episodes that consumed it to their control siblings."""


class Gate(Protocol):
    """Judges texts before they are shown."""

    def judge(self, task: str, text: str, record: Record) -> Judgement:
        """What to do with a text on this task."""
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
    """Asks a gate, carries out what it answers, and logs it with what each item was worth so far."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._records: dict[str, list[float]] = {}
        self.answers: list[dict[str, Any]] = []
        """Every answer since the last `drained`."""

    def passed(self, task: str, text: str, *, item: str = "") -> str | None:
        """The text to be shown, as it is or refined; None where it was rejected. An item is its text unless named."""
        judged = self._gate.judge(task, text, self._records.get(item or text, ()))
        shown = {"accept": text, "refine": judged.text or text, "reject": None}[judged.answer]
        self.answers.append(
            {"task": task, "item": item, "text": text, "answer": judged.answer, "shown": shown, "why": judged.why}
        )
        return shown

    def learned(self, item: str, differences: Iterable[float]) -> None:
        """What it was worth in another group: the outcome of each consumer less the mean of its control siblings."""
        record = [*self._records.pop(item, ()), *differences][-REMEMBERED:]
        self._records[item] = record
        while len(self._records) > KNOWN:
            del self._records[next(iter(self._records))]

    def drained(self) -> list[dict[str, Any]]:
        """The answers since the last time, equal ones once with how many `times`."""
        times = Counter(tuple(answer.items()) for answer in self.answers)
        self.answers.clear()
        return [{**dict(answer), "times": number} for answer, number in times.items()]

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on exactly, as plain values."""
        return {"records": {item: list(record) for item, record in self._records.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._records = {item: list(record) for item, record in state["records"].items()}


class GatedGuidance:
    """Guidance of the items that a gate lets pass: what is rejected is not shown, and not named as shown."""

    def __init__(self, inner: Guidance, gated: Gated) -> None:
        self._inner, self._gated = inner, gated

    def propose(self, context: Context) -> Hint | None:
        """What the inner guidance makes of those; a refined item has the refined words."""
        kept = []
        for hit in context.recollection.items:
            if not isinstance(hit.what, Item):
                continue
            text = f"{hit.what.title} {hit.what.body}".strip()
            passed = self._gated.passed(context.state.task, text, item=hit.what.id)
            if passed == text:
                kept.append(hit)
            elif passed is not None:
                kept.append(replace(hit, what=replace(hit.what, title=passed, body="")))
        return self._inner.propose(recalling(context, replace(context.recollection, items=tuple(kept))))


def open_gate(kind: str, *, least: int, floor: float) -> Gated | None:
    """The gate of the settings: none, record, or MODULE:CLASS of one of your own."""
    if kind == "none":
        return None
    if kind == "record":
        return Gated(ByRecord(least=least, floor=floor))
    module, colon, name = kind.partition(":")
    try:
        if not colon:
            raise UnknownName.of("gate", kind, ["none", "record", "MODULE:CLASS"])
        return Gated(getattr(importlib.import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise UnknownName(
            f"gate.kind is {kind!r}: {error}. Name a module that can be imported and its class."
        ) from error
