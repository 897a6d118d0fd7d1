"""Forgetting: delete experience from the file, with everything that was made of it.

Two phases. First one transaction deletes the rows: episodes with their steps and states, usages, summaries,
words, keys, the items that rest on nothing else, and their history. It also writes a receipt without content.
Then the bytes go: the files beside the library are deleted, the file is rewritten (VACUUM) and its log is cut
to nothing. A kill before the commit leaves all of it, a kill after it leaves a receipt that is not marked
`erased`, and the next writer that opens the library finishes the second phase.

A process that has the library open notices the receipt at its next call (`Store.generation`) and reads anew.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from hardwon.memory import items as catalogue
from hardwon.memory.errors import ConfigError, LibraryDamaged, LibraryUnwritable, UnknownName
from hardwon.memory.learning.consolidation import Distiller
from hardwon.memory.privacy.redaction import redact_item
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.storage import rollups, worlds
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, episode_words, log_change, now, witness_of
from hardwon.memory.validation import check_text
from hardwon.memory.values.saved_tables import rebuild_values

from .damage import UNREADABLE
from .forgotten_texts import readable_item, speaking, texts_of, tokens_in, whole_numbers
from .integrity import rebuild_states_text
from .queries import trajectory

What = Literal["episode", "writer", "text", "namespace"]
_IN = "IN (SELECT value FROM json_each(?))"

logger = logging.getLogger("hardwon.memory")


@dataclass(frozen=True, slots=True)
class ForgetReceipt:
    """What was forgotten, in numbers. `episodes` and `items` are for the caller alone: the library keeps none of it."""

    what: What
    """By what it was selected: episode, writer, text or namespace."""
    at: str
    counts: dict[str, int]
    """Rows deleted, by table; `items removed` and `items rewritten` tell what became of items."""
    episodes: tuple[str, ...]
    items: tuple[str, ...]
    """Ids of the items that were removed."""
    rewritten: tuple[str, ...]
    """Ids of the items that were kept with other evidence: their words were made anew or hold nothing forgotten."""
    digest: str
    """Of the row that the library keeps of this."""
    dry_run: bool = False
    erased: bool = False
    """Whether the bytes are gone as well; if not, the next writer that opens the library erases them."""


@dataclass(slots=True)
class _Selection:
    """The rows that are selected themselves; what was made of them follows."""

    episodes: list[str] = field(default_factory=list)
    items: set[str] = field(default_factory=set)
    bank: list[int] = field(default_factory=list)
    inbox: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    """Of LangGraph's store, which lies in the same file."""


def one_selector(**given: str | None) -> tuple[What, str]:
    """Return the only selector that was given. Raises ConfigError for none, several, or an empty one."""
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = ", ".join(name for name, _ in chosen) or "nothing"
        raise ConfigError(f"forget was given {names}; give one of episode, writer, text or namespace.")
    ((name, value),) = chosen
    check_text(name, value)
    if not value.strip():
        raise ConfigError(f"{name} is empty, which would select everything. Say what is to be forgotten.")
    what: What = name  # type: ignore[assignment]
    return what, value


def forget(store: Store, namespace: int, what: What, value: str, *, dry_run: bool = False) -> ForgetReceipt:
    """Delete what is selected and all that was made of it; `dry_run` counts it and changes nothing."""
    if not dry_run:
        store.connection.execute("PRAGMA secure_delete = ON")
    try:
        with store.transaction() as connection, _readable(connection):
            work = _Forgetting(store, connection, namespace)
            receipt = work.run(what, value)
            if dry_run:
                raise _Counted(replace(receipt, dry_run=True))
    except _Counted as counted:
        return counted.receipt
    return replace(receipt, erased=erase(store))


@contextmanager
def _readable(connection: Connection) -> Iterator[None]:
    """Read texts that are no UTF-8 as well as can be: a damaged row is deleted like any other."""
    before, connection.text_factory = connection.text_factory, lambda raw: raw.decode(errors="replace")
    try:
        yield
    finally:
        connection.text_factory = before


class _Counted(Exception):
    def __init__(self, receipt: ForgetReceipt) -> None:
        super().__init__()
        self.receipt = receipt


def finish(store: Store) -> None:
    """Erase the bytes of what a killed process forgot, where the file can be written."""
    if not store.read_only and store.rows("SELECT 1 FROM receipts WHERE NOT erased"):
        erase(store)


