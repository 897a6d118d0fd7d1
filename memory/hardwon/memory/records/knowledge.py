"""Records of knowledge: items, their use, the counts of attempts, and the requests of an extractor."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, WrongType

from .episodes import Failure, Trust, as_tuples

Kind = Literal["strategy", "warning", "skill", "guardrail", "remedy", "insight"]
KINDS: tuple[Kind, ...] = ("strategy", "warning", "skill", "guardrail", "remedy", "insight")
MIN_SKILL_STEPS = 2
"""Minimum length of a skill proposed by rules. A single action needs no skill: its value already recommends it."""
SOURCES = ("person", "experience", "model", "import", "client", "environment")
"""Origins of an item: a person, the library's own steps, a model that read them, an imported file, a client program,
or text of an environment or tool."""


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
    """Action pattern of a guardrail: `eat {1}`, `cook {1} in stove`. Of a remedy, the call that fails, if another call
    replaces it."""
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
    episodes: int = 0
    """Number of independent episodes that support the words of a rule-made item; 0 if its words may not be shown."""
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
        as_tuples(self, "steps", "signatures", "locations", "tags", "provenance")
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
        return "\n".join(filter(None, (self.title, self.when_to_use, self.body)))


@dataclass(frozen=True, slots=True)
class Usage:
    """A record that an item was shown to an agent or acted on an episode, with the outcome of the episode."""

    item_id: str
    trajectory_id: str
    t: int
    mode: Literal["recalled", "withheld", "masked", "blocked", "overridden", "followed"]
    """How the item took part.

    `recalled`: shown; `withheld`: it fitted and was held back for comparison; `masked`, besides one of these: it hurt
    in this world so far, so it was held back with probability 0.9 instead of 0.1; `blocked`: it refused an action;
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

    Attempts that were rolled up are included. The counts are exact; `LibraryEpisodes.evidence` returns the ids of
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
