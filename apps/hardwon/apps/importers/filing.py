"""Convert logged episodes to episodes of a library, with diagnoses and keys, and record them."""

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
"""Number of episodes per transaction."""
MAX_CALLS = 2000
"""Largest number of calls of an episode; the last ones are kept."""
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
    """Yield logged episodes as episodes of a library.

    An outcome from the file applies to the whole episode. No call is nearer to it than another, so the outcome is not
    discounted, and the value of an action is the mean of the outcomes of its episodes.

    Args:
        library: The library whose keys and rules apply.
        logged: The episodes of the file.
        source: Format of the file.
        trust: Whether the text of the file is trusted.
        writer: Name of the writer to record.
    """
    for entry in logged:
        requests = list(_keep_last_calls(entry))
        if not requests:
            continue
        episode = ToolEpisode(library, extract_text(requests[0][0]))
        for task, calls in requests:
            episode.begin_request(extract_text(task))
            episode.replay([_clean_call(call) for call in calls])
        success = not episode.broken if entry.success is None else entry.success
        ending = "success" if success else "done"
        meta = {"environment": source, "policy": "import", **entry.meta}
        if entry.score is not None:
            meta["discount"] = 1.0
        named = {"arm": "import", "ending": ending, "meta": meta, "writer": writer, "trust": trust}
        yield episode.trajectory(success, entry.score, id=episode_id(entry, source), **named)


def episode_id(entry: LoggedEpisode, source: str) -> str:
    """Return the id of an episode: a digest, so that no file can claim the id of another program's episode."""
    # The three chat formats share one prefix: the same conversation has the same id in each.
    form = "messages" if source in _CONVERSATIONS else source
    digest = hashlib.blake2b(f"{form}\0{entry.ref}".encode(errors="replace"), digest_size=12)
    return f"im-{digest.hexdigest()}"


def _keep_last_calls(entry: LoggedEpisode) -> Iterator[tuple[str, tuple[Call, ...]]]:
    # Counted over the whole episode; a request whose calls are all skipped disappears.
    skipped = max(0, len(entry.calls) - MAX_CALLS)
    for task, calls in entry.requests:
        kept = calls[skipped:]
        skipped = max(0, skipped - len(calls))
        if kept:
            yield task, kept


def _clean_call(call: Call) -> Call:
    """Return a call whose text can be stored and is cut to the length of a result."""
    arguments = {_truncate(name): _truncate(value) for name, value in call.arguments.items()}
    error = _truncate(call.error)
    return replace(
        call, name=_truncate(call.name)[:200], arguments=arguments, result=_truncate(call.result), error=error
    )


def _truncate(value: Any, depth: int = _DEPTH) -> Any:
    if isinstance(value, str):
        return clip(extract_text(value), SHOWN_CHARS)
    if isinstance(value, dict):
        inner = {_truncate(name): _truncate(part, depth - 1) for name, part in value.items()}
        return inner if depth > 0 else "{...}"
    if isinstance(value, list):
        return [_truncate(part, depth - 1) for part in value] if depth > 0 else "[...]"
    return value


def write(
    library: ExperienceLibrary,
    logged: Spool,
    *,
    source: str,
    trust: Trust = "untrusted",
    writer: str = "import",
    on_progress: Progress | None = None,
    on_recorded: Callable[[str], None] | None = None,
) -> int:
    """Record the new episodes, a few hundred per transaction.

    Args:
        library: The library to write.
        logged: The episodes of the file.
        source: Format of the file.
        trust: Whether the text of the file is trusted.
        writer: Name of the writer to record.
        on_progress: Called with the number of finished episodes and the total.
        on_recorded: Called with the id of each new episode, after it is written.

    Returns:
        The number of new episodes.
    """
    new = done = 0
    total, waiting = len(logged), iter(logged)
    while batch := list(islice(waiting, BATCH)):
        # Checked before the conversion, so that repeating an import costs only lookups.
        missing = [entry for entry in batch if not is_known(library, entry, source)]
        ids = library.record_many(episodes(library, missing, source=source, trust=trust, writer=writer))
        new += len(ids)
        if on_recorded is not None:
            for ref in ids:
                on_recorded(ref)
        done += len(batch)
        if on_progress is not None:
            on_progress(done, total)
    return new


def count(library: ExperienceLibrary, path: Path, format_name: str, logged: Spool) -> dict[str, int]:
    """Count the contents of a file and how much of it is new to a library, without writing.

    Args:
        library: The library to compare with.
        path: The file.
        format_name: Format of the file.
        logged: The episodes of the file.

    Raises:
        ConfigError: An export of a library cannot be imported; the message names the line.
    """
    if format_name != "hardwon":
        new = steps = requests = 0
        for entry in logged:
            new += not is_known(library, entry, format_name)
            steps += min(MAX_CALLS, len(entry.calls))
            requests += len(entry.requests)
        return {"episodes": len(logged), "new": new, "requests": requests, "steps": steps}
    # Import into memory: the file is checked exactly as a real import would check it.
    with ExperienceLibrary.open(":memory:") as trial:
        trial.import_jsonl(path)
        refs = [row["id"] for row in trial.trajectories()]
        items = [item.id for item in trial.items(status=None)]
        steps = trial.stats()["steps"]
    new = sum(_find_record(library.trajectory, ref) is None for ref in refs)
    new_items = sum(_find_record(library.get, ref) is None for ref in items)
    return {"episodes": len(refs), "new": new, "steps": steps, "items": len(items), "new_items": new_items}


def is_known(library: ExperienceLibrary, entry: LoggedEpisode, source: str) -> bool:
    """Return whether an episode was imported before, by this version or by one that used its reference as its id."""
    if _find_record(library.trajectory, episode_id(entry, source)) is not None:
        return True
    older = _find_record(library.trajectory, entry.ref)
    return isinstance(older, Trajectory) and older.arm == "import"


def _find_record(get: Callable[[str], Trajectory | Item], ref: str) -> Trajectory | Item | None:
    try:
        record = get(extract_text(ref))
    except UnknownName:
        return None
    # `get` also accepts prefixes of ids.
    return record if record.id == ref else None
