"""Convert logged episodes to episodes of a library, with diagnoses and keys, and record them."""

from collections import Counter
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

from .comparison import MAX_CALLS as MAX_CALLS, compare, digest_content, episode_id
from .source import OnProgress
from .spool import LoggedEpisode, Spool

BATCH = 200
"""Number of episodes per transaction."""


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
    """
    for entry in logged:
        requests = list(_keep_last_calls(entry)) or [(entry.task, ())]  # stopped before the first call was answered
        episode = ToolEpisode(library, extract_text(requests[0][0]))
        for task, calls in requests:
            episode.begin_request(extract_text(task))
            episode.replay([_clean_call(call) for call in calls])
        end = entry.ending if entry.calls or entry.ending == "failed" else "unfinished"
        success = episode.judge(end) if entry.success is None else entry.success
        ending = "success" if success else "done"
        meta = {"environment": source, "policy": "import", "log": digest_content(entry), **entry.meta}
        if entry.score is not None:
            meta["discount"] = 1.0
        named = {"arm": "import", "ending": ending, "meta": meta, "writer": writer, "trust": trust}
        yield episode.trajectory(success, entry.score, id=episode_id(entry.ref, source), **named)


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


def _truncate(value: Any, depth: int = 8) -> Any:
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
    on_progress: OnProgress | None = None,
    on_recorded: Callable[[str], None] | None = None,
    on_updated: Callable[[str], None] | None = None,
) -> int:
    """Record the new episodes, a few hundred per transaction, and update those that the file has a later version of."""
    done = recorded = 0
    total, waiting = len(logged), iter(logged)
    settings: Any = {"source": source, "trust": trust, "writer": writer}

    def convert(entry: LoggedEpisode) -> Iterator[Trajectory]:
        return episodes(library, [entry], **settings)

    while batch := list(islice(waiting, BATCH)):
        # Checked before the conversion, so that repeating an import costs only lookups.
        new, updated = compare(library, batch, convert, source=source, trust=trust)
        ids = library.record_many(episodes(library, new, **settings))
        if updated:
            versions = episodes(library, [entry for entry, _ in updated], **settings)
            library.episodes.replace_many(list(zip(versions, (refs for _, refs in updated), strict=True)))
        for report, refs in ((on_recorded, ids), (on_updated, [refs[0] for _, refs in updated])):
            for ref in refs:
                if report is not None:
                    report(ref)
        recorded, done = recorded + len(ids), done + len(batch)
        if ids or updated:
            library.admin.index()  # here, where progress is shown: closing and the first recall would have to do it
        if on_progress is not None:
            on_progress(done, total)
    return recorded


def measure(logged: Spool) -> dict[str, int]:
    """Return the numbers of episodes, requests and steps of a file."""
    sizes = [(len(entry.requests), min(MAX_CALLS, len(entry.calls))) for entry in logged]
    requests, steps = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (0, 0)
    return {"episodes": len(sizes), "requests": requests, "steps": steps}


def count(library: ExperienceLibrary, path: Path, format_name: str, logged: Spool) -> dict[str, int]:
    """Count the contents of a file and how much of it is new to a library, without writing."""
    if format_name != "hardwon":
        counts = Counter[str](new=0, updated=0, known=0)
        waiting = iter(logged)

        def convert(entry: LoggedEpisode) -> Iterator[Trajectory]:
            return episodes(library, [entry], source=format_name)

        while batch := list(islice(waiting, BATCH)):
            new, updated = compare(library, batch, convert, source=format_name, trust="trusted")
            counts.update(new=len(new), updated=len(updated), known=len(batch) - len(new) - len(updated))
        return {**measure(logged), **counts}
    # Import into memory: the file is checked exactly as a real import would check it.
    with ExperienceLibrary.open(":memory:") as trial:
        trial.admin.import_jsonl(path)
        refs = [row["id"] for row in trial.episodes.find()]
        items = [item.id for item in trial.items.find(status=None)]
        steps = trial.admin.stats()["steps"]
    missing = len(refs) - len(library.episodes.find(refs))
    new_items = sum(_find_record(library.items.get, ref) is None for ref in items)
    return {"episodes": len(refs), "new": missing, "steps": steps, "items": len(items), "new_items": new_items}


def _find_record(get: Callable[[str], Item], ref: str) -> Item | None:
    try:
        record = get(extract_text(ref))
    except UnknownName:
        return None
    # `get` also accepts prefixes of ids.
    return record if record.id == ref else None
