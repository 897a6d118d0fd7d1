"""What the learner and its rollout workers send each other. All of it can be pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.errors import EngineFailure
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.served_weights import Serving
from hardwon.trainers.rollouts.rollout import Spec

from .agent_pool import AgentSpec


class WorkerDied(EngineFailure):
    """A rollout worker ended, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is started with."""

    config: dict[str, Any]
    """The settings of the run, as a nested mapping."""
    tokenizer: Any
    context: int | None
    """Longest sequence that the policy's model reads, in tokens."""
    paths: tuple[str, ...] = ()
    """Folders of modules in the learner's process, such as that of an environment of your own."""
    key: str | None = field(default=None, repr=False)
    """API key of the server that generates."""


@dataclass(frozen=True, slots=True)
class SceneState:
    """What episodes of one call of the player share: libraries and versions of the weights."""

    number: int
    snapshot: str
    """Name of the library version, stored with every sample."""
    libraries: Mapping[str, str]
    """Digest of each library file, by its name."""
    versions: Mapping[str, int]
    served: Mapping[str, Serving] = field(default_factory=dict)
    """Weights of each role on the server that generates; empty if the learner's process generates."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An episode to play."""

    spec: Spec
    agent_spec: AgentSpec
    scene: int
    outcome: OutcomeKind = "success"


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar without its automaton and tokenizer, which the learner has."""

    lark: str
    max_tokens: int
    end: int


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request of an episode. `number` counts the requests of the episode, from 0."""

    session: str
    number: int
    request: Request
    grammar: GrammarText | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: a completion and the state of its random generator afterwards, or an error."""

    session: str
    number: int
    completion: Completion | None = None
    chance: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Traces:
    """What an episode leaves behind besides its rollout."""

    steps: int = 0
    """Steps that the worker's environment has run since its last report."""
    reported: frozenset[str] = frozenset()
    """Outcomes that these steps reported."""
    tokens: int = 0
    """Tokens that the server has read and generated for the worker since its last report."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished episode, or the error that ended it."""

    session: str
    rollout: Rollout | None = None
    traces: Traces = field(default_factory=Traces)
    error: BaseException | None = None


WorkerEvent = Inquiry | Done
