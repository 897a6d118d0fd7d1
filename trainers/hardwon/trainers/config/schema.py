"""The settings of a training run: YAML in, documented dataclasses out, nothing guessed.

    config = load("examples/train_coin.yaml", ["roles.policy.learner.lr=1e-4"])

Every field says what it is and in which unit; `hardwon train CONFIG --print-config` prints them all.
An unknown key is refused with the nearest name and its path, a value with its type or range. This
file builds nothing: it knows no model, no environment and no library.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.trainers.algorithms.advantages import ESTIMATORS
from hardwon.trainers.algorithms.imitation import Examples, WarmStart
from hardwon.trainers.algorithms.settings import LearnerSettings, LossSettings
from hardwon.trainers.models.tiny import TinyConfig

from .parsing import as_dict as as_dict, as_yaml as as_yaml, differences as differences, nearest, parse as parse

GUIDANCE = {
    "none": "Nothing is shown.",
    "library": "What the library recalls, at every step.",
    "experience": "The way that an earlier, exploring episode of the same world took, at the start.",
    "another": "The same of another world: what memory does that does not belong here.",
    "role": "What a role gives: what an extractor or a guide says.",
}
"""What an arm may be shown, by name."""
LEARNS = frozenset({"library", "role"})
"""Guidance that changes while the run goes on, so that it is also evaluated as it was at the start."""
CONTROL = "control"
"""The arm that is shown nothing, which every group has."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The world."""

    name: str
    """textworld, babyai, or MODULE:CLASS of an environment of your own."""
    game: str | None = None
    """Which of its games."""
    params: str = ""
    """The game's parameters, as NAME=NUMBER, NAME=NUMBER."""
    max_steps: int = 50
    """Steps after which an episode ends."""

    def __post_init__(self) -> None:
        _at_least(self, max_steps=1)


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Episodes of an environment, named by fold and seed."""

    fold: str = ""
    """What the environment is given as task: train, dev, test; empty for its default."""
    seeds: str = "0-99"
    """Seeds of the fold, as A-B, both included."""

    def __post_init__(self) -> None:
        _ = self.all

    @property
    def all(self) -> tuple[tuple[str, int], ...]:
        """Fold and seed of each."""
        first, dash, last = self.seeds.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"seeds is {self.seeds!r}; write them as A-B, for example 100-149.")
        if int(last or first) < int(first):
            raise ConfigError(f"seeds {self.seeds!r} run backwards; write the smaller number first.")
        return tuple((self.fold, seed) for seed in range(int(first), int(last or first) + 1))


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Which worlds are trained in and which are held out."""

    train: Worlds = field(default_factory=Worlds)
    """Worlds to train in; each is drawn once before any is drawn twice."""
    eval: Worlds = field(default_factory=lambda: Worlds(seeds="900-929"))
    """Worlds to evaluate in; none of them may be trained or explored in."""


@dataclass(frozen=True, kw_only=True)
class ExploreConfig:
    """Episodes of random actions: examples of a warm start, words of a tokenizer, experience to show."""

    worlds: Worlds = field(default_factory=Worlds)
    """Where the examples and the words come from."""
    steps: int = 40
    """Steps after which an exploring episode ends."""
    tries: int = 2
    """Episodes that a world is explored for, until one succeeds."""

    def __post_init__(self) -> None:
        _at_least(self, steps=1, tries=1)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained."""

    base: str = "tiny"
    """A model's folder, its name on the hub, or tiny: made here with random weights and the words explored."""
    tiny: TinyConfig = field(default_factory=TinyConfig)
    """The shape of a tiny model: numbers of weights, layers, heads and tokens."""
    adapter: int | None = None
    """Rank of each role's LoRA adapter; null trains all parameters, a copy of the base for each role."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU where there is one."""

    def __post_init__(self) -> None:
        if self.adapter is not None:
            _at_least(self, adapter=1)


