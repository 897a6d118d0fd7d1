"""Keys with the full names of the things of an action, which tell the left door from the right one.

Other keys reduce an argument to its head noun, so that what was learned of one drawer counts for the next. A key with
full names refines the key of all things of their kind, and counts as far as they differ from these; see
`values.cells.weigh_name`.
"""

from .actions import fill, parse_action, pattern_of
from .phrases import HOLE, full_name

NAME_MARK = "= "
"""Prefix of a key with full names. It follows the key of all things of the kind."""


def name_in_full(action: str) -> str:
    """Return the action with each argument's full name, `take left door`; "" if that is no more than its pattern."""
    parsed = parse_action(action)
    pairs = zip(parsed.slots, parsed.heads, strict=True)
    names = tuple(head if HOLE.fullmatch(head) else full_name(slot) for slot, head in pairs)
    return fill(parsed.template, names) if names != parsed.heads else ""


def names_all_things(key: str, action: str) -> bool:
    """Return whether a key is about all things that an action names: `put coat in rack`, but not `put {1} in rack`."""
    return key.partition(" | ")[0] in (pattern_of(action), f"{NAME_MARK}{name_in_full(action)}")
