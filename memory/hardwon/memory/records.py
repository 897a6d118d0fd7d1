"""Immutable records of the library: states, steps, episodes, items, and the results of recall and admission.

The records are frozen dataclasses without storage or search. A `Trajectory` is one episode: its `Step`s and its
outcome. It never changes once it is recorded. An `Item` is one piece of knowledge learned from steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from .errors import ConfigError, WrongType
from .reasons import NO_REASONS, Reasons
from .signature import signature

Kind = Literal["strategy", "warning", "skill", "guardrail", "remedy", "insight"]
KINDS: tuple[Kind, ...] = ("strategy", "warning", "skill", "guardrail", "remedy", "insight")
MIN_SKILL_STEPS = 2
"""Minimum length of a skill proposed by rules. A single action needs no skill: its value already recommends it."""

Fact = str | int | float | bool | list[str]
Trust = Literal["trusted", "untrusted"]
SOURCES = ("person", "experience", "model", "import", "client", "environment")
"""Origins of an item: a person, the library's own steps, a model that read them, an imported file, a client program,
or text of an environment or tool."""


def _as_tuples(record: object, *names: str) -> None:
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
            _as_tuples(self, "notes")
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
            _as_tuples(self, "keys", "admissible")
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
        _as_tuples(self, "steps")
        if self.trust not in ("trusted", "untrusted"):
            raise ConfigError(f"episode trust is {self.trust!r}; use trusted or untrusted.")
        if not isinstance(self.writer, str):
            raise ConfigError(f"episode writer is {self.writer!r}; give text.")

    @property
    def outcome(self) -> float | None:
        """Return the outcome that credits items, in [0, 1], or None if the episode is excluded.

        It is 1 for a success and 0 for a failure. With `meta["outcome"]` set to `score` or `reward`, it is that
        figure, cut to [0, 1]: an environment without a success of its own is credited by degrees.
        """
        if self.success is None:
            return None
        measure = self.meta.get("outcome")
        graded = self.score if measure == "score" else self.total_reward if measure == "reward" else self.success
        return min(1.0, max(0.0, float(graded)))

    @property
    def total_reward(self) -> float:
        """Return the undiscounted sum of the step rewards."""
        return sum(step.reward for step in self.steps)

    def returns(self, discount: float = 0.95) -> list[float]:
        """Return the discounted reward-to-go of every step: G_t = r_t + discount * G_{t+1}.

        Args:
            discount: Discount factor in [0, 1]. `meta["discount"]`, if it is a number in [0, 1], takes precedence:
                1 assigns the outcome to all steps alike.

        Returns:
            One return per step, in order.
        """
        discount = self._discount(discount)
        returns: list[float] = []
        following = 0.0
        for step in reversed(self.steps):
            following = step.reward + discount * following
            returns.append(following)
        return returns[::-1]

    def learned_returns(self, discount: float = 0.95) -> list[float]:
        """Return the discounted returns with every reward and every sum clipped to [-BOUND, BOUND].

        Values are learned from these. The steps keep the unclipped rewards for audits.

        Args:
            discount: Discount factor in [0, 1]; see `returns`.

        Returns:
            One return per step, in order.
        """
        discount = self._discount(discount)
        returns: list[float] = []
        following = 0.0
        for step in reversed(self.steps):
            # clip every sum, too: many small rewards without a discount would leave the range
            following = bounded(bounded(step.reward) + discount * following)
            returns.append(following)
        return returns[::-1]

    def _discount(self, usual: float) -> float:
        """Return the discount factor of the episode's metadata if it is valid, and otherwise the given one."""
        own = self.meta.get("discount")
        return float(own) if isinstance(own, int | float) and 0.0 <= own <= 1.0 else usual


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of knowledge. A guardrail also has `condition` and `forbids`; see `guardrails.conditions`.

    Raises:
        ConfigError: A field has an invalid value, or a guardrail lacks its condition or pattern.
        WrongType: A field has the wrong type.
    """

    kind: Kind
    title: str
    body: str = ""
    when_to_use: str = ""
    when_not_to_use: str = ""
    condition: Mapping[str, Any] | None = None
    """Executable predicate on a state: the condition of a guardrail, the preconditions of a skill, or the trigger of a
    remedy; see `guardrails.conditions`."""
    forbids: str | None = None
    """Action pattern of a guardrail: `eat {1}`, `cook {1} in stove`."""
    granularity: Literal["step", "task"] = "step"
    """Guardrails only: refuse an action before it runs ("step"), or a whole plan that contains it ("task")."""
    steps: tuple[str, ...] = ()
    """Action patterns of a skill in order, or the repairing actions of a remedy."""
    verify: Mapping[str, Any] | None = None
    """Skills only: predicate that must hold in the state after the last step."""
    repairs: str = ""
    """Remedies only: the failure (a value of `Failure`) that it repairs."""
    scope: Literal["step", "suffix", "task"] = "step"
    """Remedies only: the part of a plan that it replaces."""
    signatures: tuple[str, ...] = ()
    """Signatures of states in which the item applies."""
    locations: tuple[str, ...] = ()
    """Locations in which the item applies."""
    tags: tuple[str, ...] = ()
    """Words of a small vocabulary: verbs, object classes, failures."""
    provenance: tuple[int, ...] = ()
    """Ids of the steps that support the item."""
    score: float = 0.5
    """Utility in [0, 1]: 0.5 is neutral, 1 turns failures into successes, 0 turns successes into failures."""
    confidence: float = 0.5
    """Confidence in [0, 1] that the item is right."""
    status: Literal["active", "quarantined", "retired"] = "active"
    pinned: bool = False
    source: str = "person"
    trust: Trust = "trusted"
    ttl: int | None = None
    """Number of episodes after which the item expires without new evidence; None keeps it forever."""
    writer: str = "user"
    """The component, with its version, that wrote the item: `rules`, `user`, `chat:MODEL/3`."""
    version: int = 1
    """Number of the current version, from 1; every change adds one."""
    id: str = ""
    """Unique id; empty until the item is added."""

    def __post_init__(self) -> None:
        _as_tuples(self, "steps", "signatures", "locations", "tags", "provenance")
        if self.kind not in KINDS:
            raise ConfigError(f"item kind is {self.kind!r}; use one of {', '.join(KINDS)}.")
        if not isinstance(self.title, str):
            raise WrongType(f"item title is {self.title!r:.60}; give text.")
        if not self.title.strip():
            raise ConfigError("the item has no title; give one sentence that summarizes it.")
        if self.kind == "guardrail" and (self.condition is None or not self.forbids):
            raise ConfigError(f"guardrail {self.title!r} is incomplete; give `condition` and `forbids`.")
        for name in ("body", "when_to_use", "when_not_to_use", "repairs", "writer", "id"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"item {name} is {getattr(self, name)!r}; give text.")
        if self.granularity not in ("step", "task"):
            raise ConfigError(f"guardrail granularity is {self.granularity!r}; use step or task.")
        if self.scope not in ("step", "suffix", "task"):
            raise ConfigError(f"remedy scope is {self.scope!r}; use step, suffix or task.")
        if self.source not in SOURCES:
            raise ConfigError(f"item source is {self.source!r}; use one of {', '.join(SOURCES)}.")
        if self.trust not in ("trusted", "untrusted"):
            raise ConfigError(f"item trust is {self.trust!r}; use trusted or untrusted.")
        if self.repairs and self.repairs not in list(Failure):
            raise ConfigError(f"remedy repairs {self.repairs!r}; use one of {', '.join(Failure)}.")
        for name in ("score", "confidence", *(("ttl",) if self.ttl is not None else ())):
            # Real last: numpy scalars register as Real, and int and float are much cheaper to test
            if not isinstance(getattr(self, name), int | float | Real):
                raise WrongType(f"item {name} is {getattr(self, name)!r:.60}; give a number.")
        if self.ttl is not None and self.ttl < 1:
            raise ConfigError(f"item ttl is {self.ttl}; give a number of episodes of at least 1, or None.")
        for name in ("score", "confidence"):
            # phrased so that NaN, for which every comparison is false, is refused
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"item {name} is {getattr(self, name)}; give a number in [0, 1].")

    @property
    def text(self) -> str:
        """Return the text that search indexes: title, when to use it, and body, one per line."""
        return "\n".join(part for part in (self.title, self.when_to_use, self.body) if part)


@dataclass(frozen=True, slots=True)
class Usage:
    """A record that an item was shown to an agent or acted on an episode, with the outcome of the episode."""

    item_id: str
    trajectory_id: str
    t: int
    mode: Literal["recalled", "withheld", "blocked", "overridden", "followed"]
    """How the item took part.

    `recalled`: shown; `withheld`: it fitted and was held back for comparison; `blocked`: it refused an action;
    `overridden`: its refusal was overridden; `followed`: a skill that ran.
    """
    arm: str
    outcome: float | None = None
    """Outcome of the episode or, if the item was overridden, of the step; None if it is not known."""
    control_outcome: float | None = None
    """Mean outcome of the control episodes, if there are any."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and returns of all attempts at one kind of action in one kind of situation.

    Attempts that were rolled up are included. The counts are exact; `ExperienceLibrary.evidence` returns the ids of
    the steps behind each of them.
    """

    id: int
    signature: str
    pattern: str
    """The action with placeholders for its arguments."""
    n: int
    """Number of attempts."""
    failures: Mapping[str, int]
    """Number of attempts by failure. All other attempts succeeded."""
    mean_return: float
    """Mean discounted reward-to-go."""
    best: int
    """Id of the step with the highest return."""
    first: int
    """Id of the first step."""
    last: int
    """Id of the last step."""
    live: int
    """Number of attempts that are not rolled up. Only these are recalled individually."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of an episode between two rewards."""

    trajectory_id: str
    first_t: int
    last_t: int
    gain: float
    """Sum of the rewards in the segment."""
    location: str
    text: str
    """Description in words: the actions, the failures and the gain."""
    steps: tuple[int, ...] = ()
    """Ids of the steps."""


