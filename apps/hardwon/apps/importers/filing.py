"""Write what a file tells into a library, as episodes judged by its rules and filed under its keys."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Trust
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.integrations.tool_episode import SHOWN_CHARS, ToolEpisode, extract_text

from .source import Progress
from .spool import LoggedEpisode, Spool

BATCH = 200
"""Episodes written in one transaction."""
MAX_CALLS = 2000
"""Calls of one episode that are kept: its last ones."""
_DEPTH = 8
_CONVERSATIONS = ("openai", "anthropic", "responses")


def episodes(
    library: ExperienceLibrary,
    logged: Iterable[LoggedEpisode],
    *,
    source: str,
    trust: Trust = "untrusted",
    writer: str = "import",
) -> Iterator[Trajectory]:
    """Yield what a file tells as episodes of this library.

    An outcome that the file states belongs to the whole episode: no call in it is nearer to it than another, so it is
    not discounted, and the value of an action is the mean of the outcomes that it was part of.
    """
    for one in logged:
        requests = list(_last_calls(one))
        if not requests:
            continue
        episode = ToolEpisode(library, extract_text(requests[0][0]))
        for task, calls in requests:
            episode.begin_request(extract_text(task))
            episode.replay([_clean(call) for call in calls])
        success = not episode.broken if one.success is None else one.success
        ending = "success" if success else "done"
        meta = {"environment": source, "policy": "import", **one.meta}
        if one.score is not None:
            meta["discount"] = 1.0
        named = {"arm": "import", "ending": ending, "meta": meta, "writer": writer, "trust": trust}
        yield episode.trajectory(success, one.score, id=episode_id(one, source), **named)


def episode_id(one: LoggedEpisode, source: str) -> str:
    """Return the id of an episode: a digest, so that no file can take the id of an episode that it did not make."""
    form = "messages" if source in _CONVERSATIONS else source
    digest = hashlib.blake2b(f"{form}\0{one.ref}".encode(errors="replace"), digest_size=12)
    return f"im-{digest.hexdigest()}"


def _last_calls(one: LoggedEpisode) -> Iterator[tuple[str, tuple[Call, ...]]]:
    skipped = max(0, len(one.calls) - MAX_CALLS)
    for task, calls in one.requests:
        kept = calls[skipped:]
        skipped = max(0, skipped - len(calls))
        if kept:
            yield task, kept


def _clean(call: Call) -> Call:
    """A call with text that can be stored and is not longer than what is shown of a result."""
    arguments = {_short(name): _short(value) for name, value in call.arguments.items()}
    error = _short(call.error)
    return replace(call, name=_short(call.name)[:200], arguments=arguments, result=_short(call.result), error=error)


def _short(value: Any, depth: int = _DEPTH) -> Any:
    if isinstance(value, str):
        return clip(extract_text(value), SHOWN_CHARS)
    if isinstance(value, dict):
        inner = {_short(name): _short(part, depth - 1) for name, part in value.items()}
        return inner if depth > 0 else "{...}"
    if isinstance(value, list):
        return [_short(part, depth - 1) for part in value] if depth > 0 else "[...]"
    return value


def write(
    library: ExperienceLibrary,
    logged: Spool,
    *,
    source: str,
    trust: Trust = "untrusted",
    writer: str = "import",
    on_progress: Progress | None = None,
) -> int:
    """Record what is not there yet, some hundred episodes a transaction; returns how many were new."""
    new = done = 0
    total, waiting = len(logged), iter(logged)
    while batch := list(islice(waiting, BATCH)):
        unknown = [one for one in batch if not is_known(library, one, source)]
        new += len(library.record_many(episodes(library, unknown, source=source, trust=trust, writer=writer)))
        done += len(batch)
        if on_progress is not None:
            on_progress(done, total)
    return new


def count(library: ExperienceLibrary, path: Path, known: str, logged: Spool) -> dict[str, int]:
    """Count what is in a file and how much of it a library has not yet; nothing is written.

    Raises:
        ConfigError: An export of a library cannot be imported; the message names the line.
    """
    if known != "hardwon":
        new = steps = requests = 0
        for one in logged:
            new += not is_known(library, one, known)
            steps += min(MAX_CALLS, len(one.calls))
            requests += len(one.requests)
        return {"episodes": len(logged), "new": new, "requests": requests, "steps": steps}
    with ExperienceLibrary.open(":memory:") as trial:
        trial.import_jsonl(path)
        refs = [row["id"] for row in trial.trajectories()]
        items = [item.id for item in trial.items(status=None)]
        steps = trial.stats()["steps"]
    new = sum(_found(library.trajectory, ref) is None for ref in refs)
    new_items = sum(_found(library.get, ref) is None for ref in items)
    return {"episodes": len(refs), "new": new, "steps": steps, "items": len(items), "new_items": new_items}


def is_known(library: ExperienceLibrary, one: LoggedEpisode, source: str) -> bool:
    """Return whether an episode was imported before, by this version or by one that took its reference as its id."""
    if _found(library.trajectory, episode_id(one, source)) is not None:
        return True
    older = _found(library.trajectory, one.ref)
    return isinstance(older, Trajectory) and older.arm == "import"


def _found(get: Callable[[str], Trajectory | Item], ref: str) -> Trajectory | Item | None:
    try:
        found = get(extract_text(ref))
    except UnknownName:
        return None
    return found if found.id == ref else None
