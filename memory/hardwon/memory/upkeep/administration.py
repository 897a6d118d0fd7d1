"""What people do with a library: look into it, and tend its items. It neither records nor recalls; see `library`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from sqlite3 import Connection
from typing import Any, Literal

from hardwon.memory import items as catalogue
from hardwon.memory.learning import item_credit
from hardwon.memory.privacy.private_files import OwnLock
from hardwon.memory.privacy.redaction import redact, redact_item, redact_values
from hardwon.memory.records import Item, Kind, Segment, Step, Summary, Trajectory, Trust
from hardwon.memory.retrieval import clusters
from hardwon.memory.storage import rollups
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, read_steps
from hardwon.memory.validation import check_item, check_object, check_text, check_texts, check_whole
from hardwon.memory.values import opinions

from . import queries


class TendedLibrary(ABC):
    """One namespace of a library, as a person looks into it and tends it."""

    _lock: OwnLock
    _number: int

    @abstractmethod
    def _filed(self) -> Store:
        """What is read from: all that was recorded is filed in it."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Everything inside becomes durable together."""

    # -- looking ----------------------------------------------------------------------------------

    def items(
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
        """Items, filtered and sorted; `text` finds those that have all its words."""
        for name, count in (("offset", offset), ("limit", 0 if limit is None else limit)):
            check_whole(name, count)
        given = (signature, location, tag, trust, source, writer, text)
        check_texts("filters", tuple(value for value in given if value is not None))
        by = {
            "status": status, "sort": sort, "signature": signature, "location": location, "tag": tag,
            "trust": trust, "source": source, "writer": writer, "text": text,
        }  # fmt: skip
        return self._listed(kinds, limit, offset, by)

    def _listed(
        self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]
    ) -> list[Item]:
        return queries.items(self._filed(), self._number, kinds, limit=limit, offset=offset, **by)

    def get(self, item_id: str) -> Item:
        """An item of this namespace by its id; raises UnknownName."""
        check_text("item id", item_id)
        return queries.get(self._filed(), self._number, item_id)

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Every change of an item, oldest first: seq, at, op, detail."""
        return queries.history(self._filed(), self._number, self.get(item_id).id)

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Who was shown an item, when, in which arm, and how the episode ended."""
        return queries.usages(self._filed(), self._number, self.get(item_id).id)

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """What an item is worth by randomised show and withhold, with a 95% interval; see `credit.usefulness`."""
        with self._lock:
            return item_credit.usefulness(self._filed().connection, self._number, self.get(item_id).id)

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Rows about episodes, newest first, without their steps."""
        return queries.trajectories(self._filed(), self._number, limit, offset)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One episode with its steps; an unambiguous beginning of the id is enough."""
        check_text("episode id", trajectory_id)
        return queries.trajectory(self._filed(), self._number, trajectory_id)

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Steps of this namespace by id, in the order of the ids given; those that do not exist are left out."""
        where = "namespace = ? AND id IN (SELECT value FROM json_each(?))"
        found = {step.id: step for step in read_steps(self._filed(), where, (self._number, dumps(list(ids))))}
        return [found[ref] for ref in ids if ref in found]

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """What came of every kind of action, in one kind of situation or in all; the most tried first."""
        return list(rollups.summaries(self._filed(), self._number, signature, limit, offset))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """The ids of the steps behind a count of a summary: all of them, or those with a failure ("none": without)."""
        return rollups.evidence(self._filed(), self._number, summary_id, failure)

    def segments(self, trajectory_id: str) -> list[Segment]:
        """The stretches of an episode between its gains; an unambiguous beginning of the id is enough."""
        ref = queries.trajectory_id(self._filed(), self._number, trajectory_id)
        return rollups.segments(self._filed(), self._number, ref)

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Situations that share a signature, the most frequent first: how often they were met, and what pays there."""
        return clusters.list_clusters(self._filed(), self._number, limit, offset)

    # -- tending ----------------------------------------------------------------------------------

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        return self._change(item_id, changes, "updated")

    def feedback(self, item_id: str, helped: bool, *, writer: str, episode: str = "") -> Item:
        """Let an untrusted writer say whether an item helped in an episode; its score moves a little, within bounds.

        See `opinions`. Raises: TooMuchFeedback, UnknownName.
        """
        with self._transaction() as connection:
            item = self.get(item_id)
            score = opinions.record_opinion(connection, self._number, item, helped, writer, episode)
            if score == item.score:
                return item
            return catalogue.change(connection, self._number, item, {"score": score}, "updated")

    def pin(self, item_id: str, pinned: bool = True) -> Item:
        """Protect an item from being replaced or evicted."""
        return self._change(item_id, {"pinned": pinned}, "pinned" if pinned else "unpinned")

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use; it and the reason stay in the history."""
        check_text("why", why)
        with self._transaction() as connection:
            catalogue.retire(connection, self._number, self.get(item_id).id, redact(why))

    def release(self, item_id: str, why: str) -> Item:
        """Take an item out of quarantine, on a person's word; it is trusted from then on."""
        check_text("why", why)
        with self._transaction() as connection:
            return catalogue.release(connection, self._number, self.get(item_id), redact(why))

    def undo(self, item_id: str) -> Item:
        """Take back the last change of an item that was not taken back yet; its score stays as earned."""
        with self._transaction() as connection:
            return catalogue.undo(connection, self._number, self.get(item_id))

    def _change(self, item_id: str, changes: Mapping[str, Any], op: str) -> Item:
        check_object("changes", changes)
        with self._transaction() as connection:
            return catalogue.change(connection, self._number, self.get(item_id), redact_values(changes), op)

    def restore(self, item: Item) -> None:
        """Write an item exactly as it is, past admission; for imports."""
        check_item(item)
        with self._transaction() as connection:
            catalogue.restore(connection, self._number, redact_item(item))
