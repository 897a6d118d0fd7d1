"""Errors that name the damaged rows of a library and the next step."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from itertools import takewhile
from typing import Any, TypeVar

from hardwon.memory.errors import ConfigError, HardwonError, LibraryDamaged, LibraryError
from hardwon.memory.sqlite_errors import translate_error
from hardwon.memory.storage.checksums import Damage, find_damaged_rows
from hardwon.memory.storage.database import Store

from .argument_types import ArgumentTypes

C = TypeVar("C", bound=type)

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, sqlite3.DatabaseError)
"""Errors that reading a damaged row can raise."""
_LISTED = 3
_FREQUENT = ("recall", "check", "enforce", "keys")
"""Methods that run at every step: the types of their arguments are read only after an error."""
_GUARDED: set[type] = set()


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Convert errors of damaged or manually changed rows to errors that name the library."""
    try:
        yield
    except HardwonError:
        raise
    except RecursionError as error:
        raise ConfigError("the data is nested too deeply. Send flatter lists and objects.") from error
    except UNREADABLE as error:
        if isinstance(error, sqlite3.Error):
            raise translate_error(error, name, read_only=False, busy_s=0.0) from error
        raise LibraryError(
            f"{name} has a row that cannot be read ({type(error).__name__}: {str(error)[:200]}). "
            f"Find it with: hardwon memory verify {name}"
        ) from error


def names_damage(cls: C) -> C:
    """Let the public methods of a library name the argument of a wrong type, or the damaged rows, that cause an error.

    Checksums are compared only after an error, so that reads cost no more.
    """
    # Inherited methods are wrapped on the subclass, so the base classes stay unchanged. The names are listed first:
    # a method that was just set on the subclass would be wrapped a second time.
    unguarded = list(takewhile(lambda base: base not in _GUARDED, cls.__mro__[:-1]))
    _GUARDED.add(cls)
    names = dict.fromkeys(
        name
        for base in reversed(unguarded)
        for name, method in vars(base).items()
        if isfunction(method) and not name.startswith("_")
    )
    for name in names:
        setattr(cls, name, _guard(getattr(cls, name)))
    return cls


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    types, is_frequent = ArgumentTypes(method), method.__name__ in _FREQUENT

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_frequent:
            types.check((self, *args), kwargs)
        try:
            return method(self, *args, **kwargs)
        except UNREADABLE as error:
            # An error about named rows, or about a wrong argument, already says what is wrong.
            if error.rows if isinstance(error, LibraryDamaged) else isinstance(error, HardwonError):
                raise
            store = getattr(self._file, "store", None)
            types.check((self, *args), kwargs)
            cause: Exception | None = store and _find_damage(store, error)
            if not cause and store and isinstance(error, sqlite3.Error):  # of a file that is no database any more
                cause = store.translate(error)
            if not cause:
                raise
            raise cause from error

    return call


def _find_damage(store: Store, error: Exception) -> LibraryDamaged | None:
    """Return an error that names the damaged rows, or None if no row is damaged."""
    try:
        with store.snapshot():
            rows = [row for row in find_damaged_rows(store.connection) if not row.missing]
    except (HardwonError, sqlite3.Error):
        return None
    return make_damage_error(store.path, rows, error) if rows else None


def make_damage_error(path: str, rows: list[Damage], error: Exception) -> LibraryDamaged:
    """Return an error that names damaged rows."""
    named = tuple(map(str, rows))
    listed = ", ".join(named[:_LISTED]) + (f" and {len(named) - _LISTED} more" if len(named) > _LISTED else "")
    damage = LibraryDamaged(
        f"{path} was damaged after it was written: {listed} ({type(error).__name__}). "
        f"For remedies, run: hardwon memory verify {path}"
    )
    damage.rows = named
    return damage
