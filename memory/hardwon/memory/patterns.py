r"""Regular expressions that are compiled at their first use.

    _URL = compile_late(r"https?://\S+")

The tables of secrets, outages, instructions and errors have hundreds. Most processes need few of them, and a hook of a
coding agent would spend a quarter of its time on compiling them.
"""

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer", "pattern", "flags")


class _LatePattern:
    """Takes the place of a compiled pattern, whose methods it gets when one of them is needed."""

    def __init__(self, source: Any, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        compiled = re.compile(self._source, self._flags)
        # On the instance, where later calls find them as fast as those of a compiled pattern.
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def compile_late(source: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Return a pattern that is compiled at its first use; use its methods, not the functions of `re`."""
    return cast("re.Pattern[AnyStr]", _LatePattern(source, flags))