@dataclass(frozen=True, kw_only=True)
class LibraryConfig:
    """The experience library of the arms that are shown what it recalls."""

    path: str | None = None
    """The library to begin with: the run works on a copy. null begins with an empty one."""
    learn: bool = True
    """Record the finished rollouts after every iteration."""
    evolve_every: int = 1
    """Iterations between two evolutions: extract, admit, merge, decay, evict. 0 for never."""
    merge_every: int = 5
    """Iterations between two passes that rewrite near twins into one. 0 for never."""
    recall: int = 5
    """Items, and similar steps, that are shown at most."""
    diverse: bool = True
    """While training, what was shown less comes first among what is about as near; never in an evaluation."""

    def __post_init__(self) -> None:
        _at_least(self, evolve_every=0, merge_every=0, recall=1)


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Whoever is asked before anything that was learnt is shown: accept, refine or reject; logged in gate.jsonl."""

    kind: str = "none"
    """none, record (rejects what did harm so far), policy (whoever will act says so itself), or MODULE:CLASS
    with the method judge(task, text, record)."""
    least: int = 4
    """Of record: episodes before it rejects."""
    floor: float = -0.1
    """Of record: mean difference to the control siblings below which it rejects."""

    def __post_init__(self) -> None:
        _at_least(self, least=1)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What generates."""

    kind: Literal["local", "vllm", "server"] = "local"
    """local: the model that is trained, in this process. vllm: vLLM in this process. server: a vLLM server."""
    url: str | None = None
    """Of the server, with its /v1; it serves the base, and loads adapters while it runs."""
    model: str | None = None
    """The server's name of the base; null takes the first that it has."""
    key: str | None = None
    """Name of the environment variable that holds the server's API key."""
    folder: str | None = None
    """Where adapters are written for the engine, under a path that the server sees; null is run.out/adapters."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM in this process, such as gpu_memory_utilization."""

    def __post_init__(self) -> None:
        if (self.url is not None) != (self.kind == "server"):
            raise ConfigError(f"kind is {self.kind} and url {self.url!r}; a server has a url, and nothing else has.")
        if self.settings and self.kind != "vllm":
            raise ConfigError(f"settings are vLLM's and kind is {self.kind}; leave them, or use kind: vllm.")


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """How much better than its siblings a turn was."""

    name: str = "grpo"
    """The estimator: dr-grpo, empg, gigpo, grpo, hgpo, igpo, reinforce, rlvmr, rloo, salt, slea, spa."""
    settings: dict[str, float] = field(default_factory=dict)
    """Its own settings, such as discount and omega of gigpo."""

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            raise UnknownName.of("estimator", self.name, ESTIMATORS)
        known = list(inspect.signature(ESTIMATORS[self.name]).parameters)[1:]
        for name in self.settings:
            if name not in known:
                raise ConfigError(f"settings.{name}: {nearest(name, known)}")


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """How one role learns."""

    learner: LearnerSettings = field(default_factory=LearnerSettings)
    """The optimiser."""
    loss: LossSettings = field(default_factory=LossSettings)
    """What it minimises."""
    credit: CreditConfig = field(default_factory=CreditConfig)
    """Advantages, within group, arm and role."""
    phase: int = 1
    """Updates before the turn passes to the next role that is ready: one role is trained at a time."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The role's own settings."""

    def __post_init__(self) -> None:
        _at_least(self, phase=1)


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """Imitation of the exploring episodes that went well, before the first iteration."""

    examples: Examples = field(default_factory=Examples)
    """Which episodes, and how often with their memory."""
    learning: WarmStart = field(default_factory=WarmStart)
    """How they are learnt."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation in held-out worlds."""

    every: int = 20
    """Iterations between two evaluations; there is one at the start and one at the end. 0 for none."""
    copies: int = 2
    """Episodes a world and arm."""
    temperature: float = 1.0
    """Of the policy; 0 takes the most probable token, which walks in circles more often."""

    def __post_init__(self) -> None:
        _at_least(self, every=0, copies=1, temperature=0)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, how often, where."""

    iterations: int = 60
    """Rounds of rollouts and an update."""
    groups: int = 8
    """Worlds an iteration, each a group of episodes in every arm."""
    rerolls: int = 0
    """Times that groups without a signal are replaced by other worlds' in an iteration (dynamic sampling)."""
    temperature: float = 1.0
    """Of the rollouts."""
    save_every: int = 10
    """Iterations between two checkpoints; there is one at the start, at the end and after each evaluation."""
    keep: int = 3
    """Newest checkpoints that are kept, beside the best."""
    seed: int = 0
    """Of the run's chance."""
    threads: int | None = None
    """CPU threads; null leaves them as they are."""
    out: str = "runs/train"
    """Folder of checkpoints and metrics."""
    wandb: str | None = None
    """Project on Weights & Biases; null sends nothing anywhere."""

    def __post_init__(self) -> None:
        _at_least(self, iterations=0, groups=1, rerolls=0, save_every=1, keep=1)
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; rollouts need one above 0: use 1.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    environment: EnvironmentConfig
    """The world."""
    tasks: TasksConfig = field(default_factory=TasksConfig)
    """Worlds to train and to evaluate in."""
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    """Episodes of random actions, before anything is learnt."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """What is trained."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """What generates with it."""
    arms: dict[str, int] = field(default_factory=lambda: {CONTROL: 8})
    """Episodes a group in each arm; one of them is control, which is shown nothing."""
    guidance: dict[str, str] = field(default_factory=dict)
    """What each arm is shown: none, library, experience, another, role. An arm of such a name need not say."""
    library: LibraryConfig = field(default_factory=LibraryConfig)
    """Used where an arm is shown what it recalls, or a role needs it."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Who says of what was learnt whether it is shown."""
    roles: dict[str, RoleConfig] = field(default_factory=lambda: {"policy": RoleConfig()})
    """The parts that learn, in the order of their turns."""
    warmstart: WarmStartConfig | None = None
    """Imitation first; null begins with the model as it is."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation in held-out worlds."""
    run: RunConfig = field(default_factory=RunConfig)
    """How long, how often, where."""

    def __post_init__(self) -> None:
        self._check_arms()
        self._check_worlds()
        if "policy" not in self.roles:
            raise ConfigError(f"roles has no policy, only {', '.join(self.roles) or 'nothing'}; add roles.policy.")
        self._check_engine()
        self._check_extractor()

    def _check_engine(self) -> None:
        if self.engine.kind != "local" and self.model.adapter is None:
            raise ConfigError(
                f"engine.kind is {self.engine.kind}, which swaps LoRA adapters, and model.adapter is null; "
                "give a rank, such as model.adapter=16, or use engine.kind=local."
            )
        if self.engine.kind == "server" and self.model.base == "tiny":
            raise ConfigError(
                "a tiny base is made by the run, so no server serves it yet; "
                "give the folder that the server has as model.base, or use engine.kind=vllm."
            )

    def _check_extractor(self) -> None:
        """What an extractor writes must be shown somewhere."""
        if (extractor := self.roles.get("extractor")) is None:
            return
        reads = extractor.settings.get("reads", "explored")
        needed = "library" if reads == "rollouts" else "role"
        if needed not in {self.shown(arm) for arm in self.arms}:
            raise ConfigError(
                f"roles.extractor reads {reads}, and no arm shows what comes of it; "
                f"add one whose guidance is {needed}, such as arms.advice=4 guidance.advice={needed}."
            )
        if reads == "rollouts" and not self.library.learn:
            raise ConfigError(
                "roles.extractor reads rollouts, which library.learn=false does not record; leave it true."
            )

    def _check_arms(self) -> None:
        if CONTROL not in self.arms:
            raise ConfigError(f"arms has no {CONTROL}, which every group is compared with; add arms.{CONTROL}.")
        for arm, copies in self.arms.items():
            if copies < 1:
                raise ConfigError(f"arms.{arm} is {copies}; use 1 or more, or leave the arm out.")
            if self.shown(arm) not in GUIDANCE:
                known = [*GUIDANCE]
                raise ConfigError(f"guidance.{arm} is {self.shown(arm)!r}: {nearest(self.shown(arm), known)}")
        for arm in self.guidance:
            if arm not in self.arms:
                raise ConfigError(f"guidance.{arm}: {nearest(arm, [*self.arms])} It must be one of the arms.")
        if self.shown(CONTROL) != "none":
            raise ConfigError(f"guidance.{CONTROL} is {self.shown(CONTROL)!r}; {CONTROL} is shown nothing.")

    def _check_worlds(self) -> None:
        held_out = set(self.tasks.eval.all)
        for path, worlds in (("tasks.train", self.tasks.train), ("explore.worlds", self.explore.worlds)):
            if both := sorted(held_out & set(worlds.all)):
                raise ConfigError(
                    f"{path} and tasks.eval share {len(both)} worlds, such as {both[0][0]}#{both[0][1]}; "
                    "what is evaluated in must never have been trained in. Change the seeds or the fold."
                )

    def shown(self, arm: str) -> str:
        """Name of the guidance of an arm."""
        return "none" if arm == CONTROL and arm not in self.guidance else self.guidance.get(arm, arm)

    @property
    def uses_library(self) -> bool:
        """Whether anything is recalled or recorded."""
        return bool(LEARNS & {self.shown(arm) for arm in self.arms})


def _at_least(section: Any, **bounds: float) -> None:
    for name, least in bounds.items():
        if getattr(section, name) < least:
            raise ConfigError(f"{name} is {getattr(section, name)}; use {least} or more.")


# -- reading --------------------------------------------------------------------------------------


def load(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings of a YAML file with `a.b=value` on top. Raises ConfigError with the path of what is wrong."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        given = yaml.safe_load(text) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Give the path of a YAML file.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return of(given, overrides)


def of(given: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings of a mapping as it stands in YAML."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"the settings are {given!r}; write sections, such as `run:`.")
    merged = json.loads(json.dumps(given, default=str))
    for override in overrides:
        _override(merged, override)
    return parse(TrainConfig, merged)


def _override(given: dict[str, Any], override: str) -> None:
    import yaml

    path, equals, value = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {override!r} has no value; write roles.policy.learner.lr=1e-4.")
    *sections, name = path.strip().split(".")
    place = given
    for n, section in enumerate(sections):
        inner = place.setdefault(section, {})
        if inner is None:
            inner = place[section] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(sections[: n + 1])} is {inner!r} and has no {name}.")
        place = inner
    place[name] = yaml.safe_load(value)
