"""Say which argument of a method has the wrong type, after the method failed.

The annotations of the method are the rule. They are read only after an error, so that calls cost no more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import signature
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hardwon.memory.errors import WrongType
from hardwon.memory.validation import describe_value

_PHRASES = {
    str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None", Path: "a path",
}  # fmt: skip


def find_wrong_type(
    method: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> WrongType | None:
    """Return an error that names the first argument that is not of its annotated type; None if all of them are."""
    try:
        given = signature(method).bind(*arguments, **named).arguments
        hints = get_type_hints(method)
    except (TypeError, NameError):  # an argument is missing or unknown, which Python says; a name is only for mypy
        return None
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            return WrongType(f"{name} is {describe_value(value)}; give {_describe(hints[name])}.")
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type, as far as it can be seen without consuming the value."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if isinstance(origin, type):
        return _fits_container(value, origin, inner)
    if hint is float:
        return isinstance(value, int | float)
    if hint is Path:
        return isinstance(value, str | PathLike)
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return not isinstance(hint, type) or isinstance(value, hint)


def _fits_container(value: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, origin):
        return False
    if issubclass(origin, Mapping) and isinstance(value, Mapping):
        return len(inner) != 2 or all(_fits(key, inner[0]) and _fits(part, inner[1]) for key, part in value.items())
    if not isinstance(value, Collection) or len(inner) != 1:  # an iterator was consumed by the call
        return True
    return all(_fits(part, inner[0]) for part in value)


def _describe(hint: Any) -> str:
    """Return words for an annotated type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a dict" + (f" from {_describe(inner[0])} to {_describe(inner[1])}" if len(inner) == 2 else "")
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return "a list" + (f" of {_describe(inner[0])}" if inner and not isinstance(inner[0], TypeVar) else "")
    return _PHRASES.get(hint) or f"a value of {getattr(hint, '__name__', hint)}"
