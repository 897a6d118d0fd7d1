"""The transaction that deletes a selection with everything derived from it, and writes the receipt."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from sqlite3 import Connection

from hardwon.memory import items as catalogue
from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.storage import rollups, worlds
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.clock import now
from hardwon.memory.storage.counted import extract_words, find_counted_writers, is_counted, recount_words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, first_row, last_row, witness_of
from hardwon.memory.upkeep.damage import UNREADABLE
from hardwon.memory.upkeep.integrity import rebuild_states_text
from hardwon.memory.upkeep.queries import trajectory

from .item_revision import ItemRevision
from .rows import LISTED, OPINIONS, RowQueries
from .selection import Selection, Selector, SelectorKind
from .texts import extract_texts, extract_tokens, parse_ids, parse_item


@dataclass(frozen=True, slots=True)
class ForgetReceipt:
    """A summary of what was forgotten.

    The ids in `episodes`, `items` and `rewritten` are for the caller only; the library does not store them.
    """

    what: SelectorKind
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


class Deletion:
    """The transaction that deletes a selection."""

    def __init__(self, store: Store, connection: Connection, namespace: int) -> None:
        self._rows = RowQueries(store, connection, namespace)
        self._run = connection.execute
        self._namespace = namespace
        self._items = ItemRevision(self._rows)
        self._damaged = False
        """Whether a deleted episode could not be decoded."""

    def run(self, what: SelectorKind, value: str) -> ForgetReceipt:
        """Delete the selected rows and write the receipt."""
        episodes: list[str] = []
        if what == "namespace":
            self._delete_namespace()
        else:
            chosen = Selector(self._rows).select(what, value)
            episodes = chosen.episodes
            self._delete_selection(chosen)
        counts = {name: count for name, count in sorted(self._rows.counts.items()) if count}
        at, number = now(), self._namespace
        receipt = dumps({"what": what, "at": at, "counts": counts, "namespace": number})
        digest = hashlib.blake2b(receipt.encode(), digest_size=16).hexdigest()
        self._run(
            "INSERT INTO receipts(at, what, namespace, counts, digest) VALUES (?, ?, ?, ?, ?)",
            (at, what, number, dumps(counts), digest),
        )
        return ForgetReceipt(
            what, at, counts, tuple(episodes), tuple(self._items.removed), tuple(self._items.rewritten), digest
        )

    def _delete_selection(self, chosen: Selection) -> None:
        """Delete the selected rows, then everything derived from them."""
        if chosen.writer:  # the outcomes stay; who gave them and why is deleted
            self._rows.delete(
                "changes", "namespace = ? AND what = 'grade' AND json_extract(detail, '$.grader') = ?",
                self._namespace, chosen.writer, label="grades",
            )  # fmt: skip
        about = OPINIONS.format(f"episode {LISTED}")
        of_episodes = self._run(about, (self._namespace, json.dumps(chosen.episodes))).fetchall()
        self._withdraw_opinions({*chosen.opinions, *of_episodes})
        self._rows.delete("ratings", "1")
        self._run("DELETE FROM proposals WHERE namespace = ?", (self._namespace,))
        texts, steps = self._delete_episodes(chosen.episodes)
        self._rows.delete("inbox", f"id {LISTED}", json.dumps(chosen.inbox))
        self._rows.delete("bank_pulls", f"entry {LISTED}", json.dumps(chosen.bank))
        self._rows.delete("bank_entries", f"id {LISTED}", json.dumps(chosen.bank))
        if chosen.values:
            self._rows.delete("langgraph_vectors", f"value {LISTED}", json.dumps(chosen.values))
            self._rows.delete("langgraph_values", f"id {LISTED}", json.dumps(chosen.values))
        self._items.revise(chosen.items, steps, extract_tokens(texts))
        # FTS5 keeps words of deleted rows in its segments until they are merged; a rebuild drops them now.
        self._run("INSERT INTO items_text(items_text) VALUES ('rebuild')")

    def _withdraw_opinions(self, opinions: Collection[tuple[str, str, str]]) -> None:
        """Delete feedback, and take back the score that it moved."""
        moved: Counter[str] = Counter()
        for item_id, writer, episode in sorted(opinions):
            key = (self._namespace, item_id, writer, episode)
            where = "namespace = ? AND item_id = ? AND writer = ? AND episode = ?"
            moved[item_id] += sum(self._rows.read_ids(f"SELECT moved FROM opinions WHERE {where}", *key))
            self._rows.delete("opinions", where, *key)
        for item_id, change in moved.items():
            rows = self._run(
                "SELECT record FROM items WHERE namespace = ? AND id = ?", (self._namespace, item_id)
            ).fetchall()
            item = parse_item(rows[0][0]) if rows else None
            if item is None or not change:
                continue
            score = round(min(1.0, max(0.0, item.score - change)), 4)
            catalogue.write(self._rows.connection, self._namespace, replace(item, score=score), "recomputed")

    def clear(self, replaced: Collection[str], merged: Collection[str]) -> None:
        """Delete episodes that are about to be written again."""
        self._run("DELETE FROM proposals WHERE namespace = ?", (self._namespace,))
        self._delete_episodes(merged)
        self._delete_episodes(replaced, keeps_uses=True)

    def _delete_episodes(self, refs: Collection[str], *, keeps_uses: bool = False) -> tuple[list[str], set[int]]:
        """Delete episodes and everything counted from them; return their texts and the ids of their steps.

        With `keeps_uses`, the grades, the usages of items and their credit stay.
        """
        if not refs:
            return [], set()
        listed, namespace = json.dumps(list(refs)), self._namespace
        texts, word_counts, keys, states = self._read_contents(refs)
        steps = set(
            self._rows.read_ids(
                f"SELECT id FROM steps WHERE namespace = ? AND trajectory_id {LISTED}", namespace, listed
            )
        )
        # Before the usages are deleted, because it counts them.
        if not keeps_uses:
            self._subtract_uses(listed)
        for table in ("steps", *(() if keeps_uses else ("usages",))):
            self._rows.delete(table, f"namespace = ? AND trajectory_id {LISTED}", namespace, listed)
        self._rows.delete("trajectories", f"namespace = ? AND id {LISTED}", namespace, listed, label="episodes")
        self._rows.delete(
            "changes", f"namespace = ? AND what IN ('trajectory', ?) AND ref {LISTED}", namespace,
            "" if keeps_uses else "grade", listed, label="history",
        )  # fmt: skip
        self._rows.connection.executemany(
            "UPDATE words SET episodes = episodes - ? WHERE namespace = ? AND word = ?",
            [(count, namespace, word) for word, count in word_counts.items()],
        )
        self._rows.delete("words", "namespace = ? AND episodes <= 0", namespace)
        before = find_counted_writers(self._rows.store.rows, namespace)
        self._delete_writers()
        counted = find_counted_writers(self._rows.store.rows, namespace)
        if self._damaged or counted != before:
            recount_words(self._rows.connection, namespace, counted)
        self._rows.delete(
            "offers", "namespace = ? AND id NOT IN (SELECT offer FROM steps WHERE offer IS NOT NULL)", namespace
        )
        # States are shared between episodes: delete only those that no remaining step refers to.
        referenced = "SELECT pre FROM steps UNION SELECT post FROM steps"
        unreferenced = json.dumps(sorted(states - set(self._rows.read_ids(referenced))))
        self._rows.delete("states", f"id {LISTED}", unreferenced)
        self._rows.delete("vectors", f"kind IN ('states', 'testimony') AND ref {LISTED}", unreferenced)
        self._delete_unused_keys(keys)
        rebuild_states_text(self._rows.connection, self._rows.store)
        rollups.rebuild(self._rows.connection, self._rows.store, namespace)
        worlds.renew(self._rows.connection, namespace)
        return texts, steps

    def _delete_writers(self) -> None:
        """Delete the writers that have no episode left."""
        names = self._rows.read_ids(
            "SELECT DISTINCT iif(trust = 'trusted', '', writer) FROM trajectories WHERE namespace = ?", self._namespace
        )
        # The full names, too: libraries of an earlier version counted by them.
        remaining = {*names, *map(witness_of, names)}
        self._rows.delete(
            "writers", f"namespace = ? AND name NOT {LISTED}", self._namespace, json.dumps(sorted(remaining))
        )

    def _read_contents(self, refs: Iterable[str]) -> tuple[list[str], Counter[str], set[int], set[int]]:
        """Return the texts of episodes, their word counts, and the ids of their keys and states."""
        texts: list[str] = []
        counted = find_counted_writers(self._rows.store.rows, self._namespace)
        word_counts: Counter[str] = Counter()
        keys: set[int] = set()
        states: set[int] = set()
        for ref in refs:
            try:
                episode = trajectory(self._rows.store, self._namespace, ref)
                if is_counted(episode, counted):
                    word_counts.update(extract_words(episode))
                texts.extend(extract_texts(episode))
            except (*UNREADABLE, LibraryDamaged):
                # Its words are unknown, so the counts must be rebuilt from the remaining episodes.
                self._damaged = True
                texts.extend(self._read_raw_texts(ref))
            rows = self._run(
                "SELECT keys, pre, post FROM steps WHERE namespace = ? AND trajectory_id = ?",
                (self._namespace, ref),
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
            f"SELECT item_id, count(DISTINCT trajectory_id) FROM usages WHERE namespace = ? AND trajectory_id {LISTED} "
            "AND mode NOT IN ('withheld', 'masked') GROUP BY 1",
            (self._namespace, refs),
        ).fetchall()
        self._rows.connection.executemany(
            "UPDATE items SET uses = max(0, uses - ?) WHERE namespace = ? AND id = ?",
            [(count, self._namespace, item_id) for item_id, count in used],
        )
        for item_id, _ in used:
            seal(self._rows.connection, "items", "namespace = ? AND id = ?", (self._namespace, item_id))

    def _delete_unused_keys(self, keys: set[int]) -> None:
        used = set(self._rows.read_ids(_USED_KEYS)) if keys else set()
        self._rows.delete("keys", f"id {LISTED}", json.dumps(sorted(keys - used)))

    def _delete_namespace(self) -> None:
        """Delete the namespace and its rows in all tables."""
        namespace = self._namespace
        ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", (namespace,)).fetchall()
        keys: set[int] = set()
        for (numbers,) in self._run("SELECT keys FROM steps WHERE namespace = ?", (namespace,)):
            keys.update(parse_ids(numbers))
        self._items.removed = self._rows.read_ids("SELECT id FROM items WHERE namespace = ?", namespace)
        # First the rows that have no namespace column: they are found only through the rows they refer to.
        self._rows.delete("bank_pulls", "entry IN (SELECT id FROM bank_entries WHERE namespace = ?)", namespace)
        if self._rows.read_columns("langgraph_values"):
            values = "value IN (SELECT id FROM langgraph_values WHERE namespace = ?)"
            self._rows.delete("langgraph_vectors", values, name)
        # By column, not by name: tables of later migrations are covered too. The text indexes are rebuilt below.
        tables = self._rows.read_ids(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        labels = {"trajectories": "episodes", "items": "items removed", "changes": "history"}
        for table in tables:
            kind = self._rows.read_columns(table).get("namespace")
            if kind is not None and table != "receipts":
                mark = name if kind == "TEXT" else namespace
                self._rows.delete(table, "namespace = ?", mark, label=labels.get(table, ""))
        rebuild_states_text(self._rows.connection, self._rows.store)
        self._run("DELETE FROM items_text WHERE rowid BETWEEN ? AND ?", (first_row(namespace), last_row(namespace)))
        self._run("INSERT INTO items_text(items_text) VALUES ('rebuild')")
        self._delete_unused_keys(keys)
        self._run("DELETE FROM namespaces WHERE id = ?", (namespace,))


_USED_KEYS = "SELECT DISTINCT value FROM steps, json_each(iif(json_valid(steps.keys), steps.keys, '[]'))"
