"""The state of a running episode that the nodes of the loop read and update."""

import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypedDict

from hardwon.memory import Recollection, State, Step, Trajectory
from hardwon.memory.open_runs import OpenRun
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.arms import RETRIEVED, Arm
from hardwon.runtime.interfaces.extension import Budget
from hardwon.runtime.interfaces.plans import Plan
from hardwon.runtime.interfaces.types import Decision, Environment, Info
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.interfaces.working_memory import WorkingMemory

from .budgets import StepLimit
from .enforcement import Mode
from .holdout import DrawnItems


class EpisodeState(TypedDict, total=False):
    """The state of an episode, as a checkpoint stores it."""

    thread: str
    id: str
    """Id of the episode, under which a resumed one is stored, too."""
    task: str
    seed: int
    episode: int
    practice: int | None
    """See `Context.practice`; None until the first actions are listed, and in episodes without exploration."""
    attempt: int
    prefix: tuple[Step, ...]
    """Steps that the episode begins with; they are repeated in the environment and not decided again."""
    max_steps: int | None
    """Steps after which the episode ends, prefix included; None takes the agent's."""
    first: State
    state: State
    steps: tuple[Step, ...]
    actions: tuple[str, ...]
    new_situation: bool
    recollection: Recollection
    hint: Hint | None
    hints: dict[str, Hint | None]
    """The hint of each situation of the episode, by signature; None if guidance abstained."""
    guided: dict[str, Any] | None
    """A record of this step's guidance: the occasion, the result and the cost; None if it did not run."""
    strategy: str
    """Name of the strategy of the episode; missing without strategies."""
    is_test: bool
    """Whether a learning agent plays the episode without exploring, to measure its strategy."""
    stores: dict[str, bool]
    """Whether the episode recalls from each store of a routed recall; missing without one."""
    drawn: dict[str, DrawnItems]
    """The items that took part in random trials in each situation, by signature."""
    plan: Plan | None
    skills: dict[str, bool] | None
    """The skills and remedies that have ended, and whether they were verified; None without a planner."""
    forbidden: dict[str, str]
    blocked: tuple[str, ...]
    overrode: tuple[str, ...]
    trial: tuple[str, ...]
    stopped: bool
    """The policy insisted on a call that must never run, so the episode ends."""
    replans: int
    replan: str | None
    decision: Decision | None
    policy_failure: str | None
    outcome: tuple[State, float, bool, Info] | None
    usage: ModelUsage
    score: float
    success: bool
    ending: str
    failed: str
    trajectory: Trajectory


StateUpdate = dict[str, Any]
"""The fields of an `EpisodeState` that a stage changes."""


@dataclass(slots=True)
class LiveEpisode:
    """The parts of a running episode that no checkpoint stores; a resumed episode rebuilds them."""

    environment: Environment
    working: WorkingMemory
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of the episode."""
    is_resumed: bool = False
    """Whether the beginning of the episode may be stored already."""
    reached: "EpisodeState | None" = None
    """The state after the last step, until the episode is stored."""
    run: OpenRun | None = None
    """The steps on the disk."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How an agent runs its episodes; see `Agent` for the meaning of each field."""

    arm: Arm = RETRIEVED
    level: Literal["step", "task"] = "step"
    learn: bool = True
    guardrails: Mode | None = "block"
    budget: Budget = field(default_factory=lambda: StepLimit(50))
    recall_k: int = 5
    seed: int = 0
    withhold: bool | None = None
    explore: bool | None = None
    """Whether the policy explores; None means `learn`."""

    @property
    def explores(self) -> bool:
        """Return whether the policy explores in these episodes."""
        return self.learn if self.explore is None else self.explore

    @property
    def tries(self) -> bool:
        """Return whether the worth of what the library knows is measured by random trials."""
        return self.learn if self.withhold is None else self.withhold


def build_cost_fields(usage: ModelUsage) -> dict[str, Any]:
    """Return tokens, cost in US dollars and calls for a record; empty if no model was called."""
    return asdict(usage) if usage.calls else {}
