"""Worlds behind one protocol; see `hardwon.runtime.interfaces.types.Environment`.

    environment = open_environment("textworld", game="coin", params="numLocations=5")

Names are looked up here; a world's packages are imported when one is opened.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Environment

from .own import open_own


def _textworld(game: str | None, params: str) -> Environment:
    from .textworld import TextWorldExpress

    return TextWorldExpress(game or "mapreader", params)


def _babyai(game: str | None, params: str) -> Environment:
    from .babyai import BabyAI

    if params:
        raise ConfigError(f"babyai takes no parameters, but was given {params!r}; leave them out.")
    return BabyAI(game or "GoToLocal")


def _bfcl(game: str | None, params: str) -> Environment:
    from .bfcl import Bfcl

    choices = _parameter("bfcl", params, "choices") or "0"
    if not choices.isdigit():
        raise ConfigError(f"choices is {choices!r}; give a whole number: choices=8.")
    return Bfcl(game or "base", choices=int(choices))


def _alfworld(game: str | None, params: str) -> Environment:
    from .alfworld import ALL, AlfWorld

    return AlfWorld(game or ALL, data=_parameter("alfworld", params, "data"))


def _scienceworld(game: str | None, params: str) -> Environment:
    from .scienceworld import ScienceWorld

    choices = _parameter("scienceworld", params, "choices") or "0"
    if choices not in ("0", "1"):
        raise ConfigError(f"choices is {choices!r}; it is 0 or 1.")
    return ScienceWorld(game or "find-plant", choices=choices == "1")


def _miniwob(game: str | None, params: str) -> Environment:
    from .miniwob import MiniWob

    if params:
        raise ConfigError(f"miniwob takes no parameters, but was given {params!r}; leave them out.")
    return MiniWob(game or "click-button")


def _parameter(environment: str, params: str, name: str) -> str:
    """The value of the one parameter that there is; "" where it is not given."""
    key, _, value = params.partition("=")
    if params and (key.strip() != name or not value.strip()):
        raise ConfigError(f"{environment} takes the parameter {name}=..., but was given {params!r}.")
    return value.strip()


_OPENERS: dict[str, Callable[[str | None, str], Environment]] = {
    "textworld": _textworld,
    "babyai": _babyai,
    "bfcl": _bfcl,
    "alfworld": _alfworld,
    "scienceworld": _scienceworld,
    "miniwob": _miniwob,
}
_ALIASES = {"textworldexpress": "textworld", "twx": "textworld", "minigrid": "babyai"}


def open_environment(name: str, *, game: str | None = None, params: str = "") -> Environment:
    """An environment by its name, such as `textworld`, with one of its games and the game's parameters.

    `MODULE:CLASS` is an environment of your own, from the current folder or from an installed module.
    Raises `UnknownName` for a name or game that does not exist, `ConfigError` for parameters it cannot
    have, `MissingExtra` when the package behind it is not installed (textworld: at the first reset).
    """
    if ":" in name:
        return open_own(name.strip(), game, params)
    plain = name.strip().lower()
    opener = _OPENERS.get(_ALIASES.get(plain, plain))
    if opener is None:
        raise UnknownName.of("environment", name, _OPENERS)
    return opener(game, params)


def count_seeds(environment: Environment, fold: str) -> int | None:
    """Return how many seeds a fold of an environment has; None where it does not say."""
    counted = getattr(environment, "count_seeds", None)
    return None if counted is None else int(counted(fold))


def describe_environments() -> dict[str, list[str]]:
    """The games of every environment, by its name; no games where its package is not installed."""
    from . import alfworld, babyai, bfcl, miniwob, textworld

    known = {name: list[str]() for name in _OPENERS}
    known["textworld"] = textworld.games() if find_spec("textworld_express") else []
    known["bfcl"] = list(bfcl.CATEGORIES) if find_spec("bfcl_eval") else []
    known["alfworld"] = list(alfworld.KINDS) if find_spec("alfworld") else []
    for name, games in (("babyai", babyai.levels), ("miniwob", miniwob.tasks)):
        with suppress(MissingExtra):
            known[name] = games()
    return known
