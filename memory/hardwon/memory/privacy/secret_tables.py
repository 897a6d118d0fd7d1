"""Secrets in tables: the name stands in the header, above the values, or in the cell before, below `Key` and `Value`.

    user,password,role          | user | password |       Key         Value
    bob,hunter2,admin           |------|----------|       ---         -----
                                | bob  | hunter2  |       password    hunter2

Separators are tabs, bars, semicolons, commas and two spaces.
"""

import re
from typing import NamedTuple

from hardwon.memory.patterns import compile_late

from .secret_fields import kind_of
from .secret_forms import is_value
from .secret_phrases import is_strong

_CELL = compile_late(
    r"[\s\"']*+(?:[a-z0-9]{1,20}[_ -]){0,3}(?P<name>passw(?:or)?d|passphrase|passcode|pass|pwd"
    r"|secret(?:[_ ]?key)?|token|(?:api|access|auth|private)[_ ]?key)[\s\"']*+",
    re.I | re.A,
)
_ENDS = ("word", "swd", "pwd", "phrase", "pass", "secret", "token", "_key", " key")
_SIGNS = (*",;\t|\n", '"', "'", " |", "  ")
"""Ends of names, and what follows them in a table."""
_NAME = compile_late(r"(?:passw|phrase|passcode|pass|pwd|secret|token|key|value)", re.I | re.A)
_HEADING = compile_late(r"[\w\s.\"'-]{0,40}", re.A)
_RULE = compile_late(r"[-+=|:\s]*+")
_SEPARATORS = tuple(compile_late(sign) for sign in (r"\t", r"\|", ";", ",", r"\s{2,}"))
_WEAK = ("secret", "token")


class _Columns(NamedTuple):
    """The columns with secrets of a table."""

    separator: re.Pattern[str]
    width: int
    names: dict[int, str]
    pair: tuple[int, int] | None = None
    """The columns of names and of values, where each line has a name of its own."""


def redact_tables(text: str, lowered: str) -> str:
    """Return the text without the secrets that stand below their names."""
    ends = [end for end in _ENDS if end in lowered] if "\n" in text else ()
    if not any(end + sign in lowered for end in ends for sign in _SIGNS):
        return text
    lines, columns = text.split("\n"), None
    for at, line in enumerate(lines):
        is_pair = columns is not None and columns.pair is not None and columns.separator.search(line.strip())
        if not is_pair and _NAME.search(line) and (heading := _columns_of(line)):
            columns = heading
        elif columns and not _RULE.fullmatch(line):
            row = _redact_row(line, columns)
            columns = None if row is None else columns
            lines[at] = line if row is None else row
    return "\n".join(lines)


def _columns_of(line: str) -> _Columns | None:
    """Return the columns that a header names, or None if the line is none."""
    for separator in _SEPARATORS:
        cells = separator.split(line)
        if len(cells) > 1:
            pair = _find_pair([cell.strip(" \r\"'").lower() for cell in cells])
            if pair is not None:
                return _Columns(separator, len(cells), {}, pair)
            names = {at: match["name"] for at, cell in enumerate(cells) if (match := _CELL.fullmatch(cell))}
            if names and all(map(_HEADING.fullmatch, cells)):
                return _Columns(separator, len(cells), names)
    return None


def _find_pair(labels: list[str]) -> tuple[int, int] | None:
    """Return the columns of names and values of a table of settings; None if it is no such table."""
    named = [at for at, label in enumerate(labels) if label in ("key", "name", "field", "property", "setting")]
    return (named[0], labels.index("value")) if named and "value" in labels else None


def _redact_row(line: str, columns: _Columns) -> str | None:
    """Return a line of a table without its secrets, or None if it has other columns."""
    ends = [0, *(match.end() for match in columns.separator.finditer(line)), len(line)]
    cells = columns.separator.split(line)
    if len(cells) != columns.width:
        return None
    names = columns.names
    if columns.pair is not None:
        match = _CELL.fullmatch(cells[columns.pair[0]])
        names = {} if match is None else {columns.pair[1]: match["name"]}
    for at, name in sorted(names.items(), reverse=True):
        value = cells[at].strip(" \t\r\"'")
        is_secret = is_strong if name.lower() in _WEAK else is_value
        if len(value) >= 6 and "[redacted:" not in value and is_secret(value):
            start = line.index(value, ends[at])
            line = f"{line[:start]}[redacted:{kind_of(name)}]{line[start + len(value) :]}"
    return line
