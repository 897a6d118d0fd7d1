"""Records of experience: states, steps and episodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from hardwon.memory.errors import ConfigError, WrongType
from hardwon.memory.reasons import NO_REASONS, Reasons
from hardwon.memory.signature import signature

Fact = str | int | float | bool | list[str]
Trust = Literal["trusted", "untrusted"]


def as_tuples(record: object, *names: str) -> None:
    """Convert the named fields of a frozen record to tuples.

    JSON and checkpoints return lists, and a record must equal the one that was written.
    """
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, tuple):
            if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                raise WrongType(f"{type(record).__name__} {name} is {value!r:.60}; give a tuple or a list.")
            object.__setattr__(record, name, tuple(value))


class Failure(StrEnum):
    """Cause of a failed step: a closed list, from the most specific cause to the least specific one.

    `unavailable` is an outage (a timeout, 429, 5xx, no connection), which does not mean that the call is wrong.
    `rejected` is a call that a person refused.
    """

    # the values are stored with every step: a renamed one would no longer match older libraries
    NONE = "none"
    ENVIRONMENT_CRASH = "environment_crash"
    ENVIRONMENT_HANG = "environment_hang"
    POLICY_ERROR = "policy_error"
    BLOCKED = "blocked"
    TASK_LOST = "task_lost"
    INVALID_ACTION = "invalid_action"
    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    TOOL_ERROR = "tool_error"
    PENALTY = "penalty"
    PRECONDITION = "precondition"
    NO_EFFECT = "no_effect"
    STEP_LIMIT = "step_limit"


@dataclass(frozen=True, slots=True)
class State:
    """The environment's output at one moment, with earlier feedback of the episode.

    `signature` is computed on first access if it is not given; see `hardwon.memory.signature`.
    """

    observation: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Predicates, if the environment provides them: {"inventory": ["a map"], "front": "wall"}."""
    location: str = ""
    task: str = ""
    feedback: str = ""
    """The environment's answer to the last action; not part of the signature."""
    notes: tuple[str, ...] = ()
    """Sentences from earlier in the episode that the observation no longer contains (a recipe, a map)."""
    signature: str = ""

    def __post_init__(self) -> None:
        if type(self.notes) is not tuple:
            as_tuples(self, "notes")
        if not isinstance(self.facts, Mapping):
            raise WrongType(f"State facts is {self.facts!r:.60}; give a dict.")
        # JSON has no tuples, and a state must equal the one that is read back
        if self.facts and any(isinstance(value, tuple) for value in self.facts.values()):
            facts = {name: list(value) if isinstance(value, tuple) else value for name, value in self.facts.items()}
            object.__setattr__(self, "facts", facts)
        if not self.signature:
            # unset the slot, so that the first access reaches __getattr__ and later ones cost nothing extra
            object.__delattr__(self, "signature")

    # hidden from type checkers, which would otherwise accept any attribute of a State
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            """Compute the signature on first access, and store it.

            Python calls this only for attributes that are not set.
            """
            if name != "signature":
                raise AttributeError(f"a State has no {name!r}")
            object.__setattr__(self, "signature", signature(self.observation, self.facts))
            return self.signature

    @property
    def signature_if_known(self) -> str:
        """Return the signature if it was given or computed already, and otherwise an empty string."""
        try:
            # not `self.signature`, which would compute it
            value: str = object.__getattribute__(self, "signature")
        except AttributeError:
            return ""
        return value


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Assessment of a step beyond its reward."""

    success: bool
    """Whether the step succeeded. The success of the episode is on the trajectory."""
    failure: Failure = Failure.NONE
    progress: float = 0.0
    """Progress of the task or change of the environment by this step, in [0, 1]."""
    stagnant: bool = False
    """Whether the step failed with almost no progress."""
    loop: bool = False
    """Whether the recent steps go in circles, or reach no new situation."""
    diff: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the state that changed, with their new values."""
    evidence: str = ""
    """The words of the environment that show the failure."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action, with the state before it, the state after it, and the diagnosis."""

    pre: State
    action: str
    post: State
    diagnosis: Diagnosis
    reward: float = 0.0
    t: int = 0
    """Index of the step in its episode, from 0."""
    keys: tuple[str, ...] = ()
    """Keys under which the step is filed, from general to specific; see `hardwon.memory.situations.keys`."""
    why: Reasons = field(default_factory=lambda: NO_REASONS)
    """Why the policy chose the action: estimate, recalled items and steps, blocked actions, tokens.

    A dict is converted; see `Reasons.of`.
    """
    id: int | None = None
    """Id in the library; None until the episode is recorded."""
    return_to_go: float | None = None
    """Discounted sum of the rewards from this step on; set when the episode is recorded."""
    admissible: tuple[str, ...] = ()
    """All admissible actions, including the chosen one, if the environment lists them."""

    def __post_init__(self) -> None:
        # the test saves a call per step: steps almost always come with tuples
        if type(self.keys) is not tuple or type(self.admissible) is not tuple:
            as_tuples(self, "keys", "admissible")
        if type(self.why) is not Reasons:
            object.__setattr__(self, "why", Reasons.of(self.why))


