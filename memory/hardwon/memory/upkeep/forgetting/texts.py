"""Texts and words of rows that are about to be forgotten, extracted even from damaged rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unicodedata import normalize

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.items import item_of
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.upkeep.damage import UNREADABLE

_TOKEN = re.compile(r"\w+")
_INVISIBLE = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0001\U000e0020-\U000e007f]"
)
"""Characters of the category Cf, which a reader does not see."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}


def parse_ids(listed: str) -> list[int]:
    """Return the ids in a stored list; empty if the row is damaged."""
    try:
        return [int(number) for number in json.loads(listed)]
    except (ValueError, TypeError):
        return []


def parse_item(record: str) -> Item | None:
    """Return the item of a row, or None if the row is damaged."""
    try:
        return item_of(record)
    except (*UNREADABLE, LibraryDamaged):
        return None


def build_text_matcher(text: str) -> Callable[..., int]:
    """Return an SQL function that tests whether one of its arguments contains a text.

    Case, the form of letters, the kind of white space, and invisible characters make no difference.
    """
    # a text of invisible characters alone would be in every other text
    fold = _fold if _fold(text).strip() else str.casefold
    word = max(_TOKEN.findall(fold(text)), key=len, default="")
    # Also match the text as it is escaped inside JSON columns.
    wanted = {fold(form) for form in (text, *(json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (True, False)))}

    def has_text(*columns: object) -> int:
        # SQLite cannot pass invalid UTF-8 as text, so the queries cast text columns to BLOB.
        decoded = (column.decode(errors="replace") if isinstance(column, bytes) else column for column in columns)
        likely = (column for column in decoded if isinstance(column, str) and _may_have(column, word))
        texts = (fold(form) for column in likely for form in _list_readings(column))
        return int(any(form in text for text in texts for form in wanted))

    return has_text


def _may_have(text: str, word: str) -> bool:
    """Return whether a text may contain a folded word; a cheap test that excludes most texts of plain English."""
    return not text.isascii() or "\\u" in text or word in text.casefold()


def _fold(text: str) -> str:
    """Return a text for comparison: one form of each letter, lower case, single spaces, no invisible characters."""
    if not text.isascii():
        text = normalize("NFKC", normalize("NFKC", _INVISIBLE.sub("", text)).casefold())
    text = text.casefold()
    words = " ".join(text.split())
    # spaces at the ends of a text stay
    return f"{' ' * text[:1].isspace()}{words}{' ' * text[-1:].isspace()}"


def _list_readings(text: str) -> Iterator[str]:
    """Yield a text and, if it has escapes as in a JSON column, the text without them."""
    yield text
    if "\\" in text:
        yield _ESCAPE.sub(_read_escape, text)


def _read_escape(escape: re.Match[str]) -> str:
    """Return the character of an escape of JSON."""
    return chr(int(escape[1][1:], 16)) if len(escape[1]) > 1 else _ESCAPED.get(escape[1], escape[1])


def extract_texts(record: Trajectory | Item) -> Iterator[str]:
    """Yield the texts in a record: observations, actions, notes and other content, without field names."""
    if isinstance(record, Item):
        yield from walk_strings([getattr(record, name) for name in _ITEM_FIELDS])
        return
    yield from walk_strings([record.task, record.ending, record.meta, record.arm])
    for step in record.steps:
        diagnosis = step.diagnosis
        yield from walk_strings(
            [step.action, diagnosis.evidence, diagnosis.diff, list(step.why.to_dict().values()), list(step.admissible)]
        )
        for state in (step.pre, step.post):
            yield from walk_strings([state.observation, state.facts, state.location, state.feedback, state.notes])


_ITEM_FIELDS = (
    *("title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "steps", "verify"),
    *("locations", "tags"),
)


def walk_strings(value: Any) -> Iterator[str]:
    """Yield all strings inside a value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from walk_strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from walk_strings(part)


def extract_tokens(texts: Iterable[str]) -> set[str]:
    """Return words and numbers that could identify a person. Short tokens are left out because they are everywhere."""
    tokens = {token for text in texts for token in _TOKEN.findall(text.casefold())}
    return {token for token in tokens if len(token) > 3 or (len(token) == 3 and token.isalpha())}
