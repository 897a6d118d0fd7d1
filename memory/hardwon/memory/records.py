"""The records the library keeps: what was seen, done, learnt and shown.

Plain frozen values; no storage, no search. A `Trajectory` is one episode's `Step`s and its outcome
and is never changed once recorded. An `Item` is one piece of knowledge distilled from steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from .errors import ConfigError, WrongType
from .signature import signature

Kind = Literal["strategy", "warning", "skill", "guardrail", "remedy", "insight"]
KINDS: tuple[Kind, ...] = ("strategy", "warning", "skill", "guardrail", "remedy", "insight")
MIN_SKILL_STEPS = 2
"""Steps of a skill that a program proposes: the value of a single action already says that it pays."""

Fact = str | int | float | bool | list[str]
Trust = Literal["trusted", "untrusted"]
SOURCES = ("person", "experience", "model", "import", "client", "environment")
"""Where knowledge comes from: a person, this library's own steps, a model that read them, a file from
elsewhere, a program that calls, or words of an environment or tool."""


def _as_tuples(record: object, *names: str) -> None:
    """Lists where tuples belong come out of JSON and of checkpoints; equal records must stay equal."""
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, tuple):
            if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                raise WrongType(f"{type(record).__name__} {name} is {value!r:.60}; give a tuple or a list.")
            object.__setattr__(record, name, tuple(value))


class Failure(StrEnum):
    """Why a step did not help: a closed list, most specific first.

    `unavailable` is an outage (a timeout, 429, 5xx, no connection): it says nothing of the call itself.
    `rejected` is a call that a person refused.
    """

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
    """What the environment shows at one moment, and what the episode has told before it.

    `signature` is computed when not given, at the first look at it; see `hardwon.memory.signature`.
    """

    observation: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Predicates, where the environment gives them: {"inventory": ["a map"], "front": "wall"}."""
    location: str = ""
    task: str = ""
    feedback: str = ""
    """What the environment answered to the last action; not part of the signature."""
    notes: tuple[str, ...] = ()
    """Sentences told earlier in the episode that the observation no longer shows (a recipe, a map)."""
    signature: str = ""

    def __post_init__(self) -> None:
        if type(self.notes) is not tuple:
            _as_tuples(self, "notes")
        if not isinstance(self.facts, Mapping):
            raise WrongType(f"State facts is {self.facts!r:.60}; give a dict.")
        if self.facts and any(isinstance(value, tuple) for value in self.facts.values()):
            facts = {name: list(value) if isinstance(value, tuple) else value for name, value in self.facts.items()}
            object.__setattr__(self, "facts", facts)
        if not self.signature:
            object.__delattr__(self, "signature")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            """The signature, once; Python asks here for what is not set."""
            if name != "signature":
                raise AttributeError(f"a State has no {name!r}")
            object.__setattr__(self, "signature", signature(self.observation, self.facts))
            return self.signature

    @property
    def signature_if_known(self) -> str:
        """The signature that was given or looked at; empty while nobody has."""
        try:
            known: str = object.__getattribute__(self, "signature")
        except AttributeError:
            return ""
        return known


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a step did, beyond the reward."""

    success: bool
    """The step did not fail; the episode's success is on the trajectory."""
    failure: Failure = Failure.NONE
    progress: float = 0.0
    """In [0, 1]: how far the step moved the task or the world."""
    stagnant: bool = False
    loop: bool = False
    diff: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the state that changed, with their new values."""
    evidence: str = ""
    """The words of the environment on which the failure was judged."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action: before, after, and what came of it."""

    pre: State
    action: str
    post: State
    diagnosis: Diagnosis
    reward: float = 0.0
    t: int = 0
    keys: tuple[str, ...] = ()
    """Under which the experience is filed, general to special; see `hardwon.memory.situations.keys`."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """Why the policy chose it: estimate, items and steps recalled, actions blocked, tokens."""
    id: int | None = None
    return_to_go: float | None = None
    """Discounted sum of rewards from this step on; set when the trajectory is recorded."""
    admissible: tuple[str, ...] = ()
    """What could have been done, the action included, where the environment lists it: what was not chosen."""

    def __post_init__(self) -> None:
        if type(self.keys) is not tuple or type(self.admissible) is not tuple:
            _as_tuples(self, "keys", "admissible")


BOUND = 1.0
"""The largest reward and return, either way, that values are learned from: what every environment here gives."""


def bounded(value: float) -> float:
    """Return a reward or return cut to [-BOUND, BOUND]; one that is no number counts as 0."""
    return min(BOUND, max(-BOUND, value)) if value == value else 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `success` is None when the environment failed and the episode was excluded."""

    task: str
    steps: tuple[Step, ...]
    success: bool | None
    score: float = 0.0
    """The environment's own score in [0, 1] at the end."""
    arm: str = "control"
    seed: int = 0
    ending: str = ""
    """Why it ended: success, task_lost, step_limit, or the failure that excluded it."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Environment, game, policy, attempts, tokens, cost: whatever helps to tell episodes apart."""
    id: str = ""
    writer: str = ""
    """Who recorded it: a door writes the name of its caller here; empty is this process or its own kind."""
    trust: Trust = "trusted"
    """Whether its words are believed. An untrusted episode adds the forms of its actions and their outcomes alone."""

    def __post_init__(self) -> None:
        _as_tuples(self, "steps")
        if self.trust not in ("trusted", "untrusted"):
            raise ConfigError(f"episode trust is {self.trust!r}; use trusted or untrusted.")
        if not isinstance(self.writer, str):
            raise ConfigError(f"episode writer is {self.writer!r}; it is text.")

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the step rewards."""
        return sum(step.reward for step in self.steps)

    def returns(self, discount: float = 0.95) -> list[float]:
        """Discounted reward-to-go of every step: G_t = r_t + discount * G_{t+1}.

        `meta["discount"]`, a number in [0, 1], replaces the discount: 1 for an outcome that belongs to all steps alike.
        """
        discount = self._discount(discount)
        returns: list[float] = []
        following = 0.0
        for step in reversed(self.steps):
            following = step.reward + discount * following
            returns.append(following)
        return returns[::-1]

    def learned_returns(self, discount: float = 0.95) -> list[float]:
        """Return the returns that values are learned from: as `returns`, each reward and each sum in [-BOUND, BOUND].

        The steps keep the rewards that were given, for the audit.
        """
        discount = self._discount(discount)
        returns: list[float] = []
        following = 0.0
        for step in reversed(self.steps):
            following = bounded(bounded(step.reward) + discount * following)
            returns.append(following)
        return returns[::-1]

    def _discount(self, usual: float) -> float:
        own = self.meta.get("discount")
        return float(own) if isinstance(own, int | float) and 0.0 <= own <= 1.0 else usual


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of knowledge. A guardrail also has `condition` and `forbids`; see `guardrails.conditions`."""

    kind: Kind
    title: str
    body: str = ""
    when_to_use: str = ""
    when_not_to_use: str = ""
    condition: Mapping[str, Any] | None = None
    """Executable predicate on a state: a guardrail's, a skill's preconditions, a remedy's trigger; see
    `guardrails.conditions`."""
    forbids: str | None = None
    """Action pattern of a guardrail: `eat {1}`, `cook {1} in stove`."""
    granularity: Literal["step", "task"] = "step"
    """Of a guardrail: refuses an action before it runs, or a whole plan that contains it."""
    steps: tuple[str, ...] = ()
    """Of a skill: action patterns in order; of a remedy: the actions that repair."""
    verify: Mapping[str, Any] | None = None
    """Of a skill: what must hold in the state after its last step, whatever the policy says."""
    repairs: str = ""
    """Of a remedy: the failure (a value of `Failure`) that it repairs."""
    scope: Literal["step", "suffix", "task"] = "step"
    """Of a remedy: how much of a plan it replaces."""
    signatures: tuple[str, ...] = ()
    """State clusters in which it is known to apply."""
    locations: tuple[str, ...] = ()
    """Places in which it is known to apply."""
    tags: tuple[str, ...] = ()
    """Words of a small vocabulary: verbs, classes of things, failures."""
    provenance: tuple[int, ...] = ()
    """Ids of the steps that are its evidence."""
    score: float = 0.5
    """Utility: 0.5 is as good as without it, 1 turns failures into successes, 0 the reverse."""
    confidence: float = 0.5
    status: Literal["active", "quarantined", "retired"] = "active"
    pinned: bool = False
    source: str = "person"
    trust: Trust = "trusted"
    ttl: int | None = None
    """Episodes that it lives without new evidence; None is for ever."""
    writer: str = "user"
    """The module, and its version, that wrote it: `rules`, `user`, `chat:MODEL/3`."""
    version: int = 1
    id: str = ""

    def __post_init__(self) -> None:
        _as_tuples(self, "steps", "signatures", "locations", "tags", "provenance")
        if self.kind not in KINDS:
            raise ConfigError(f"item kind is {self.kind!r}; use one of {', '.join(KINDS)}.")
        if not isinstance(self.title, str):
            raise WrongType(f"item title is {self.title!r:.60}; give text.")
        if not self.title.strip():
            raise ConfigError("an item needs a title: one sentence that says what it is about.")
        if self.kind == "guardrail" and (self.condition is None or not self.forbids):
            raise ConfigError(f"guardrail {self.title!r} needs a condition and the action it forbids.")
        for name in ("body", "when_to_use", "when_not_to_use", "repairs", "writer", "id"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"item {name} is {getattr(self, name)!r}; it is text.")
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
            if not isinstance(getattr(self, name), int | float | Real):
                raise WrongType(f"item {name} is {getattr(self, name)!r:.60}; give a number.")
        if self.ttl is not None and self.ttl < 1:
            raise ConfigError(f"item ttl is {self.ttl}; give a number of episodes of at least 1, or None.")
        for name in ("score", "confidence"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"item {name} is {getattr(self, name)}; it lies in [0, 1].")

    @property
    def text(self) -> str:
        """The words by which the item is found."""
        return "\n".join(part for part in (self.title, self.when_to_use, self.body) if part)


