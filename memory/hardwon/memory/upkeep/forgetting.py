"""Forgetting: delete experience from the file, with everything derived from it.

It takes two phases. First, one transaction deletes the rows: episodes with their steps and states, usages, summaries,
words, keys, items without other evidence, and their history. It also writes a receipt without content. Then the bytes
are erased: cache files are deleted, the file is rewritten (VACUUM) and its log is truncated. If the process is killed
before the commit, nothing is deleted. If it is killed later, the receipt is not marked `erased`, and the next writer
that opens the library completes the second phase.

Other processes notice the receipt at their next call (`Store.generation`) and drop their caches.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from hardwon.memory import items as catalogue
from hardwon.memory.errors import ConfigError, LibraryDamaged, LibraryUnwritable, UnknownName
from hardwon.memory.learning.consolidation import Consolidator
from hardwon.memory.privacy.redaction import redact_item
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.retrieval.search import KINDS
from hardwon.memory.storage import rollups, worlds
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.clock import now
from hardwon.memory.storage.counted import extract_words, find_counted_writers, is_counted, recount_words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, log_change, witness_of
from hardwon.memory.validation import check_text
from hardwon.memory.values.saved_tables import rebuild_values

from .damage import UNREADABLE
from .forgotten_texts import build_text_matcher, extract_texts, extract_tokens, parse_ids, parse_item
from .integrity import rebuild_states_text
from .queries import trajectory

What = Literal["episode", "writer", "text", "namespace"]
_IN = "IN (SELECT value FROM json_each(?))"

logger = logging.getLogger("hardwon.memory")


@dataclass(frozen=True, slots=True)
class ForgetReceipt:
    """A summary of what was forgotten.

    The ids in `episodes`, `items` and `rewritten` are for the caller only; the library does not store them.
    """

    what: What
    """The selector: episode, writer, text or namespace."""
    at: str
    """Time in UTC, ISO 8601."""
    counts: dict[str, int]
    """Number of deleted rows by table, and of items as `items removed` and `items rewritten`."""
    episodes: tuple[str, ...]
    """Ids of the deleted episodes."""
    items: tuple[str, ...]
    """Ids of the deleted items."""
    rewritten: tuple[str, ...]
    """Ids of the items that were kept with less evidence. Their text was derived again or holds nothing forgotten."""
    digest: str
    """Hash of the receipt that the library stores."""
    dry_run: bool = False
    """Whether the deletion was only counted."""
    erased: bool = False
    """Whether the bytes are erased too. If not, the next writer that opens the library erases them."""


@dataclass(slots=True)
class _Selection:
    """The rows that match a selector. Everything derived from them is deleted with them."""

    episodes: list[str] = field(default_factory=list)
    items: set[str] = field(default_factory=set)
    bank: list[int] = field(default_factory=list)
    inbox: list[int] = field(default_factory=list)
    opinions: list[tuple[str, str, str]] = field(default_factory=list)
    """Feedback, as (item, writer, episode)."""
    writer: str = ""
    """Name of the writer whose grades are deleted, if one is forgotten."""
    values: list[int] = field(default_factory=list)
    """Rows of the LangGraph store, which shares the file."""


def parse_selector(**given: str | None) -> tuple[What, str]:
    """Return the name and value of the only selector that is set.

    Raises:
        ConfigError: No selector or more than one is set, or its value is empty.
    """
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = ", ".join(name for name, _ in chosen) or "nothing"
        raise ConfigError(f"forget received {names}. Give exactly one of episode, writer, text or namespace.")
    ((name, value),) = chosen
    check_text(name, value)
    if not value.strip():
        raise ConfigError(f"{name} is empty, which would select everything. Name what to forget.")
    what: What = name  # type: ignore[assignment]
    return what, value


def forget(store: Store, namespace: int, what: What, value: str, *, dry_run: bool = False) -> ForgetReceipt:
    """Delete the selected experience and everything derived from it.

    Args:
        store: The library's store.
        namespace: Id of the namespace.
        what: The selector: episode, writer, text or namespace.
        value: Its value.
        dry_run: Count the rows and change nothing.

    Raises:
        UnknownName: The episode does not exist.
    """
    try:
        with store.transaction():
            receipt = delete(store, namespace, what, value, overwrite=not dry_run)
            if dry_run:  # an exception rolls the transaction back
                raise _DryRun(replace(receipt, dry_run=True))
    except _DryRun as dry:
        return dry.receipt
    return replace(receipt, erased=erase(store))


def delete(store: Store, namespace: int, what: What, value: str, *, overwrite: bool = True) -> ForgetReceipt:
    """Run the first phase of `forget`: delete the rows and write the receipt. `finish` runs the second one later.

    Args:
        store: The library's store.
        namespace: Id of the namespace.
        what: The selector: episode, writer, text or namespace.
        value: Its value.
        overwrite: Overwrite deleted content with zeros, in case the rewrite of the file fails.

    Raises:
        UnknownName: The episode does not exist.
    """
    if overwrite:
        store.connection.execute("PRAGMA secure_delete = ON")
    with store.transaction() as connection, _tolerate_damage(connection):
        return _Deletion(store, connection, namespace).run(what, value)


@contextmanager
def _tolerate_damage(connection: Connection) -> Iterator[None]:
    """Decode invalid UTF-8 with replacement characters, so that damaged rows can be deleted too."""
    before, connection.text_factory = connection.text_factory, lambda raw: raw.decode(errors="replace")
    try:
        yield
    finally:
        connection.text_factory = before


class _DryRun(Exception):
    """Rolls back the transaction of a dry run and carries its receipt."""

    def __init__(self, receipt: ForgetReceipt) -> None:
        super().__init__()
        self.receipt = receipt


def finish(store: Store) -> None:
    """Erase the bytes of deletions that a killed process did not complete, if the file is writable."""
    if not store.read_only and store.rows("SELECT 1 FROM receipts WHERE NOT erased"):
        erase(store)


def erase(store: Store) -> bool:
    """Delete the cache files, rewrite the file without free space and truncate its log; return whether it succeeded."""
    try:
        if store.path != ":memory:":
            for path in Path(f"{store.path}.index").glob("*"):
                path.unlink(missing_ok=True)
        store.shrink()
        # Mark the receipts only after the rewrite, then truncate the log that the mark itself wrote.
        with store.transaction() as connection:
            connection.execute("UPDATE receipts SET erased = 1 WHERE NOT erased")
        store.shrink(rewrite=False)
    except (LibraryUnwritable, OSError) as error:
        logger.warning(
            "%s The rows are deleted, but their bytes are not erased yet. Reopen the library to erase them.", error
        )
        return False
    return True


class _Deletion:
    """The transaction that deletes a selection."""

    def __init__(self, store: Store, connection: Connection, namespace: int) -> None:
        self._store = store
        self._run = connection.execute
        self._connection = connection
        self._namespace = namespace
        self._counts: Counter[str] = Counter()
        self._removed: list[str] = []
        self._rewritten: list[str] = []
        self._damaged = False
        """Whether a deleted episode could not be decoded."""

    def run(self, what: What, value: str) -> ForgetReceipt:
        """Delete the selected rows and write the receipt."""
        episodes: list[str] = []
        if what == "namespace":
            self._delete_namespace()
        else:
            chosen = self._select(what, value)
            episodes = chosen.episodes
            self._delete_selection(chosen)
        counts = {name: count for name, count in sorted(self._counts.items()) if count}
        at, number = now(), self._namespace
        receipt = dumps({"what": what, "at": at, "counts": counts, "namespace": number})
        digest = hashlib.blake2b(receipt.encode(), digest_size=16).hexdigest()
        self._run(
            "INSERT INTO receipts(at, what, namespace, counts, digest) VALUES (?, ?, ?, ?, ?)",
            (at, what, number, dumps(counts), digest),
        )
        return ForgetReceipt(what, at, counts, tuple(episodes), tuple(self._removed), tuple(self._rewritten), digest)

    # -- selecting --------------------------------------------------------------------------------

    def _select(self, what: What, value: str) -> _Selection:
        if what == "episode":
            return self._select_episode(value)
        if what == "writer":
            return self._select_writer(value)
        return self._select_text(value)

    def _read_ids(self, sql: str, *parameters: Any) -> list[Any]:
        return [row[0] for row in self._run(sql, parameters)]

    def _select_episode(self, ref: str) -> _Selection:
        stored = self._read_ids("SELECT id FROM trajectories WHERE namespace = ? AND id = ?", self._namespace, ref)
        inbox = self._read_ids("SELECT id FROM inbox WHERE namespace = ? AND ref = ?", self._namespace, ref)
        if not (stored or inbox):
            candidates = self._read_ids(
                "SELECT id FROM trajectories WHERE namespace = ? ORDER BY rowid DESC LIMIT 20", self._namespace
            )
            raise UnknownName.of("episode", ref, candidates)
        return _Selection(episodes=stored, inbox=inbox)

    def _select_writer(self, name: str) -> _Selection:
        chosen = _Selection(writer=name)
        chosen.episodes = self._read_ids(
            "SELECT id FROM trajectories WHERE namespace = ? AND writer = ? ORDER BY rowid", self._namespace, name
        )
        chosen.items = set(
            self._read_ids(
                "SELECT id FROM items WHERE namespace = ? "
                "AND iif(json_valid(record), json_extract(record, '$.writer'), '') = ?",
                self._namespace, name,
            )
        )  # fmt: skip
        chosen.bank = self._read_ids(
            "SELECT id FROM bank_entries WHERE namespace = ? AND team = ?", self._namespace, name
        )
        chosen.opinions = self._run(_OPINIONS.format("writer = ?"), (self._namespace, name)).fetchall()
        return chosen

    def _select_text(self, text: str) -> _Selection:
        """Return the rows with a text in any column, ignoring case. Its JSON-escaped form matches too."""
        self._connection.create_function("has_text", -1, build_text_matcher(text), deterministic=True)
        scope = (self._namespace,)
        states = json.dumps(self._match_rows("states", "id"))
        keys = json.dumps(self._read_ids("SELECT id FROM keys WHERE has_text(CAST(text AS BLOB))"))
        episodes = dict.fromkeys(self._match_rows("trajectories", "id"))
        episodes |= dict.fromkeys(self._match_rows("steps", "trajectory_id"))
        episodes |= dict.fromkeys(self._match_rows("segments", "trajectory_id"))
        graded = "SELECT ref FROM changes WHERE namespace = ? AND what = 'grade' AND has_text(CAST(detail AS BLOB))"
        episodes |= dict.fromkeys(self._read_ids(graded, *scope))
        of_states = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND (pre {_IN} OR post {_IN})"
        episodes |= dict.fromkeys(self._read_ids(of_states, *scope, states, states))
        offers = json.dumps(self._match_rows("offers", "id"))
        of_offers = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND offer {_IN}"
        episodes |= dict.fromkeys(self._read_ids(of_offers, *scope, offers))
        if keys != "[]":
            of_keys = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(keys), keys, '[]')) WHERE value {_IN})"  # noqa: E501
            episodes |= dict.fromkeys(self._read_ids(of_keys, *scope, keys))
        changed = (
            "SELECT ref FROM changes WHERE namespace = ? AND what = 'item' AND has_text(ref, op, CAST(detail AS BLOB))"
        )
        values = []
        if self._columns("langgraph_values"):
            ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", scope)
            values = self._read_ids(
                "SELECT id FROM langgraph_values WHERE namespace = ? AND has_text(path, key, value)", name
            )
        return _Selection(
            list(episodes),
            {*self._match_rows("items", "id"), *self._read_ids(changed, *scope)},
            self._match_rows("bank_entries", "id"),
            self._match_rows("inbox", "id"),
            self._run(_OPINIONS.format("has_text(CAST(writer AS BLOB), CAST(episode AS BLOB))"), scope).fetchall(),
            values=values,
        )

    def _match_rows(self, table: str, ref: str) -> list[Any]:
        texts = ", ".join(f'CAST("{name}" AS BLOB)' for name, kind in self._columns(table).items() if kind == "TEXT")
        return self._read_ids(f"SELECT {ref} FROM {table} WHERE namespace = ? AND has_text({texts})", self._namespace)

    def _columns(self, table: str) -> dict[str, str]:
        return {name: kind for _, name, kind, *_ in self._run(f"PRAGMA table_info({table})")}

    # -- deleting ---------------------------------------------------------------------------------

    def _delete(self, table: str, where: str, *parameters: Any, label: str = "") -> None:
        self._counts[label or table] += self._run(f"DELETE FROM {table} WHERE {where}", parameters).rowcount

    def _delete_selection(self, chosen: _Selection) -> None:
        """Delete the selected rows, then everything derived from them."""
        if chosen.writer:  # the outcomes stay; who gave them and why is deleted
            self._delete(
                "changes", "namespace = ? AND what = 'grade' AND json_extract(detail, '$.grader') = ?",
                self._namespace, chosen.writer, label="grades",
            )  # fmt: skip
        about = _OPINIONS.format(f"episode {_IN}")
        of_episodes = self._run(about, (self._namespace, json.dumps(chosen.episodes))).fetchall()
        self._withdraw_opinions({*chosen.opinions, *of_episodes})
        self._delete("ratings", "1")
        self._run("DELETE FROM proposals WHERE namespace = ?", (self._namespace,))
        texts, steps = self._delete_episodes(chosen.episodes)
        self._delete("inbox", f"id {_IN}", json.dumps(chosen.inbox))
        self._delete("bank_pulls", f"entry {_IN}", json.dumps(chosen.bank))
        self._delete("bank_entries", f"id {_IN}", json.dumps(chosen.bank))
        if chosen.values:
            self._delete("langgraph_vectors", f"value {_IN}", json.dumps(chosen.values))
            self._delete("langgraph_values", f"id {_IN}", json.dumps(chosen.values))
        self._revise_items(chosen.items, steps, extract_tokens(texts))
        # FTS5 keeps words of deleted rows in its segments until they are merged; a rebuild drops them now.
        self._run(f"INSERT INTO items_text_{self._namespace}(items_text_{self._namespace}) VALUES ('rebuild')")

    def _withdraw_opinions(self, opinions: Collection[tuple[str, str, str]]) -> None:
        """Delete feedback, and take back the score that it moved."""
        moved: Counter[str] = Counter()
        for item_id, writer, episode in sorted(opinions):
            key = (self._namespace, item_id, writer, episode)
            where = "namespace = ? AND item_id = ? AND writer = ? AND episode = ?"
            moved[item_id] += sum(self._read_ids(f"SELECT moved FROM opinions WHERE {where}", *key))
            self._delete("opinions", where, *key)
        for item_id, change in moved.items():
            rows = self._run(
                "SELECT record FROM items WHERE namespace = ? AND id = ?", (self._namespace, item_id)
            ).fetchall()
            item = parse_item(rows[0][0]) if rows else None
            if item is None or not change:
                continue
            score = round(min(1.0, max(0.0, item.score - change)), 4)
            catalogue.write(self._connection, self._namespace, replace(item, score=score), "recomputed")

    def _delete_episodes(self, refs: Collection[str]) -> tuple[list[str], set[int]]:
        """Delete episodes and everything counted from them; return their texts and the ids of their steps."""
        if not refs:
            return [], set()
        listed, namespace = json.dumps(list(refs)), self._namespace
        texts, word_counts, keys, states = self._read_contents(refs)
        steps = set(
            self._read_ids(f"SELECT id FROM steps WHERE namespace = ? AND trajectory_id {_IN}", namespace, listed)
        )
        # Before the usages are deleted, because it counts them.
        self._subtract_uses(listed)
        for table in ("steps", "segments", "usages", "settlements"):
            self._delete(table, f"namespace = ? AND trajectory_id {_IN}", namespace, listed)
        self._delete("trajectories", f"namespace = ? AND id {_IN}", namespace, listed, label="episodes")
        self._delete(
            "changes", f"namespace = ? AND what IN ('trajectory', 'grade') AND ref {_IN}", namespace, listed,
            label="history",
        )  # fmt: skip
        self._connection.executemany(
            "UPDATE words SET episodes = episodes - ? WHERE namespace = ? AND word = ?",
            [(count, namespace, word) for word, count in word_counts.items()],
        )
        self._delete("words", "namespace = ? AND episodes <= 0", namespace)
        before = find_counted_writers(self._store.rows, namespace)
        self._delete_writers()
        counted = find_counted_writers(self._store.rows, namespace)
        if self._damaged or counted != before:
            recount_words(self._connection, namespace, counted)
        self._delete(
            "offers", "namespace = ? AND id NOT IN (SELECT offer FROM steps WHERE offer IS NOT NULL)", namespace
        )
        # States are shared between episodes: delete only those that no remaining step refers to.
        referenced = "SELECT pre FROM steps UNION SELECT post FROM steps"
        unreferenced = json.dumps(sorted(states - set(self._read_ids(referenced))))
        self._delete("states", f"id {_IN}", unreferenced)
        self._delete("vectors", f"kind IN ('states', 'testimony') AND ref {_IN}", unreferenced)
        self._delete_unused_keys(keys)
        rebuild_states_text(self._connection, self._store, namespace)
        rollups.rebuild(self._connection, self._store, namespace)
        worlds.renew(self._connection, namespace)
        return texts, steps

    def _delete_writers(self) -> None:
        """Delete the writers that have no episode left."""
        names = self._read_ids("SELECT DISTINCT writer FROM trajectories WHERE namespace = ?", self._namespace)
        # The full names, too: libraries of an earlier version counted by them.
        remaining = {*names, *map(witness_of, names)}
        self._delete("writers", f"namespace = ? AND name NOT {_IN}", self._namespace, json.dumps(sorted(remaining)))

    def _read_contents(self, refs: Iterable[str]) -> tuple[list[str], Counter[str], set[int], set[int]]:
        """Return the texts of episodes, their word counts, and the ids of their keys and states."""
        texts: list[str] = []
        counted = find_counted_writers(self._store.rows, self._namespace)
        word_counts: Counter[str] = Counter()
        keys: set[int] = set()
        states: set[int] = set()
        for ref in refs:
            try:
                episode = trajectory(self._store, self._namespace, ref)
                if is_counted(episode, counted):
                    word_counts.update(extract_words(episode))
                texts.extend(extract_texts(episode))
            except (*UNREADABLE, LibraryDamaged):
                # Its words are unknown, so the counts must be rebuilt from the remaining episodes.
                self._damaged = True
                texts.extend(self._read_raw_texts(ref))
            rows = self._run(
                "SELECT keys, pre, post FROM steps WHERE namespace = ? AND trajectory_id = ?", (self._namespace, ref)
            )
            for numbers, pre, post in rows:
                keys.update(parse_ids(numbers))
                states.update((pre, post))
        return texts, word_counts, keys, states

    def _read_raw_texts(self, ref: str) -> Iterator[str]:
        """Yield the texts in the rows of an episode that cannot be decoded."""
        scope = (self._namespace, ref)
        for row in self._run("SELECT task, ending, meta FROM trajectories WHERE namespace = ? AND id = ?", scope):
            yield from filter(None, row)
        steps = (
            "SELECT action, diagnosis, why, a.observation, a.facts, a.task, b.observation, b.facts, b.feedback "
            "FROM steps "
            "LEFT JOIN states AS a ON a.id = pre LEFT JOIN states AS b ON b.id = post "
            "WHERE steps.namespace = ? AND trajectory_id = ?"
        )
        for row in self._run(steps, scope):
            yield from filter(None, row)

    def _subtract_uses(self, refs: str) -> None:
        """Subtract the uses in episodes that are about to be deleted from the use counts of items."""
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

    def _delete_unused_keys(self, keys: set[int]) -> None:
        used = set(self._read_ids(_USED_KEYS)) if keys else set()
        self._delete("keys", f"id {_IN}", json.dumps(sorted(keys - used)))

    # -- items ------------------------------------------------------------------------------------

    def _revise_items(self, chosen: set[str], steps: set[int], forgotten: set[str]) -> None:
        """Remove or revise the items that depend on forgotten experience.

        An item is removed if it was selected or only forgotten steps support it. It is revised if a forgotten step
        supports it, or if it contains a token that no remaining episode contains.
        """
        # Episodes overlap in many words. Only tokens that occur in no remaining episode can reveal a forgotten one.
        rows = self._run("SELECT record FROM items WHERE namespace = ? ORDER BY number", (self._namespace,))
        items = list(filter(None, (parse_item(record) for (record,) in rows)))
        suspects = {item.id: extract_tokens(extract_texts(item)) & forgotten for item in items if steps}
        lost = self._find_lost_tokens(set().union(*suspects.values())) if suspects else set()
        revised: list[Item] = []
        for item in items:
            is_touched = not steps.isdisjoint(item.provenance)
            is_revealing = item.source != "person" and bool(suspects.get(item.id, set()) & lost)
            if item.id in chosen or (is_touched and steps.issuperset(item.provenance)):
                self._remove(item)
            elif is_touched or is_revealing:
                revised.append(item)
        derived = self._derive_items() if any(item.writer == "rules" for item in revised) else {}
        for item in revised:
            self._rewrite_item(item, derived, steps, lost)

    def _rewrite_item(self, item: Item, derived: dict[str, Item], steps: set[int], lost: set[str]) -> None:
        """Reduce an item to the remaining evidence: derived again by the rules, or its own text if that is safe."""
        provenance = tuple(ref for ref in item.provenance if ref not in steps)
        if item.writer == "rules":
            fresh = derived.get(item.id)
            if fresh is None:
                self._remove(item)
                return
            kept = replace(fresh, id=item.id, status=item.status, pinned=item.pinned, version=item.version + 1)
        elif item.source != "person" and not lost.isdisjoint(extract_tokens(extract_texts(item))):
            self._remove(item)
            return
        else:
            kept = replace(item, provenance=provenance, version=item.version + 1)
        # The history may quote forgotten text, so it is replaced by one entry with the new record.
        catalogue.write(self._connection, self._namespace, kept, "recomputed")
        self._delete("changes", _HISTORY, self._namespace, item.id, label="history")
        log_change(
            self._connection, self._namespace, "item", item.id, "recomputed", json.loads(catalogue.record_of(kept))
        )
        self._rewritten.append(item.id)
        self._counts["items rewritten"] += 1

    def _derive_items(self) -> dict[str, Item]:
        """Return the items that the rules derive from the remaining steps, by id."""
        values = rebuild_values(self._store, self._namespace)
        distiller = Consolidator(self._store, self._namespace)
        distiller.read(self._read_remaining)
        proposed = (redact_item(item) for item, *_ in distiller.proposals(values))
        return {item.id or catalogue.identify(item): item for item in proposed}

    def _read_remaining(self, ref: str) -> Trajectory:
        """Return an episode that is not being forgotten.

        Raises:
            LibraryDamaged: The episode cannot be decoded.
        """
        try:
            return trajectory(self._store, self._namespace, ref)
        except UNREADABLE as error:
            raise LibraryDamaged(f"episode {ref} is damaged: {error!r:.100}") from error

    def _remove(self, item: Item) -> None:
        """Delete an item with its index entries, usages, scores and history."""
        namespace = self._namespace
        (number,) = self._read_ids("SELECT number FROM items WHERE namespace = ? AND id = ?", namespace, item.id)
        self._run(f"DELETE FROM items_text_{namespace} WHERE rowid = ?", (number,))
        self._delete("item_places", "number = ?", number)
        self._delete("vectors", "kind = 'items' AND ref = ?", number)
        self._delete("usages", "namespace = ? AND item_id = ?", namespace, item.id)
        self._delete("probation", "namespace = ? AND item_id = ?", namespace, item.id)
        self._delete("item_worlds", "namespace = ? AND item_id = ?", namespace, item.id)
        self._delete("settlements", "namespace = ? AND item_id = ?", namespace, item.id)
        self._delete("opinions", "namespace = ? AND item_id = ?", namespace, item.id)
        self._delete("changes", _HISTORY, namespace, item.id, label="history")
        self._delete("items", "number = ?", number, label="items removed")
        self._removed.append(item.id)

    def _find_lost_tokens(self, words: set[str]) -> set[str]:
        """Return those of `words` that do not occur in any remaining episode."""
        lost = set(words)
        for text in self._iterate_remaining_texts():
            if not lost:
                break
            lost -= extract_tokens([text])
        return lost

    def _iterate_remaining_texts(self) -> Iterator[str]:
        for table in ("states", "steps", "trajectories"):
            texts = [f'"{name}"' for name, kind in self._columns(table).items() if kind == "TEXT"]
            joined = " || char(10) || ".join(f"coalesce({name}, '')" for name in texts)
            for (text,) in self._run(f"SELECT {joined} FROM {table} WHERE namespace = ?", (self._namespace,)):
                yield text

    # -- a whole namespace ------------------------------------------------------------------------

    def _delete_namespace(self) -> None:
        """Delete the namespace and its rows in all tables."""
        namespace = self._namespace
        ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", (namespace,)).fetchall()
        keys: set[int] = set()
        for (numbers,) in self._run("SELECT keys FROM steps WHERE namespace = ?", (namespace,)):
            keys.update(parse_ids(numbers))
        self._removed = self._read_ids("SELECT id FROM items WHERE namespace = ?", namespace)
        # First the rows that have no namespace column: they are found only through the rows they refer to.
        self._delete("bank_pulls", "entry IN (SELECT id FROM bank_entries WHERE namespace = ?)", namespace)
        if self._columns("langgraph_values"):
            values = "value IN (SELECT id FROM langgraph_values WHERE namespace = ?)"
            self._delete("langgraph_vectors", values, name)
        # By column, not by name: tables of later migrations are covered too. FTS5 tables are dropped below.
        tables = self._read_ids(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        labels = {"trajectories": "episodes", "items": "items removed", "changes": "history"}
        for table in tables:
            kind = self._columns(table).get("namespace")
            if kind is not None and table != "receipts":
                mark = name if kind == "TEXT" else namespace
                self._delete(table, "namespace = ?", mark, label=labels.get(table, ""))
        for kind in KINDS:
            self._run(f"DROP TABLE IF EXISTS {kind}_text_{namespace}")
        self._delete_unused_keys(keys)
        self._run("DELETE FROM namespaces WHERE id = ?", (namespace,))


_USED_KEYS = "SELECT DISTINCT value FROM steps, json_each(iif(json_valid(steps.keys), steps.keys, '[]'))"
_HISTORY = "namespace = ? AND what = 'item' AND ref = ?"
_OPINIONS = "SELECT item_id, writer, episode FROM opinions WHERE namespace = ? AND {}"
