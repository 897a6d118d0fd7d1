"""Trials: what is done by chance so that the library can tell what its knowledge is worth.

While an agent learns, an item that fits is now and then held back for a whole episode, whose outcome is
compared with those that were shown it; and what a guardrail forbids is now and then run all the same.
Chance comes from the episode's own name, so that the same seeds hold back the same.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from hardwon.memory import Item, Recollection

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


def without(recollection: Recollection, held_back: Callable[[str], bool]) -> tuple[Recollection, tuple[str, ...]]:
    """The recollection without the items held back, and their ids; a guardrail in force is always told."""
    in_force = {item.id for item in recollection.guardrails}
    fitting = [hit.what.id for hit in recollection.items if isinstance(hit.what, Item)]
    withheld = tuple(ref for ref in fitting if ref not in in_force and held_back(ref))
    if not withheld:
        return recollection, ()
    shown = (hit for hit in recollection.items if not isinstance(hit.what, Item) or hit.what.id not in withheld)
    return replace(recollection, items=tuple(shown)), withheld
