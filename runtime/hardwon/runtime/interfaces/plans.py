"""The record of a plan: its steps, completed ones first, and how an attempt at the next step changes it.

A planned action is a pattern such as `take {1}`. The value of a hole fills the same hole in the following steps, as in
`put {1} in basket`. Planners are in `hardwon.runtime.planning`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.memory.situations.actions import bind

from .usage import ModelUsage

_HOLE = re.compile(r"\{\d+\}")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One action of a plan, pending or completed."""

    number: int
    """The step's number within the episode's plan; a repair keeps it, and it is never reused."""
    action: str
    """An action, or a pattern with holes."""
    item_id: str = ""
    """The id of its skill or remedy; empty if the planner invented the step."""
    check: Mapping[str, Any] | None = None
    """A condition on the state after the step (see `hardwon.memory.guardrails.conditions`)."""
    tries: int = 0
    """How often the step was attempted."""
    done: bool = False
    source: str = ""
    """Id of the episode that the step was bound from; empty if it comes from elsewhere."""
    part: int = 0
    """Number of the step in that demonstration, from 1; 0 for a step that only makes the next one possible."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps towards a goal, completed steps first."""

    goal: str
    steps: tuple[PlannedStep, ...] = ()
    usage: ModelUsage = field(default_factory=ModelUsage)
    """The cost of the last planning."""
    source: str = ""
    """Id of the episode that the plan was bound from; see `composition`."""
    abandoned: tuple[str, ...] = ()
    """Ids of the episodes whose demonstrations were tried before."""

    def __post_init__(self) -> None:
        for name in ("steps", "abandoned"):  # a checkpoint may restore them as lists
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def done(self) -> tuple[PlannedStep, ...]:
        """Return the completed steps."""
        return tuple(step for step in self.steps if step.done)

    @property
    def open(self) -> tuple[PlannedStep, ...]:
        """Return the pending steps."""
        return tuple(step for step in self.steps if not step.done)

    @property
    def next(self) -> PlannedStep | None:
        """Return the first pending step; None if the plan has ended."""
        return next((step for step in self.steps if not step.done), None)

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Return the ids of the skills and remedies that the plan uses."""
        return tuple(dict.fromkeys(step.item_id for step in self.steps if step.item_id))

    @property
    def following(self) -> int:
        """Return the number for the next step that is added."""
        return 1 + max((step.number for step in self.steps), default=0)

    def tried(self, action: str, *, done: bool) -> "Plan":
        """Return the plan after an attempt at its next step.

        Args:
            action: The action that ran.
            done: The step is completed. The values of its holes then fill the pending steps of the same item.
        """
        first, *rest = self.open
        first = replace(first, tries=first.tries + 1)
        if done:
            filling = bind_holes(first.action, action)
            first = replace(first, action=action, done=True)
            # Holes have the same meaning only within one skill.
            rest = [fill_holes(step, filling) if step.item_id == first.item_id else step for step in rest]
        return replace(self, steps=(*self.done, first, *rest))

    def continued(self, suffix: Sequence[PlannedStep]) -> "Plan":
        """Return the completed steps, unchanged, with other pending steps."""
        return replace(self, steps=(*self.done, *suffix), usage=ModelUsage())


def bind_holes(pattern: str, action: str) -> dict[str, str]:
    """Return the values that an action has in the holes of its pattern, such as `{"{1}": "red apple"}`."""
    return bind(pattern, action) or {}


def fill_holes(step: PlannedStep, filling: Mapping[str, str]) -> PlannedStep:
    """Return a step with these holes filled, or the same step if it has none of them."""
    action = _HOLE.sub(lambda hole: filling.get(hole[0], hole[0]), step.action)
    return step if action == step.action else replace(step, action=action)
