"""The gate: before an episode, whoever will act says of each item whether it wants it (Complementary RL).

It accepts, refines the words, or rejects; every answer is logged. An episode that rejected what it
was to be shown was shown nothing: it counts as control, not as a consumer, and the item is neither
blamed nor praised for it. The gate changes no item and learns nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, Protocol

from tacit.runtime.guidance import Guidance, Hint
from tacit.runtime.protocols import Context


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
    """Asks a gate, carries out what it answers, and logs it."""

    def __init__(self, gate: Gate, *, log: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """log: hears every answer; without it they are kept in `answers`."""
        self._gate = gate
        self.answers: list[Mapping[str, Any]] = []
        self._log = log or self.answers.append

    def passed(self, task: str, text: str, record: Record = (), *, item: str = "") -> str | None:
        """The text to be shown, as it is or refined; None where it was rejected."""
        judged = self._gate.judge(task, text, record)
        shown = {"accept": text, "refine": judged.text or text, "reject": None}[judged.answer]
        self._log(
            {"task": task, "item": item, "text": text, "answer": judged.answer, "shown": shown, "why": judged.why}
        )
        return shown


class GatedGuidance:
    """Guidance through a gate: what is rejected is not shown, and no item is named as shown."""

    def __init__(self, inner: Guidance, gated: Gated, task: str = "") -> None:
        self._inner, self._gated, self._task = inner, gated, task

    def propose(self, context: Context) -> Hint | None:
        """The hint as the gate lets it pass."""
        hint = self._inner.propose(context)
        if hint is None or not hint.text:
            return hint
        text = self._gated.passed(self._task, hint.text, item=", ".join(hint.item_ids))
        return None if text is None else replace(hint, text=text)
