"""The parts of training that are loaded by name: each has its implementation and a card that says where it comes from.

    @PARTS.add("estimator", "MRT", "arXiv:2503.07572", needs=("progress",), evidence="N")
    def mrt(traces, *, alpha=0.5): ...

    PARTS.get("estimator", "mrt")(traces)

The kinds are estimator, shaper, term, extra, composer, sampler, source and recipe. The cards are the rows of
`docs/algorithms.md`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hardwon.memory.errors import ConfigError, UnknownName

T = TypeVar("T")

ROOMS = ("hardwon.trainers.sources", "hardwon.trainers.methods")
"""Modules whose import registers all parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where a part comes from and what it needs."""

    name: str
    """Name among the parts of its kind, as settings use it."""
    kind: str
    part: Any
    """The implementation; None for a recipe, which is settings alone."""
    title: str
    """Name of the published method."""
    paper: str = ""
    """Identifier of the paper, or its title where no identifier was verified."""
    evidence: str = ""
    """What it was checked against: the authors' code (C), the text of the paper (P), notes of others (N), the abstract
    alone (A), or a port of others (F). Empty for parts of this project."""
    reading: str = ""
    """The reading that was chosen where texts differ or are silent; empty if there was nothing to choose."""
    unseen: str = ""
    """Parts that no text or code says that could be read, with the choices of this project; empty if there are none."""
    needs: tuple[str, ...] = ()
    """Names of the signals that it reads."""
    gives: tuple[str, ...] = ()
    """Names of the signals that it provides; for sources."""
    method: str
    """Name of the method that it is, or is a part of, as `hardwon train --method` takes it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a run that the method sets beside its own name, by dotted path."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """Further settings with which it acts in `examples/methods/base.yaml`, by dotted path."""
    tree: bool = False
    """Whether it plays, or credits, episodes that share their first turns. Such composers and estimators go together.
    """
    demonstrations: bool = False
    """Whether it needs successes of the training instances, from `tasks.demonstrations`."""
    partial: bool = False
    """Whether it plays some episodes of a group after a part of a solution; for composers."""
    whole: bool = False
    """Whether its figures of a group, or of the batch, are of episodes that were played from their beginning."""
    composer: str = ""
    """The composer whose beginnings of episodes it reads."""
    acted: str = ""
    """Metric of the policy that tells that it acted; for extras."""
    exact: bool = False
    """Whether its advantages are the gradient of its own loss, which holds only with its settings and one update."""


class Registry:
    """The parts by kind and name."""

    def __init__(self) -> None:
        self._cards: dict[str, dict[str, Card]] = {}
        self._is_loaded = False

    def add(
        self, kind: str, title: str, paper: str = "", *, name: str = "", method: str = "", **card: Any
    ) -> Callable[[T], T]:
        """Return a decorator that registers an implementation; see `Card` for the arguments.

        Without a name, it is the name of the function with `-` for `_`.
        """

        def register(part: T) -> T:
            key = name or str(getattr(part, "__name__", "")).replace("_", "-")
            cards = self._cards.setdefault(kind, {})
            cards[key] = Card(name=key, kind=kind, part=part, title=title, paper=paper, method=method or key, **card)
            return part

        return register

    def add_settings(self, name: str, title: str, paper: str = "", **card: Any) -> None:
        """Register a method that is settings of a run and needs no code of its own."""
        self.add("recipe", title, paper, name=name, **card)(None)

    def list_cards(self, kind: str) -> Mapping[str, Card]:
        """Return the cards of a kind by name."""
        if not self._is_loaded:
            self._is_loaded = True
            for room in ROOMS:
                importlib.import_module(room)
        return self._cards[kind]

    def find(self, kind: str, name: str) -> Card:
        """Return a card.

        Raises:
            UnknownName: There is no such part.
        """
        cards = self.list_cards(kind)
        if name not in cards:
            raise UnknownName.of(kind, name, cards)
        return cards[name]

    def get(self, kind: str, name: str) -> Any:
        """Return an implementation."""
        return self.find(kind, name).part

    def find_givers(self, signal: str) -> list[str]:
        """Return the names of the sources that provide a signal."""
        return [name for name, card in self.list_cards("source").items() if signal in card.gives]


PARTS = Registry()
"""All parts of training. Nothing outside `hardwon.trainers.methods` imports a method; it is loaded by its name."""


def import_named(name: str, setting: str) -> Any:
    """Import your own class or function, `MODULE:NAME` of the current folder or an installed module.

    Raises:
        UnknownName: It cannot be imported.
        ConfigError: It is neither.
    """
    module, _, attribute = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        value: Any = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which can raise anything
        raise UnknownName(
            f"{setting} {name!r} cannot be imported from {folder}: {type(error).__name__}: {error}. Give MODULE:NAME "
            "of a file in the current folder, or of an installed module."
        ) from error
    if not callable(value):
        raise ConfigError(f"{setting} {name!r} is {type(value).__name__}; give a class or a function.")
    return value
