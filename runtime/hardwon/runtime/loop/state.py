"""What the nodes of the loop read and change of a running episode: data alone."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from hardwon.memory import Recollection, State, Step, Trajectory
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Decision, Environment, Info, Usage
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.planning.plans import Plan

from .enforcement import Mode


class EpisodeState(TypedDict, total=False):
    """What a checkpoint holds of an episode."""

    thread: str
    task: str
    seed: int
    episode: int
    attempt: int
    first: State
    state: State
    steps: tuple[Step, ...]
    actions: tuple[str, ...]
    new_situation: bool
    recollection: Recollection
    hint: Hint | None
    hints: dict[str, Hint | None]
    """What was proposed in each situation of the episode."""
    guided: dict[str, Any] | None
    """Of guidance asked for in this step: why, what came of it, what it cost."""
    withheld: dict[str, tuple[str, ...]]
    """The items held back in each situation."""
    plan: Plan | None
    skills: dict[str, bool] | None
    """The skills and remedies whose run is over, and whether it was verified; None without a planner."""
    forbidden: dict[str, str]
    blocked: tuple[str, ...]
    overrode: tuple[str, ...]
    trial: tuple[str, ...]
    stopped: bool
    """A call that must not run was insisted on: the episode is over."""
    replans: int
    replan: str | None
    decision: Decision | None
    policy_failure: str | None
    outcome: tuple[State, float, bool, Info] | None
    usage: Usage
    score: float
    success: bool
    ending: str
    failed: str
    trajectory: Trajectory


Update = dict[str, Any]
"""What a stage changes of it."""


@dataclass(slots=True)
class Live:
    """What belongs to a running episode and is in no checkpoint; it is rebuilt when the episode is resumed."""

    environment: Environment
    working: WorkingMemory


@dataclass(frozen=True, slots=True)
class Settings:
    """How an agent runs its episodes."""

    arm: str = "retrieved"
    level: Literal["step", "task"] = "step"
    learn: bool = True
    guardrails: Mode | None = "block"
    max_steps: int = 50
    recall_k: int = 5
    seed: int = 0


def costs(usage: Usage) -> dict[str, Any]:
    """Tokens, money and calls, where a model was asked."""
    return asdict(usage) if usage.calls else {}
