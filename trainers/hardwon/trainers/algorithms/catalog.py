"""Registries of published algorithms: each name has its implementation and a card that says where it comes from.

    @ESTIMATORS.add("MRT", "arXiv:2503.07572", needs=("progress",), evidence="N")
    def mrt(traces, *, alpha=0.5): ...

The cards of all registries are the rows of `docs/algorithms.md`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from hardwon.memory.errors import UnknownName

T = TypeVar("T")

Evidence = Literal["C", "P", "N", "A", "F", ""]
"""What the implementation was checked against: the authors' code (C), the text of the paper (P), notes of others (N),
the abstract alone (A), or a port of others (F). Empty for methods of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where an algorithm comes from and what it needs."""

    name: str
    """Name in its registry, as settings use it."""
    kind: str
    """Kind of registry: estimator, shaper, source, and so on."""
    title: str
    """Name of the published method."""
    paper: str
    """Identifier of the paper, or its title where no identifier was verified."""
    evidence: str
    """Letters of `Evidence`."""
    reading: str
    """The reading that was chosen where texts differ or are silent; empty if there was nothing to choose."""
    unseen: str
    """Parts that no text or code says that could be read, with the choices of this project; empty if there are none."""
    needs: tuple[str, ...]
    """Names of the signals that it reads."""
    gives: tuple[str, ...]
    """Names of the signals that it provides; for sources."""
    method: str
    """Name of the method that it is, or is a part of, as `hardwon train --method` takes it."""
    settings: Mapping[str, Any]
    """Settings of a run that the method sets beside its own name, by dotted path."""
    example: Mapping[str, Any]
    """Further settings with which it acts in `examples/methods/base.yaml`, by dotted path."""
    tree: bool = False
    """Whether it plays, or credits, episodes that share their first turns. Such composers and estimators go together.
    """
    demonstrations: bool = False
    """Whether it needs successes of the training instances, from `tasks.demonstrations`."""


class Registry(dict[str, T], Generic[T]):
    """Implementations by name, each with a card."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.cards: dict[str, Card] = {}

    def add(
        self,
        title: str,
        paper: str = "",
        *,
        name: str = "",
        evidence: str = "",
        reading: str = "",
        unseen: str = "",
        needs: tuple[str, ...] = (),
        gives: tuple[str, ...] = (),
        method: str = "",
        settings: Mapping[str, Any] = MappingProxyType({}),
        example: Mapping[str, Any] = MappingProxyType({}),
        tree: bool = False,
        demonstrations: bool = False,
    ) -> Callable[[T], T]:
        """Return a decorator that registers an implementation; see `Card` for the arguments.

        Without a name, it is the name of the function with `-` for `_`.
        """

        def register(implementation: T) -> T:
            key = name or str(getattr(implementation, "__name__", "")).replace("_", "-")
            self[key] = implementation
            self.cards[key] = Card(
                name=key,
                kind=self.kind,
                title=title,
                paper=paper,
                evidence=evidence,
                reading=reading,
                unseen=unseen,
                needs=needs,
                gives=gives,
                method=method or key,
                settings=settings,
                example=example,
                tree=tree,
                demonstrations=demonstrations,
            )
            return implementation

        return register

    def get_needs(self, name: str) -> tuple[str, ...]:
        """Return the names of the signals that an implementation reads."""
        return self.cards[name].needs

    def find_givers(self, signal: str) -> list[str]:
        """Return the names of the implementations that provide a signal."""
        return [name for name, card in self.cards.items() if signal in card.gives]


def import_named(name: str, kind: str) -> Any:
    """Return a class of your own, `MODULE:CLASS` of the current folder or an installed module.

    Args:
        name: `MODULE:CLASS`.
        kind: What it is, for the message.

    Raises:
        UnknownName: It cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs the user's code, which can raise anything
        raise UnknownName(
            f"{kind} {name!r} cannot be used: {type(error).__name__}: {error}. Give MODULE:CLASS of a file in the "
            "current folder or of an installed module."
        ) from error
