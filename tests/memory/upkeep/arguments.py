"""Call every public method of a library with wrong values in every argument, one after another."""

import inspect

from hardwon.memory import HardwonError

WRONG = (None, 0, 5, -1, 1.5, b"x", ["a", 1], [None], {"a": 1}, {1: 2}, object(), object, True, "")
LEFT_OUT = {"reopen", "open", "close", "namespace", "path", "query"}
"""What ends the library, opens another one, or calls a function of the caller."""


def list_methods(library):
    """Yield the name of each public method with it, of the library and of its parts."""
    for place in ("", "items", "episodes", "admin"):
        part = getattr(library, place) if place else library
        for name in dir(part):
            if not name.startswith("_") and name not in LEFT_OUT and inspect.ismethod(getattr(part, name, None)):
                yield f"{place}.{name}".strip("."), getattr(part, name)


def find_raw_errors(library, known):
    """Return each call that ended in an error that is none of hardwon's, after at least one argument was wrong.

    `known` has a right value for the parameters that need one.
    """
    calls, raw = 0, []
    for name, method in list_methods(library):
        parameters = inspect.signature(method).parameters
        plain = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        needed = {n: known.get(n, "x") for n, p in plain.items() if p.default is p.empty}
        for parameter in plain:
            for wrong in WRONG:
                calls += 1
                try:
                    method(**{**needed, parameter: wrong})
                except HardwonError as error:
                    words = str(error)
                    if len(words) > 700:
                        raw.append(f"{name}({parameter}={wrong!r}): {len(words)} characters")
                except Exception as error:
                    raw.append(f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}")
    return calls, raw
