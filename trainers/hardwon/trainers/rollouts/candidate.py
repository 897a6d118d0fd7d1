"""Guidance that shows a candidate beside what recall gives, as if it were in the library already."""

import asyncio
from dataclasses import replace

from hardwon.memory import Item
from hardwon.memory.learning.curator import says_the_same
from hardwon.memory.records import Hit
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint, replace_recollection
from hardwon.runtime.interfaces.types import Context

from .rollout import current_episode


class CandidateGuidance:
    """Shows the candidate of the episode's `Spec` after the recalled items, which all stay.

    The episode notes whether the candidate was shown, or is known: a recalled item says the same. It gets no credit as
    an item, because it is not in the library.
    """

    def __init__(self, inner: Guidance) -> None:
        self._inner = inner

    async def apropose(self, context: Context) -> Hint | None:
        """Return the inner guidance's hint for the recollection with the candidate."""
        episode = current_episode()
        candidate, recalled = episode.spec.candidate, context.recollection
        if candidate is None:
            return await apropose_hint(self._inner, context)
        items = (hit.what for hit in recalled.items)
        if any(isinstance(item, Item) and repeats(candidate, item) for item in items):
            episode.tried = episode.tried or "known"
            return await apropose_hint(self._inner, context)
        hits = (*recalled.items, Hit(candidate, 1.0, "it is on trial"))
        hint = await apropose_hint(self._inner, replace_recollection(context, replace(recalled, items=hits)))
        if hint is None or candidate.id not in hint.item_ids:
            return hint
        episode.tried = "shown"
        return replace(hint, item_ids=tuple(ref for ref in hint.item_ids if ref != candidate.id))

    def propose(self, context: Context) -> Hint | None:
        """Run `apropose` for a loop without asyncio."""
        return asyncio.run(self.apropose(context))


def repeats(candidate: Item, item: Item) -> bool:
    """Return whether a candidate says what an item says: the same words, or almost all of them."""
    return _read_words(candidate) == _read_words(item) or says_the_same(candidate, item)


def _read_words(item: Item) -> list[str]:
    """Return the words of an item that are shown, without case."""
    return f"{item.title} {item.body}".lower().split()
