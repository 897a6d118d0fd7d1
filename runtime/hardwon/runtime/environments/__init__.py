"""Environments behind one protocol; see `hardwon.runtime.interfaces.types.Environment`.

    environment = open_environment("textworld", game="coin", params="numLocations=5")

The packages of an environment are imported only when it is opened.
"""

from collections.abc import Callable

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.validation import read_whole
from hardwon.runtime.interfaces.types import Environment

from .own import open_custom


def _open_textworld(game: str | None, params: str) -> Environment:
    from .textworld import TextWorldExpress

    return TextWorldExpress(game or "mapreader", params)


def _open_babyai(game: str | None, params: str) -> Environment:
    from .babyai import BabyAI

    if params:
        raise ConfigError(f"babyai takes no parameters, but got {params!r}; omit them.")
    return BabyAI(game or "GoToLocal")


def _open_bfcl(game: str | None, params: str) -> Environment:
    from .bfcl import Bfcl

    choices = _get_parameter("bfcl", params, "choices") or "0"
    if (number := read_whole(choices)) is None:
        raise ConfigError(f"choices is {choices[:80]!r}; use a whole number, such as choices=8.")
    return Bfcl(game or "base", choices=number)


def _open_alfworld(game: str | None, params: str) -> Environment:
    from .alfworld import ALL, AlfWorld

    return AlfWorld(game or ALL, data=_get_parameter("alfworld", params, "data"))


def _open_scienceworld(game: str | None, params: str) -> Environment:
    from .scienceworld import ScienceWorld

    choices = _get_parameter("scienceworld", params, "choices") or "0"
    if choices not in ("0", "1"):
        raise ConfigError(f"choices is {choices!r}; use choices=0 or choices=1.")
    return ScienceWorld(game or "find-plant", choices=choices == "1")


def _open_miniwob(game: str | None, params: str) -> Environment:
    from .miniwob import MiniWob

    if params:
        raise ConfigError(f"miniwob takes no parameters, but got {params!r}; omit them.")
    return MiniWob(game or "click-button")


def _open_wiki(game: str | None, params: str) -> Environment:
    from .wiki import ENTITIES, HOPS, Wiki

    if (game or "2") not in HOPS:
        raise UnknownName.of("game of wiki", str(game), HOPS)
    entities = _get_parameter("wiki", params, "entities") or str(ENTITIES)
    if (number := read_whole(entities)) is None:
        raise ConfigError(f"entities is {entities[:80]!r}; use a whole number, such as entities=120.")
    return Wiki(int(game or "2"), entities=number)


def _get_parameter(environment: str, params: str, name: str) -> str:
    """Return the value of an environment's only parameter; "" if it is missing."""
    key, _, value = params.partition("=")
    if params and (key.strip() != name or not value.strip()):
        raise ConfigError(f"{environment} takes only the parameter {name}=..., but got {params!r}.")
    return value.strip()


_OPENERS: dict[str, Callable[[str | None, str], Environment]] = {
    "textworld": _open_textworld,
    "babyai": _open_babyai,
    "bfcl": _open_bfcl,
    "alfworld": _open_alfworld,
    "scienceworld": _open_scienceworld,
    "miniwob": _open_miniwob,
    "wiki": _open_wiki,
}
_ALIASES = {"textworldexpress": "textworld", "twx": "textworld", "minigrid": "babyai"}


def open_environment(name: str, *, game: str | None = None, params: str = "") -> Environment:
    """Open an environment by name.

    Args:
        name: A name such as `textworld`, or `MODULE:CLASS` for a custom environment in the current folder or an
            installed module.
        game: A game, level or task of the environment; None means its default.
        params: Parameters of the environment, such as `numLocations=5`; "" means the defaults.

    Raises:
        UnknownName: The environment or the game does not exist.
        ConfigError: The parameters are invalid.
        MissingExtra: A required package is not installed (textworld raises this at the first reset).
    """
    if ":" in name:
        return open_custom(name.strip(), game, params)
    plain = name.strip().lower()  # MODULE:CLASS above keeps its case, because Python names are case-sensitive
    opener = _OPENERS.get(_ALIASES.get(plain, plain))
    if opener is None:
        raise UnknownName.of("environment", name, [*_OPENERS, "MODULE:CLASS"])
    return opener(game, params)


def count_seeds(environment: Environment, fold: str) -> int | None:
    """Return the number of seeds in a fold of an environment; None if the environment does not define it."""
    count = getattr(environment, "count_seeds", None)
    return None if count is None else int(count(fold))
