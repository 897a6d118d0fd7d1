"""Protocols of what an algorithm may replace: who proposes, who judges, and how long an episode lasts.

Each has a default without a model: `SampledActions`, `RecalledValue` and `StepLimit`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hardwon.memory import Estimate, State, Step

from .types import Context, Decision


@runtime_checkable
class Proposer(Protocol):
    """Suggests actions or steps of a plan."""

    def propose(self, context: Context, n: int) -> tuple[Decision, ...]:
        """Return at most n different suggestions, the best first, each with its prior in `why.extra["prior"]`.

        Args:
            context: The state and the recalled experience.
            n: Number of suggestions to ask for, at least 1.
        """
        ...


@runtime_checkable
class Value(Protocol):
    """Judges states and actions."""

    def judge(self, context: Context, action: str = "") -> Estimate:
        """Return the worth of an action, or of the state itself without one.

        Args:
            context: The state and the recalled experience.
            action: The action.
        """
        ...


@runtime_checkable
class Budget(Protocol):
    """Decides how many steps an episode may take."""

    def limit(self, steps: Sequence[Step], state: State) -> int:
        """Return the number of steps after which the episode ends.

        Args:
            steps: The steps so far.
            state: The current state.
        """
        ...

    def describe(self, steps: Sequence[Step], state: State) -> str:
        """Return what a policy that reads text is told about the steps left; empty for nothing."""
        ...
