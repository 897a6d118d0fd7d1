"""A table of published methods for the runtime: each has its implementation and how to reach it.

    @METHODS.add("Step-level Q models", "arXiv:2409.09345", reach="`RankedPolicy`, `--policy ranked:NAME`")
    class RankedPolicy: ...

`hardwon.runtime.methods` imports every module with such a row; `load_methods` loads it by its name.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Source of an algorithm of the runtime, and the way to reach it."""

    name: str
    """Name of the implementation."""
    title: str
    """Name of the published method."""
    paper: str
    evidence: str
    """Letters of the sources that were read; see the page of algorithms."""
    reach: str
    """Arguments or options that turn it on."""
    reading: str
    """The reading that was chosen where texts differ or are silent; empty if there was nothing to choose."""


class Methods(dict[str, Method]):
    """The methods by name of their implementation."""

    def add(
        self, title: str, paper: str = "", *, reach: str, evidence: str = "", reading: str = ""
    ) -> Callable[[T], T]:
        """Return a decorator that adds a row; see `Method` for the arguments."""

        def register(implementation: T) -> T:
            name = str(getattr(implementation, "__name__", ""))
            self[name] = Method(
                name=name, title=title, paper=paper, evidence=evidence, reach=reach, reading=reading
            )  # fmt: skip
            return implementation

        return register


METHODS = Methods()
"""All methods whose modules were imported."""


def load_methods() -> Mapping[str, Method]:
    """Return all methods of the runtime, by name of their implementation."""
    importlib.import_module("hardwon.runtime.methods")
    return METHODS
