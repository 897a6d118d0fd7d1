"""Signals: figures about the turns of an episode that its environment does not report, such as entropies.

A source (see `hardwon.trainers.sources`) reads finished rollouts and attaches its signals to them. Estimators and
shapers name the signals that they need, and a run refuses those that no source gives. None means that a source can
say nothing about a turn: such a turn is left out of every mean, and gets no step term.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.errors import ConfigError

Values = tuple[float | None, ...]
"""One value per turn of the role; None where nothing can be said."""


class UnfedSignal(ConfigError):
    """An estimator or shaper needs a signal that no source gave."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the sources found out about one trajectory."""

    turns: Mapping[str, Values] = field(default_factory=dict)
    """Values per turn of the policy, by name of the signal."""
    trace: Mapping[str, float] = field(default_factory=dict)
    """Values of the whole trajectory, by name."""
    tags: tuple[str, ...] = ()
    """Kind of reasoning of every turn; empty text for none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Structured findings by name, such as a checklist."""

    def merge(self, other: "Signals") -> "Signals":
        """Return the signals of both; those of `other` win."""
        return Signals(
            {**self.turns, **other.turns},
            {**self.trace, **other.trace},
            other.tags or self.tags,
            {**self.facts, **other.facts},
        )


NO_SIGNALS = Signals()


def count_missing(values: Sequence[float | None]) -> int:
    """Return the number of turns about which nothing is known."""
    return sum(value is None for value in values)
