"""Retrieval with thresholds: recalled experience is shown only if it is similar enough and not known to hurt.

    Agent(..., guidance=GatedRetrieval(similarity=0.6, score=0.5))

No model is called. Every decision is recorded with the step, refusals included, so that you can compare the thresholds
with the outcomes of episodes. Active guardrails always pass, because they apply whether or not they are shown.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory import Hit, Item
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.types import Context

from .base import Guidance, Hint, RetrievalGuidance, apropose_hint, replace_recollection


class GatedRetrieval:
    """Filters recalled hits by similarity and score, and passes the rest to another guidance."""

    def __init__(self, inner: Guidance | None = None, *, similarity: float = 0.5, score: float = 0.5) -> None:
        """Create a filter.

        Args:
            inner: The guidance that writes the hint; by default a `RetrievalGuidance`.
            similarity: The minimum similarity of a hit, as measured by recall, in [0, 1].
            score: The minimum score of an item, in [0, 1]. At 0.5 episodes end equally well with and without the item,
                so a new item passes until its episodes end worse than others. Pinned items always pass.

        Raises:
            ConfigError: A threshold is outside [0, 1].
        """
        for name, value in (("similarity", similarity), ("score", score)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; choose a value in [0, 1].")
        self._inner, self._similarity, self._score = inner or RetrievalGuidance(), similarity, score

    def propose(self, context: Context) -> Hint | None:
        """Return the inner guidance's hint for the hits that pass; its `why` lists the decisions."""
        passed, decisions = self._filter(context)
        return _add_decisions(decisions, self._inner.propose(passed))

    async def apropose(self, context: Context) -> Hint | None:
        """Return the hint asynchronously; see `propose`."""
        passed, decisions = self._filter(context)
        return _add_decisions(decisions, await apropose_hint(self._inner, passed))

    def _filter(self, context: Context) -> tuple[Context, list[dict[str, Any]]]:
        recollection = context.recollection
        # By identity, because steps hold dictionaries and cannot be hashed.
        reasons = {id(hit): self._explain_refusal(hit) for hit in (*recollection.items, *recollection.steps)}
        kept = replace(
            recollection,
            items=tuple(hit for hit in recollection.items if not reasons[id(hit)]),
            steps=tuple(hit for hit in recollection.steps if not reasons[id(hit)]),
        )
        decisions = [_describe_decision(hit, reasons[id(hit)]) for hit in (*recollection.items, *recollection.steps)]
        return replace_recollection(context, kept), decisions

    def _explain_refusal(self, hit: Hit) -> str:
        """Return why a hit does not pass; empty if it does."""
        if isinstance(hit.what, Item) and hit.what.pinned:
            return ""
        if hit.similarity < self._similarity:
            return f"similarity {hit.similarity:.2f} is below {self._similarity:g}"
        if isinstance(hit.what, Item) and hit.what.score < self._score:
            return f"score {hit.what.score:.2f} is below {self._score:g}"
        return ""


def _describe_decision(hit: Hit, reason: str) -> dict[str, Any]:
    about: Mapping[str, Any] = {"item": hit.what.id} if isinstance(hit.what, Item) else {"step": hit.what.id}
    return {**about, "accepted": not reason, **({"because": reason} if reason else {})}


def _add_decisions(decisions: list[dict[str, Any]], hint: Hint | None) -> Hint | None:
    """Return the hint, or an empty one, with the decisions of the filter."""
    if not decisions:
        return hint
    hint = hint or Hint("")
    return replace(hint, why={**hint.why, "gate": decisions})
