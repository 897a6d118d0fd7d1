"""Say which argument of a method has the wrong type, before the method does anything.

The annotations of the method are the rule. They are read at its first call; then a type that fits costs a lookup.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Real
from os import PathLike
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Never, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from hardwon.memory.errors import WrongType
from hardwon.memory.validation import describe_value, is_flag

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PHRASES = {
    str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None", Path: "a path",
    Any: "anything",
}  # fmt: skip


class ArgumentTypes:
    """The types of the arguments of a method."""

    def __init__(self, method: Callable[..., Any], *, takes_others: bool = False) -> None:
        """Read the types of a method; if it takes others, any object may stand in the place of one with a class."""
        self._method, self._takes_others = method, takes_others
        self._hints: dict[str, Any] = {}
        self._names: tuple[str, ...] = ()
        self._plain: dict[str, set[type]] = {}
        """Types of arguments that fit whatever the value is."""

    def check(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Raise an error that names the first argument that is not of its annotated type."""
        if not self._names:
            self._names = tuple(signature(self._method).parameters)
            for name, hint in self._method.__annotations__.items():
                if name == "library":  # `check_library` says how to open one
                    continue
                with suppress(NameError):  # a name is only for mypy
                    place = SimpleNamespace(__annotations__={name: hint})
                    self._hints |= get_type_hints(place, self._method.__globals__)
        for name, value in (*zip(self._names, arguments, strict=False), *named.items()):
            kind, plain = type(value), self._plain.setdefault(name, set())
            if kind in plain or name not in self._hints:
                continue
            hint = self._hints[name]
            is_other = self._takes_others and kind.__module__ != "builtins"
            if not is_other and not _fits(value, hint):
                words = [word for part in (hint, *get_args(hint)) for word in get_args(part) if isinstance(word, str)]
                hints = "".join(f" Did you mean {word!r}?" for word in get_close_matches(str(value), words, n=1))
                raise WrongType(f"{name} is {describe_value(value)}; give {_describe(hint)}.{hints}")
            if kind in (get_args(hint) or (hint,)):
                plain.add(kind)


def check_types(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function or constructor refuse an argument that is not of its annotated type."""
    types = ArgumentTypes(method, takes_others=True)

    @wraps(method)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
        types.check(arguments, named)
        return method(*arguments, **named)

    return call


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type, as far as it can be seen without consuming the value."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if isinstance(origin, type):
        return _fits_container(value, origin, inner)
    if hint in (Any, Never):
        return hint is Any
    if is_typeddict(hint):
        types = get_type_hints(hint)
        return isinstance(value, dict) and all(_fits(part, types.get(name, Never)) for name, part in value.items())
    if hint is float:
        return isinstance(value, Real)
    if hint is bool:
        return is_flag(value)
    if hint is Path:
        return isinstance(value, str | PathLike)
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        names = [name for name in vars(hint) if not name.startswith("_")]
        return not isinstance(value, type) and all(hasattr(value, name) for name in names)
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
    if origin is Callable:
        return "a function"
    if is_typeddict(hint):
        return f"a dict with {', '.join(get_type_hints(hint))}"
    return _PHRASES.get(hint) or f"a value of {getattr(hint, '__name__', hint)}"