BOUND = 1.0
"""Largest absolute reward and return that values are learned from. The rewards of all included environments fit."""


def bounded(value: float) -> float:
    """Return a reward or return clipped to [-BOUND, BOUND]. NaN becomes 0."""
    # only NaN differs from itself
    return min(BOUND, max(-BOUND, value)) if value == value else 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode: its steps and its outcome.

    `success` is None if the environment failed, which excludes the episode from learning.
    """

    task: str
    steps: tuple[Step, ...]
    success: bool | None
    score: float = 0.0
    """The environment's own score at the end, in [0, 1]."""
    arm: str = "control"
    """Condition of an experiment to which the episode belongs."""
    seed: int = 0
    """Seed of the task instance."""
    ending: str = ""
    """Why the episode ended: success, task_lost, step_limit, or the failure that excluded it."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further properties of the episode: environment, game, policy, attempts, tokens, cost."""
    id: str = ""
    """Unique id; `record` creates one if it is empty."""
    writer: str = ""
    """Name of the client that recorded the episode; empty if this process or one like it did."""
    trust: Trust = "trusted"
    """Whether the words of the episode are trusted. Of an untrusted one, only action patterns and outcomes are used."""

    def __post_init__(self) -> None:
        if type(self.steps) is not tuple:
            as_tuples(self, "steps")
        if self.trust not in ("trusted", "untrusted"):
            raise ConfigError(f"episode trust is {self.trust!r:.80}; use trusted or untrusted.")
        if not isinstance(self.writer, str):
            raise ConfigError(f"episode writer is {self.writer!r}; give text.")

    @property
    def outcome(self) -> float | None:
        """Return the outcome that credits items, in [0, 1], or None if the episode is excluded.

        It is 1 for a success and 0 for a failure. With `meta["outcome"]` set to `score` or `reward`, it is that
        figure, cut to [0, 1]: an environment without a success of its own is credited by degrees.
        """
        return None if self.success is None else min(1.0, max(0.0, float(self._figure)))

    @property
    def grade(self) -> str:
        """Return the graded outcome as text, not cut, such as `score 0.75`; empty if the episode is not graded."""
        measure = self.meta.get("outcome")
        is_graded = self.success is not None and measure in ("score", "reward")
        return f"{measure} {self._figure:.2f}" if is_graded else ""

    @property
    def _figure(self) -> float:
        measure = self.meta.get("outcome")
        return self.score if measure == "score" else self.total_reward if measure == "reward" else bool(self.success)

    @property
    def total_reward(self) -> float:
        """Return the undiscounted sum of the step rewards."""
        return sum([step.reward for step in self.steps])

    def learned_returns(self, discount: float = 0.95) -> list[float]:
        """Return the discounted reward-to-go of every step, G_t = r_t + discount * G_{t+1}.

        Every reward and every sum is clipped to [-BOUND, BOUND]: many small rewards without a discount would leave the
        range. The steps keep the unclipped rewards for audits. A step whose tool reported an error, and whose action
        worked later in the episode, has its own reward alone.

        Args:
            discount: Discount factor in [0, 1]. `meta["discount"]`, if it is a number in [0, 1], takes precedence:
                1 assigns the outcome to all steps alike.

        Returns:
            One return per step, in order.
        """
        returns: list[float] = []
        discount, following, worked = self._discount(discount), 0.0, set[str]()
        for step in reversed(self.steps):
            reward = bounded(step.reward)
            following = bounded(reward + discount * following)
            # The success of a second attempt is no worth of the first, whose tool reported an error.
            is_repeated = step.diagnosis.failure is Failure.TOOL_ERROR and step.action in worked
            returns.append(reward if is_repeated else following)
            if step.diagnosis.success:
                worked.add(step.action)
        return returns[::-1]

    def _discount(self, usual: float) -> float:
        """Return the discount factor of the episode's metadata if it is valid, and otherwise the given one."""
        own = self.meta.get("discount")
        return float(own) if isinstance(own, int | float) and 0.0 <= own <= 1.0 else usual


def read_outcome(row: Mapping[str, Any]) -> float | None:
    """Return `Trajectory.outcome` of a row about an episode; see `ExperienceLibrary.episodes.find`."""
    if row["success"] is None:
        return None
    names = {"score": "score", "reward": "total_reward"}
    # as text: metadata may be anything
    return min(1.0, max(0.0, float(row[names.get(str(row["meta"].get("outcome")), "success")])))


def with_worth(episode: Trajectory) -> Trajectory:
    """Return a success with its score, or 1, as the last step's reward if no step has a reward.

    Who records only outcomes would otherwise have successes that are worth as little as failures.
    """
    if not episode.steps or any(step.reward for step in episode.steps) or episode.meta.get("outcome") == "reward":
        return episode
    worth = min(1.0, episode.score) if episode.score > 0 else 1.0
    return replace(episode, steps=(*episode.steps[:-1], replace(episode.steps[-1], reward=worth)))