def erase(store: Store) -> bool:
    """Delete the files beside the library, rewrite it without its free space, and cut its log; whether that is done."""
    try:
        if store.path != ":memory:":
            for path in Path(f"{store.path}.index").glob("*"):
                path.unlink(missing_ok=True)
        store.shrink()
        with store.transaction() as connection:
            connection.execute("UPDATE receipts SET erased = 1 WHERE NOT erased")
        store.shrink(rewrite=False)
    except (LibraryUnwritable, OSError) as error:
        logger.warning("%s What was forgotten is deleted, its bytes are not erased yet: open the library anew.", error)
        return False
    return True


class _Forgetting:
    """One transaction that deletes."""

    def __init__(self, store: Store, connection: Connection, namespace: int) -> None:
        self._store = store
        self._run = connection.execute
        self._connection = connection
        self._namespace = namespace
        self._counts: Counter[str] = Counter()
        self._removed: list[str] = []
        self._rewritten: list[str] = []
        self._damaged = False
        """Whether an episode that goes could not be read."""

    def run(self, what: What, value: str) -> ForgetReceipt:
        """Delete, and write the receipt."""
        episodes: list[str] = []
        if what == "namespace":
            self._whole_namespace()
        else:
            chosen = self._select(what, value)
            episodes = chosen.episodes
            self._rows(chosen)
        counts = {name: count for name, count in sorted(self._counts.items()) if count}
        at, number = now(), self._namespace
        told = dumps({"what": what, "at": at, "counts": counts, "namespace": number})
        digest = hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
        self._run(
            "INSERT INTO receipts(at, what, namespace, counts, digest) VALUES (?, ?, ?, ?, ?)",
            (at, what, number, dumps(counts), digest),
        )
        return ForgetReceipt(what, at, counts, tuple(episodes), tuple(self._removed), tuple(self._rewritten), digest)

    # -- selecting --------------------------------------------------------------------------------

    def _select(self, what: What, value: str) -> _Selection:
        if what == "episode":
            return self._by_episode(value)
        if what == "writer":
            return self._by_writer(value)
        return self._by_text(value)

    def _ids(self, sql: str, *parameters: Any) -> list[Any]:
        return [row[0] for row in self._run(sql, parameters)]

    def _by_episode(self, ref: str) -> _Selection:
        found = self._ids("SELECT id FROM trajectories WHERE namespace = ? AND id = ?", self._namespace, ref)
        inbox = self._ids("SELECT id FROM inbox WHERE namespace = ? AND ref = ?", self._namespace, ref)
        if not (found or inbox):
            known = self._ids(
                "SELECT id FROM trajectories WHERE namespace = ? ORDER BY rowid DESC LIMIT 20", self._namespace
            )
            raise UnknownName.of("episode", ref, known)
        return _Selection(episodes=found, inbox=inbox)

    def _by_writer(self, name: str) -> _Selection:
        chosen = _Selection()
        chosen.episodes = self._ids(
            "SELECT id FROM trajectories WHERE namespace = ? AND writer = ? ORDER BY rowid", self._namespace, name
        )
        chosen.items = set(
            self._ids(
                "SELECT id FROM items WHERE namespace = ? "
                "AND iif(json_valid(record), json_extract(record, '$.writer'), '') = ?",
                self._namespace, name,
            )
        )  # fmt: skip
        chosen.bank = self._ids("SELECT id FROM bank_entries WHERE namespace = ? AND team = ?", self._namespace, name)
        return chosen

    def _by_text(self, text: str) -> _Selection:
        """Rows that hold a text in any column, whatever its case; also as JSON writes it."""
        self._connection.create_function("speaks", -1, speaking(text), deterministic=True)
        mine = (self._namespace,)
        states = json.dumps(self._speaking_rows("states", "id"))
        keys = json.dumps(self._ids("SELECT id FROM keys WHERE speaks(CAST(text AS BLOB))"))
        episodes = dict.fromkeys(self._speaking_rows("trajectories", "id"))
        episodes |= dict.fromkeys(self._speaking_rows("steps", "trajectory_id"))
        episodes |= dict.fromkeys(self._speaking_rows("segments", "trajectory_id"))
        of_states = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND (pre {_IN} OR post {_IN})"
        episodes |= dict.fromkeys(self._ids(of_states, *mine, states, states))
        offers = json.dumps(self._speaking_rows("offers", "id"))
        chose = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND offer {_IN}"
        episodes |= dict.fromkeys(self._ids(chose, *mine, offers))
        if keys != "[]":
            filed = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(keys), keys, '[]')) WHERE value {_IN})"  # noqa: E501
            episodes |= dict.fromkeys(self._ids(filed, *mine, keys))
        changed = (
            "SELECT ref FROM changes WHERE namespace = ? AND what = 'item' AND speaks(ref, op, CAST(detail AS BLOB))"
        )
        values = []
        if self._columns("langgraph_values"):
            ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", mine)
            values = self._ids("SELECT id FROM langgraph_values WHERE namespace = ? AND speaks(path, key, value)", name)
        return _Selection(
            list(episodes),
            {*self._speaking_rows("items", "id"), *self._ids(changed, *mine)},
            self._speaking_rows("bank_entries", "id"),
            self._speaking_rows("inbox", "id"),
            values,
        )

    def _speaking_rows(self, table: str, ref: str) -> list[Any]:
        texts = ", ".join(f'CAST("{name}" AS BLOB)' for name, kind in self._columns(table).items() if kind == "TEXT")
        return self._ids(f"SELECT {ref} FROM {table} WHERE namespace = ? AND speaks({texts})", self._namespace)

    def _columns(self, table: str) -> dict[str, str]:
        return {name: kind for _, name, kind, *_ in self._run(f"PRAGMA table_info({table})")}

    # -- deleting ---------------------------------------------------------------------------------

    def _delete(self, table: str, where: str, *parameters: Any, told: str = "") -> None:
        self._counts[told or table] += self._run(f"DELETE FROM {table} WHERE {where}", parameters).rowcount

    def _rows(self, chosen: _Selection) -> None:
        """Delete what is selected, then what was made of it."""
        texts, steps = self._episodes(chosen.episodes)
        self._delete("inbox", f"id {_IN}", json.dumps(chosen.inbox))
        self._delete("bank_pulls", f"entry {_IN}", json.dumps(chosen.bank))
        self._delete("bank_entries", f"id {_IN}", json.dumps(chosen.bank))
        if chosen.values:
            self._delete("langgraph_vectors", f"value {_IN}", json.dumps(chosen.values))
            self._delete("langgraph_values", f"id {_IN}", json.dumps(chosen.values))
        self._items(chosen.items, steps, tokens_in(texts))
        self._run(f"INSERT INTO items_text_{self._namespace}(items_text_{self._namespace}) VALUES ('rebuild')")

    def _episodes(self, refs: Collection[str]) -> tuple[list[str], set[int]]:
        """Delete episodes with all that is counted from them; returns their texts and the ids of their steps."""
        if not refs:
            return [], set()
        listed, mine = json.dumps(list(refs)), self._namespace
        texts, shown, keys, states = self._said(refs)
        steps = set(self._ids(f"SELECT id FROM steps WHERE namespace = ? AND trajectory_id {_IN}", mine, listed))
        self._fewer_uses(listed)
        for table in ("steps", "segments", "usages"):
            self._delete(table, f"namespace = ? AND trajectory_id {_IN}", mine, listed)
        self._delete("trajectories", f"namespace = ? AND id {_IN}", mine, listed, told="episodes")
        self._delete("changes", f"namespace = ? AND what = 'trajectory' AND ref {_IN}", mine, listed, told="history")
        self._connection.executemany(
            "UPDATE words SET episodes = episodes - ? WHERE namespace = ? AND word = ?",
            [(count, mine, word) for word, count in shown.items()],
        )
        self._delete("words", "namespace = ? AND episodes <= 0", mine)
        if self._damaged:
            self._count_words_again()
        self._delete("offers", "namespace = ? AND id NOT IN (SELECT offer FROM steps WHERE offer IS NOT NULL)", mine)
        held = "SELECT pre FROM steps UNION SELECT post FROM steps"
        gone = json.dumps(sorted(states - set(self._ids(held))))
        self._delete("states", f"id {_IN}", gone)
        self._delete("vectors", f"kind = 'states' AND ref {_IN}", gone)
        self._unused_keys(keys)
        rebuild_states_text(self._connection, self._store, mine)
        rollups.rebuild(self._connection, self._store, mine)
        worlds.renew(self._connection, mine)
        left = {
            witness_of(name) for name in self._ids("SELECT DISTINCT writer FROM trajectories WHERE namespace = ?", mine)
        }
        self._delete("writers", f"namespace = ? AND name NOT {_IN}", mine, json.dumps(sorted(left)))
        return texts, steps

    def _said(self, refs: Iterable[str]) -> tuple[list[str], Counter[str], set[int], set[int]]:
        """What episodes say: their texts, how many showed each word, and the ids of their keys and states."""
        texts: list[str] = []
        shown: Counter[str] = Counter()
        keys: set[int] = set()
        states: set[int] = set()
        for ref in refs:
            try:
                episode = trajectory(self._store, self._namespace, ref)
                if episode.success is not None:
                    shown.update(episode_words(episode))
                texts.extend(texts_of(episode))
            except (*UNREADABLE, LibraryDamaged):  # what it showed can be told from the other episodes alone
                self._damaged = True
                texts.extend(self._raw_texts(ref))
            rows = self._run(
                "SELECT keys, pre, post FROM steps WHERE namespace = ? AND trajectory_id = ?", (self._namespace, ref)
            )
            for numbers, pre, post in rows:
                keys.update(whole_numbers(numbers))
                states.update((pre, post))
        return texts, shown, keys, states

    def _raw_texts(self, ref: str) -> Iterator[str]:
        """Return the texts in the rows of an episode that cannot be read as records."""
        mine = (self._namespace, ref)
        for row in self._run("SELECT task, ending, meta FROM trajectories WHERE namespace = ? AND id = ?", mine):
            yield from filter(None, row)
        steps = (
            "SELECT action, diagnosis, why, a.observation, a.facts, a.task, b.observation, b.facts, b.feedback "
            "FROM steps "
            "LEFT JOIN states AS a ON a.id = pre LEFT JOIN states AS b ON b.id = post "
            "WHERE steps.namespace = ? AND trajectory_id = ?"
        )
        for row in self._run(steps, mine):
            yield from filter(None, row)

    def _count_words_again(self) -> None:
        """Count in how many of the episodes that are left each word was shown."""
        counts: Counter[str] = Counter()
        left = "SELECT id FROM trajectories WHERE namespace = ? AND success IS NOT NULL"
        for ref in self._ids(left, self._namespace):
            with suppress(*UNREADABLE, LibraryDamaged):  # `verify` names those that are damaged, too
                counts.update(episode_words(trajectory(self._store, self._namespace, ref)))
        self._run("DELETE FROM words WHERE namespace = ?", (self._namespace,))
        self._connection.executemany(
            "INSERT INTO words VALUES (?, ?, ?)", [(self._namespace, word, n) for word, n in sorted(counts.items())]
        )

    def _fewer_uses(self, refs: str) -> None:
        """Take the episodes that are about to go out of the counts of use of items."""
        used = self._run(
            f"SELECT item_id, count(DISTINCT trajectory_id) FROM usages WHERE namespace = ? AND trajectory_id {_IN} "
            "AND mode != 'withheld' GROUP BY 1",
            (self._namespace, refs),
        ).fetchall()
        self._connection.executemany(
            "UPDATE items SET uses = max(0, uses - ?) WHERE namespace = ? AND id = ?",
            [(count, self._namespace, item_id) for item_id, count in used],
        )
        for item_id, _ in used:
            seal(self._connection, "items", "namespace = ? AND id = ?", (self._namespace, item_id))

    def _unused_keys(self, keys: set[int]) -> None:
        used = set(self._ids(_USED_KEYS)) if keys else set()
        self._delete("keys", f"id {_IN}", json.dumps(sorted(keys - used)))

    # -- items ------------------------------------------------------------------------------------

    def _items(self, chosen: set[str], steps: set[int], forgotten: set[str]) -> None:
        """Remove items that rest on nothing any more, or say what nothing says any more; make others anew."""
        rows = self._run("SELECT record FROM items WHERE namespace = ? ORDER BY number", (self._namespace,))
        items = list(filter(None, (readable_item(record) for (record,) in rows)))
        suspects = {item.id: tokens_in(texts_of(item)) & forgotten for item in items if steps}
        lost = self._not_said_elsewhere(set().union(*suspects.values())) if suspects else set()
        again: list[Item] = []
        for item in items:
            touched = not steps.isdisjoint(item.provenance)
            tells = item.source != "person" and bool(suspects.get(item.id, set()) & lost)
            if item.id in chosen or (touched and steps.issuperset(item.provenance)):
                self._remove(item)
            elif touched or tells:
                again.append(item)
        made = self._made_anew() if any(item.writer == "rules" for item in again) else {}
        for item in again:
            self._make_anew(item, made, steps, lost)

    def _make_anew(self, item: Item, made: dict[str, Item], steps: set[int], lost: set[str]) -> None:
        """Keep an item with the evidence that is left: in the words of the rules, or its own if none is lost."""
        left = tuple(ref for ref in item.provenance if ref not in steps)
        if item.writer == "rules":
            fresh = made.get(item.id)
            if fresh is None:
                self._remove(item)
                return
            kept = replace(fresh, id=item.id, status=item.status, pinned=item.pinned, version=item.version + 1)
        elif item.source != "person" and not lost.isdisjoint(tokens_in(texts_of(item))):
            self._remove(item)
            return
        else:
            kept = replace(item, provenance=left, version=item.version + 1)
        catalogue.write(self._connection, self._namespace, kept, "recomputed")
        self._delete("changes", _HISTORY, self._namespace, item.id, told="history")
        log_change(
            self._connection, self._namespace, "item", item.id, "recomputed", json.loads(catalogue.record_of(kept))
        )
        self._rewritten.append(item.id)
        self._counts["items rewritten"] += 1

    def _made_anew(self) -> dict[str, Item]:
        """What the rules make of the steps that are left, by id."""
        values = rebuild_values(self._store, self._namespace)
        distiller = Distiller(self._store, self._namespace)
        distiller.read(self._other_episode)
        proposed = (redact_item(item) for item, *_ in distiller.proposals(values))
        return {item.id or catalogue.identify(item): item for item in proposed}

    def _other_episode(self, ref: str) -> Trajectory:
        """Return an episode that is left. Raises LibraryDamaged."""
        try:
            return trajectory(self._store, self._namespace, ref)
        except UNREADABLE as error:
            raise LibraryDamaged(f"episode {ref} is damaged: {error!r:.100}") from error

    def _remove(self, item: Item) -> None:
        """Delete an item, where it is filed, who used it, and its history."""
        mine = self._namespace
        (number,) = self._ids("SELECT number FROM items WHERE namespace = ? AND id = ?", mine, item.id)
        self._run(f"DELETE FROM items_text_{mine} WHERE rowid = ?", (number,))
        self._delete("item_places", "number = ?", number)
        self._delete("vectors", "kind = 'items' AND ref = ?", number)
        self._delete("usages", "namespace = ? AND item_id = ?", mine, item.id)
        self._delete("probation", "namespace = ? AND item_id = ?", mine, item.id)
        self._delete("item_worlds", "namespace = ? AND item_id = ?", mine, item.id)
        self._delete("opinions", "namespace = ? AND item_id = ?", mine, item.id)
        self._delete("changes", _HISTORY, mine, item.id, told="history")
        self._delete("items", "number = ?", number, told="items removed")
        self._removed.append(item.id)

    def _not_said_elsewhere(self, words: set[str]) -> set[str]:
        """Of words, those that no episode that is left says."""
        left = set(words)
        for text in self._left_texts():
            if not left:
                break
            left -= tokens_in([text])
        return left

    def _left_texts(self) -> Iterator[str]:
        for table in ("states", "steps", "trajectories"):
            texts = [f'"{name}"' for name, kind in self._columns(table).items() if kind == "TEXT"]
            joined = " || char(10) || ".join(f"coalesce({name}, '')" for name in texts)
            for (text,) in self._run(f"SELECT {joined} FROM {table} WHERE namespace = ?", (self._namespace,)):
                yield text

    # -- a whole namespace ------------------------------------------------------------------------

    def _whole_namespace(self) -> None:
        """Delete the rows of every table that knows namespaces, and the namespace itself."""
        mine = self._namespace
        ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", (mine,)).fetchall()
        keys: set[int] = set()
        for (numbers,) in self._run("SELECT keys FROM steps WHERE namespace = ?", (mine,)):
            keys.update(whole_numbers(numbers))
        self._removed = self._ids("SELECT id FROM items WHERE namespace = ?", mine)
        self._delete("bank_pulls", "entry IN (SELECT id FROM bank_entries WHERE namespace = ?)", mine)
        if self._columns("langgraph_values"):
            values = "value IN (SELECT id FROM langgraph_values WHERE namespace = ?)"
            self._delete("langgraph_vectors", values, name)
        tables = self._ids("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        told = {"trajectories": "episodes", "items": "items removed", "changes": "history"}
        for table in tables:
            kind = self._columns(table).get("namespace")
            if kind is not None and table != "receipts":
                mark = name if kind == "TEXT" else mine
                self._delete(table, "namespace = ?", mark, told=told.get(table, ""))
        for kind in ("states", "items"):
            self._run(f"DROP TABLE IF EXISTS {kind}_text_{mine}")
        self._unused_keys(keys)
        self._run("DELETE FROM namespaces WHERE id = ?", (mine,))


_USED_KEYS = "SELECT DISTINCT value FROM steps, json_each(iif(json_valid(steps.keys), steps.keys, '[]'))"
_HISTORY = "namespace = ? AND what = 'item' AND ref = ?"
