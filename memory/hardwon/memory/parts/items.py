"""The items of a library: queries, changes by a person, proposals to the curator, and measured effects."""

from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection
from typing import Any, Literal

from hardwon.memory import items as catalogue
from hardwon.memory.errors import ConfigError
from hardwon.memory.guardrails.probation import Standing
from hardwon.memory.learning.curator import AdmissionGate, Curator
from hardwon.memory.privacy.redaction import redact, redact_values
from hardwon.memory.records import Admission, Item, Kind, Trust
from hardwon.memory.upkeep import figures, queries
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.validation import check_item, check_items, check_object, check_text, check_texts, check_whole
from hardwon.memory.values.effects import Effect

from .file import LibraryFile


@names_damage
class LibraryItems:
    """The items of one namespace. Ids may be given as unambiguous prefixes."""

    def __init__(self, file: LibraryFile) -> None:
        self._file = file
        self.gate: AdmissionGate | None = None
        """Learned admission model, called after the admission rules. None admits by rules alone."""

    def find(
        self,
        kinds: Sequence[Kind] | None = None,
        *,
        status: str | None = "active",
        sort: Literal["score", "confidence", "new", "old", "used"] = "score",
        limit: int | None = None,
        offset: int = 0,
        signature: str | None = None,
        location: str | None = None,
        tag: str | None = None,
        trust: Trust | None = None,
        source: str | None = None,
        writer: str | None = None,
        text: str | None = None,
    ) -> list[Item]:
        """Return items, filtered and sorted.

        Args:
            kinds: Kinds of item; None for all.
            status: `active`, `quarantined` or `retired`; None for all.
            sort: `score`, `confidence`, `new` (newest first), `old` (oldest first) or `used` (most used first).
            limit: Largest number of items; None for all.
            offset: Number of items to skip.
            signature: Signature of the situations to which the items apply.
            location: Location to which the items apply.
            tag: Tag of the items.
            trust: `trusted` or `untrusted`.
            source: Source of the items.
            writer: Writer of the items.
            text: Words that must all occur in an item's text, ignoring case.

        Raises:
            WrongType: A kind or the sort order does not exist.
            ConfigError: `limit` or `offset` is negative.
        """
        for name, count in (("offset", offset), ("limit", 0 if limit is None else limit)):
            check_whole(name, count)
        filters = (signature, location, tag, trust, source, writer, text)
        check_texts("filters", tuple(value for value in filters if value is not None))
        by = {
            "status": status, "sort": sort, "signature": signature, "location": location, "tag": tag,
            "trust": trust, "source": source, "writer": writer, "text": text,
        }  # fmt: skip
        return self._query(kinds, limit, offset, by)

    def _query(self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]) -> list[Item]:
        return queries.items(self._file.filed(), self._file.number, kinds, limit=limit, offset=offset, **by)

    def get(self, item_id: str) -> Item:
        """Return an item of this namespace.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("item id", item_id)
        return self._file.look_up(lambda store: queries.get(store, self._file.number, item_id))

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Propose several items to the curator, in one transaction.

        Args:
            items: Items to add.

        Returns:
            One admission per item, in the same order.

        Raises:
            ConfigError: A value of an item cannot be stored. No item is added.
            WrongType: A value of an item has the wrong type. No item is added.
        """
        items = check_items(items)
        with self._file.transaction() as connection:
            curator = make_curator(self._file, self, connection)
            return [curator.admit(item) for item in items]

    def merge(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Merge several items into one with new words.

        The first item is kept and gets the words of `item` and the evidence of all of them. The others are retired.

        Args:
            item_ids: Ids of the items to merge.
            item: Item with the new words.

        Returns:
            The decision of the curator, with the reason.

        Raises:
            UnknownName: An id does not exist.
            ConfigError: A value of the item cannot be stored.
        """
        check_item(item)
        check_texts("item ids", list(item_ids))
        if not item_ids:
            raise ConfigError("item_ids is empty; give the ids of the items to merge.")
        with self._file.transaction() as connection:
            return make_curator(self._file, self, connection).rewrite([self.get(item_id) for item_id in item_ids], item)

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item. The old values stay in its history.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            **changes: New values by field name. A pinned item is never replaced or evicted.

        Returns:
            The changed item.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_object("changes", changes)
        op = "updated" if changes.keys() != {"pinned"} else "pinned" if changes["pinned"] else "unpinned"
        with self._file.transaction() as connection:
            return catalogue.change(connection, self._file.number, self.get(item_id), redact_values(changes), op)

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use. The item and the reason stay in the history.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            why: The reason.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("why", why)
        with self._file.transaction() as connection:
            catalogue.retire(connection, self._file.number, self.get(item_id).id, redact(why))

    def release(self, item_id: str, why: str) -> Item:
        """Take an item out of quarantine after a person's review. It counts as trusted from then on.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            why: The reason.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("why", why)
        with self._file.transaction() as connection:
            return catalogue.release(connection, self._file.number, self.get(item_id), redact(why))

    def undo(self, item_id: str) -> Item:
        """Undo the last change of an item that was not undone yet. Its score is kept.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        with self._file.transaction() as connection:
            return catalogue.undo(connection, self._file.number, self.get(item_id))

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Return every change of an item, oldest first.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Returns:
            Dicts with `seq`, `at`, `op` and `detail`.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return queries.history(self._file.filed(), self._file.number, self.get(item_id).id)

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Return the records that an item was shown to an agent, oldest first.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Returns:
            Dicts with `trajectory_id`, `t`, `mode`, `arm`, `outcome` and `control_outcome`.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return queries.usages(self._file.filed(), self._file.number, self.get(item_id).id)

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """Return the effect of an item, measured by showing and withholding it at random, with a 95 % interval.

        See `figures.usefulness`.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return figures.usefulness(self._file.filed(), self._file.number, self.get(item_id).id)

    def effects(self, item_id: str) -> list[Effect]:
        """Return the measured effect of an item in each world.

        The effect compares episodes that were shown the item with episodes from which it was withheld at random. In a
        world where an item clearly hurts it is masked: it is only offered occasionally, to measure it again.

        Args:
            item_id: Id of the item.

        Returns:
            One effect per world in which the item was measured.

        Raises:
            UnknownName: The item does not exist.
        """
        with self._file.lock:
            return self._file.caught_up().effects.of(self.get(item_id))

    def standing(self, item_id: str) -> Standing:
        """Return a guardrail's counts of refusals and trials, and when its next trial is due.

        Raises:
            UnknownName: The item does not exist.
        """
        with self._file.lock:
            self._file.filed()
            return self._file.probation.standing(self.get(item_id).id)

    def settle_trial(self, item_ids: Iterable[str], worked: bool) -> None:
        """Apply the outcome of a trial that is not recorded, for this process only.

        Args:
            item_ids: Ids of the guardrails on trial.
            worked: Whether the action succeeded.
        """
        with self._file.lock:
            self._file.probation.settle(item_ids, worked)


def make_curator(file: LibraryFile, items: LibraryItems, connection: Connection) -> Curator:
    """Return a curator that admits items in an open transaction."""
    return Curator(connection, file.number, file.caught_up().words.clock.time, items.gate, file.guardrails)
