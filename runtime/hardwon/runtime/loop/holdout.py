"""Randomized trials that measure what the library's knowledge is worth.

While an agent learns, some fitting items are withheld for a whole episode, and its outcome is compared with that of
episodes that were shown them. Some forbidden actions run anyway. The random choices depend only on the episode's name,
so that the same seeds withhold the same items.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hardwon.memory import Hit, Item, Recollection
from hardwon.memory.errors import UnknownName

WITHHOLD = 0.1
"""Probability that a fitting item is withheld for an episode."""
OVERRIDE = 0.02
"""Probability that a forbidden action runs anyway; such runs measure the precision of guardrails."""


def is_withheld(episode: str, item_id: str) -> bool:
    """Return whether an item is withheld in an episode; the draw is fixed per episode and item."""
    # A string seeds with its SHA-512, so every process draws the same; `hash` would differ between them.
    return random.Random(f"{episode}:withhold:{item_id}").random() < WITHHOLD


def is_forced(episode: str, t: int, replans: int) -> bool:
    """Return whether the forbidden action of step `t` runs after `replans` refusals."""
    return random.Random(f"{episode}:{t}:{replans}:override").random() < OVERRIDE


def without(
    recollection: Recollection, is_held_back: Callable[[str], bool], get: Callable[[str], Item] | None = None
) -> tuple[Recollection, tuple[str, ...]]:
    """Remove withheld items from a recollection; active guardrails always stay.

    Args:
        recollection: The recalled experience.
        is_held_back: Tells whether an item, by its id, is withheld.
        get: Reads an item by its id. If given, items that are masked in this world because they hurt get trials too: a
            drawn item is shown and the others count as withheld. A world that changed is noticed this way.

    Returns:
        The recollection without the withheld items, and their ids.
    """
    recollection, masked = _add_tried(recollection, is_held_back, get) if get else (recollection, ())
    tried = recollection.masked
    in_force = {item.id for item in recollection.guardrails}
    fitting = [hit.what.id for hit in recollection.items if isinstance(hit.what, Item)]
    withheld = tuple(ref for ref in fitting if ref not in in_force and ref not in tried and is_held_back(ref))
    if not withheld:
        return recollection, masked
    kept = (hit for hit in recollection.items if not isinstance(hit.what, Item) or hit.what.id not in withheld)
    return replace(recollection, items=tuple(kept)), (*withheld, *masked)


def _add_tried(
    recollection: Recollection, is_drawn: Callable[[str], bool], get: Callable[[str], Item]
) -> tuple[Recollection, tuple[str, ...]]:
    """Return the recollection with the drawn ones of the masked items, and the ids of the other masked items."""
    in_force = {item.id for item in recollection.guardrails}
    masked = [ref for ref in recollection.masked if ref not in in_force]
    tried = []
    for ref in filter(is_drawn, masked):
        with suppress(UnknownName):  # another process may have deleted it just now
            tried.append(Hit(get(ref), 1.0, "shown by chance: it hurt in this world so far"))
    if not tried:
        return recollection, tuple(masked)
    left = tuple(ref for ref in masked if all(hit.what.id != ref for hit in tried))
    return replace(recollection, items=(*recollection.items, *tried)), left
