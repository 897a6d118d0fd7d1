"""The entries of the log, and how their content is packed.

A payload is JSON, compressed with Zstandard; the entry has the number of its format. JSON keeps what SQLite keeps: NUL,
escaped lone surrogates, and the types of numbers. Row numbers are never in a payload, because they belong to one file:
a step is written as its episode and its number there.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hardwon.memory.errors import NewerSchema, require_extra
from hardwon.memory.records import Trajectory
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.upkeep.jsonl import StepPlace
from hardwon.memory.upkeep.write_buffer import decode_episode

FORMAT = 1
"""Format of the payloads that this version writes."""
ERASED = 0
"""Format of an entry whose payload was erased, because its content was forgotten."""
LARGEST = 2**30
"""Largest size of an unpacked payload in bytes; a larger one is refused instead of filling the memory."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log, in its place."""

    position: int
    """Place in the order of the namespace: 1, 2, 3, ... without gaps."""
    at: str
    """Time at which the database received it: UTC, ISO 8601, to the second."""
    kind: str
    """Kind of the entry: `episode`, `items`, `bank`, `store`, `import`, `forget` or `grade`."""
    key: str
    """Text that names it in the namespace; of an episode, its id."""
    payload: bytes
    format: int = FORMAT
    log_id: int = 0
    """Row of the database that holds it."""
    moment: str = ""
    """The time `at` to the microsecond; values expire by it."""


def pack(values: Any) -> bytes:
    """Return JSON values as a payload."""
    return pack_text(dumps(values))


def pack_text(text: str) -> bytes:
    """Return JSON text as a payload."""
    # Level of compression: beyond it, an episode shrinks by less than 3 %.
    return bytes(open_codec().ZstdCompressor(level=6).compress(text.encode()))


def unpack(payload: bytes, number: int = FORMAT) -> Any:
    """Return the JSON values of a payload."""
    if number > FORMAT:
        raise NewerSchema(
            f"an entry of the log has format {number}, but this version of hardwon reads up to {FORMAT}. Update your "
            "clone of hardwon, then run: pip install ."
        )
    codec = open_codec()
    try:
        # The header states the size, and the codec allocates it: look before decompressing what others wrote.
        size = codec.get_frame_parameters(payload).content_size
        if size > LARGEST:
            raise ValueError(f"the payload of an entry has {size} bytes; at most {LARGEST} are read")
        return json.loads(codec.ZstdDecompressor().decompress(payload))
    except codec.ZstdError as error:
        raise ValueError(f"the payload of an entry cannot be decompressed: {error}") from error


def is_equal(first: Any, second: Any) -> bool:
    """Return whether the values of two payloads are equal."""
    return dumps(first) == dumps(second)  # as text: NaN equals NaN, and 1 differs from 1.0


def is_same_episode(first: Any, second: Any) -> bool:
    """Return whether two payloads hold the same episode. Keys may differ: they depend on what was recorded before."""
    return is_equal(*(_drop_keys(values) for values in (first, second)))


def _drop_keys(values: Any) -> Any:
    episode, _ = values
    steps = [[*step[:5], [], *step[6:]] for step in episode[8]]
    return [*episode[:8], steps, *episode[9:]]


@cache
def open_codec() -> Any:
    """Return the module that compresses payloads."""
    with require_extra("postgres"):
        import zstandard
    return zstandard


def pack_episode_entry(text: str, locate: Callable[[Sequence[int]], Mapping[int, StepPlace]]) -> bytes:
    """Return the payload of an episode."""
    if '"like":[' not in text:
        return pack_text(f"[{text},{{}}]")
    values = json.loads(text)
    likes = {t: why.pop("like") for t, (*_, why, _) in enumerate(values[8]) if _has_ids(why)}
    places = locate(sorted({ref for refs in likes.values() for ref in refs}))
    return pack([values, {str(t): [places[ref] for ref in refs if ref in places] for t, refs in likes.items()}])


def _has_ids(why: Mapping[str, Any]) -> bool:
    """Return whether reasons refer to steps. A caller's own value under this key stays as it is."""
    return isinstance(why.get("like"), list) and all(type(ref) is int for ref in why["like"])


def find_places(values: Any) -> list[StepPlace]:
    """Return the places of the steps to which the episode of a payload refers."""
    return [(str(episode), int(t)) for listed in values[1].values() for episode, t in listed]


def unpack_episode_entry(values: Any, ref: str, ids: Mapping[StepPlace, int]) -> Trajectory:
    """Return the episode of a payload."""
    episode, likes = values
    for t, listed in likes.items():
        places = [(str(name), int(number)) for name, number in listed]
        episode[8][int(t)][6]["like"] = [ids[place] for place in places if place in ids]
    return decode_episode(episode, ref)


def locate_steps(store: Store, namespace: int, ids: Iterable[int]) -> dict[int, StepPlace]:
    """Return the places of steps by id. Unknown ids are left out."""
    rows = store.rows(
        "SELECT id, trajectory_id, t FROM steps WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))",
        (namespace, json.dumps(list(ids))),
    )
    return {ref: (episode, t) for ref, episode, t in rows}


def find_steps(store: Store, namespace: int, places: Iterable[StepPlace]) -> dict[StepPlace, int]:
    """Return the ids of steps by place. Unknown places are left out."""
    wanted = dict.fromkeys(places)
    if not wanted:
        return {}
    rows = store.rows(
        "SELECT trajectory_id, t, id FROM steps WHERE namespace = ? "
        "AND trajectory_id IN (SELECT value FROM json_each(?))",
        (namespace, dumps(sorted({episode for episode, _ in wanted}))),
    )
    return {(episode, t): ref for episode, t, ref in rows if (episode, t) in wanted}
