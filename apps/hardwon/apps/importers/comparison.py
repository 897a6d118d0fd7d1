"""Compare the episodes of a file with those of a library: which are new, which have grown, and which are known.

An id is that of a request, whatever file it comes from; see `LoggedEpisode.ref`. A known id is not known content: a
file that was imported while its program still wrote it has a shorter version.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.privacy.redaction import redact_trajectory
from hardwon.memory.records import Trust
from hardwon.runtime.integrations.tool_episode import REFUSED, extract_text

from .conversations import END
from .joining import Convert, StoredRow, join_parts, list_calls
from .spool import LoggedEpisode

CONVERSATIONS = ("openai", "anthropic", "responses")
TRACES = ("langsmith", "langfuse", "otel")
MAX_CALLS = 2000
"""Largest number of calls of an episode; the last ones are kept."""


def episode_id(ref: str, source: str) -> str:
    """Return the id of an episode: a digest, so that no file can claim the id of another program's episode."""
    # The three chat formats share one prefix: the same conversation has the same id in each.
    form = "messages" if source in CONVERSATIONS else source
    digest = hashlib.blake2b(f"{form}\0{ref}".encode(errors="replace"), digest_size=12)
    return f"im-{digest.hexdigest()}"


def digest_content(entry: LoggedEpisode) -> str:
    """Return a digest of what a file has of an episode, by which a repeated import recognizes it."""
    calls = [[call.name, call.arguments, call.result, call.error] for call in entry.calls]
    text = json.dumps([entry.task, calls, entry.success, entry.score, entry.ending], default=str)
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def compare(
    library: ExperienceLibrary, entries: Sequence[LoggedEpisode], convert: Convert, *, source: str, trust: Trust
) -> tuple[list[LoggedEpisode], list[tuple[LoggedEpisode, list[str]]]]:
    """Return the episodes that a library lacks, and the later versions of those that it has."""
    names = {entry.ref: list(_list_ids(entry, source)) for entry in entries}
    wholes = {entry.ref: [episode_id(ref, source) for ref in entry.wholes] for entry in entries}
    wanted = chain.from_iterable((*names.values(), *wholes.values()))
    rows = {row["id"]: row for row in library.episodes.find({extract_text(name) for name in wanted})}
    new: list[LoggedEpisode] = []
    updated: list[tuple[LoggedEpisode, list[str]]] = []
    replaced_ids: set[str] = set()
    used_ids = set(rows)
    for entry in entries:
        choices = [rows[name] for name in names[entry.ref] if name in rows and name not in replaced_ids]
        # The ids of earlier versions of hardwon were the references themselves.
        matches = [row for row in choices if row["id"].startswith("im-") or row["arm"] == "import"]
        if source in CONVERSATIONS:
            matches = [row for row in matches if _continues(library, row, entry, convert, source)]
        elif source in TRACES and len(matches) == 1:
            entry = join_parts(library, matches[0], entry, convert)
        graded = [rows[name] for name in wholes[entry.ref] if name in rows and "discount" in rows[name]["meta"]]
        if not matches and any(_has_calls(library, row, entry, convert) for row in graded):
            continue
        if not matches:
            if source in CONVERSATIONS:
                entry = _choose_ref(entry, source, used_ids)
            new.append(entry)
        elif _is_later(library, entry, matches, convert, trust):
            refs = [row["id"] for row in matches]
            replaced_ids.update(refs)
            updated.append((entry, refs))
    return new, updated


def _list_ids(entry: LoggedEpisode, source: str) -> Iterator[str]:
    """Yield the ids that an episode may have in a library."""
    # The shortest beginning of a conversation comes first: of several episodes it gives the id that stays.
    refs = (*entry.aliases, entry.ref) if source in CONVERSATIONS else (entry.ref, *entry.aliases)
    for ref in (*refs, *entry.older):
        yield episode_id(ref, source)
    yield entry.ref


def _choose_ref(entry: LoggedEpisode, source: str, used_ids: set[str]) -> LoggedEpisode:
    """Return a new conversation with the shortest of its beginnings that is free as its reference, and take it.

    So a shorter version of it, which may be imported later, is found.
    """
    ref = next((ref for ref in entry.aliases if episode_id(ref, source) not in used_ids), entry.ref)
    used_ids.add(episode_id(ref, source))
    return replace(entry, ref=ref)


def _continues(library: ExperienceLibrary, row: StoredRow, entry: LoggedEpisode, convert: Convert, source: str) -> bool:
    """Return whether an episode of the library is a part of a conversation, or the conversation a part of it.

    Two conversations may begin alike and then part, and one that an answer ended is no part of another.
    """
    end = row["meta"].get(END)
    if row["id"] == episode_id(entry.ref, source) or end in (entry.ref, *entry.aliases, *entry.older):
        return True
    if end and entry.ending == "completed" and ("discount" not in row["meta"] or entry.success is not None):
        return False
    sides = list_calls([library.episodes.get(row["id"])]), list_calls(convert(entry))
    return _contains(*sorted(sides, key=len))


def _has_calls(library: ExperienceLibrary, row: StoredRow, entry: LoggedEpisode, convert: Convert) -> bool:
    """Return whether an episode of the library has a request with its calls."""
    short, long = (
        [
            (step.pre.task, step.action, step.post.feedback)
            for episode in side
            for step in redact_trajectory(episode).steps
        ]
        for side in (convert(entry), [library.episodes.get(row["id"])])
    )
    return _contains(short, long)


def _contains(short: Sequence[Any], long: Sequence[Any]) -> bool:
    return any(long[at : at + len(short)] == short for at in range(len(long) - len(short) + 1))


def _is_later(
    library: ExperienceLibrary, entry: LoggedEpisode, rows: Sequence[StoredRow], convert: Convert, trust: Trust
) -> bool:
    """Return whether a file has a later version of an episode than the library."""
    if trust == "untrusted" and any(row["trust"] == "trusted" for row in rows):
        return False
    calls = sum(not call.result.startswith(REFUSED) for call in entry.calls[-MAX_CALLS:])
    most = max(row["n_steps"] for row in rows)
    if calls != most or len(rows) > 1:
        return bool(calls >= most)
    (row,) = rows
    meta = row["meta"]
    is_other_trial = meta.get("trial") != entry.meta.get("trial")
    if row["arm"] != "import" or is_other_trial or meta.get("log") == digest_content(entry):
        return False
    if entry.success is None and ("log" not in meta or "discount" in meta):  # an outcome that a log states stays
        return False
    episode = next(iter(convert(entry)), None)
    return episode is not None and episode.success is not None and _differs(library, row, episode)


def _differs(library: ExperienceLibrary, row: StoredRow, episode: Trajectory) -> bool:
    """Return whether an episode ended otherwise than in the library, or other calls of it failed."""
    if (row["success"], row["score"]) != (episode.success, episode.score) and not library.episodes.grades(row["id"]):
        return True
    sides = library.episodes.get(row["id"]).steps, episode.steps
    return any(step.diagnosis.success != other.diagnosis.success for step, other in zip(*sides, strict=False))
