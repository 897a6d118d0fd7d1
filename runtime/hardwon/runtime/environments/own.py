"""Custom environments: `MODULE:CLASS`, from the current folder or an installed module."""

import importlib
import sys
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.types import Environment


def open_custom(name: str, game: str | None, params: str) -> Environment:
    """Import an environment class and return an instance.

    The current folder is searched after all installed packages, so that its files cannot replace a package.
    """
    module, _, attribute = name.partition(":")
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which can raise anything
        raise UnknownName(
            f"environment {name!r} cannot be imported from {folder}: {type(error).__name__}: {error}. "
            "Give MODULE:CLASS of a file in the current folder (world:Corridor for world.py), or of a module."
        ) from error
    options = {key: value for key, value in (("game", game), ("params", params)) if value}
    try:
        environment = target(**options)
    except TypeError as error:
        named = ", ".join(f"{key}={value!r}" for key, value in options.items())
        advice = "Leave out --game and --params, or let it take them" if options else "Let it need no arguments"
        raise ConfigError(f"{name} cannot be called as {attribute}({named}): {error}. {advice}.") from error
    if not isinstance(environment, Environment):
        needed = ("reset", "step", "admissible", "clone", "close", "name")
        missing = ", ".join(member for member in needed if getattr(environment, member, None) is None)
        raise ConfigError(f"{name} is not an environment: it has no {missing}. Add what is missing.")
    return environment
