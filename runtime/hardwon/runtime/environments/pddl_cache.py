"""A cache for TextWorld's PDDL games: parsed grammars and translated problems.

TextWorld translates a game's problem for the planner four times before the first step: on load and on reset,
each time once for playing and once for planning. It also parses the same grammar for every game, and the same
templates at every step. The results depend only on the arguments, so each is computed once. Its parsers and its
translator keep their state in globals, so one thread at a time uses them.
"""

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

# A context variable, so that a game that is started in one thread does not affect planning in another.
_plans: ContextVar[bool] = ContextVar("plans", default=True)
_lock = threading.RLock()


def install() -> None:
    """Cache the parsers and the translator of TextWorld's PDDL games in this process.

    A second call has no effect. Every caller gets a copy of the parse tree, because callers modify it.
    """
    import fast_downward
    from textworld import logic as rules
    from textworld.envs.pddl import logic, textgen

    with _lock:
        for module in (logic, textgen, rules):
            # Each module has its own reference to the function, so replacing one of them is not enough.
            if not hasattr(module._parse_and_convert, "cache_info"):
                module._parse_and_convert = _cache_parser(module._parse_and_convert)
        if not hasattr(fast_downward.pddl2sas, "cache_info"):
            fast_downward.pddl2sas = _cache_translator(fast_downward.pddl2sas)


@contextmanager
def skip_planning() -> Iterator[None]:
    """Translate each problem only for playing, for games that are never asked for a plan.

    The planner then gets the translation for playing: the same problem with a larger search space.
    """
    token = _plans.set(False)
    try:
        yield
    finally:
        _plans.reset(token)


def _cache_parser(parse: Callable[..., Any]) -> Callable[..., Any]:
    parse_once = lru_cache(maxsize=4096)(parse)

    @wraps(parse)
    def parse_cached(*args: Any, **options: Any) -> Any:
        with _lock:  # one parser, which has a state, serves all games
            parsed = parse_once(*args, **options)
        return copy.deepcopy(parsed)

    parse_cached.cache_info = parse_once.cache_info  # type: ignore[attr-defined]
    return parse_cached


def _cache_translator(translate: Callable[..., Any]) -> Callable[..., Any]:
    # Maximum number of cached translations, a few megabytes each. Few suffice: a reset follows soon after a load.
    @lru_cache(maxsize=8)
    def translate_once(domain: str, problem: str, verbose: bool, optimize: bool) -> Any:
        arguments = sys.argv
        try:
            return translate(domain, problem, verbose=verbose, optimize=optimize)
        finally:
            sys.argv = arguments  # the translator overwrites it

    @wraps(translate)
    def translate_cached(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        with _lock:  # the translator keeps its options in module globals
            # All positional: `lru_cache` would store a call with keywords under another key.
            return translate_once(domain, problem, verbose, optimize and _plans.get())

    translate_cached.cache_info = translate_once.cache_info  # type: ignore[attr-defined]
    return translate_cached
