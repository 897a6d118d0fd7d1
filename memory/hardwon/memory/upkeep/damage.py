"""What is done about damaged rows: whoever meets one is told which row it is and what to do."""

import sqlite3
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

from hardwon.memory.errors import HardwonError, LibraryDamaged
from hardwon.memory.storage.checksums import Damage, find_damaged_rows
from hardwon.memory.storage.database import Store

C = TypeVar("C", bound=type)

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, sqlite3.DatabaseError)
"""What reading a row raises that holds something else than was written."""
_SHOWN = 3


def names_damage(cls: C) -> C:
    """Let the public methods of a library raise LibraryDamaged, naming the rows, for what damaged rows raise.

    Rows are compared with their checksums only after something failed, so that reading costs nothing more.
    """
    for base in reversed(cls.__mro__):
        for name, method in vars(base).items():
            if isfunction(method) and not name.startswith("_") and base is not object:
                setattr(cls, name, _guarded(getattr(cls, name)))
    return cls


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except UNREADABLE as error:
            named = error.rows if isinstance(error, LibraryDamaged) else isinstance(error, HardwonError)
            store = getattr(self, "_store", None)
            found = None if named or store is None else _found(store, error)
            if found is None:
                raise
            raise found from error

    return call


def _found(store: Store, error: Exception) -> LibraryDamaged | None:
    """Return the error that names the damaged rows; None where every row is as it was written."""
    try:
        with store.snapshot():
            rows = [one for one in find_damaged_rows(store.connection) if not one.missing]
    except (HardwonError, sqlite3.Error):
        return None
    return damaged(store.path, rows, error) if rows else None


def damaged(path: str, rows: list[Damage], error: Exception) -> LibraryDamaged:
    """Make the error that names damaged rows."""
    named = tuple(map(str, rows))
    shown = ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")
    found = LibraryDamaged(
        f"{path} was damaged after it was written: {shown} ({type(error).__name__}). "
        f"What can be done says: hardwon memory verify {path}"
    )
    found.rows = named
    return found