@dataclass(frozen=True, slots=True)
class Add:
    """An extractor's request to add an item."""

    item: Item


@dataclass(frozen=True, slots=True)
class Update:
    """An extractor's request to merge items into one with new words.

    `indices` are the positions of these items in the list that the extractor was shown, from 0.
    """

    indices: tuple[int, ...]
    item: Item


@dataclass(frozen=True, slots=True)
class Return:
    """An extractor's answer that the episode contains nothing worth keeping."""

    why: str = ""


Operation = Add | Update | Return


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected return of one action in the current state, from past steps with the same keys."""

    value: float
    """Estimated discounted reward-to-go."""
    n: int = 0
    """Number of past steps under `key`."""
    key: str = ""
    """The most specific key of the action that has past steps."""
    tried: int = 0
    """Number of past steps under the action's context key. A small number makes the action worth exploring."""
    steps: tuple[int, ...] = ()
    """Ids of a few of the past steps under `key`, the newest ones."""
    context: str = ""
    """Words around the action's arguments in the current state."""


SAMPLED = 3
"""Number of step ids that an outcome keeps as evidence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of rewards and punishments that one action brought at once in earlier steps of the applicable worlds."""

    n: int = 0
    """Number of steps with the action."""
    rewarded: int = 0
    """Number of them that were rewarded at once."""
    punished: int = 0
    """Number of them that were punished at once or failed."""
    steps: tuple[int, ...] = ()
    """Ids of the newest of these steps."""
    enabler: str = ""
    """For an action that is not listed: the listed action after which it was possible in most of these steps; empty if
    there is none."""
    certainty: float = 0.0
    """Probability that the action is rewarded at once the next time: the share of episodes in which its first step was
    rewarded, shrunk to how often actions of its template are rewarded again in the episode after a reward."""

    @property
    def share(self) -> float:
        """Return how much more often the action was rewarded than punished, from -1 to 1."""
        return (self.rewarded - self.punished) / self.n if self.n else 0.0

    def __add__(self, other: "Outcome") -> "Outcome":
        """Return the outcome over both sets of steps, with the newest ids."""
        steps = tuple(sorted((*self.steps, *other.steps))[-SAMPLED:])
        return Outcome(self.n + other.n, self.rewarded + other.rewarded, self.punished + other.punished, steps)


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: an item or step, its similarity, and why it was returned."""

    what: Item | Step
    similarity: float
    why: str
    """Why it was returned, in words."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """The result of a recall. It may be empty, and then the policy gets no hint.

    A recollection is falsy if it has no items, steps, guardrails or estimates.
    """

    items: tuple[Hit, ...] = ()
    steps: tuple[Hit, ...] = ()
    guardrails: tuple[Item, ...] = ()
    """Guardrails whose condition holds in the state."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Estimate by admissible action; empty if no actions were given."""
    path: Literal["empty", "cluster", "hybrid", "task"] = "empty"
    """Source of the result: a known situation ("cluster"), hybrid search, or whole episodes of the task."""
    tokens: int = 0
    """Number of tokens of the items and steps."""
    summaries: tuple[Summary, ...] = ()
    """Attempts in this kind of situation by kind of action, the most frequent first."""
    filled: int = 0
    """Number of `steps` that search added because the situation itself has fewer than k."""
    masked: tuple[str, ...] = ()
    """Ids of items that fit but are left out of `items` because they hurt in this world; see `values.effects`."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcome by admissible action, and of a few others that were rewarded before and are about things that the state
    names; those may need something else first. Empty if no steps were asked for."""

    def __bool__(self) -> bool:
        return bool(self.items or self.steps or self.guardrails or self.estimates)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an action may run and, if not, which guardrail forbids it and why."""

    allowed: bool
    item_id: str | None = None
    """Id of the guardrail that forbids the action."""
    cause: str = ""
    """Reason in words."""
    trial: bool = False
    """Whether a forbidden action may run this time as a trial. Its outcome decides whether the guardrail stays."""
    items: tuple[str, ...] = ()
    """Ids of all guardrails that forbid the action, `item_id` first."""
    over: bool = False
    """Whether the run should end, because a pinned guardrail refused too many actions in it."""

    def __post_init__(self) -> None:
        _as_tuples(self, "items")


@dataclass(frozen=True, slots=True)
class Admission:
    """The curator's decision about a candidate item."""

    status: Literal["added", "merged", "replaced", "rejected"]
    reason: str
    item_id: str | None = None


@dataclass(frozen=True, slots=True)
class EvolutionReport:
    """The result of one call of `evolve`."""

    admissions: tuple[Admission, ...] = ()
    retired: tuple[str, ...] = ()
    """Ids of the items that were retired."""
    candidates: int = 0
    """Number of proposed items."""

    def count(self, status: str) -> int:
        """Return the number of candidates with an admission status.

        Args:
            status: "added", "merged", "replaced" or "rejected".
        """
        return sum(admission.status == status for admission in self.admissions)


@dataclass(frozen=True, slots=True)
class Problem:
    """A derived structure that disagrees with the recorded episodes and items."""

    where: str
    """Table or index."""
    what: str
    """The disagreement, in words."""
    remedy: str
    """The step that repairs it, in words."""


def with_returns(trajectory: Trajectory, discount: float = 0.95) -> Trajectory:
    """Return the trajectory with `t` and `return_to_go` set on every step.

    Args:
        trajectory: Episode to complete.
        discount: Discount factor in [0, 1]; see `Trajectory.returns`.
    """
    steps = tuple(
        replace(step, t=t, return_to_go=value)
        for t, (step, value) in enumerate(zip(trajectory.steps, trajectory.returns(discount), strict=True))
    )
    return replace(trajectory, steps=steps)
