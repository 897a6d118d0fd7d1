"""Export of a library to JSON lines, and import into another library, without loss.

Each line is an {"episode": {...}}, {"item": {...}}, {"usage": {...}}, {"change": {...}} or {"grade": {...}}, in the
order of writing. Step
ids differ between libraries, so a step is written as [episode id, step number]. Derived data is not exported; the
other library rebuilds it. Files of older versions, which contain only episodes and items, can be imported too.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from sqlite3 import Connection
from typing import IO, Any

from hardwon.memory import items
from hardwon.memory.errors import ConfigError, HardwonError
from hardwon.memory.privacy.private_files import open_new
from hardwon.memory.privacy.redaction import redact, redact_item, redact_values
from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Diagnosis, Failure, Item, State, Step, Trajectory, Trust
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.clock import normalize_time
from hardwon.memory.storage.counted import EpisodeClock
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, log_change
from hardwon.memory.validation import check_episode, check_item, check_no_secret, check_path

from . import queries
from .damage import UNREADABLE
from .forgetting.replacement import EpisodeVersion
from .text_files import open_text

_USAGE_COLUMNS = ("item_id", "trajectory_id", "t", "mode", "arm", "outcome", "control_outcome")
_ITEM_COLUMNS = ("created_at", "updated_at", "uses", "fresh")
# SQLite edits the stored JSON, which takes a third of the time of decoding and encoding it here.
_RECORD, _DETAIL = (
    f"json_replace({text}, '$.provenance', json((SELECT json_group_array(json_array(trajectory_id, t)) "
    f"FROM json_each({text}, '$.provenance') CROSS JOIN steps ON steps.id = value "
    f"WHERE steps.namespace = {table}.namespace)))"
    for table, text in (("items", "record"), ("changes", "detail"))
)
_AGE = ", ".join(f"'$.{name}', {name}" for name in _ITEM_COLUMNS)
_IS_OBJECT = "CASE WHEN json_valid({0}) THEN json_type({0}) END = 'object'"
_ITEM_LINES = (
    f"SELECT id, record, CASE WHEN {_IS_OBJECT.format('record')} THEN json_object('item', json_set({_RECORD}, {_AGE})) "
    "END FROM items WHERE namespace = ? ORDER BY number"
)
_CHANGE_LINES = (
    f"SELECT seq, CASE WHEN {_IS_OBJECT.format('detail')} THEN json_object(?, "
    f"json_object('at', at, 'ref', ref, 'op', op, 'detail', {_DETAIL})) END "
    "FROM changes WHERE namespace = ? AND what = ? ORDER BY seq"
)

StepPlace = tuple[str, int]
"""Portable reference to a step: the id of its episode and its number there."""


def export_jsonl(store: Store, namespace: int, path: str | Path, damage: list[str] | None = None) -> int:
    """Write episodes, items, usages and item histories to a file, each oldest first."""
    count = 0
    with write_export(path) as file:
        for line in _iterate_lines(store, namespace, damage):
            file.write((line + "\n").encode())
            count += 1
    return count


@contextmanager
def write_export(path: str | Path) -> Iterator[IO[bytes]]:
    """Open the file of an export, which takes the place of an earlier export or of nothing, once it is complete."""
    check_path(path)
    path = Path(path).absolute()
    partial = path.with_name(path.name + ".partial")
    try:
        if path.is_dir() or (path.is_file() and not _is_export(path)):
            raise ConfigError(f"{path} is there and no export, so it is not written over. Give the path of a new file.")
        partial.unlink(missing_ok=True)
        with open_new(partial, exclusive=True) as file:
            yield file
        partial.replace(path)
    except OSError as error:
        if isinstance(error, HardwonError):  # of a library, not of this file
            raise
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Use a path in an existing, writable folder."
        ) from error
    finally:
        with suppress(OSError):  # of a file system that cannot be written
            partial.unlink(missing_ok=True)


def _is_export(path: Path) -> bool:
    """Return whether a file is empty or begins as a line of an export."""
    with path.open("rb") as file:
        return file.read(2) in (b"", b'{"')


def encode_line(episode: Trajectory, recorded_at: str, places: Mapping[int, StepPlace]) -> dict[str, Any]:
    """Return the line of an episode."""
    steps = [_encode_step(step, places) for step in episode.steps]
    return {"episode": {**_read_fields(episode), "steps": steps, "recorded_at": recorded_at}}


def _iterate_lines(store: Store, namespace: int, damage: list[str] | None) -> Iterator[str]:
    places: dict[int, StepPlace] = {}
    episodes = store.rows("SELECT id, recorded_at FROM trajectories WHERE namespace = ? ORDER BY rowid", (namespace,))
    for ref, recorded_at in episodes:
        with _naming(damage, f"episode {ref}"):
            episode = queries.trajectory(store, namespace, ref)
            if damage is not None:
                check_episode(episode)
            # An episode refers only to steps of earlier episodes, which are in `places` already.
            yield dumps(encode_line(episode, recorded_at, places))
            places.update({step.id: (ref, step.t) for step in episode.steps if step.id is not None})
    for ref, record, line in store.rows(_ITEM_LINES, (namespace,)):
        with _naming(damage, f"item {ref}"):
            if damage is not None:
                check_item(items.item_of(record))
            yield _check_line(line)
    for row in store.rows(
        f"SELECT {', '.join(_USAGE_COLUMNS)} FROM usages WHERE namespace = ? ORDER BY id", (namespace,)
    ):
        yield dumps({"usage": dict(zip(_USAGE_COLUMNS, row, strict=True))})
    for name, what in (("change", "item"), ("grade", "grade")):
        for seq, line in store.rows(_CHANGE_LINES, (name, namespace, what)):
            with _naming(damage, f"{name} {seq}"):
                yield _check_line(line)


def _check_line(line: str | None) -> str:
    """Return a line that SQLite made, unless the stored text is no JSON object."""
    if line is None:
        raise ValueError("not a JSON object")
    return line


@contextmanager
def _naming(damage: list[str] | None, name: str) -> Iterator[None]:
    """Add a record that cannot be read to `damage`, unless that is None."""
    try:
        yield
    except UNREADABLE as error:
        if damage is None:
            raise
        damage.append(f"{name} cannot be read ({type(error).__name__}: {error!s:.100})")


def _encode_step(step: Step, places: Mapping[int, StepPlace]) -> dict[str, Any]:
    values = {
        **_read_fields(step),
        **{name: _read_fields(getattr(step, name)) for name in ("pre", "post", "diagnosis")},
    }
    why = step.why.to_dict(with_trajectory=False)
    if step.why.similar is not None:
        why["like"] = [places[ref] for ref in step.why.similar if ref in places]
    del values["id"]
    return {**values, "why": why}


def _read_fields(record: Any) -> dict[str, Any]:
    names, read = _find_fields(record.__class__)
    return dict(zip(names, read(record), strict=True))


@cache
def _find_fields(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of the fields of a record, and what reads all of them."""
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)


