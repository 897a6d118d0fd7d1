"""Environments of your own: `MODULE:CLASS`, from the current folder or from what is installed."""

import importlib
import sys
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.types import Environment


def open_own(name: str, game: str | None, params: str) -> Environment:
    """Import a class and return an instance; it is called with `game` and `params` where they are given.

    The current folder is searched after everything that is installed, so no file in it replaces a package.

    Raises:
        UnknownName: The module or the class does not exist, or fails when it is imported.
        ConfigError: The class cannot be called so, or what it returns is no environment.
    """
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        made: Any = importlib.import_module(module)
        for part in attribute.split("."):
            made = getattr(made, part)
    except Exception as error:  # whatever a file of the user raises when it is imported
        raise UnknownName(
            f"environment {name!r} cannot be imported from {here}: {type(error).__name__}: {error}. "
            "Give MODULE:CLASS of a file in the current folder (world:Pantry for world.py), or of an installed module."
        ) from error
    given = {key: value for key, value in (("game", game), ("params", params)) if value}
    try:
        environment = made(**given)
    except TypeError as error:
        named = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ConfigError(f"{name} cannot be called as {attribute}({named}): {error}.") from error
    if not isinstance(environment, Environment):
        raise ConfigError(f"{name} is no environment: it needs reset, step, admissible, clone, close and name.")
    return environment
