"""Change values of a JSON text, so that every other byte stays as it came.

Parsing and writing a text again changes number forms, repeated keys, escapes and spaces.
"""

import json
import re
from typing import Any

TextSpan = tuple[int, int]
_SPACE = re.compile(r"[ \t\n\r]*")


def _read_integer(text: str) -> int | float:
    # Digits of the longest number that Python reads as an integer; the others become floats.
    return int(text) if len(text) < 4000 else float(text)


_DECODER = json.JSONDecoder(parse_int=_read_integer, strict=False)


def load(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is no JSON in UTF-8, or nested too deeply.
    """
    try:
        text = data.decode("utf-8", "surrogatepass").removeprefix("\ufeff").strip(" \t\n\r")
        value, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if end != len(text):
        raise ValueError("data follow the value")
    return value


class JsonObject:
    """The text of an object, and its value."""

    def __init__(self, text: str) -> None:
        """Read a text."""
        self.text = text
        self.value: dict[str, Any] = {}
        self.elements: dict[str, list[TextSpan]] = {}
        """Begin and end of the elements of every list."""
        self._spans: dict[str, TextSpan] = {}
        try:
            self._read()
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        except IndexError as error:
            raise ValueError("it ends too early") from error

    def _read(self) -> None:
        text, at = self.text, _skip(self.text, 0)
        self._expect("{", at)
        at = _skip(text, at + 1)
        while text[at] != "}":
            self._expect('"', at)
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, at)
            self._expect(":", at)
            start = _skip(text, at + 1)
            is_list = text[start] == "["
            self.value[name], at = self._read_list(name, start) if is_list else _DECODER.raw_decode(text, start)
            self._spans[name] = start, at
            at = self._skip_comma(at, "}")
        self._close = at
        if _skip(text, at + 1) != len(text):
            raise ValueError("data follow the object")

    def _read_list(self, name: str, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        spans: list[TextSpan] = []
        at = _skip(self.text, at + 1)
        while self.text[at] != "]":
            value, end = _DECODER.raw_decode(self.text, at)
            values.append(value)
            spans.append((at, end))
            at = self._skip_comma(end, "]")
        self.elements[name] = spans
        return values, at + 1

    def _skip_comma(self, at: int, close: str) -> int:
        at = _skip(self.text, at)
        if self.text[at] == close:
            return at
        self._expect(",", at)
        at = _skip(self.text, at + 1)
        if self.text[at] == close:
            raise ValueError("a comma stands before the end")
        return at

    def _expect(self, character: str, at: int) -> None:
        if self.text[at] != character:
            raise ValueError(f"{character} is expected at {at}")

    def encode(self, new: dict[str, Any]) -> bytes:
        """Return the text with the values of a changed copy, which shares with the value what is not changed."""
        return self._write(self.value, new).encode("utf-8", "surrogatepass")

    def _write(self, old: dict[str, Any], new: dict[str, Any]) -> str:
        """Return the text with the changes between two equal copies of its value."""
        edits = [
            edit for name, span in self._spans.items() if new[name] is not old[name]
            for edit in self._edit(name, span, old[name], new[name])
        ]  # fmt: skip
        added = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in new.items() if name not in old]
        if added:
            edits.append(((self._close, self._close), (", " if old else "") + ", ".join(added)))
        return _replace(self.text, edits)

    def _edit(self, name: str, span: TextSpan, old: Any, new: Any) -> list[tuple[TextSpan, str]]:
        if not (isinstance(old, list) and isinstance(new, list) and old and len(old) <= len(new)):
            return [(span, json.dumps(new))]
        spans = self.elements[name]
        end, edits, waiting = spans[-1][1], list[tuple[TextSpan, str]](), list(new)
        for at, (place, was) in enumerate(zip(spans, old, strict=True)):
            now = waiting.pop(0)
            # An element was inserted if the rest is longer, and the old one follows.
            while len(waiting) >= len(old) - at and now is not was and any(value is was for value in waiting):
                edits.append(((place[0], place[0]), f"{json.dumps(now)}, "))
                now = waiting.pop(0)
            if now is not was:
                edits.append((place, self._write_element(place, was, now)))
        return [*edits, *(((end, end), f", {json.dumps(value)}") for value in waiting)]

    def _write_element(self, span: TextSpan, old: Any, new: Any) -> str:
        if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
            return JsonObject(self.text[slice(*span)])._write(old, new)
        return json.dumps(new)


def _replace(text: str, edits: list[tuple[TextSpan, str]]) -> str:
    parts, at = [], 0
    for (start, end), part in sorted(edits, key=lambda edit: edit[0]):
        parts += [text[at:start], part]
        at = end
    return "".join([*parts, text[at:]])


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
