"""Worlds behind one protocol; see `tacit.runtime.protocols.Environment`.

    environment = open_environment("textworld", game="coin", params="numLocations=5")

Names are looked up here; a world's packages are imported when one is opened.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec

from tacit.memory.errors import ConfigError, MissingExtra, UnknownName

from ..protocols import Environment


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

    name, _, number = params.partition("=")
    if params and (name.strip() != "choices" or not number.strip().isdigit()):
        raise ConfigError(f"bfcl takes the parameter choices=N, but was given {params!r}.")
    return Bfcl(game or "base", choices=int(number or 0))


_OPENERS: dict[str, Callable[[str | None, str], Environment]] = {
    "textworld": _textworld,
    "babyai": _babyai,
    "bfcl": _bfcl,
}
_ALIASES = {"textworldexpress": "textworld", "twx": "textworld", "minigrid": "babyai"}


def open_environment(name: str, *, game: str | None = None, params: str = "") -> Environment:
    """An environment by its name: `textworld`, `babyai` or `bfcl`, with one of its games and the game's parameters.

    Raises `UnknownName` for a name or game that does not exist, `ConfigError` for parameters it cannot
    have, `MissingExtra` when the package behind it is not installed (textworld: at the first reset).
    """
    plain = name.strip().lower()
    opener = _OPENERS.get(_ALIASES.get(plain, plain))
    if opener is None:
        raise UnknownName.of("environment", name, _OPENERS)
    return opener(game, params)


def describe_environments() -> dict[str, list[str]]:
    """The games of every environment, by its name; no games where its package is not installed."""
    from . import babyai, bfcl, textworld

    known = {"textworld": textworld.games() if find_spec("textworld_express") else [], "babyai": list[str]()}
    known["bfcl"] = list(bfcl.CATEGORIES) if find_spec("bfcl_eval") else []
    with suppress(MissingExtra):
        known["babyai"] = babyai.levels()
    return known
