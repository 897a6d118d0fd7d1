"""Guidance that shows the library's items alone, to measure what lessons by themselves are worth.

    arms: {control: 4, retrieved: 4, lessons: 4}
    guidance: {lessons: items}

Recall also knows every recorded step, and often says by counts what a lesson says in words. Without them, the arm
depends on what was written: by rules, or by the extractor.
"""

from dataclasses import replace

from hardwon.runtime.guidance.base import Hint, RetrievalGuidance, replace_recollection
from hardwon.runtime.interfaces.types import Context


class ItemGuidance:
    """Shows the recalled items and guardrails, without steps, counts and returns."""

    def __init__(self) -> None:
        self._inner = RetrievalGuidance()

    def propose(self, context: Context) -> Hint | None:
        """Return the items as a hint, or None if none was recalled."""
        items = replace(context.recollection, steps=(), estimates={}, outcomes={})
        return self._inner.propose(replace_recollection(context, items))
