r"""Regular expressions that are compiled at their first use, and tables of them in files.

    _URL = compile_late(r"https?://\S+")
    _TABLE = read_table(__file__, "secret_forms.toml")

The tables of secrets, outages, instructions and errors have hundreds. Most processes need few of them, and a hook of a
coding agent would spend a quarter of its time on compiling them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer", "pattern", "flags")


class _LatePattern:
    """Takes the place of a compiled pattern, whose methods it gets when one of them is needed."""

    def __init__(self, source: Any, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        compiled = re.compile(self._source, self._flags)
        # On the instance, where later calls find them as fast as those of a compiled pattern.
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def compile_late(source: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Return a pattern that is compiled at its first use; use its methods, not the functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LatePattern(source, flags))


def read_table(module: str, name: str) -> dict[str, Any]:
    """Return a table of patterns and words beside a module.

    It is TOML with one value on a line. `tomllib` takes several times as long, which every start of a command would
    pay.
    """
    table: dict[str, Any] = {}
    row, values = table, list[Any]()
    for line in Path(module).with_name(name).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(" = ")
        if line.lstrip().startswith("#"):
            continue
        if line.startswith("[["):
            table.setdefault(line.strip("[]"), []).append(row := {})
        elif line.startswith("["):
            row = table[line.strip("[]").strip('"')] = {}
        elif line.startswith("    "):
            values.append(_read_value(line.strip().removesuffix(",")))
        elif value == "[":
            row[key.strip('"')] = values = []
        elif value:
            row[key.strip('"')] = _read_value(value)
    return table


def _read_value(value: str) -> Any:
    quotes = 3 if value.startswith("'''") else 1 if value.startswith("'") else 0
    return value[quotes:-quotes] if quotes else json.loads(value)


def fill_parts(pattern: str, parts: Mapping[str, str]) -> str:
    """Return a pattern of a table with the parts in place of their names in braces."""
    for name, part in parts.items():
        pattern = pattern.replace(f"{{{name}}}", part)
    return pattern
