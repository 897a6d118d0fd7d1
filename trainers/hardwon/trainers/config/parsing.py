"""Settings as dataclasses: plain values in and out, every one documented, nothing guessed.

    settings = parse(RunConfig, {"iterations": 3}, "run")
    print(as_yaml(settings))

An unknown name is refused with the nearest one and its path, a value with its type. This file knows no
setting by name.
"""

import ast
import difflib
import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hardwon.memory.errors import ConfigError, UnknownName

T = TypeVar("T")


def parse(kind: type[T], given: Any, path: str = "") -> T:
    """A dataclass of a mapping, its types checked all the way down; raises ConfigError that names the path."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path or 'the settings'} is {given!r}; it is a section: {', '.join(_names(kind))}.")
    for name in given:
        if name not in _names(kind):
            raise ConfigError(f"{_joined(path, str(name))}: {nearest(str(name), _names(kind))}")
    for one in fields(kind):  # type: ignore[arg-type]
        if one.default is MISSING and one.default_factory is MISSING and one.name not in given:
            raise ConfigError(f"{_joined(path, one.name)} is missing. {documented(kind).get(one.name, '')}".rstrip())
    hints = get_type_hints(kind)
    values = {name: _value(hints[name], value, _joined(path, name)) for name, value in given.items()}
    try:
        return kind(**values)
    except (ConfigError, UnknownName) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _value(kind: Any, given: Any, path: str) -> Any:
    """`given` as a value of this type."""
    if isinstance(kind, type) and is_dataclass(kind):
        return parse(kind, given, path)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if given is None and NoneType in parts:
            return None
        (inner,) = [part for part in parts if part is not NoneType]
        return _value(inner, given, path)
    if origin is Literal:
        if given not in parts:
            raise ConfigError(f"{path} is {given!r}: {nearest(str(given), list(map(str, parts)))}")
        return given
    if origin is dict:
        if not isinstance(given, Mapping):
            raise ConfigError(f"{path} is {given!r}; it is a mapping of names to values.")
        return {str(name): _value(parts[1], value, _joined(path, str(name))) for name, value in given.items()}
    if origin is tuple:
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(parts):
            raise ConfigError(f"{path} is {given!r}; it is a list of {len(parts)}.")
        return tuple(
            _value(part, value, f"{path}[{n}]") for n, (part, value) in enumerate(zip(parts, given, strict=True))
        )
    return given if kind is Any else _plain(kind, given, path)


def _plain(kind: type, given: Any, path: str) -> Any:
    if kind is float and isinstance(given, str):  # YAML reads 1e-4, without a point, as text
        try:
            return float(given)
        except ValueError:
            pass
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, kind) or (kind is int and isinstance(given, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(f"{path} is {given!r}; it is {words.get(kind, kind.__name__)}.")
    return given


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nearest(name: str, known: Sequence[str]) -> str:
    """`did you mean lr? There are: lr, betas.`"""
    near = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"There are: {', '.join(known) or 'none'}."


# -- writing --------------------------------------------------------------------------------------


def as_dict(config: Any) -> dict[str, Any]:
    """The settings as plain values, all of them; `of` reads them back."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def as_yaml(config: Any) -> str:
    """The settings as YAML, every one under a comment that says what it is."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(section: Any, indent: str) -> list[str]:
    lines: list[str] = []
    said = documented(type(section))
    for one in fields(section):
        if one.name in said:
            lines += textwrap.wrap(said[one.name], 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        lines += _entry(one.name, getattr(section, one.name), indent)
    return lines


def _entry(name: str, value: Any, indent: str) -> list[str]:
    if is_dataclass(value):
        return [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
    if isinstance(value, Mapping) and any(map(is_dataclass, value.values())):
        inner = [line for key, part in value.items() for line in _entry(key, part, f"{indent}  ")]
        return [f"{indent}{name}:", *inner]
    return [f"{indent}{name}: {json.dumps(value)}"]


def documented(kind: Any) -> dict[str, str]:
    """The sentence under each field of a dataclass, read from its source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in pairwise(node.body):
        said = after.value if isinstance(after, ast.Expr) else None
        if isinstance(before, ast.AnnAssign) and isinstance(said, ast.Constant):
            found[ast.unparse(before.target)] = " ".join(str(said.value).split())
    return found


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """What two runs' settings differ in, by path."""
    ours, theirs = _flat(as_dict(one)), _flat(as_dict(other))
    return {
        path: (ours.get(path), theirs.get(path))
        for path in sorted({*ours, *theirs})
        if ours.get(path) != theirs.get(path)
    }


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        here = _joined(path, name)
        found.update(_flat(value, here) if isinstance(value, Mapping) and value else {here: value})
    return found
