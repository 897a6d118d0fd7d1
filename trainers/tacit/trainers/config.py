"""The settings of a training run: YAML in, documented dataclasses out, nothing guessed.

    config = load("examples/train_coin.yaml", ["roles.policy.learner.lr=1e-4"])

Every field says what it is and in which unit; `tacit train CONFIG --print-config` prints them all.
An unknown key is refused with the nearest name and its path, a value with its type or range. This
file builds nothing: it knows no model, no environment and no library.
"""

import ast
import difflib
import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tacit.memory.errors import ConfigError, UnknownName

from .credit import ESTIMATORS
from .optim import LearnerSettings, LossSettings
from .tiny import TinyConfig
from .warmstart import Examples, WarmStart

T = TypeVar("T")

GUIDANCE = {
    "none": "Nothing is shown.",
    "library": "What the library recalls, at every step.",
    "experience": "The way that an earlier, exploring episode of the same world took, at the start.",
    "another": "The same of another world: what memory does that does not belong here.",
    "role": "What a role gives: the extractor's text.",
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

    def __post_init__(self) -> None:
        _at_least(self, evolve_every=0)


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
                raise ConfigError(f"settings.{name}: {_nearest(name, known)}")


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
    arms: dict[str, int] = field(default_factory=lambda: {CONTROL: 8})
    """Episodes a group in each arm; one of them is control, which is shown nothing."""
    guidance: dict[str, str] = field(default_factory=dict)
    """What each arm is shown: none, library, experience, another, role. An arm of such a name need not say."""
    library: LibraryConfig = field(default_factory=LibraryConfig)
    """Used where an arm is shown what it recalls, or a role needs it."""
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

    def _check_arms(self) -> None:
        if CONTROL not in self.arms:
            raise ConfigError(f"arms has no {CONTROL}, which every group is compared with; add arms.{CONTROL}.")
        for arm, copies in self.arms.items():
            if copies < 1:
                raise ConfigError(f"arms.{arm} is {copies}; use 1 or more, or leave the arm out.")
            if self.shown(arm) not in GUIDANCE:
                known = [*GUIDANCE]
                raise ConfigError(f"guidance.{arm} is {self.shown(arm)!r}: {_nearest(self.shown(arm), known)}")
        for arm in self.guidance:
            if arm not in self.arms:
                raise ConfigError(f"guidance.{arm}: {_nearest(arm, [*self.arms])} It must be one of the arms.")
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


def parse(kind: type[T], given: Any, path: str = "") -> T:
    """A dataclass of a mapping, its types checked all the way down; raises ConfigError that names the path."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path or 'the settings'} is {given!r}; it is a section: {', '.join(_names(kind))}.")
    for name in given:
        if name not in _names(kind):
            raise ConfigError(f"{_joined(path, str(name))}: {_nearest(str(name), _names(kind))}")
    for one in fields(kind):  # type: ignore[arg-type]
        if one.default is MISSING and one.default_factory is MISSING and one.name not in given:
            raise ConfigError(f"{_joined(path, one.name)} is missing. {_documented(kind).get(one.name, '')}".rstrip())
    hints = get_type_hints(kind)
    values = {name: _value(hints[name], value, _joined(path, name)) for name, value in given.items()}
    try:
        return kind(**values)
    except (ConfigError, UnknownName) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _value(kind: Any, given: Any, path: str) -> Any:
    """`given` as a value of this type."""
    if isinstance(kind, type) and is_dataclass(kind):
        return parse(kind, given, path)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if given is None and NoneType in parts:
            return None
        (inner,) = [part for part in parts if part is not NoneType]
        return _value(inner, given, path)
    if origin is Literal:
        if given not in parts:
            raise ConfigError(f"{path} is {given!r}: {_nearest(str(given), list(map(str, parts)))}")
        return given
    if origin is dict:
        if not isinstance(given, Mapping):
            raise ConfigError(f"{path} is {given!r}; it is a mapping of names to values.")
        return {str(name): _value(parts[1], value, _joined(path, str(name))) for name, value in given.items()}
    if origin is tuple:
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(parts):
            raise ConfigError(f"{path} is {given!r}; it is a list of {len(parts)}.")
        return tuple(
            _value(part, value, f"{path}[{n}]") for n, (part, value) in enumerate(zip(parts, given, strict=True))
        )
    return given if kind is Any else _plain(kind, given, path)


def _plain(kind: type, given: Any, path: str) -> Any:
    if kind is float and isinstance(given, str):  # YAML reads 1e-4, without a point, as text
        try:
            return float(given)
        except ValueError:
            pass
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, kind) or (kind is int and isinstance(given, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(f"{path} is {given!r}; it is {words.get(kind, kind.__name__)}.")
    return given


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _nearest(name: str, known: Sequence[str]) -> str:
    """`did you mean lr? There are: lr, betas.`"""
    near = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"There are: {', '.join(known) or 'none'}."


# -- writing --------------------------------------------------------------------------------------


def as_dict(config: Any) -> dict[str, Any]:
    """The settings as plain values, all of them; `of` reads them back."""
    return json.loads(json.dumps(asdict(config)))  # type: ignore[no-any-return]


def as_yaml(config: Any) -> str:
    """The settings as YAML, every one under a comment that says what it is."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(section: Any, indent: str) -> list[str]:
    lines: list[str] = []
    documented = _documented(type(section))
    for one in fields(section):
        if one.name in documented:
            lines += textwrap.wrap(
                documented[one.name], 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        lines += _entry(one.name, getattr(section, one.name), indent)
    return lines


def _entry(name: str, value: Any, indent: str) -> list[str]:
    if is_dataclass(value):
        return [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
    if isinstance(value, Mapping) and any(map(is_dataclass, value.values())):
        inner = [line for key, part in value.items() for line in _entry(key, part, f"{indent}  ")]
        return [f"{indent}{name}:", *inner]
    return [f"{indent}{name}: {json.dumps(value)}"]


def _documented(kind: Any) -> dict[str, str]:
    """The sentence under each field of a dataclass, read from its source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in pairwise(node.body):
        said = after.value if isinstance(after, ast.Expr) else None
        if isinstance(before, ast.AnnAssign) and isinstance(said, ast.Constant):
            found[ast.unparse(before.target)] = " ".join(str(said.value).split())
    return found


def differences(one: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """What two runs' settings differ in, by path."""
    ours, theirs = _flat(as_dict(one)), _flat(as_dict(other))
    return {
        path: (ours.get(path), theirs.get(path))
        for path in sorted({*ours, *theirs})
        if ours.get(path) != theirs.get(path)
    }


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        here = _joined(path, name)
        found.update(_flat(value, here) if isinstance(value, Mapping) and value else {here: value})
    return found
