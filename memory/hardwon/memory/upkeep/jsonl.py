"""Experience as lines of JSON, out of one library and into another, nothing lost on the way.

Each line is {"episode": {...}}, {"item": {...}}, {"usage": {...}} or {"change": {...}}, in the order in
which they were written. Ids of steps differ from file to file, so a step is told as [episode id, step
number]. What is derived is not told: the other library makes it anew. A file of episodes and items
alone, as older versions wrote it, may be imported as well.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from hardwon.memory import items
from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.private_files import open_new
from hardwon.memory.privacy.redaction import redact, redact_item, redact_values
from hardwon.memory.records import Diagnosis, Failure, Item, State, Step, Trajectory, Trust
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, now

from . import queries

_USAGE = ("item_id", "trajectory_id", "t", "mode", "arm", "outcome", "control_outcome")
_ROW = ("created_at", "updated_at", "uses", "fresh")

Place = tuple[str, int]
"""Of a step: the id of its episode, and its number there."""


def export_jsonl(store: Store, namespace: int, path: str | Path) -> int:
    """Episodes, items, usages and the history of items, each oldest first; written beside and moved into place."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    count = 0
    try:
        partial.unlink(missing_ok=True)
        with open_new(partial, exclusive=True) as file:
            for line in _lines(store, namespace):
                file.write((dumps(line) + "\n").encode())
                count += 1
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Give a path in a folder that exists."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _lines(store: Store, namespace: int) -> Iterator[dict[str, Any]]:
    places: dict[int, Place] = {}
    episodes = store.rows("SELECT id, recorded_at FROM trajectories WHERE namespace = ? ORDER BY rowid", (namespace,))
    for ref, recorded_at in episodes:
        episode = queries.trajectory(store, namespace, ref)
        yield {"episode": {**_told_episode(episode, places), "recorded_at": recorded_at}}  # it went by earlier ones
        places.update({step.id: (ref, step.t) for step in episode.steps if step.id is not None})
    rows = store.rows(f"SELECT record, {', '.join(_ROW)} FROM items WHERE namespace = ? ORDER BY number", (namespace,))
    for record, *columns in rows:
        yield {"item": {**_told_evidence(json.loads(record), places), **dict(zip(_ROW, columns, strict=True))}}
    for row in store.rows(f"SELECT {', '.join(_USAGE)} FROM usages WHERE namespace = ? ORDER BY id", (namespace,)):
        yield {"usage": dict(zip(_USAGE, row, strict=True))}
    history = "SELECT at, ref, op, detail FROM changes WHERE namespace = ? AND what = 'item' ORDER BY seq"
    for at, ref, op, detail in store.rows(history, (namespace,)):
        yield {"change": {"at": at, "ref": ref, "op": op, "detail": _told_evidence(json.loads(detail), places)}}


def _told_episode(episode: Trajectory, places: Mapping[int, Place]) -> dict[str, Any]:
    return {**_fields(episode), "steps": [_told_step(step, places) for step in episode.steps]}


def _told_step(step: Step, places: Mapping[int, Place]) -> dict[str, Any]:
    told = {**_fields(step), **{name: _fields(getattr(step, name)) for name in ("pre", "post", "diagnosis")}}
    why = {name: value for name, value in step.why.items() if name != "trajectory"}
    if "like" in why:
        why["like"] = _places(why["like"], places)
    del told["id"]
    return {**told, "why": why}


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _told_evidence(told: dict[str, Any], places: Mapping[int, Place]) -> dict[str, Any]:
    return {**told, "provenance": _places(told["provenance"], places)} if "provenance" in told else told


def _places(refs: Iterable[int], places: Mapping[int, Place]) -> list[Place]:
    return [places[ref] for ref in refs if ref in places]


Write = Callable[[Trajectory, str], None]
"""Writes an episode as it was recorded at a time, its usages left to the lines that follow."""


