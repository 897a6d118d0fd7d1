"""A cache for what TextWorld computes anew for every PDDL game: parsed grammars and translated problems.

TextWorld translates the problem of a game to the form of the planner four times before the first step: when it
loads the game and when it resets it, once for playing and once for planning. It parses the same grammar for every
game, and the same templates at every step. The results depend on the arguments alone, so each is computed once.
"""

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

PARSED = 4096
"""Parsed texts that are kept: a grammar, and the templates of the steps of some games."""
TRANSLATED = 8
"""Translated problems that are kept, each a few megabytes: a game that is loaded is reset next."""

_plans: ContextVar[bool] = ContextVar("plans", default=True)
_lock = threading.RLock()


def install() -> None:
    """Cache the parsers and the translator of TextWorld's PDDL games in this process; a second call does nothing.

    Every caller gets a parse tree of its own, so it may change the tree.
    """
    import fast_downward
    from textworld.envs.pddl import logic, textgen

    with _lock:
        for module in (logic, textgen):
            if not hasattr(module._parse_and_convert, "cache_info"):
                module._parse_and_convert = _cache_parser(module._parse_and_convert)
        if not hasattr(fast_downward.pddl2sas, "cache_info"):
            fast_downward.pddl2sas = _cache_translator(fast_downward.pddl2sas)


@contextmanager
def skip_planning() -> Iterator[None]:
    """Translate each problem for playing alone: for games that are never asked for a plan.

    The planner gets the translation for playing. It is the same problem, with more to search.
    """
    token = _plans.set(False)
    try:
        yield
    finally:
        _plans.reset(token)


def _cache_parser(parse: Callable[..., Any]) -> Callable[..., Any]:
    parse_once = lru_cache(maxsize=PARSED)(parse)

    @wraps(parse)
    def parse_cached(*args: Any, **options: Any) -> Any:
        return copy.deepcopy(parse_once(*args, **options))

    parse_cached.cache_info = parse_once.cache_info  # type: ignore[attr-defined]
    return parse_cached


def _cache_translator(translate: Callable[..., Any]) -> Callable[..., Any]:
    @lru_cache(maxsize=TRANSLATED)
    def translate_once(domain: str, problem: str, verbose: bool, optimize: bool) -> Any:
        arguments = sys.argv
        try:
            return translate(domain, problem, verbose=verbose, optimize=optimize)
        finally:
            sys.argv = arguments  # the translator puts its own there

    @wraps(translate)
    def translate_cached(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        with _lock:  # the translator keeps its options in a module
            return translate_once(domain, problem, verbose, optimize and _plans.get())

    translate_cached.cache_info = translate_once.cache_info  # type: ignore[attr-defined]
    return translate_cached
