"""Join the parts of a trace that were exported into several files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Step, Trajectory
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.llm.calls import parse_call

from .spool import NO_ROOT, STARTED_AT, LoggedEpisode

StoredRow = Mapping[str, Any]
"""An episode of the library without its steps; see `ExperienceLibrary.episodes.find`."""
Convert = Callable[[LoggedEpisode], Iterable[Trajectory]]
"""Converts an episode of a file to one of a library."""


def list_calls(episodes: Iterable[Trajectory]) -> list[tuple[str, str]]:
    """Return the calls of episodes with their results, as a library stores them."""
    return [(step.action, step.post.feedback) for episode in episodes for step in redact_trajectory(episode).steps]


def join_parts(library: ExperienceLibrary, row: StoredRow, entry: LoggedEpisode, convert: Convert) -> LoggedEpisode:
    """Return a part of a trace with the calls that only the library has; the part that began first comes first.

    A trace is in parts if its root is in one of them; otherwise the file has all of it.
    """
    with_root = [not meta.keys() >= NO_ROOT.keys() for meta in (row["meta"], entry.meta)]
    if all(with_root):
        return entry
    recorded, logged = library.episodes.get(row["id"]), list_calls(convert(entry))
    missing = [_to_call(step) for step in recorded.steps if not _take(logged, step)]
    if not missing or not (logged or entry.success is not None):
        return entry
    own = [call for _, calls in entry.requests for call in calls]
    starts = [meta.get(STARTED_AT, "") for meta in (row["meta"], entry.meta)]
    calls = (*own, *missing) if all(starts) and starts[1] < starts[0] else (*missing, *own)
    meta = {**row["meta"], **entry.meta, STARTED_AT: min(filter(None, starts), default="")}
    if any(with_root):
        meta = {name: value for name, value in meta.items() if name not in NO_ROOT}
    task = entry.task if with_root[1] or not with_root[0] else recorded.task
    joined = replace(entry, requests=((task, calls),), meta=meta)
    is_graded = entry.success is None and "discount" in row["meta"]
    return replace(joined, success=recorded.success, score=recorded.score) if is_graded else joined


def _take(logged: list[tuple[str, str]], step: Step) -> bool:
    """Take the call of a step out of some calls; return whether it was there."""
    call = (step.action, step.post.feedback)
    if call not in logged:
        return False
    logged.remove(call)
    return True


def _to_call(step: Step) -> Call:
    name, _, arguments = parse_call(step.action) or (step.action, [], {})
    error = "" if step.diagnosis.success else step.diagnosis.evidence or step.post.feedback or "error"
    return Call(name, arguments, step.post.feedback, error, words=step.action)
