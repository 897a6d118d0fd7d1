"""Texts and words of rows that are about to be forgotten, extracted even from damaged rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.items import item_of
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.upkeep.damage import UNREADABLE

_TOKEN = re.compile(r"\w+")


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
    """Return an SQL function that tests whether one of its arguments contains a text, ignoring case."""
    # Also match the text as it is escaped inside JSON columns.
    wanted = {text.casefold(), *(json.dumps(text, ensure_ascii=ascii)[1:-1].casefold() for ascii in (True, False))}

    def has_text(*columns: object) -> int:
        # SQLite cannot pass invalid UTF-8 as text, so the queries cast text columns to BLOB.
        decoded = (column.decode(errors="replace") if isinstance(column, bytes) else column for column in columns)
        texts = (column.casefold() for column in decoded if isinstance(column, str))
        return int(any(form in text for text in texts for form in wanted))

    return has_text


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
