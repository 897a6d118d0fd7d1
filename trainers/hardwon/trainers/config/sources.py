"""Settings of the signal sources, by name, with the signals that each gives; `hardwon.trainers.sources` builds them."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.trainers.algorithms.catalog import Registry

from .parsing import nearest, parse, parse_value

SOURCES: Registry[type] = Registry("source")
"""Settings of every source, by name. The card of each says which signals it gives."""


@SOURCES.add("Entropy of choices", gives=("entropy",), name="entropy", example="empg")
@dataclass(frozen=True, kw_only=True)
class EntropySettings:
    """Mean entropy of a turn's choices among the allowed tokens, by the policy that sampled."""


@SOURCES.add("Progress of the world", gives=("progress",), name="progress", example="mrt")
@dataclass(frozen=True, kw_only=True)
class ProgressSettings:
    """Progress that each turn made."""

    of: Literal["reward", "diagnosis"] = "reward"
    """reward: the reward of the step, which is the change of the score in worlds with one. diagnosis: the progress
    that the loop's diagnosis saw."""


@SOURCES.add("Redundant turns", gives=("redundant",), name="redundant", example="decs")
@dataclass(frozen=True, kw_only=True)
class RedundantSettings:
    """Whether a turn was needless: a refused step, or part of a circle back to an earlier state."""


def find_signals(name: str) -> tuple[str, ...]:
    """Return the names of the signals that a source gives.

    Args:
        name: A registered name, or `MODULE:CLASS` of your own source.

    Raises:
        UnknownName: There is no such source.
    """
    if ":" in name:
        return tuple(import_source(name).gives)
    if name not in SOURCES:
        raise UnknownName.of("source", name, [*SOURCES, "MODULE:CLASS"])
    return SOURCES.cards[name].gives


def import_source(name: str) -> Any:
    """Return the class of your own source, `MODULE:CLASS` of the current folder or an installed module.

    Raises:
        UnknownName: It cannot be imported, or does not say which signals it gives.
    """
    module, _, attribute = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        target = getattr(importlib.import_module(module), attribute)
        _ = tuple(target.gives)
    except Exception as error:  # importing runs the user's code, which can raise anything
        raise UnknownName(
            f"source {name!r} cannot be used: {type(error).__name__}: {error}. Give MODULE:CLASS of a class with the "
            "names of its signals in `gives`."
        ) from error
    return target


def parse_source(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the settings of a source as its dataclass; those of your own class are returned as they are."""
    if ":" in name:
        return dict(settings)
    return parse(SOURCES[name], settings)


def check_call(function: Callable[..., Any], settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return settings with the types of the keyword arguments of a function.

    Raises:
        ConfigError: A setting is unknown, missing or of a wrong type.
    """
    hints = get_type_hints(vars(function)["__init__"] if isinstance(function, type) else function)
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in parameters:
            raise ConfigError(f"{path}.{name}: {nearest(name, [*parameters])}")
        # earlier versions read every setting as a number
        is_number = isinstance(value, float) and hints[name] in (bool, int) and value.is_integer()
        checked[name] = parse_value(hints[name], hints[name](value) if is_number else value, f"{path}.{name}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in settings:
            raise ConfigError(f"{path}.{name} is missing, and it has no default.")
    return checked


def check_fed(needs: Mapping[str, Sequence[str]], sources: Sequence[str], path: str) -> None:
    """Check that every signal that is needed has a source, and that every source is used.

    Args:
        needs: The signals that each user needs, by the setting that names the user.
        sources: Names of the configured sources.
        path: Path of the sources in the settings.

    Raises:
        ConfigError: A signal has no source; the message names those that would give it. Or nothing reads a source.
    """
    given = {signal: name for name in sources for signal in find_signals(name)}
    for user, signals in needs.items():
        for signal in signals:
            if signal not in given:
                givers = SOURCES.find_givers(signal)
                advice = (
                    f"add {' or '.join(f'{path}.{name}={{}}' for name in givers)}"
                    if givers
                    else f"no source of this project gives it; add your own under {path} as MODULE:CLASS"
                )
                raise ConfigError(f"{user} needs the signal {signal}, which nothing feeds; {advice}.")
    wanted = {signal for signals in needs.values() for signal in signals}
    for name in sources:
        if wanted.isdisjoint(find_signals(name)):
            raise ConfigError(
                f"{path}.{name} gives {', '.join(find_signals(name))}, which nothing reads. Remove it, or choose an "
                "estimator or a shaper that does."
            )
