"""Refinements: keys that describe a step more closely than the keys that an estimate backs off to.

The other keys of a situation reduce an argument to its head noun and leave out the task, so that what was learned of
one drawer, or for one request, counts for the next. A refinement adds what these drop: the full names of the things,
the task, or all that the text shows. It counts as far as it has predicted later steps better; see `values.gains`.

    =name take left door | ...          the full names, in the state that the key before it describes
    =goal take left door | leave house  the task as well
"""

from functools import lru_cache

from .actions import fill, parse_action, pattern_of
from .phrases import HOLE, full_name

REFINED = "="
"""Prefix of the key of a refinement. Its kind follows, and then a space."""
FULL_NAME = "=name "
"""Prefix of a key with full names. It follows the key of all things of the kind."""


@lru_cache(maxsize=8192)
def name_in_full(action: str) -> str:
    """Return the action with each argument's full name, `take left door`; "" if that is no more than its pattern."""
    parsed = parse_action(action)
    pairs = zip(parsed.slots, parsed.heads, strict=True)
    names = tuple(head if HOLE.fullmatch(head) else full_name(slot) for slot, head in pairs)
    return fill(parsed.template, names) if names != parsed.heads else ""


def split_refinement(key: str) -> tuple[str, str]:
    """Return the kind of a refinement, "" for another key, and the rest of the key."""
    if not key.startswith(REFINED):
        return "", key
    kind, _, rest = key.partition(" ")
    return kind, rest


def names_all_things(key: str, action: str) -> bool:
    """Return whether a key is about all things that an action names: `put coat in rack`, but not `put {1} in rack`."""
    named = split_refinement(key)[1].partition(" | ")[0]
    return named in (pattern_of(action), name_in_full(action))
