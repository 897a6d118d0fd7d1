"""Administration of a library: queries over episodes and items, and changes of items. `library` records and recalls."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from sqlite3 import Connection
from typing import Any, Literal

from hardwon.memory import items as catalogue
from hardwon.memory.guardrails.probation import Probation, Standing
from hardwon.memory.learning import item_credit
from hardwon.memory.privacy.private_files import OwnLock
from hardwon.memory.privacy.redaction import redact, redact_item, redact_values
from hardwon.memory.records import Item, Kind, Segment, Step, Summary, Trajectory, Trust
from hardwon.memory.retrieval import clusters
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.storage import rollups
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, read_steps
from hardwon.memory.trust import opinions
from hardwon.memory.validation import check_item, check_object, check_text, check_texts, check_whole
from hardwon.memory.values.effects import Effect

from . import figures, queries


class TendedLibrary(ABC):
    """The administrative methods of one namespace of a library."""

    _lock: OwnLock
    _number: int
    _probation: Probation

    @abstractmethod
    def _filed(self) -> Store:
        """Return the store after all buffered episodes are in it."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Commit everything inside together, or nothing."""

    @abstractmethod
    def _caught_up(self) -> NamespaceCache:
        """Return the derived state, updated with everything written since the last call."""

    # -- queries ----------------------------------------------------------------------------------

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
            UnknownName: A kind or the sort order does not exist.
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
        return self._query_items(kinds, limit, offset, by)

    def _query_items(
        self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]
    ) -> list[Item]:
        return queries.items(self._filed(), self._number, kinds, limit=limit, offset=offset, **by)

    def get(self, item_id: str) -> Item:
        """Return an item of this namespace.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("item id", item_id)
        return queries.get(self._filed(), self._number, item_id)

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Return every change of an item, oldest first.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Returns:
            Dicts with `seq`, `at`, `op` and `detail`.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return queries.history(self._filed(), self._number, self.get(item_id).id)

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Return the records that an item was shown to an agent, oldest first.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Returns:
            Dicts with `trajectory_id`, `t`, `mode`, `arm`, `outcome` and `control_outcome`.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return queries.usages(self._filed(), self._number, self.get(item_id).id)

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """Return the effect of an item, measured by showing and withholding it at random, with a 95 % interval.

        See `item_credit.usefulness`.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        with self._lock:  # the query uses the connection directly, past the lock of the store
            return item_credit.usefulness(self._filed().connection, self._number, self.get(item_id).id)

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Return rows about episodes without their steps, newest first.

        Args:
            limit: Largest number of rows; None for all.
            offset: Number of rows to skip.
        """
        return queries.trajectories(self._filed(), self._number, limit, offset)

    def find_episodes(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the rows of those of some episodes that are recorded, by id; see `trajectories`."""
        check_texts("episode ids", tuple(ids))
        return queries.find_episodes(self._filed(), self._number, ids)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """Return an episode with its steps.

        Args:
            trajectory_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No episode, or more than one, matches.
        """
        check_text("episode id", trajectory_id)
        return queries.trajectory(self._filed(), self._number, trajectory_id)

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Return steps of this namespace in the order of `ids`. Unknown ids are skipped.

        Args:
            ids: Ids of steps, for example the `provenance` of an item.
        """
        where = "namespace = ? AND id IN (SELECT value FROM json_each(?))"
        steps = {step.id: step for step in read_steps(self._filed(), where, (self._number, dumps(list(ids))))}
        return [steps[ref] for ref in ids if ref in steps]

    def select_steps(self, ids: Collection[int], *, task: str, seed: int, split: str = "") -> frozenset[int]:
        """Return those of some steps that belong to episodes of one task instance.

        Args:
            ids: Ids of steps of this namespace.
            task: The task of the episodes, in the words of their states.
            seed: The seed of the episodes.
            split: The split of the episodes, as in `meta["split"]`. Episodes without one belong to every split.
        """
        return queries.select_steps(self._filed(), self._number, ids, redact(task), seed, split)

    def has_episode(self, *, task: str, seed: int, split: str = "") -> bool:
        """Return whether an episode of a task instance is recorded.

        Args:
            task: The task of the episode, in the words of its states.
            seed: The seed of the episode.
            split: The split of the episode, as in `meta["split"]`. An episode without one belongs to every split.
        """
        return queries.has_episode(self._filed(), self._number, redact(task), seed, split)

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """Return summaries of attempts, the most frequent first.

        Args:
            signature: Return only the summaries of this situation; None for all.
            limit: Largest number of summaries; None for all.
            offset: Number of summaries to skip.
        """
        return list(rollups.summaries(self._filed(), self._number, signature, limit, offset))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """Return the ids of the steps behind a summary's counts.

        Args:
            summary_id: Id of the summary.
            failure: Return only steps with this failure; "none" selects steps without a failure.

        Raises:
            UnknownName: The summary or the failure does not exist.
        """
        return rollups.read_evidence(self._filed(), self._number, summary_id, failure)

    def segments(self, trajectory_id: str) -> list[Segment]:
        """Return the segments of an episode, which end where a reward was received.

        Args:
            trajectory_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No episode, or more than one, matches.
        """
        ref = queries.trajectory_id(self._filed(), self._number, trajectory_id)
        return rollups.read_segments(self._filed(), self._number, ref)

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Return groups of situations with the same signature, the most frequent first.

        Args:
            limit: Largest number of clusters; None for all.
            offset: Number of clusters to skip.

        Returns:
            Dicts with the number of visits and the best actions of each cluster.
        """
        return clusters.list_clusters(self._filed(), self._number, limit, offset)

    # -- figures for people ---------------------------------------------------------------------------

    def count_tiers(self) -> figures.TierCounts:
        """Count the steps, attempts, segments, vectors and items of this namespace."""
        return figures.count_tiers(self._filed(), self._number)

    def item_figures(self) -> figures.ItemFigures:
        """Return the growth of the items, and how often they were shown, withheld or refused an action."""
        return figures.item_figures(self._filed(), self._number)

    def measure_items(self) -> dict[str, dict[str, Any]]:
        """Return by item id the measured effect of every item that was used, and the counts of its refusals.

        See `figures.measure_items`; `usefulness` returns the effect of one item.
        """
        return figures.measure_items(self._filed(), self._number)

    def newest_change(self) -> int:
        """Return the number of the newest change in the file, over all namespaces; see `changes`."""
        return figures.newest_change(self._filed())

    def changes(self, after: int = 0, *, limit: int = 500) -> list[figures.Change]:
        """Return recorded episodes and changed items of this namespace, by any writer, oldest first.

        Args:
            after: Number of the last change that you have; 0 for all.
            limit: Largest number of changes.
        """
        return figures.changes(self._filed(), self._number, after, limit)

    def deciding_episodes(self, strategies: Mapping[str, Sequence[int]]) -> dict[str, set[str]]:
        """Return, by strategy id, the episodes in which a strategy took part in an estimate that chose an action.

        Args:
            strategies: The ids of the steps behind each strategy, by its id.
        """
        return figures.deciding_episodes(self._filed(), self._number, strategies)

    def standing(self, item_id: str) -> Standing:
        """Return a guardrail's counts of refusals and trials, and when its next trial is due.

        Raises:
            UnknownName: The item does not exist.
        """
        with self._lock:
            self._filed()
            return self._probation.standing(self.get(item_id).id)

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
        with self._lock:
            return self._caught_up().effects(self.get(item_id))

    # -- changes ----------------------------------------------------------------------------------

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item. The old values stay in its history.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            **changes: New values by field name.

        Returns:
            The changed item.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return self._change(item_id, changes, "updated")

    def feedback(self, item_id: str, helped: bool, *, writer: str, episode: str = "") -> Item:
        """Record the opinion of an untrusted writer on an item, which moves its score slightly and within bounds.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            helped: Whether the item helped.
            writer: Name of the writer.
            episode: Id of the episode in which the item was used.

        Returns:
            The item with its new score; see `opinions`.

        Raises:
            TooMuchFeedback: The writer has given too much feedback.
            UnknownName: No item, or more than one, matches.
        """
        with self._transaction() as connection:
            # Read the item inside the transaction, so that two opinions at once both count.
            item = self.get(item_id)
            score = opinions.record_opinion(connection, self._number, item, helped, writer, episode)
            if score == item.score:
                return item
            return catalogue.change(connection, self._number, item, {"score": score}, "updated")

    def count_rating(self, client: str, *, most: int) -> None:
        """Count one rating of a client, over all processes that serve this file.

        Args:
            client: The client.
            most: Largest number of ratings in a minute.

        Raises:
            TooMuchFeedback: The client has used up its ratings.
        """
        check_text("client", client)
        with self._transaction() as connection:
            opinions.count_rating(connection, client, most, time.time())

    def pin(self, item_id: str, pinned: bool = True) -> Item:
        """Protect an item from being replaced or evicted, or lift the protection.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            pinned: Whether the item is protected from now on.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        return self._change(item_id, {"pinned": pinned}, "pinned" if pinned else "unpinned")

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use. The item and the reason stay in the history.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            why: The reason.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("why", why)
        with self._transaction() as connection:
            catalogue.retire(connection, self._number, self.get(item_id).id, redact(why))

    def release(self, item_id: str, why: str) -> Item:
        """Take an item out of quarantine after a person's review. It counts as trusted from then on.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            why: The reason.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        check_text("why", why)
        with self._transaction() as connection:
            return catalogue.release(connection, self._number, self.get(item_id), redact(why))

    def undo(self, item_id: str) -> Item:
        """Undo the last change of an item that was not undone yet. Its score is kept.

        Args:
            item_id: The id, or an unambiguous prefix of it.

        Raises:
            UnknownName: No item, or more than one, matches.
        """
        with self._transaction() as connection:
            return catalogue.undo(connection, self._number, self.get(item_id))

    def _change(self, item_id: str, changes: Mapping[str, Any], op: str) -> Item:
        check_object("changes", changes)
        with self._transaction() as connection:
            return catalogue.change(connection, self._number, self.get(item_id), redact_values(changes), op)

    def restore(self, item: Item) -> None:
        """Write an item exactly as given, without admission; for imports.

        Args:
            item: The item.
        """
        check_item(item)
        with self._transaction() as connection:
            catalogue.restore(connection, self._number, redact_item(item))
