"""Protocols of what an algorithm may replace: who judges, looks ahead or recalls, and how long episodes last.

Each has a default without a language model: `RecalledValue`, `CloneModel`, the library itself, and `StepLimit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from hardwon.memory import Estimate, Recollection, State, Step

from .types import Context, Info


@runtime_checkable
class ValueModel(Protocol):
    """Judges states and actions."""

    def judge(self, context: Context, action: str = "") -> Estimate:
        """Return the worth of an action, or of the state itself without one."""
        ...


@dataclass(frozen=True, slots=True)
class Imagined:
    """Where a model expects the last of some actions to lead."""

    state: State
    actions: tuple[str, ...] = ()
    """Admissible actions in this state; empty if the episode is over there."""
    reward: float = 0.0
    """Reward of the last action."""
    done: bool = False
    info: Info = field(default_factory=Info)
    certainty: float = 1.0
    """How sure the model is, in [0, 1]; 1 for an exact model."""


@runtime_checkable
class Model(Protocol):
    """Looks ahead without acting in the running environment."""

    def imagine(self, context: Context, path: Sequence[str]) -> Imagined | None:
        """Return where the actions lead from the current state, or None if the model cannot tell."""
        ...

    def close(self) -> None:
        """Release all resources. You can call this more than once."""
        ...


@runtime_checkable
class Budget(Protocol):
    """Decides how many steps an episode may take."""

    def limit(self, steps: Sequence[Step], state: State) -> int:
        """Return the number of steps after which the episode ends."""
        ...

    def describe(self, steps: Sequence[Step], state: State) -> str:
        """Return what a policy that reads text is told about the steps left; empty for nothing."""
        ...


@runtime_checkable
class Recaller(Protocol):
    """Recalls past experience for a state. A library is one."""

    def recall(
        self,
        state_or_text: State,
        *,
        k: int = 5,
        budget_tokens: int | None = None,
        level: Literal["step", "task"] = "step",
        actions: Mapping[str, str] | None = None,
        after: str | None = None,
    ) -> Recollection:
        """Return the past experience that fits a state; see `ExperienceLibrary.recall`."""
        ...


@runtime_checkable
class Router(Protocol):
    """Decides in every episode from which stores it recalls."""

    def choose(self, episode: str, environment: str, *, tries: bool) -> Mapping[str, bool]:
        """Return for each store whether this episode recalls from it; the answer is recorded with the episode."""
        ...

    def limit_to(self, chosen: Mapping[str, bool]) -> Recaller:
        """Return a recaller of the chosen stores."""
        ...
