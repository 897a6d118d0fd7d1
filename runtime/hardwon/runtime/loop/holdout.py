"""Randomized trials that measure what the library's knowledge is worth.

While an agent learns, some fitting items are withheld for a whole episode, and its outcome is compared with that of
episodes that were shown them. In some runs of a user's own agent all advice is withheld, which measures whether the
library helps. Some forbidden actions run anyway. The random choices depend only on the episode's name, so that the same
seeds withhold the same items.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from hardwon.memory import Hit, Item, Recollection
from hardwon.memory.errors import UnknownName
from hardwon.memory.reasons import ADVICE

from .tuning import TUNING as TUNING


@dataclass(frozen=True, slots=True)
class DrawnItems:
    """The items that took part in the random trials of an episode."""

    withheld: tuple[str, ...] = ()
    """Ids of the items that were not shown."""
    masked: tuple[str, ...] = ()
    """Ids of the items that hurt in this world so far: withheld with probability 1 - `TUNING.withhold`."""
    advice: str | None = None
    """`shown` or `withheld` if the episode measures all advice together; see `Reasons.advice`."""

    def joined(self, withheld: Iterable[str], masked: Iterable[str]) -> "DrawnItems":
        """Return this with further items."""
        return DrawnItems(
            tuple(dict.fromkeys((*self.withheld, *withheld))), tuple(dict.fromkeys((*self.masked, *masked)))
        )


def is_withheld(episode: str, item_id: str) -> bool:
    """Return whether an item is withheld in an episode; the draw is fixed per episode and item."""
    # A string seeds with its SHA-512, so every process draws the same; `hash` would differ between them.
    return random.Random(f"{episode}:withhold:{item_id}").random() < TUNING.withhold


def is_forced(episode: str, t: int, replans: int) -> bool:
    """Return whether the forbidden action of step `t` runs after `replans` refusals."""
    return random.Random(f"{episode}:{t}:{replans}:override").random() < TUNING.override


def without_advice(recollection: Recollection, episode: str, *, is_measured: bool) -> tuple[Recollection, DrawnItems]:
    """Remove everything that would be shown if all advice is withheld in an episode, which measures each item, too.

    Without a measurement, advice that does harm is withheld always.
    """
    is_off = ADVICE in recollection.masked
    if is_off:
        recollection = replace(recollection, masked=tuple(ref for ref in recollection.masked if ref != ADVICE))
    if not (recollection.items or recollection.steps):
        return recollection, DrawnItems()
    masked = (ADVICE,) if is_off and is_measured else ()
    is_drawn = is_measured and is_withheld(episode, ADVICE)
    if is_drawn == is_off:
        return recollection, DrawnItems(masked=masked, advice="shown" if is_measured else None)
    if not is_measured:
        return Recollection(), DrawnItems()
    return Recollection(), DrawnItems(_list_fitting(recollection), masked, "withheld")


def _list_fitting(recollection: Recollection) -> tuple[str, ...]:
    """Return the ids of the items that would be shown; active guardrails are in force in any case."""
    in_force = {*recollection.masked, *(item.id for item in recollection.guardrails)}
    fitting = (hit.what.id for hit in recollection.items if isinstance(hit.what, Item))
    return tuple(ref for ref in fitting if ref not in in_force)


def without(
    recollection: Recollection,
    is_held_back: Callable[[str], bool],
    get: Callable[[str], Item] | None = None,
    *,
    is_whole: bool = False,
) -> tuple[Recollection, DrawnItems]:
    """Remove withheld items from a recollection; active guardrails always stay.

    Where all advice is measured together, no item is withheld besides, so that nine of ten episodes have all of it.
    """
    fitting = () if is_whole else _list_fitting(recollection)
    recollection, left, masked = _add_tried(recollection, is_held_back, get) if get else (recollection, (), ())
    withheld = tuple(filter(is_held_back, fitting))
    if not withheld:
        return recollection, DrawnItems(left, masked)
    kept = (hit for hit in recollection.items if not isinstance(hit.what, Item) or hit.what.id not in withheld)
    return replace(recollection, items=tuple(kept)), DrawnItems((*withheld, *left), masked)


def _add_tried(
    recollection: Recollection, is_drawn: Callable[[str], bool], get: Callable[[str], Item]
) -> tuple[Recollection, tuple[str, ...], tuple[str, ...]]:
    """Return the recollection with the drawn ones of the masked items, the ids of the others, and those of all."""
    in_force = {item.id for item in recollection.guardrails}
    masked = tuple(ref for ref in recollection.masked if ref not in in_force)
    tried = []
    for ref in filter(is_drawn, masked):
        with suppress(UnknownName):  # another process may have deleted it just now
            tried.append(Hit(get(ref), 1.0, "shown by chance: it hurt in this world so far"))
    if not tried:
        return recollection, masked, masked
    left = tuple(ref for ref in masked if all(hit.what.id != ref for hit in tried))
    return replace(recollection, items=(*recollection.items, *tried)), left, masked
