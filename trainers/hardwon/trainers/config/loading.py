"""Load the settings of a training run: a YAML file, the settings of a method, and overrides, checked together.

config = load("examples/train_coin.yaml", ["roles.policy.learner.lr=1e-4"])
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text

from .checks import check
from .methods import collect_settings
from .parsing import parse
from .schema import TrainConfig
from .yaml_bounds import read_yaml


def load(path: str | Path, overrides: Sequence[str] = (), *, method: str = "") -> TrainConfig:
    """Load the settings from a YAML file.

    Args:
        path: Path of the file.
        overrides: Settings as `a.b=value` that replace those of the file and of the method.
        method: Published method whose settings replace those of the file; empty for none.

    Raises:
        ConfigError: The file cannot be read or a setting is invalid; the message names its path.
        UnknownName: There is no such method.
    """
    try:
        given = read_yaml(read_text(path), path) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Give the path of a YAML file.") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path} holds {type(given).__name__}, not settings; write sections, such as `run:`.")
    return of(given, overrides, method=method)


def of(given: Mapping[str, Any], overrides: Sequence[str] = (), *, method: str = "") -> TrainConfig:
    """Build the settings from a nested mapping, as it is written in YAML, and check that no two contradict each other.

    Raises:
        ConfigError: A setting is invalid, or two contradict each other, such as evaluation on training instances.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"the settings are {given!r:.60}; they must be a mapping of sections, such as `run:`.")
    # A deep copy of plain values: overrides must not change the caller's mapping.
    try:
        merged = json.loads(json.dumps(given, default=str))
    except (TypeError, ValueError, RecursionError) as error:  # such as a date as a name
        raise ConfigError(f"the settings cannot be read: {error}. Use text as names.") from error
    if method:
        _apply_method(merged, method)
    for override in overrides:
        _override(merged, override)
    config = parse(TrainConfig, merged)
    check(config)
    return config


def _apply_method(given: dict[str, Any], method: str) -> None:
    """Apply the settings of a method to a mapping, in place."""
    for path, value in collect_settings(method).items():
        section, name = _find_section(given, path)
        if path == "roles.policy.credit.name" and section.get(name) != value:
            section.pop("settings", None)  # those of another estimator
        section[name] = section.get(name) or {} if value == {} else value


def _override(given: dict[str, Any], override: str) -> None:
    """Apply one override `a.b=value` to a mapping, in place."""
    path, equals, value = override.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {override!r} has no value; write roles.policy.learner.lr=1e-4.")
    section, name = _find_section(given, path.strip())
    section[name] = read_yaml(value, path.strip())


def _find_section(given: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the section of a setting, made where it is missing, and the last part of its path."""
    *sections, name = path.split(".")
    place = given
    for n, section in enumerate(sections):
        inner = place.setdefault(section, {})
        if inner is None:  # an empty section in YAML, such as `warmstart:`
            inner = place[section] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(sections[: n + 1])} is {inner!r} and has no {name}.")
        place = inner
    return place, name
