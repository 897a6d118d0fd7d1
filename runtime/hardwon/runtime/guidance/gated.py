"""Retrieval with a gate: what was recalled is said only if it is near enough and not known to harm.

    Agent(..., guidance=GatedRetrieval(similarity=0.6, score=0.5))

Two thresholds and no model. Every decision is kept with the step, refusals too, so that the thresholds
can be judged by how episodes ended. Guardrails in force pass: they hold whether they are said or not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory import Hit, Item
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.types import Context

from .base import Guidance, Hint, RetrievalGuidance, proposed, recalling


class GatedRetrieval:
    """Lets through what was recalled, hit by hit, and hands it to the guidance behind."""

    def __init__(self, inner: Guidance | None = None, *, similarity: float = 0.5, score: float = 0.5) -> None:
        """similarity: of the least near that passes, as recall measured it, in [0, 1].

        score: the least utility of an item that passes; 0.5 is as good as without it, so that one which is
        new passes until its episodes end worse than others. A pinned item passes always.
        """
        for name, value in (("similarity", similarity), ("score", score)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it lies in [0, 1].")
        self._inner, self._similarity, self._score = inner or RetrievalGuidance(), similarity, score

    def propose(self, context: Context) -> Hint | None:
        """What the guidance behind says of what passed; the decisions are in `why`."""
        passed, judged = self._judged(context)
        return _with(judged, self._inner.propose(passed))

    async def apropose(self, context: Context) -> Hint | None:
        """The same, awaited."""
        passed, judged = self._judged(context)
        return _with(judged, await proposed(self._inner, passed))

    def _judged(self, context: Context) -> tuple[Context, list[dict[str, Any]]]:
        recollection = context.recollection
        refused = {id(hit): self._refusal(hit) for hit in (*recollection.items, *recollection.steps)}
        kept = replace(
            recollection,
            items=tuple(hit for hit in recollection.items if not refused[id(hit)]),
            steps=tuple(hit for hit in recollection.steps if not refused[id(hit)]),
        )
        judged = [_told(hit, refused[id(hit)]) for hit in (*recollection.items, *recollection.steps)]
        return recalling(context, kept), judged

    def _refusal(self, hit: Hit) -> str:
        """Why a hit does not pass; empty when it does."""
        if isinstance(hit.what, Item) and hit.what.pinned:
            return ""
        if hit.similarity < self._similarity:
            return f"similarity {hit.similarity:.2f} is below {self._similarity:g}"
        if isinstance(hit.what, Item) and hit.what.score < self._score:
            return f"score {hit.what.score:.2f} is below {self._score:g}"
        return ""


def _told(hit: Hit, refused: str) -> dict[str, Any]:
    about: Mapping[str, Any] = {"item": hit.what.id} if isinstance(hit.what, Item) else {"step": hit.what.id}
    return {**about, "accepted": not refused, **({"because": refused} if refused else {})}


def _with(judged: list[dict[str, Any]], hint: Hint | None) -> Hint | None:
    """The hint, or the abstention, with the gate's decisions."""
    if not judged:
        return hint
    hint = hint or Hint("")
    return replace(hint, why={**hint.why, "gate": judged})
