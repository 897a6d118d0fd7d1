"""Check the settings of parts, which are the keyword arguments of each, and that every signal has a source."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from hardwon.memory.errors import CannotLearn, ConfigError, UnknownName
from hardwon.trainers.algorithms.catalog import PARTS, import_named as import_named

from .parsing import nearest, parse_value

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


def check_source(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a source with their types; those of your own class are returned as they are."""
    if ":" in name:
        return dict(settings)
    source = PARTS.get("source", name)
    judge = settings.get("judge", "")
    if "judge" in list_settings(source) and judge not in LOCAL and ":" not in str(judge):
        raise ConfigError(
            f"sources.{name}.judge is {repr(judge) if judge else 'missing'}; give policy, base, chat:PROVIDER:MODEL "
            "such as chat:openai:gpt-5, or MODULE:CLASS of your judge."
        )
    checked = check_call(source, settings, f"sources.{name}")
    pattern = checked.get("pattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"sources.{name}.pattern is {pattern!r}: {error}. Give a regular expression.") from error
    return checked


def check_call(function: Callable[..., Any], settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return settings with the types of the keyword arguments of a function."""
    # a class may inherit its initializer; getattr, because mypy refuses to read __init__ of an instance
    hints = get_type_hints(getattr(function, "__init__") if isinstance(function, type) else function)  # noqa: B009
    parameters = list_settings(function)
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


def list_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings of a part: its keyword arguments, by name."""
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def _name_settings(name: str) -> str:
    """Return the settings that a source must be given, as `{judge: ...}`."""
    settings = list_settings(PARTS.get("source", name)).items()
    required = [own for own, parameter in settings if parameter.default is parameter.empty]
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
