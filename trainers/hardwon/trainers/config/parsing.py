"""Parse and print settings that are declared as dataclasses.

    settings = parse(RunConfig, {"iterations": 3}, "run")
    print(as_yaml(settings))

Errors name the path of a setting; an unknown name comes with the most similar known one. This module
works for any dataclass and knows no individual setting.
"""

import ast
import difflib
import inspect
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hardwon.memory.errors import ConfigError, UnknownName

T = TypeVar("T")
_DESCRIPTIONS: dict[Any, Mapping[str, str]] = {}
"""Descriptions of the fields by dataclass."""


def parse(kind: type[T], given: Any, path: str = "") -> T:
    """Return a dataclass instance from a mapping, with the types of all values checked recursively."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{path or 'the settings'} is {given!r:.200}; it must be a section with: {', '.join(_field_names(kind))}."
        )
    for name in given:
        if name not in _field_names(kind):
            raise ConfigError(f"{_join_path(path, str(name))} is no setting: {nearest(str(name), _field_names(kind))}")
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING and field.name not in given:
            raise ConfigError(
                f"{_join_path(path, field.name)} is missing. {documented(kind).get(field.name, '')}".rstrip()
            )
    hints = get_type_hints(kind)
    values = {name: parse_value(hints[name], value, _join_path(path, name)) for name, value in given.items()}
    with naming(path):
        return kind(**values)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Begin the message of a refusal within the block with the path of the section that is refused."""
    try:
        yield
    except (ConfigError, UnknownName) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def parse_value(kind: Any, given: Any, path: str) -> Any:
    """Return a value converted to a declared type."""
    if isinstance(kind, type) and is_dataclass(kind):
        return parse(kind, given, path)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if given is None and NoneType in parts:
            return None
        # the only unions in settings are `X | None`
        (inner,) = [part for part in parts if part is not NoneType]
        return parse_value(inner, given, path)
    if origin is Literal:
        if given not in parts:
            raise ConfigError(f"{path} is {given!r}: {nearest(str(given), list(map(str, parts)))}")
        return given
    if origin is dict:
        if not isinstance(given, Mapping):
            raise ConfigError(f"{path} is {given!r:.200}; it must be a mapping of names to values.")
        return {str(name): parse_value(parts[1], value, _join_path(path, str(name))) for name, value in given.items()}
    if origin is tuple:  # of any length, as tuple[str, ...]
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise ConfigError(f"{path} is {given!r:.200}; it must be a list.")
        return tuple(parse_value(parts[0], value, f"{path}[{n}]") for n, value in enumerate(given))
    return given if kind is Any else _parse_scalar(kind, given, path)


def _parse_scalar(kind: type, given: Any, path: str) -> Any:
    """Return a scalar of the given type, or raise ConfigError."""
    if kind is float:
        given = _parse_float(given, path)
    # bool is a subclass of int in Python, but `true` is not a number in a settings file.
    if not isinstance(given, kind) or (kind is int and isinstance(given, bool)):
        descriptions = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise ConfigError(f"{path} is {given!r:.200}; it must be {descriptions.get(kind, kind.__name__)}.")
    return given


def _parse_float(given: Any, path: str) -> Any:
    """Return a number as a float where it is one; other values as they are."""
    number = given
    if isinstance(given, str):  # YAML reads 1e-4, without a decimal point, as a string
        with suppress(ValueError):
            number = float(given)
    elif isinstance(given, int) and not isinstance(given, bool):
        number = float(given)
    if isinstance(number, float) and not math.isfinite(number):
        raise ConfigError(f"{path} is {given!r:.200}; it must be a finite number.")
    return number


def _field_names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown name, such as `did you mean lr? There are: lr, betas.` in one line."""
    matches = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean {matches[0]}? " if matches else "") + f"There are: {', '.join(names) or 'none'}."


# -- writing --------------------------------------------------------------------------------------


def as_dict(config: Any) -> dict[str, Any]:
    """Return all settings as plain values, in the form that `of` reads."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def as_yaml(config: Any) -> str:
    """Return all settings as YAML, each below a comment with its description."""
    return "\n".join(_format_section(config, "")) + "\n"


def _format_section(section: Any, indent: str) -> list[str]:
    lines: list[str] = []
    descriptions = documented(type(section))
    for field in fields(section):
        if field.name in descriptions:
            lines += textwrap.wrap(
                descriptions[field.name], 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        lines += _format_field(field.name, getattr(section, field.name), indent)
    return lines


def _format_field(name: str, value: Any, indent: str) -> list[str]:
    if is_dataclass(value):
        return [f"{indent}{name}:", *_format_section(value, f"{indent}  ")]
    if isinstance(value, Mapping) and any(map(is_dataclass, value.values())):
        inner = [line for key, part in value.items() for line in _format_field(key, part, f"{indent}  ")]
        return [f"{indent}{name}:", *inner]
    return [f"{indent}{name}: {json.dumps(value)}"]


def documented(kind: Any) -> Mapping[str, str]:
    """Return the descriptions of a dataclass's fields; its source is parsed once."""
    if kind not in _DESCRIPTIONS:
        _DESCRIPTIONS[kind] = _parse_descriptions(kind)
    return _DESCRIPTIONS[kind]


def _parse_descriptions(kind: Any) -> Mapping[str, str]:
    """Return the descriptions of a dataclass's fields, read from the docstrings in its source."""
    # Python keeps no docstrings of attributes at run time, so read them from the source.
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    descriptions: dict[str, str] = {}
    for before, after in pairwise(node.body):
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(before, ast.AnnAssign) and isinstance(text, ast.Constant):
            descriptions[ast.unparse(before.target)] = " ".join(str(text.value).split())
    return descriptions


def differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, as (before, after) by dotted path."""
    old, new = _flatten(as_dict(before)), _flatten(as_dict(after))
    return {path: (old.get(path), new.get(path)) for path in sorted({*old, *new}) if old.get(path) != new.get(path)}


def _flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings as one mapping by dotted path."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        full_path = _join_path(path, name)
        flat.update(_flatten(value, full_path) if isinstance(value, Mapping) and value else {full_path: value})
    return flat