Write = Callable[[Trajectory, str], object]
"""Stores an episode with its time of recording. Its usages follow in later lines."""
UpdateEpisodes = Callable[[Sequence[EpisodeVersion]], None]
"""Replaces episodes by later versions."""


class Import:
    """The import of one file into one namespace, inside the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        store: Store,
        namespace: int,
        record: Callable[[Trajectory], str],
        write: Write,
        update: UpdateEpisodes,
        trust: Trust = "trusted",
    ) -> None:
        self._connection = connection
        self._store = store
        self._namespace = namespace
        self._record = record
        self._write = write
        self._update = update
        self._trust = trust
        self._clock = 0
        """Number of episodes read from the file, relative to which the ages of items are stated."""
        self._ids: dict[StepPlace, int] = {}
        self._new_episodes: set[str] = set()
        self._later: dict[str, Trajectory] = {}
        """Later versions of episodes that are here, by id."""
        self._later_grades: list[dict[str, Any]] = []
        self._restored: dict[str, int] = {}
        """New items, with the change-log entry of their import. Their own history, if any, replaces the entry."""
        self._readers: Mapping[str, Callable[[dict[str, Any]], bool]] = {
            "episode": self._read_episode,
            "item": self._read_item,
            "usage": self._read_usage,
            "change": self._read_change,
            "grade": self._read_grade,
        }

    def read(self, path: str | Path) -> int:
        """Write the records of a file that do not exist yet; return the number of new lines."""
        return self.read_lines(_read_lines(path), str(path))

    def read_lines(self, lines: Iterable[str], path: str) -> int:
        """Write the records of lines that do not exist yet; return the number of new lines."""
        count = 0
        for number, line in enumerate(lines, 1):
            try:
                ((kind, value),) = json.loads(line).items()
                count += self._readers[kind](value)
            except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: not an episode or item of hardwon ({error!r}).") from error
        if self._later:
            self._update([(episode, [ref]) for ref, episode in self._later.items()])
        for value in self._later_grades:
            self._log_grade(value)
        return count

    def _read_episode(self, value: dict[str, Any]) -> bool:
        ref, recorded_at = value["id"], value.pop("recorded_at", None)
        if not ref:
            raise ValueError("the episode has no id")
        check_no_secret("episode id", ref)
        steps = tuple(self._read_step(step) for step in value.pop("steps"))
        episode = Trajectory(steps=steps, **value)
        self._clock += episode.success is not None
        if self._trust == "untrusted":
            # Excluded episodes are stored for reference but nothing is learned from them.
            episode = replace(episode, success=None, writer="import", trust="untrusted")
        row = self._connection.execute(
            "SELECT n_steps, success FROM trajectories WHERE namespace = ? AND id = ?", (self._namespace, ref)
        ).fetchone()
        is_new = row is None
        is_later = row is not None and self._trust == "trusted" and is_later_version(episode, *row)
        if is_later:
            self._later[ref] = episode
        if is_new and recorded_at is None and self._trust == "trusted":
            self._record(episode)  # a file of an older version has no usage lines, so derive usages from the steps
        elif is_new:
            self._write(episode, normalize_time(recorded_at))
            self._new_episodes.add(ref)
        rows = self._connection.execute(
            "SELECT t, id FROM steps WHERE namespace = ? AND trajectory_id = ?", (self._namespace, ref)
        )
        # Also for an episode that exists already: later lines may refer to its steps.
        self._ids.update({(ref, t): step for t, step in rows})
        return is_new or is_later

    def _read_step(self, value: dict[str, Any]) -> Step:
        diagnosis, why = value["diagnosis"], dict(value.get("why", {}))
        if "like" in why:
            why["like"] = [self._ids.get(tuple(ref), 0) if isinstance(ref, list) else ref for ref in why["like"]]
        records = {
            "pre": State(**value["pre"]),
            "post": State(**value["post"]),
            "diagnosis": Diagnosis(**{**diagnosis, "failure": Failure(diagnosis["failure"])}),
            "why": Reasons.of(why),
        }
        return Step(**{**value, **records, "id": None})

    def _read_item(self, value: dict[str, Any]) -> bool:
        columns = {name: value.pop(name) for name in _ITEM_COLUMNS if name in value}
        columns |= {name: normalize_time(columns[name]) for name in ("created_at", "updated_at") if columns.get(name)}
        item = Item(**{**value, "provenance": self._resolve_steps(value["provenance"])})
        check_no_secret("item id", item.id)
        item = redact_item(replace(item, id=item.id or items.identify(item)))
        if items.read_item(self._connection, self._namespace, item.id) is not None:
            return False
        if self._trust == "untrusted":
            if item.status == "retired":  # otherwise the import could block an item that this library would create
                return False
            item = replace(item, status="quarantined", source="import", trust="untrusted", pinned=False)
        items.restore(self._connection, self._namespace, item)
        ((self._restored[item.id],),) = self._connection.execute("SELECT max(seq) FROM changes")
        self._set_age(item, columns)
        return True

    def _set_age(self, item: Item, columns: Mapping[str, Any]) -> None:
        """Set an item's age: the number of episodes without use, as in the library of origin."""
        # Age is counted in episodes without use, so shift it by the difference of the two libraries.
        idle = self._clock - columns.get("fresh", self._clock)
        clock = EpisodeClock(self._namespace).read(self._connection.execute)
        self._connection.execute(
            "UPDATE items SET fresh = ?, uses = ?, created_at = coalesce(?, created_at), "
            "updated_at = coalesce(?, updated_at) WHERE namespace = ? AND id = ?",
            (
                clock - idle,
                columns.get("uses", 0),
                columns.get("created_at"),
                columns.get("updated_at"),
                self._namespace,
                item.id,
            ),
        )
        seal(self._connection, "items", "namespace = ? AND id = ?", (self._namespace, item.id))

    def _read_usage(self, value: dict[str, Any]) -> bool:
        if self._trust == "untrusted" or value["trajectory_id"] not in self._new_episodes:
            return False
        ref = self._connection.execute(
            f"INSERT INTO usages(namespace, {', '.join(_USAGE_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._namespace, *(value[name] for name in _USAGE_COLUMNS)),
        ).lastrowid
        seal(self._connection, "usages", "id = ?", (ref,))
        return True

    def _read_change(self, value: dict[str, Any]) -> bool:
        if self._trust == "untrusted" or value["ref"] not in self._restored:
            return False
        detail = redact_values(value["detail"])
        if "provenance" in detail:
            detail = {**detail, "provenance": self._resolve_steps(detail["provenance"])}
        at, op = normalize_time(value["at"]), redact(value["op"])
        log_change(self._connection, self._namespace, "item", value["ref"], op, detail, at=at)
        # The item has its own history now, so drop the entry of the import.
        self._connection.execute("DELETE FROM changes WHERE seq = ?", (self._restored[value["ref"]],))
        return True

    def _read_grade(self, value: dict[str, Any]) -> bool:
        """Add a grade to the history of a new episode or a later version, which has its outcome already."""
        if self._trust == "trusted" and value["ref"] in self._later:
            self._later_grades.append(value)  # the version is written last
            return True
        if self._trust == "untrusted" or value["ref"] not in self._new_episodes:
            return False
        self._log_grade(value)
        return True

    def _log_grade(self, value: dict[str, Any]) -> None:
        detail = redact_values(value["detail"])
        at = normalize_time(value["at"])
        log_change(self._connection, self._namespace, "grade", value["ref"], "graded", detail, at=at)

    def _resolve_steps(self, places: Iterable[Any]) -> list[int]:
        return [self._ids[ref, t] for ref, t in places if (ref, t) in self._ids]


def is_later_version(episode: Trajectory, steps: int, success: int | bool | None) -> bool:
    """Return whether this is a later version of an episode that has so many steps and this outcome."""
    is_decided = success is None and episode.success is not None
    return len(episode.steps) > steps or (len(episode.steps) == steps and is_decided)


def _read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file. Only a line feed ends a line, because texts may contain other separators."""
    try:
        with open_text(path, newline="\n") as file:
            yield from file
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Use a file that `hardwon memory export` wrote.") from error
