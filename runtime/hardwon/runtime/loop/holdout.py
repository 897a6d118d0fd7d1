"""Trials: what is done by chance so that the library can tell what its knowledge is worth.

While an agent learns, an item that fits is now and then held back for a whole episode, whose outcome is
compared with those that were shown it; and what a guardrail forbids is now and then run all the same.
Chance comes from the episode's own name, so that the same seeds hold back the same.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hardwon.memory import Hit, Item, Recollection
from hardwon.memory.errors import UnknownName

WITHHOLD = 0.1
"""Chance that an item is held back for an episode."""
OVERRIDE = 0.02
"""Chance that what a guardrail forbids is run all the same: its precision is told by such tries."""


def is_withheld(episode: str, item_id: str) -> bool:
    """Whether the item is held back in the episode of this name: drawn once for the two."""
    return random.Random(f"{episode}:withhold:{item_id}").random() < WITHHOLD


def is_forced(episode: str, t: int, replans: int) -> bool:
    """Whether a forbidden action of step `t` is let through, after so many others were refused."""
    return random.Random(f"{episode}:{t}:{replans}:override").random() < OVERRIDE


def without(
    recollection: Recollection, held_back: Callable[[str], bool], get: Callable[[str], Item] | None = None
) -> tuple[Recollection, tuple[str, ...]]:
    """The recollection without the items held back, and their ids; a guardrail in force is always told.

    With `get`, which reads an item by its id, the items that hurt in this world have their trials too, the other way
    round: one that is drawn is shown, the others count as held back. So a world that changed is noticed.
    """
    recollection, masked = _with_tried(recollection, held_back, get) if get else (recollection, ())
    tried = recollection.masked
    in_force = {item.id for item in recollection.guardrails}
    fitting = [hit.what.id for hit in recollection.items if isinstance(hit.what, Item)]
    withheld = tuple(ref for ref in fitting if ref not in in_force and ref not in tried and held_back(ref))
    if not withheld:
        return recollection, masked
    shown = (hit for hit in recollection.items if not isinstance(hit.what, Item) or hit.what.id not in withheld)
    return replace(recollection, items=tuple(shown)), (*withheld, *masked)


def _with_tried(
    recollection: Recollection, drawn: Callable[[str], bool], get: Callable[[str], Item]
) -> tuple[Recollection, tuple[str, ...]]:
    """Return the recollection with those of the masked items that are drawn, and the ids of the others."""
    in_force = {item.id for item in recollection.guardrails}
    masked = [ref for ref in recollection.masked if ref not in in_force]
    tried = []
    for ref in filter(drawn, masked):
        with suppress(UnknownName):  # another process may have forgotten it just now
            tried.append(Hit(get(ref), 1.0, "shown by chance: it hurt in this world so far"))
    if not tried:
        return recollection, tuple(masked)
    left = tuple(ref for ref in masked if all(hit.what.id != ref for hit in tried))
    return replace(recollection, items=(*recollection.items, *tried)), left