class Import:
    """One file being read into one namespace, in the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        store: Store,
        namespace: int,
        record: Callable[[Trajectory], str],
        write: Write,
        trust: Trust = "trusted",
    ) -> None:
        self._connection = connection
        self._store = store
        self._namespace = namespace
        self._record = record
        self._write = write
        self._trust = trust
        self._clock = 0
        """Episodes read from the file, by which it tells the age of items."""
        self._ids: dict[Place, int] = {}
        self._new_episodes: set[str] = set()
        self._restored: dict[str, int] = {}
        """New items, with the line of the change log that is theirs until their own history is read."""
        self._read: Mapping[str, Callable[[dict[str, Any]], bool]] = {
            "episode": self._episode,
            "item": self._item,
            "usage": self._usage,
            "change": self._change,
        }

    def read(self, path: str | Path) -> int:
        """Write what is not there yet; returns how many lines were new.

        Raises: ConfigError for a file that cannot be read, or naming the line that is not of the form.
        """
        count = 0
        for number, line in enumerate(_read(path), 1):
            try:
                ((kind, value),) = json.loads(line).items()
                count += self._read[kind](value)
            except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: not an episode or item of hardwon ({error!r}).") from error
        return count

    def _episode(self, value: dict[str, Any]) -> bool:
        ref, recorded_at = value["id"], value.pop("recorded_at", None)
        if not ref:
            raise ValueError("an episode without an id")
        steps = tuple(self._step(step) for step in value.pop("steps"))
        episode = Trajectory(steps=steps, **value)
        self._clock += episode.success is not None
        if self._trust == "untrusted":
            # kept, but no evidence: nothing is learnt of it
            episode = replace(episode, success=None, writer="import", trust="untrusted")
        new = not self._connection.execute(
            "SELECT 1 FROM trajectories WHERE namespace = ? AND id = ?", (self._namespace, ref)
        ).fetchone()
        if new and recorded_at is None and self._trust == "trusted":
            self._record(episode)  # an older file: its usages are told by its steps alone
        elif new:
            self._write(episode, recorded_at or now())
            self._new_episodes.add(ref)
        rows = self._connection.execute(
            "SELECT t, id FROM steps WHERE namespace = ? AND trajectory_id = ?", (self._namespace, ref)
        )
        self._ids.update({(ref, t): step for t, step in rows})
        return new

    def _step(self, value: dict[str, Any]) -> Step:
        judged, why = value["diagnosis"], dict(value.get("why", {}))
        if "like" in why:
            why["like"] = [self._ids.get(tuple(one), 0) if isinstance(one, list) else one for one in why["like"]]
        return replace(
            Step(**{**value, "pre": State(**value["pre"]), "post": State(**value["post"])}),
            diagnosis=Diagnosis(**{**judged, "failure": Failure(judged["failure"])}),
            why=why,
            id=None,
        )

    def _item(self, value: dict[str, Any]) -> bool:
        columns = {name: value.pop(name) for name in _ROW if name in value}
        item = Item(**{**value, "provenance": self._evidence(value["provenance"])})
        item = redact_item(replace(item, id=item.id or items.identify(item)))
        if items.read_item(self._connection, self._namespace, item.id) is not None:
            return False
        if self._trust == "untrusted":
            if item.status == "retired":  # a stranger's verdict would keep this library's own finding out
                return False
            item = replace(item, status="quarantined", source="import", trust="untrusted", pinned=False)
        items.restore(self._connection, self._namespace, item)
        ((self._restored[item.id],),) = self._connection.execute("SELECT max(seq) FROM changes")
        self._date(item, columns)
        return True

    def _date(self, item: Item, columns: Mapping[str, Any]) -> None:
        """Give an item its age: as many episodes without use as in the library it comes from."""
        idle = self._clock - columns.get("fresh", self._clock)
        (clock,) = self._connection.execute(
            "SELECT count(*) FROM trajectories WHERE namespace = ? AND success IS NOT NULL", (self._namespace,)
        ).fetchone()
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

    def _usage(self, value: dict[str, Any]) -> bool:
        if self._trust == "untrusted" or value["trajectory_id"] not in self._new_episodes:
            return False
        ref = self._connection.execute(
            f"INSERT INTO usages(namespace, {', '.join(_USAGE)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._namespace, *(value[name] for name in _USAGE)),
        ).lastrowid
        seal(self._connection, "usages", "id = ?", (ref,))
        return True

    def _change(self, value: dict[str, Any]) -> bool:
        if self._trust == "untrusted" or value["ref"] not in self._restored:
            return False
        detail = redact_values(value["detail"])
        if "provenance" in detail:
            detail = {**detail, "provenance": self._evidence(detail["provenance"])}
        seq = self._connection.execute(
            "INSERT INTO changes(at, namespace, what, ref, op, detail) VALUES (?, ?, 'item', ?, ?, ?)",
            (value["at"], self._namespace, value["ref"], redact(value["op"]), dumps(detail)),
        ).lastrowid
        seal(self._connection, "changes", "seq = ?", (seq,))
        self._connection.execute("DELETE FROM changes WHERE seq = ?", (self._restored[value["ref"]],))
        return True

    def _evidence(self, places: Iterable[Any]) -> list[int]:
        return [self._ids[ref, t] for ref, t in places if (ref, t) in self._ids]


def _read(path: str | Path) -> Iterator[str]:
    """The lines of a file; only a line feed ends one, for text may hold other separators."""
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}). Give a file that `hardwon memory export` wrote."
        ) from error
