"""Signature of an observation: a hash that is equal for situations that differ only in names and numbers.

The library's clusters, the conditions of guardrails and the trainer's anchor states use the same function. It hashes
the facts if the environment provides them, and the text otherwise. Ids, numbers, counts and the order of lists are
abstracted away; states of objects ("open", "closed") are kept.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

# possessive quantifiers (`*+`) do not backtrack, so a long run of letters takes linear time
_IDS = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # uuid
    r"|(?<![0-9a-z_])(?<![a-z_]-)\d*+[a-z_][a-z_-]{0,200}+\d[0-9a-z_-]*\b"  # letters, then digits: hathat1, ab12-9
    r"|\b[0-9a-f]{12,}\b"
    r"|\d+(?:[.,:]\d+)*"
)
HASH_DIGITS = 16
"""Digits of a computed signature."""
_COUNTS = re.compile(r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|several|some|an?|the)\b\s*")
_CLAUSE = re.compile(r"[.!?;:]\s+|\n")
_LISTING = re.compile(r" ?, ?(?:and )?| and ")
_LEAD = re.compile(rf"(.*)(?:{_COUNTS.pattern}|(?=# ))(.+)", re.DOTALL)
"""Splits a list from the words before it: `you see` | `a fork`, a spoon and a knife."""
_SPACE = re.compile(r"\s+")
_BLANKS = re.compile(r"[^\S\n]+")
_COMMON_STEM = re.compile(r"[^\w#<>{}\[\] -]+")


def signature(observation: str, facts: Mapping[str, Any] | None = None) -> str:
    """Return a hash of 16 hex digits that is equal for observations of the same form.

    >>> signature("You see drawer 3, which is closed.") == signature("You see drawer 7, which is closed.")
    True
    """
    shape = abstract_facts(facts) if facts else abstract(observation)
    # `replace`, because a lone surrogate from an environment has no UTF-8 form
    return hashlib.blake2b(shape.encode(errors="replace"), digest_size=HASH_DIGITS // 2).hexdigest()


@lru_cache(maxsize=4096)
def abstract(text: str) -> str:
    """Return the text without ids, numbers, counts and list order, as the signature hashes it."""
    lowered = text.lower()
    if (
        "  " in lowered or not lowered.replace("\n", "").isprintable()
    ):  # cheap test: all blanks but the space are not printable
        lowered = _BLANKS.sub(" ", lowered)
    lowered = _IDS.sub("#", lowered)
    clauses = [_abstract_clause(clause) for clause in _CLAUSE.split(lowered)]
    # a sorted set: environments reorder and repeat sentences between visits of one situation
    return "\n".join(sorted({clause for clause in clauses if clause}))


@lru_cache(maxsize=16384)
def _abstract_clause(clause: str) -> str:
    """Return one clause with its listed elements sorted and deduplicated."""
    parts = _LISTING.split(clause)
    if len(parts) > 1 and (lead := _LEAD.fullmatch(parts[0])):
        parts[0:1] = lead.groups()
    parts = [_SPACE.sub(" ", _COMMON_STEM.sub(" ", _COUNTS.sub("", part))).strip() for part in parts]
    return ", ".join(sorted({part for part in parts if part}))


def abstract_facts(facts: Mapping[str, Any]) -> str:
    """Return sorted predicates with bucketed values, one per line.

    {"coins": 17, "holding": ["drawer 3"]} becomes `coins=10+`, `holding={drawer #}`.
    """
    return "\n".join(f"{name}={_bucket(facts[name])}" for name in sorted(facts))


def _bucket(value: object) -> str:
    """Return the abstract form of one value of a fact."""
    # bool first: it is a subclass of int and would be bucketed as a number
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float):
        return _bucket_number(float(value))
    if isinstance(value, str):
        return abstract(value)
    if isinstance(value, Iterable):
        return "{" + ",".join(sorted({_bucket(element) for element in value})) + "}"
    return abstract(str(value))


def _bucket_number(value: float) -> str:
    """Return the bucket of a number: -, 0, 1, 2-9 or 10+."""
    if value <= 0:
        return "0" if value == 0 else "-"
    return "1" if value <= 1 else "2-9" if value < 10 else "10+"
