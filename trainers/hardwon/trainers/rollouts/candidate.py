"""Guidance in an episode that tries a candidate: an item that recall ranks as if it were in the library already."""

import asyncio
from dataclasses import replace

from hardwon.memory import Item
from hardwon.memory.learning.curator import says_the_same
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint, replace_recollection
from hardwon.runtime.interfaces.types import Context

from .rollout import current_episode


class CandidateGuidance:
    """Shows what was recalled, and notes what became of the candidate of the episode's `Spec`; see `Tried`.

    `gating.other_worlds` recalls with the candidate. It gets no credit as an item, because it is not in the library.
    """

    def __init__(self, inner: Guidance) -> None:
        self._inner = inner

    async def apropose(self, context: Context) -> Hint | None:
        """Return the inner guidance's hint, without the candidate if a recalled item says the same."""
        episode = current_episode()
        candidate, recalled = episode.spec.candidate, context.recollection
        if candidate is None:
            return await apropose_hint(self._inner, context)
        library_hits = tuple(hit for hit in recalled.items if hit.what.id != candidate.id)
        if any(isinstance(hit.what, Item) and repeats(candidate, hit.what) for hit in library_hits):
            episode.tried = "shown" if episode.tried == "shown" else "known"
            return await apropose_hint(
                self._inner, replace_recollection(context, replace(recalled, items=library_hits))
            )
        hint = await apropose_hint(self._inner, context)
        if hint is None or candidate.id not in hint.item_ids:
            episode.tried = episode.tried or "missed"
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
