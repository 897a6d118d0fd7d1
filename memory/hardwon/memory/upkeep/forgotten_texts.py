"""What rows say that are forgotten: their texts and words, also where a row is damaged."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.items import item_of
from hardwon.memory.records import Item, Trajectory

from .damage import UNREADABLE

_TOKEN = re.compile(r"\w+")


def whole_numbers(listed: str) -> list[int]:
    """Return the numbers of a stored list; none where its row is damaged."""
    try:
        return [int(number) for number in json.loads(listed)]
    except (ValueError, TypeError):
        return []


def readable_item(record: str) -> Item | None:
    """Return the item of a row; None where the row is damaged."""
    try:
        return item_of(record)
    except (*UNREADABLE, LibraryDamaged):
        return None


def speaking(text: str) -> Callable[..., int]:
    """Return the SQL function that says whether one of its arguments holds a text."""
    wanted = {text.casefold(), *(json.dumps(text, ensure_ascii=ascii)[1:-1].casefold() for ascii in (True, False))}

    def speaks(*columns: object) -> int:
        # text that is no UTF-8 cannot be handed over as text
        read = (column.decode(errors="replace") if isinstance(column, bytes) else column for column in columns)
        found = (column.casefold() for column in read if isinstance(column, str))
        return int(any(one in column for column in found for one in wanted))

    return speaks


def texts_of(record: Trajectory | Item) -> Iterator[str]:
    """Return the texts that a record holds: what was shown, done and said, without the names of its fields."""
    if isinstance(record, Item):
        yield from _strings([getattr(record, name) for name in _WORDS_OF_ITEM])
        return
    yield from _strings([record.task, record.ending, record.meta, record.arm])
    for step in record.steps:
        judged = step.diagnosis
        yield from _strings([step.action, judged.evidence, judged.diff, list(step.why.values()), list(step.admissible)])
        for state in (step.pre, step.post):
            yield from _strings([state.observation, state.facts, state.location, state.feedback, state.notes])


_WORDS_OF_ITEM = (
    *("title", "body", "when_to_use", "when_not_to_use", "condition", "forbids", "steps", "verify"),
    *("locations", "tags"),
)


def _strings(value: Any) -> Iterator[str]:
    """Return the texts within a value, the keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from _strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def tokens_in(texts: Iterable[str]) -> set[str]:
    """Words, and long numbers, that could tell of somebody; short ones are in every text."""
    found = {token for text in texts for token in _TOKEN.findall(text.casefold())}
    return {token for token in found if len(token) > 3 or (len(token) == 3 and token.isalpha())}
