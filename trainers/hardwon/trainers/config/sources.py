"""Settings of the signal sources, by name, with the signals that each gives; `hardwon.trainers.sources` builds them."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_type_hints

from hardwon.memory.errors import CannotLearn, ConfigError, UnknownName
from hardwon.trainers.algorithms.catalog import PARTS, import_named as import_named

from .parsing import nearest, parse, parse_value


@PARTS.add("source", "Entropy of choices", gives=("entropy",), name="entropy", method="empg")
@dataclass(frozen=True, kw_only=True)
class EntropySettings:
    """Mean entropy of a turn's choices among the allowed tokens, by the policy that sampled."""


@PARTS.add("source", "Progress of the world", gives=("progress",), name="progress", method="mrt")
@dataclass(frozen=True, kw_only=True)
class ProgressSettings:
    """Progress that each turn made."""

    of: Literal["reward", "diagnosis"] = "reward"
    """reward: the reward of the step, which is the change of the score in worlds with one. diagnosis: the progress
    that the loop's diagnosis saw."""


@PARTS.add("source", "Redundant turns", gives=("redundant",), name="redundant", method="decs")
@dataclass(frozen=True, kw_only=True)
class RedundantSettings:
    """Whether a turn was needless: a refused step, or part of a circle back to an earlier state."""


@PARTS.add("source", "Probability of the true answer", gives=("answer",), name="answer", method="igpo")
@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """Probability of the true answer after every turn, by the policy."""

    of: Literal["world", "route"] = "world"
    """world: the environment's own answer(task, seed). route: the actions of an explored success of the task instance;
    instances without one have no signal."""


@PARTS.add("source", "Answers", gives=("answers",), name="answers", method="scope")
@dataclass(frozen=True, kw_only=True)
class AnswersSettings:
    """The answer that an episode ended with, and the policy's confidence in the episode."""

    pattern: str = ".+"
    """Regular expression of an answering action, case ignored. The last action of the policy that it matches as a whole
    is the answer; of a pattern with a group, the group. An episode without one has no readable answer."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"pattern is {self.pattern!r}: {error}. Give a regular expression.") from error


@PARTS.add("source", "Confidence", gives=("confidence",), name="confidence", method="spae")
@dataclass(frozen=True, kw_only=True)
class ConfidenceSettings:
    """exp of minus the mean entropy of the next action's choices, by the policy."""


@PARTS.add("source", "Use of observations", gives=("observation",), name="observation", method="infopo")
@dataclass(frozen=True, kw_only=True)
class ObservationSettings:
    """How much the observation after a turn changed the log-probability of the next action, by the policy."""


@PARTS.add("source", "Implicit reward model", gives=("implicit",), name="implicit", method="oprl")
@dataclass(frozen=True, kw_only=True)
class ImplicitSettings:
    """Log-ratio of a second policy, trained on pairs of a success and a failure, to the one that sampled."""

    beta: float = 0.05
    """Scale of the reward and of the margin between two traces."""
    lr: float = 1e-6
    """Learning rate of the second policy."""


@PARTS.add("source", "Labels of turns by a judge", gives=("steps",), name="steps", method="capo")
@dataclass(frozen=True, kw_only=True)
class StepsSettings:
    """Whether each turn is right, by the votes of a judge's critiques."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""
    votes: int = 4
    """Critiques per episode."""
    rule: Literal["intersection", "majority", "union"] = "intersection"
    """When a turn is wrong: if all critiques say so (for small judges), at least half, or one."""


@PARTS.add("source", "Use of earlier turns by a judge (HAR)", gives=("lookback",), name="lookback", method="har-judge")
@dataclass(frozen=True, kw_only=True)
class LookbackSettings:
    """Share of the turns after the first whose thought uses what earlier turns showed, by a judge; it needs speech."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""


@PARTS.add("source", "Scores by a judge", gives=("score", "quality"), name="score", method="exprl")
@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Score of every prefix of an episode by a judge, and that of the whole as quality."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""
    reference: Literal["own", "another", "none"] = "own"
    """Reference that the judge sees and the policy never does: an explored success of the task instance. another takes
    that of the next instance: a control, with which the judge must be wrong more often."""


