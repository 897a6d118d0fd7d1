"""The signature of an observation: the same for situations that differ only in names and numbers.

One function serves the library's clusters, the guardrails' conditions and the trainer's anchor
states. Facts are used where the environment gives them, the text otherwise. Ids, numbers, counts
and the order of listed things are abstracted away; states of things ("open", "closed") are not.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

_IDS = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # uuid
    r"|(?<![0-9a-z_])(?<![a-z_]-)\d*+[a-z_][a-z_-]*+\d[0-9a-z_-]*\b"  # letters, then digits: hathat1, ab12-9
    r"|\b[0-9a-f]{12,}\b"
    r"|\d+(?:[.,:]\d+)*"
)
_COUNTS = re.compile(r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|several|some|an?|the)\b\s*")
_CLAUSE = re.compile(r"[.!?;:]\s+|\n")
_LISTING = re.compile(r" ?, ?(?:and )?| and ")
_LEAD = re.compile(rf"(.*)(?:{_COUNTS.pattern}|(?=# ))(.+)", re.DOTALL)
"""What comes before the first thing listed: `you see` a fork, a spoon and a knife."""
_SPACE = re.compile(r"\s+")
_BLANKS = re.compile(r"[^\S\n]+")
_COMMON_STEM = re.compile(r"[^\w#<>{}\[\] -]+")


def signature(observation: str, facts: Mapping[str, Any] | None = None) -> str:
    """Sixteen hex digits that situations of the same shape share.

    signature("You see drawer 3, which is closed.") == signature("You see drawer 7, which is closed.")
    """
    shape = abstract_facts(facts) if facts else abstract(observation)
    return hashlib.blake2b(shape.encode(errors="replace"), digest_size=8).hexdigest()


@lru_cache(maxsize=4096)
def abstract(text: str) -> str:
    """The text with ids, numbers, counts and list order removed: what the signature hashes."""
    lowered = text.lower()
    if "  " in lowered or not lowered.replace("\n", "").isprintable():  # all other blanks are not printable
        lowered = _BLANKS.sub(" ", lowered)
    lowered = _IDS.sub("#", lowered)
    clauses = [_abstract_clause(clause) for clause in _CLAUSE.split(lowered)]
    return "\n".join(sorted({clause for clause in clauses if clause}))


@lru_cache(maxsize=16384)
def _abstract_clause(clause: str) -> str:
    parts = _LISTING.split(clause)
    if len(parts) > 1 and (lead := _LEAD.fullmatch(parts[0])):
        parts[0:1] = lead.groups()
    parts = [_SPACE.sub(" ", _COMMON_STEM.sub(" ", _COUNTS.sub("", part))).strip() for part in parts]
    return ", ".join(sorted({part for part in parts if part}))


def abstract_facts(facts: Mapping[str, Any]) -> str:
    """Sorted predicates with bucketed values: {"coins": 17, "holding": ["drawer 3"]} -> `coins=10+`..."""
    return "\n".join(f"{name}={_bucket(facts[name])}" for name in sorted(facts))


def _bucket(value: object) -> str:
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
    if value <= 0:
        return "0" if value == 0 else "-"
    return "1" if value <= 1 else "2-9" if value < 10 else "10+"
