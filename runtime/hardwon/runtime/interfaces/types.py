"""The small protocols between the loop and what it drives: environments, policies, guidance.

Each is one screen; nothing here does anything. An environment says what went wrong in the `Outcome`
of a step, never by an exception: an exception means that the environment itself broke.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

from hardwon.memory import Recollection, State, Step

from .working_memory import WorkingMemory

if TYPE_CHECKING:
    from hardwon.runtime.planning.plans import Plan


class Info(TypedDict, total=False):
    """What an environment says about a step beside the reward; every key is optional."""

    success: bool
    """The task is solved."""
    lost: bool
    """The task can no longer be solved."""
    score: float
    """The environment's own score so far, in [0, 1]."""
    invalid: str
    """The action was not understood or not allowed here: the words of the environment."""
    error: str
    """The action ran and failed: the error of a tool."""
    unavailable: bool
    """With `error`: the service did not answer for now. Where it is not given, the words of the error tell."""


@runtime_checkable
class Environment(Protocol):
    """A world with text observations. `task` is what the environment makes of it: a fold, a request.

    Two things it may have besides: `keeps_time = True` when it raises `EnvironmentHung` by itself, and
    `abandon()`, which cuts off a call that hangs.
    """

    name: str

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode; the same task and seed give the same episode."""
        ...

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """The state after the action, the reward, whether the episode is over, and what to know."""
        ...

    def admissible(self, state: State) -> list[str]:
        """The actions that make sense here, sorted; empty when any text is an action."""
        ...

    def clone(self) -> "Environment":
        """A fresh, independent environment of the same kind."""
        ...

    def close(self) -> None:
        """Give back what it holds. Closing twice is fine."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """An environment whose actions must not be repeated to get back to where an episode was."""

    def restore(self, task: str, seed: int, steps: tuple[Step, ...]) -> State:
        """Continue an interrupted episode after `steps` without running their actions again."""
        ...


@runtime_checkable
class Described(Protocol):
    """An environment that can say how it is acted in, for a policy that reads."""

    def describe(self) -> str:
        """Its tools and how they are called."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What a decision cost."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost_usd + other.cost_usd,
            self.calls + other.calls,
        )


@dataclass(frozen=True, slots=True)
class Context:
    """All that a policy may look at to choose the next action, and a guidance to say something of it."""

    state: State
    actions: tuple[str, ...] = ()
    """Admissible actions, sorted; empty when any text is an action."""
    recollection: Recollection = field(default_factory=Recollection)
    guidance: str | None = None
    """Text to put before the policy; None is to abstain."""
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Actions refused in this step so far, and why: a guardrail's cause, or not admissible."""
    history: tuple[Step, ...] = ()
    """The steps of this episode so far; never changed by a replan."""
    working: WorkingMemory = field(default_factory=WorkingMemory)
    """What this episode has tried and been told."""
    rng: random.Random = field(default_factory=random.Random)
    """The episode's own source of chance: the same seed gives the same numbers."""
    learning: bool = False
    """Whether exploration is wanted."""
    episode: int = 0
    """Episodes learnt from before this one."""
    manual: str = ""
    """What the environment says of how it is acted in: its tools and how they are called."""
    replan: str | None = None
    """Why the last plan must not simply go on: stagnation, a loop, a series of failures."""
    plan: "Plan | None" = None
    """What to do next according to skills, where a planner made something of them: data, not an order."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action chosen, and why."""

    action: str
    why: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = Usage()


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. It raises `PolicyFailure` when nothing usable came out of it."""

    name: str
    reads: Literal["values", "text"]
    """What it wants recalled: estimates of actions, or items and similar steps as text."""

    def decide(self, context: Context) -> Decision:
        """The next action."""
        ...

    async def adecide(self, context: Context) -> Decision:
        """The same, awaited."""
        ...
