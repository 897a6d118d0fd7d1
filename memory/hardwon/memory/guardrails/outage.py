"""Outages: failures that say nothing about the call, because the service was temporarily unavailable.

An outage is recognized by the type of the exception, by a status code, or by the words of an error. A step that failed
this way is recorded as `Failure.UNAVAILABLE`. It is kept, but never becomes a guardrail or a warning.
"""

import re
from dataclasses import replace
from typing import Any

from hardwon.memory.patterns import compile_late, fill_parts, read_table
from hardwon.memory.records import Failure, Step, Trajectory

from .tuning import TUNING

_JUDGED = frozenset({Failure.TOOL_ERROR, Failure.NO_EFFECT, Failure.PRECONDITION, Failure.INVALID_ACTION})
"""Failures that may turn out to be outages when their text is read."""
_TABLE = read_table(__file__, "outage.toml")


def _read(name: str) -> list[str]:
    """Return the lines of an entry of the table."""
    return [fill_parts(line, _TABLE["parts"]) for line in _TABLE["patterns"][name]]


_TYPES = " ".join(_read("types")).split()
"""Parts of exception names, from the standard library and from common client libraries."""
_TYPE = compile_late("|".join(_TYPES))
# case-sensitive: the class names of a traceback, not words of a sentence
_TYPE_IN_TEXT = compile_late(
    # `Timeout must be positive` begins a sentence; `Timeout: ` is a class
    rf"\b(?!Timeouts?\b(?!\s*(?:[:(]|\Z)))\w*(?:{'|'.join(_TYPES)})\w*|\b(?:httpx|httpcore)\.(?:Read|Write)Error\b"
)


def _join(*patterns: str) -> str:
    """Return a pattern that matches where any of these does; only one alternative in ten is tried within words."""
    alternatives, depth = [""], 0
    for token in re.findall(r"\\.|\[\^?.[^][]*\]|.", "|".join(patterns), re.DOTALL):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            alternatives.append("")
        else:
            alternatives[-1] += token
    at_words = [part.removeprefix(r"\b") for part in alternatives if part.startswith(r"\b")]
    return "|".join([rf"\b(?:{'|'.join(at_words)})", *(part for part in alternatives if not part.startswith(r"\b"))])


_SURE = compile_late(_join(*_read("sure")), re.IGNORECASE | re.MULTILINE)
"""Phrases that indicate an outage regardless of the rest of the error."""
_LIKELY = compile_late(_join(*_read("likely")), re.IGNORECASE)
"""Phrases that indicate an outage unless the error also says what was wrong with the call."""
_ARGUMENTS = compile_late(r"\bwith (?:kwargs|arguments|args) ?\{[^}]{0,1000}\}", re.IGNORECASE | re.DOTALL)
"""The arguments of the call, which LangChain repeats in its errors. They say nothing about the service."""
_LASTING = compile_late(_join("".join(_read("lasting"))), re.IGNORECASE)
"""Phrases that blame the call itself, so that a retry would fail again."""
_FOREIGN = compile_late("|".join(["".join(lines) for lines in _TABLE["foreign"].values()]))
"""Outages in the languages of users: no answer in time, too many requests, no service, and a connection that failed."""
_FOREIGN_LASTING = compile_late("".join(_TABLE["foreign_lasting"]["lasting"]))


def tells_of_outage(text: str) -> bool:
    """Return whether the text of an error says that the service was temporarily unavailable."""
    if not text:
        return False
    most = TUNING.error_characters
    excerpt = text if len(text) <= 2 * most else f"{text[:most]}\n{text[-most:]}"
    excerpt = _ARGUMENTS.sub(" ", excerpt)
    if _SURE.search(excerpt) or _TYPE_IN_TEXT.search(excerpt):
        return True
    if _LASTING.search(excerpt) is not None:
        return False
    return _LIKELY.search(excerpt) is not None or _is_foreign(excerpt.lower())


def _is_foreign(lower: str) -> bool:
    """Return whether an error in another language than English names an outage, and does not blame the call."""
    return _FOREIGN.search(lower) is not None and _FOREIGN_LASTING.search(lower) is None


def is_outage(error: BaseException) -> bool:
    """Return whether an exception is an outage, judged by its type, its status code, or its message.

    The chain of causes is followed, so an outage wrapped in another exception is recognized too.
    """
    seen: set[int] = set()  # a chain of causes can be circular
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, TimeoutError | ConnectionError):
            return True
        code = _status_of(cause)
        if code is not None:  # a status code is more reliable than the name of the exception type
            return code in (408, 425, 429) or 500 <= code <= 599 or tells_of_outage(str(cause))
        # base classes, too: an application's own subclass may have any name
        if any(_TYPE.search(kind.__name__) for kind in type(cause).__mro__):
            return True
        cause = cause.__cause__
    return tells_of_outage(str(error))


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status code that an exception of a client library carries, or None."""
    holders: tuple[Any, ...] = (error, getattr(error, "response", None))
    for holder in holders:
        for name in ("status_code", "status", "code", "http_status"):
            value = getattr(holder, name, None)
            # `code` may also be an exit status or an errno, so only numbers in the range of HTTP count
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
                return value
    return None


def mark_outages(episode: Trajectory) -> Trajectory:
    """Relabel the failures of an episode that are outages as `Failure.UNAVAILABLE`."""
    # almost no episode has one, so do not copy its steps
    if not any(_was_outage(step) for step in episode.steps):
        return episode
    return replace(episode, steps=tuple(map(_relabel, episode.steps)))


def _was_outage(step: Step) -> bool:
    """Return whether a failed step reads like an outage."""
    diagnosis = step.diagnosis
    return diagnosis.failure in _JUDGED and tells_of_outage(diagnosis.evidence or step.post.feedback)


def _relabel(step: Step) -> Step:
    """Return the step, relabeled as unavailable if it was an outage."""
    if not _was_outage(step):
        return step
    return replace(step, diagnosis=replace(step.diagnosis, failure=Failure.UNAVAILABLE))