@dataclass(frozen=True, slots=True)
class Usage:
    """An item was shown to, or acted upon, an episode, which ended with `outcome`."""

    item_id: str
    trajectory_id: str
    t: int
    mode: Literal["recalled", "withheld", "blocked", "overridden", "followed"]
    """Shown; fitting but held back, for comparison; refused an action; was overridden; a skill that was run."""
    arm: str
    outcome: float | None = None
    control_outcome: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of all attempts at one kind of action in one kind of situation, folded or not.

    Its counts are exact; `ExperienceLibrary.evidence` names the steps behind each of them.
    """

    id: int
    signature: str
    pattern: str
    """The action with its arguments left open."""
    n: int
    failures: Mapping[str, int]
    """By failure, how often; what is not counted here succeeded."""
    mean_return: float
    """Mean discounted reward-to-go."""
    best: int
    """Id of the step with the highest return."""
    first: int
    last: int
    live: int
    """Of the n, how many are not folded: only these are recalled one by one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one episode between two gains: what was done, and what it brought."""

    trajectory_id: str
    first_t: int
    last_t: int
    gain: float
    """Sum of the rewards in it."""
    location: str
    text: str
    """In words: the actions, what failed, what was gained."""
    steps: tuple[int, ...] = ()
    """Ids of its steps."""


@dataclass(frozen=True, slots=True)
class Add:
    """An extractor asks that an item be admitted."""

    item: Item


@dataclass(frozen=True, slots=True)
class Update:
    """An extractor rewrites items it was shown, by their place in what it was shown, into one."""

    indices: tuple[int, ...]
    item: Item


@dataclass(frozen=True, slots=True)
class Return:
    """An extractor found nothing worth keeping: a valid answer."""

    why: str = ""


Operation = Add | Update | Return


@dataclass(frozen=True, slots=True)
class Estimate:
    """What past steps say about taking one action here."""

    value: float
    """Estimated discounted reward-to-go."""
    n: int = 0
    """Past steps filed under the most special key that has any."""
    key: str = ""
    tried: int = 0
    """Past steps filed under the action's context key; the less, the more there is to learn."""
    steps: tuple[int, ...] = ()
    """Ids of a few of those steps."""
    context: str = ""
    """What holds around the action's arguments here."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing found, how near it is, and why it was chosen."""

    what: Item | Step
    similarity: float
    why: str


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a recall returned. Empty is a valid answer: then nothing is put before the policy."""

    items: tuple[Hit, ...] = ()
    steps: tuple[Hit, ...] = ()
    guardrails: tuple[Item, ...] = ()
    """Guardrails whose condition holds in the state."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Per admissible action, when actions were given."""
    path: Literal["empty", "cluster", "hybrid", "task"] = "empty"
    tokens: int = 0
    summaries: tuple[Summary, ...] = ()
    """What came of every kind of action in this kind of situation, the most tried first."""
    filled: int = 0
    """Of `steps`, how many search found near because the situation itself has fewer than were asked for."""
    masked: tuple[str, ...] = ()
    """Ids of items that fit but hurt in this world, so that they are not among `items`; see `values.effects`."""

    def __bool__(self) -> bool:
        return bool(self.items or self.steps or self.guardrails or self.estimates)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an action may run, and if not, which guardrail says so and why."""

    allowed: bool
    item_id: str | None = None
    cause: str = ""
    trial: bool = False
    """Forbidden, and let through this once: the outcome decides what becomes of the guardrail."""
    items: tuple[str, ...] = ()
    """All guardrails that forbid it, `item_id` first."""
    over: bool = False
    """Refused so often in this run, by a guardrail that a person pinned, that the run is to end."""

    def __post_init__(self) -> None:
        _as_tuples(self, "items")


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a candidate item."""

    status: Literal["added", "merged", "replaced", "rejected"]
    reason: str
    item_id: str | None = None


@dataclass(frozen=True, slots=True)
class EvolutionReport:
    """What one call of `evolve` did."""

    admissions: tuple[Admission, ...] = ()
    retired: tuple[str, ...] = ()
    candidates: int = 0

    def count(self, status: str) -> int:
        """How many candidates ended with this admission status."""
        return sum(admission.status == status for admission in self.admissions)


@dataclass(frozen=True, slots=True)
class Problem:
    """A derived structure that disagrees with the truth."""

    where: str
    what: str
    remedy: str


def with_returns(trajectory: Trajectory, discount: float = 0.95) -> Trajectory:
    """The same trajectory with every step's `return_to_go` filled in."""
    steps = tuple(
        replace(step, t=t, return_to_go=value)
        for t, (step, value) in enumerate(zip(trajectory.steps, trajectory.returns(discount), strict=True))
    )
    return replace(trajectory, steps=steps)
