"""Protocols and records shared by the loop, environments, policies and guidance.

An environment reports failures of an action in the `Info` of the step. An exception means that the environment itself
broke.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from hardwon.memory import Estimate, Reasons, Recollection, State, Step
from hardwon.memory.reasons import NO_REASONS
from hardwon.memory.values.lookahead import Lookahead

from .plans import Plan
from .usage import NO_USAGE, ModelUsage
from .working_memory import WorkingMemory


class Info(TypedDict, total=False):
    """Facts about a step in addition to its reward; every key is optional."""

    success: bool
    """The task is solved."""
    lost: bool
    """The task can no longer be solved."""
    score: float
    """The environment's own score so far, in [0, 1]."""
    invalid: str
    """The environment's message if it did not understand the action, or does not allow it in this state."""
    error: str
    """The error message of an action that ran and failed."""
    unavailable: bool
    """With `error`: the failure is a temporary outage. Without this key, it is inferred from the error message."""


@runtime_checkable
class Environment(Protocol):
    """A task with text observations and text actions.

    An environment may also define `keeps_time = True` if it raises `EnvironmentHung` itself, and `abandon()`, which
    cancels a call that hangs. `branches = "replay"` says that repeating actions from the start leads to the same state,
    and None that actions must not be repeated; without it, an environment may be replayed unless it is `Resumable`.
    """

    name: str
    """The name of the environment, recorded with each episode."""

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode; the same task and seed give the same episode.

        Args:
            task: The task in the environment's own terms, such as a split or a request; empty for its default.
            seed: The seed of the task instance.

        Returns:
            The first state.
        """
        ...

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Run an action.

        Args:
            action: The action as text.

        Returns:
            The state after the action, the reward, whether the episode is over, and further facts.

        Raises:
            EnvironmentFailure: The environment broke. An action that fails is reported in `Info` instead.
        """
        ...

    def admissible(self, state: State) -> list[str]:
        """Return the possible actions in a state, sorted; empty if any text is an action."""
        ...

    def clone(self) -> "Environment":
        """Return a fresh, independent environment of the same kind."""
        ...

    def close(self) -> None:
        """Release all resources. You can call this more than once."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """An environment that can restore an episode without repeating its actions, such as one with side effects."""

    def restore(self, task: str, seed: int, steps: tuple[Step, ...]) -> State:
        """Continue an interrupted episode after `steps` without running their actions again."""
        ...


@runtime_checkable
class Described(Protocol):
    """An environment with instructions for a policy that reads text."""

    def describe(self) -> str:
        """Return the available tools and how to call them."""
        ...


@runtime_checkable
class Tooled(Protocol):
    """An environment whose actions are tool calls. Its policy can bind its answers to their schemas."""

    def tool_schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of the arguments of every tool that can be called now, by name."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """The input of a policy's decision; guidance and planners read it too."""

    state: State
    """The current state."""
    actions: tuple[str, ...] = ()
    """Admissible actions, sorted; empty if any text is an action."""
    recollection: Recollection = field(default_factory=Recollection)
    """The experience recalled for the state."""
    guidance: str | None = None
    """The hint for the policy; None if there is none."""
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Actions refused in this step so far, each with the reason: the cause of a guardrail, or not admissible."""
    history: tuple[Step, ...] = ()
    """The steps of this episode so far."""
    working: WorkingMemory = field(default_factory=WorkingMemory)
    """Tried actions, visited places and messages of this episode."""
    rng: random.Random = field(default_factory=random.Random)
    """The episode's own random generator; the same seed gives the same numbers."""
    learning: bool = False
    """Whether the policy should explore."""
    practice: int = 0
    """The number of earlier episodes in this environment. A policy that learns explores less the larger it is."""
    manual: str = ""
    """The environment's instructions: its tools and how to call them."""
    replan: str | None = None
    """The reason to change course: stagnation, a loop, or a series of failures; None if there is none."""
    plan: Plan | None = None
    """The plan for the next steps if there is a planner. The policy may deviate from it."""
    thread: str = ""
    """The episode's unique id, under which a policy can keep its conversation; empty if there is none."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON schema of the arguments by tool that can be called now; empty if actions are no calls, or not known."""
    budget: str = ""
    """Text for the policy about the steps that are left; empty for none."""
    environment: str | None = None
    """Name of the environment; None if it is not known."""
    start: tuple[str, int] | None = None
    """Task and seed that the environment was reset with; None if they are not known. A policy must not act on it."""
    lookahead: Lookahead = field(default_factory=Lookahead)
    """What each action is expected to bring and to make possible; empty unless the policy has `looks_ahead = True`."""
    recall: Callable[[Sequence[str]], Recollection] | None = None
    """Recalls the experience with some actions; None if `recollection` has it already. See `read_estimates`."""

    def read_estimates(self, actions: Sequence[str]) -> Mapping[str, Estimate]:
        """Return the estimates of actions, which are recalled now if the policy has `recalls_on_demand = True`."""
        return self.recollection.estimates if self.recall is None else self.recall(actions).estimates


@dataclass(frozen=True, slots=True)
class Decision:
    """The action that a policy chose, the reasons, and the cost."""

    action: str
    """The chosen action as text."""
    why: Reasons = field(default_factory=lambda: NO_REASONS)
    """The reasons, recorded with the step. A dict of plain JSON values is converted; see `Reasons.of`."""
    usage: ModelUsage = NO_USAGE

    def __post_init__(self) -> None:
        if type(self.why) is not Reasons:
            object.__setattr__(self, "why", Reasons.of(self.why))


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. A policy raises `PolicyFailure` if it gets no usable action, for example from its model.

    A policy with `looks_ahead = True` gets the values of the admissible actions; see `Context.lookahead`. A policy that
    reads values and has `recalls_on_demand = True` gets an empty recollection: estimates cost as much, and it calls
    `Context.read_estimates` only in the steps in which it needs them.
    """

    name: str
    """The name of the policy, recorded with each episode."""
    reads: Literal["values", "text"]
    """The form of recall: `"values"` for estimates of actions, `"text"` for items and similar steps as a hint."""

    def decide(self, context: Context) -> Decision:
        """Return the next action.

        Args:
            context: The state, the admissible actions, and the recalled experience.

        Raises:
            PolicyFailure: The policy found no usable action. The step is recorded as failed.
        """
        ...

    async def adecide(self, context: Context) -> Decision:
        """Return the next action asynchronously; see `decide`."""
        ...