@PARTS.add("source", "Verdict of a judge", gives=("verdict",), name="verdict", method="spark-augmented")
@dataclass(frozen=True, kw_only=True)
class VerdictSettings:
    """Whether an episode solved its task, by a judge."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""


@PARTS.add("source", "Checklist by a judge", gives=("items",), name="items", method="checklist")
@dataclass(frozen=True, kw_only=True)
class ChecklistSettings:
    """Which items of a task's checklist are satisfied after every turn, by a judge."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""
    file: str
    """JSON file with lists of items by the text of the task; `*` stands for all other tasks."""


@PARTS.add("source", "Tournament by a judge", gives=("arena",), name="arena", method="arena")
@dataclass(frozen=True, kw_only=True)
class ArenaSettings:
    """Rank of an episode in a tournament of its siblings, by a judge of pairs."""

    judge: str
    """policy, base (the model before training), chat:PROVIDER:MODEL, or MODULE:CLASS of your judge."""


@PARTS.add("source", "Entities of a reference", gives=("entities",), name="entities", method="rubric")
@dataclass(frozen=True, kw_only=True)
class EntitiesSettings:
    """Share of the reference's entities that a trace named: the words of the actions of an explored success."""


@PARTS.add("source", "Verified part of a reference (LearNAT)", gives=("part",), name="part", method="learnat")
@dataclass(frozen=True, kw_only=True)
class PartSettings:
    """Share of a reference's actions that the episode contains in order, after every turn."""


@PARTS.add("source", "Graduated validity of calls (PROVE)", gives=("calls",), name="calls", method="rungs")
@dataclass(frozen=True, kw_only=True)
class CallsSettings:
    """Rung of each tool call, from 0 to 4: text, unknown tool, wrong arguments, a call that fails, one that runs."""


@PARTS.add("source", "Contribution head (SPA-RL)", gives=("contribution",), name="contribution", method="redistribute")
@dataclass(frozen=True, kw_only=True)
class ContributionSettings:
    """Contribution of every turn to the outcome, by a head that is trained so that contributions sum to the outcome."""

    width: int = 64
    """Width of the head's hidden layers."""
    lr: float = 1e-3
    """Learning rate of the head."""
    updates: int = 20
    """Updates of the head per iteration."""
    kept: int = 512
    """Newest episodes that the head learns from."""


@PARTS.add("source", "Critic (ArCHer)", gives=("critic",), name="critic", method="archer")
@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """Advantage min(Q1, Q2) - min(V1, V2) of every turn, by critics that are trained by temporal differences."""

    width: int = 64
    """Width of the critics' hidden layers."""
    lr: float = 1e-3
    """Learning rate of the critics; 1e-5 in the authors' settings, with heads on an encoder of their own."""
    updates: int = 50
    """Updates of the critics per iteration."""
    kept: int = 2048
    """Newest turns that the critics learn from."""
    discount: float = 0.95
    """Discount of the returns."""
    tau: float = 0.1
    """Share by which the target copies move after every update."""
    warmup: int = 20
    """Updates of the critics before they give another value than 0."""


@PARTS.add("source", "Process reward head (ProRAG)", gives=("prm",), name="prm", method="prorag")
@dataclass(frozen=True, kw_only=True)
class RewardHeadSettings:
    """Score of every turn by a head, trained on pairs of actions in the same situation, the better return preferred."""

    width: int = 64
    """Width of the head's hidden layers."""
    lr: float = 1e-3
    """Learning rate of the head."""
    updates: int = 20
    """Updates of the head per iteration."""
    kept: int = 1024
    """Newest pairs that the head learns from."""


@PARTS.add("source", "Tags of reasoning", gives=("tags",), name="tags", method="rlvmr")
@dataclass(frozen=True, kw_only=True)
class TagsSettings:
    """The tag that the policy chose before every action; it needs roles.policy.settings.speech=tagged."""


