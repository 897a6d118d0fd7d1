"""The gate: decides for each item, before it is shown, whether to accept, refine or reject it (Complementary RL).

Every answer is logged. An episode whose items were all rejected counts as control: its outcome credits no
item. The gate changes no item and is not trained. The judge is the record of the items' effects (here), the
policy (`gate_policy`), or your own class.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, Protocol, runtime_checkable

from hardwon.memory import Item
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint, replace_recollection
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.trainers.rollouts.rollout import current_session

from .tuning import TUNING


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answer, the refined text if there is one, and the reason."""

    answer: Literal["accept", "refine", "reject"]
    text: str = ""
    why: str = ""
    usage: ModelUsage = field(default_factory=ModelUsage)
    """Tokens and calls spent on the judgement."""


Record = Sequence[float]
"""Differences in outcome between the episodes that were shown a text and their control siblings."""


class Gate(Protocol):
    """Protocol of a synchronous gate."""

    def judge(self, task: str, text: str, record: Record) -> Judgement:
        """Return what to do with a text on this task."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A text before it is shown, with what is recorded about it."""

    context: Context
    """The situation in which the text would be shown."""
    text: str
    record: Record = ()
    scores: Record = ()
    """Outcomes in [0, 1] of episodes of the same task without guidance."""


@runtime_checkable
class AwaitedGate(Protocol):
    """Protocol of a gate that calls a model."""

    async def ajudge(self, question: Question) -> Judgement:
        """Return what to do with the text."""
        ...


class ByRecord:
    """A gate that rejects harmful items: a mean difference below `floor` over at least `least` episodes."""

    def __init__(self, *, least: int = 4, floor: float = -0.1) -> None:
        self._least, self._floor = least, floor

    def judge(self, task: str, text: str, record: Record) -> Judgement:
        """Return accept, or reject with the figures as reason."""
        if len(record) < self._least or fmean(record) >= self._floor:
            return Judgement("accept")
        return Judgement("reject", why=f"success {fmean(record):+.2f} over {len(record)} episodes that were shown it")


class Gated:
    """Asks a gate, logs its answers, and keeps the records of each item's effect."""

    def __init__(self, gate: Gate | AwaitedGate) -> None:
        self._gate = gate
        self._records: dict[str, list[float]] = {}
        self._scores: dict[str, list[float]] = {}
        self._judged: dict[tuple[str, str], Judgement] = {}
        self.answers: list[dict[str, Any]] = []
        """Answers since the last `drain`."""
        self._of_session: dict[str, list[dict[str, Any]]] = {}

    async def ask(self, context: Context, text: str, *, item: str = "") -> Judgement:
        """Return the judgement of a text; its `text` is what to show, and is empty after a rejection.

        Within an episode, each item is judged once and the answer is reused.
        """
        task, key = context.state.task, (current_session(), item or text)
        if (cached := self._judged.get(key)) is not None:
            # its tokens were counted when the item was first judged
            return replace(cached, usage=ModelUsage())
        question = Question(context, text, self._records.get(item or text, ()), self._scores.get(task, ()))
        if isinstance(self._gate, AwaitedGate):
            answer = await self._gate.ajudge(question)
        else:
            answer = self._gate.judge(task, text, question.record)
        text_shown = {"accept": text, "refine": answer.text or text, "reject": None}[answer.answer]
        entry = {
            **{"task": task, "item": item, "text": text, "answer": answer.answer},
            **{"shown": text_shown, "why": answer.why},
        }
        self.answers.append(entry)
        self._of_session.setdefault(current_session(), []).append(entry)
        judged = replace(answer, text=text_shown or "")
        # outside of an episode the key has no session, so all callers would share one answer
        if current_session():
            self._judged[key] = judged
        return judged

    def take_answers(self, session: str) -> tuple[dict[str, Any], ...]:
        """Return the answers to an episode, to log them in another process."""
        return tuple(self._of_session.pop(session, ()))

    def record_differences(self, item: str, differences: Iterable[float]) -> None:
        """Record an item's effect: the outcome of each consumer minus the mean of its control siblings."""
        _remember(self._records, item, differences, TUNING.remembered_verdicts)

    def record_scores(self, task: str, outcomes: Iterable[float]) -> None:
        """Record the outcomes of episodes of a task without guidance."""
        _remember(self._scores, task, outcomes, TUNING.scored_episodes)

    def drain(self) -> list[dict[str, Any]]:
        """Return and clear the logged answers; equal answers appear once, with their number as `times`."""
        times = Counter(tuple(answer.items()) for answer in self.answers)
        self.answers.clear()
        self._judged.clear()
        self._of_session.clear()
        return [{**dict(answer), "times": number} for answer, number in times.items()]

    def state_dict(self) -> dict[str, Any]:
        """Return the records as plain values."""
        return {"records": _copy_lists(self._records), "scores": _copy_lists(self._scores)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the records that `state_dict` returned."""
        self._records, self._scores = _copy_lists(state["records"]), _copy_lists(state.get("scores", {}))


def _remember(records: dict[str, list[float]], key: str, values: Iterable[float], most: int) -> None:
    """Append values to a record, and drop the oldest values and records."""
    # pop and insert moves the key to the end, so the first key is the least recently updated
    records[key] = [*records.pop(key, ()), *values][-most:]
    while len(records) > TUNING.known_texts:
        del records[next(iter(records))]


def _copy_lists(records: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return a copy of the records."""
    return {key: list(values) for key, values in records.items()}


class GatedGuidance:
    """Guidance over the items that pass a gate. Rejected items do not count as shown."""

    def __init__(self, inner: Guidance, gated: Gated) -> None:
        self._inner, self._gated = inner, gated

    async def apropose(self, context: Context) -> Hint | None:
        """Return the inner guidance's hint for the accepted items, with the words of the refined ones."""
        kept, usage = [], ModelUsage()
        for hit in context.recollection.items:  # in sequence: an engine session serves one request at a time
            if not isinstance(hit.what, Item):
                continue
            text = f"{hit.what.title} {hit.what.body}".strip()
            judged = await self._gated.ask(context, text, item=hit.what.id)
            usage += judged.usage
            if judged.answer == "refine":
                kept.append(replace(hit, what=replace(hit.what, title=judged.text, body="")))
            elif judged.answer == "accept":
                kept.append(hit)
        recollection = replace(context.recollection, items=tuple(kept))
        hint = await apropose_hint(self._inner, replace_recollection(context, recollection))
        if not usage.calls:
            return hint
        return replace(hint or Hint(""), usage=(hint or Hint("")).usage + usage)

    def propose(self, context: Context) -> Hint | None:
        """Run `apropose` for a loop without asyncio."""
        return asyncio.run(self.apropose(context))
