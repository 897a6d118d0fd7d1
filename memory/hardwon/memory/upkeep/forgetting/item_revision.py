"""Revise the items that depend on forgotten experience: derive them again, keep a safe text, or remove them."""

import json
from collections.abc import Iterator
from dataclasses import replace

from hardwon.memory import items as catalogue
from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.learning.consolidation import Consolidator
from hardwon.memory.privacy.redaction import redact_item
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.storage.counted import EpisodeWords
from hardwon.memory.storage.episodes import first_row, log_change
from hardwon.memory.trust.support import Support
from hardwon.memory.upkeep.damage import UNREADABLE
from hardwon.memory.upkeep.queries import trajectory
from hardwon.memory.values.saved_tables import rebuild_values

from .rows import RowQueries
from .texts import extract_texts, extract_tokens, parse_item

_HISTORY = "namespace = ? AND what = 'item' AND ref = ?"


class ItemRevision:
    """Removes and rewrites items in the transaction of a deletion."""

    def __init__(self, rows: RowQueries) -> None:
        self._rows = rows
        self._run = rows.run
        self._namespace = rows.namespace
        self.removed: list[str] = []
        """Ids of the removed items."""
        self.rewritten: list[str] = []
        """Ids of the items that were kept with less evidence."""

    def revise(self, chosen: set[str], steps: set[int], forgotten: set[str]) -> None:
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
        catalogue.write(self._rows.connection, self._namespace, kept, "recomputed")
        self._rows.delete("changes", _HISTORY, self._namespace, item.id, label="history")
        log_change(
            self._rows.connection,
            self._namespace,
            "item",
            item.id,
            "recomputed",
            json.loads(catalogue.record_of(kept)),
        )
        self.rewritten.append(item.id)
        self._rows.counts["items rewritten"] += 1

    def _derive_items(self) -> dict[str, Item]:
        """Return the items that the rules derive from the remaining steps, by id."""
        values = rebuild_values(self._rows.store, self._namespace)
        distiller = Consolidator(self._rows.store, self._namespace)
        distiller.read(self._read_remaining)
        support = Support(self._rows.store, self._namespace)
        words = EpisodeWords(self._rows.store.rows, self._namespace)
        words.read()
        proposed = (redact_item(item) for item, *_ in distiller.proposals(values, support, words.structural))
        return {item.id or catalogue.identify(item): item for item in proposed}

    def _read_remaining(self, ref: str) -> Trajectory:
        """Return an episode that is not being forgotten."""
        try:
            return trajectory(self._rows.store, self._namespace, ref)
        except UNREADABLE as error:
            raise LibraryDamaged(f"episode {ref} is damaged: {error!r:.100}") from error

    def _remove(self, item: Item) -> None:
        """Delete an item with its index entries, usages, scores and history."""
        namespace = self._namespace
        (number,) = self._rows.read_ids("SELECT number FROM items WHERE namespace = ? AND id = ?", namespace, item.id)
        self._run("DELETE FROM items_text WHERE rowid = ?", (first_row(namespace) + number,))
        self._rows.delete("item_places", "number = ?", number)
        self._rows.delete("vectors", "kind = 'items' AND ref = ?", number)
        self._rows.delete("usages", "namespace = ? AND item_id = ?", namespace, item.id)
        self._rows.delete("probation", "namespace = ? AND item_id = ?", namespace, item.id)
        self._rows.delete("item_worlds", "namespace = ? AND item_id = ?", namespace, item.id)
        self._rows.delete("opinions", "namespace = ? AND item_id = ?", namespace, item.id)
        self._rows.delete("changes", _HISTORY, namespace, item.id, label="history")
        self._rows.delete("items", "number = ?", number, label="items removed")
        self.removed.append(item.id)

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
            texts = [f'"{name}"' for name, kind in self._rows.read_columns(table).items() if kind == "TEXT"]
            joined = " || char(10) || ".join(f"coalesce({name}, '')" for name in texts)
            for (text,) in self._run(f"SELECT {joined} FROM {table} WHERE namespace = ?", (self._namespace,)):
                yield text