@PARTS.add("source", "Predictions of observations", gives=("prediction",), name="prediction", method="prediction")
@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Likeness of what the policy predicted before an action and saw after it; it needs speech=predicted."""


@PARTS.add("source", "Progress in retrospect", gives=("retrospection",), name="retrospection", method="retrospection")
@dataclass(frozen=True, kw_only=True)
class RetrospectionSettings:
    """Progress after every turn that the policy says after the episode, when the outcome is known."""

    by: Literal["policy", "base"] = "policy"
    """policy: the policy itself. base: the model before training."""


LOCAL = ("policy", "base")
"""Judges that are the run's own model."""


def asks_own_model(sources: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a source asks the run's own model, whose vocabulary then needs the words of the answers."""
    return "retrospection" in sources or any(settings.get("judge") in LOCAL for settings in sources.values())


def find_signals(name: str) -> tuple[str, ...]:
    """Return the names of the signals that a source gives."""
    if ":" in name:
        return tuple(import_source(name).gives)
    sources = PARTS.list_cards("source")
    if name not in sources:
        raise UnknownName.of("source", name, [*sources, "MODULE:CLASS"])
    return sources[name].gives


def import_source(name: str) -> Any:
    """Return the class of your own source, `MODULE:CLASS`."""
    target = import_named(name, "source")
    if not tuple(getattr(target, "gives", ())):
        raise UnknownName(f"source {name!r} cannot be used: it has no names of signals in `gives`. Add them.")
    return target


def parse_source(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the settings of a source as its dataclass; those of your own class are returned as they are."""
    if ":" in name:
        return dict(settings)
    parsed: Any = parse(PARTS.get("source", name), settings, f"sources.{name}")
    judge = getattr(parsed, "judge", LOCAL[0])
    if judge not in LOCAL and ":" not in judge:
        raise ConfigError(
            f"sources.{name}.judge is {judge!r}; give policy, base, chat:PROVIDER:MODEL such as chat:openai:gpt-5, or "
            "MODULE:CLASS of your judge."
        )
    return parsed


def check_call(function: Callable[..., Any], settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return settings with the types of the keyword arguments of a function."""
    # a class may inherit its initializer; getattr, because mypy refuses to read __init__ of an instance
    hints = get_type_hints(getattr(function, "__init__") if isinstance(function, type) else function)  # noqa: B009
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in parameters:
            raise ConfigError(f"{path}.{name} is no setting: {nearest(name, [*parameters])}")
        # earlier versions read every setting as a number
        is_number = isinstance(value, float) and hints[name] in (bool, int) and value.is_integer()
        checked[name] = parse_value(hints[name], hints[name](value) if is_number else value, f"{path}.{name}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in settings:
            raise ConfigError(f"{path}.{name} is missing, and it has no default.")
    return checked


def check_parts(kind: str, parts: Mapping[str, Mapping[str, Any]], path: str) -> dict[str, dict[str, Any]]:
    """Return the settings of some parts of a kind, by name, with their types."""
    return {name: check_call(PARTS.get(kind, name), settings, f"{path}.{name}") for name, settings in parts.items()}


def _name_settings(name: str) -> str:
    """Return the settings that a source must be given, as `{judge: ...}`."""
    required = [field.name for field in fields(PARTS.get("source", name)) if field.default is MISSING]
    return f"{{{', '.join(f'{own}: ...' for own in required)}}}"


def check_fed(needs: Mapping[str, Sequence[str]], sources: Sequence[str], path: str) -> None:
    """Check that every signal that is needed has a source, and that every source is used."""
    given = {signal: name for name in sources for signal in find_signals(name)}
    for user, signals in needs.items():
        for signal in signals:
            if signal not in given:
                givers = PARTS.find_givers(signal)
                advice = (
                    f"add {' or '.join(f'{path}.{name}={_name_settings(name)}' for name in givers)}"
                    if givers
                    else f"no source of this project gives it; add your own under {path} as MODULE:CLASS"
                )
                raise CannotLearn(f"{user} needs the signal {signal}, which nothing feeds; {advice}.")
    wanted = {signal for signals in needs.values() for signal in signals}
    for name in sources:
        if wanted.isdisjoint(find_signals(name)):
            raise ConfigError(
                f"{path}.{name} gives {', '.join(find_signals(name))}, which nothing reads. Remove it, or choose an "
                "estimator or a shaper that does."
            )
