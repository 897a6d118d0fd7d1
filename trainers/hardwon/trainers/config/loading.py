"""Load the settings of a training run: a YAML file, the settings of a method, and overrides, checked together.

config = load("examples/train_coin.yaml", ["roles.policy.learner.lr=1e-4"])
"""

import json
import warnings
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

REMOVED: Mapping[str, Any] = {
    "engine.key": None,
    "engine.model": None,
    "model.tiny.seed": 0,
    "program.at_once": 8,
    "program.library": "",
    "program.recorded": "",
    "roles.*.learner.clip": 1.0,
    "roles.*.learner.weight_decay": 0.0,
    "roles.*.loss.cap": 2.0,
    "roles.*.loss.temperature": 1.0,
    "rollouts.ray": "auto",
    "run.balance.high": 1.2,
    "run.balance.low": 0.5,
    "run.balance.right": 8,
    "run.balance.step": 0.05,
    "run.wandb": None,
    "warmstart.examples.circles": "drop",
    "warmstart.examples.seed": 0,
    "warmstart.learning.budget": 4096,
    "warmstart.learning.seed": 0,
}
"""Settings of earlier versions, each with the value that it has in every run now."""
HARMLESS = {
    "engine.key",
    "engine.model",
    "model.tiny.seed",
    "program.at_once",
    "roles.*.loss.temperature",
    "rollouts.ray",
    "run.wandb",
    "warmstart.learning.budget",
}
"""Removed settings without which a resumed run goes on as before."""


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
    merged = json.loads(json.dumps(given, default=str))
    if method:
        _apply_method(merged, method)
    for override in overrides:
        _override(merged, override)
    config = parse(TrainConfig, merged)
    check(config)
    return config


def of_stored(stored: Mapping[str, Any], *, is_resumed: bool = False) -> TrainConfig:
    """Build the settings that a run was saved with, by this version or an earlier one.

    A removed setting with another value than runs have now is left out with a warning, unless the run is resumed.

    Raises:
        ConfigError: The run is to be resumed, and would go on differently.
    """
    given = drop_removed(stored, is_resumed=is_resumed)
    given.get("engine", {}).pop("kind", None)  # a server is one with a URL
    if isinstance(run := given.get("run"), dict) and not isinstance(run.get("balance", False), bool):
        run["balance"] = run["balance"] is not None
    return of(given)


def drop_removed(stored: Mapping[str, Any], *, is_resumed: bool = False) -> dict[str, Any]:
    """Return stored settings, or a part of them, without those that were removed; see `of_stored`.

    Raises:
        ConfigError: The run is to be resumed, and would go on differently.
    """
    given: dict[str, Any] = json.loads(json.dumps(stored))
    for path, now in REMOVED.items():
        *sections, name = path.split(".")
        places = [given]
        for section in sections:
            inner = [place[key] for place in places for key in place if section in ("*", key)]
            places = [place for place in inner if isinstance(place, dict)]
        for before in [place.pop(name, now) for place in places]:
            if before != now and is_resumed and path not in HARMLESS:
                raise ConfigError(
                    f"the run has {path}={before!r}, and this version has no such setting: it is {now!r} in every run. "
                    "Begin a new run from its weights with warmstart.run, or resume it with the version that began it."
                )
            if before != now:
                warnings.warn(f"a run with {path}={before!r} is read; the setting is left out.", stacklevel=4)
    return given


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
