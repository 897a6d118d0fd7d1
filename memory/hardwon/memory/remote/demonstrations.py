"""The indexes of demonstrations of a served library, read as recorded episodes by a client with the right `log`."""

from typing import Any

from hardwon.memory.parts.episodes import LibraryEpisodes
from hardwon.memory.records.episodes import read_outcome
from hardwon.memory.values.demonstration_index import DemonstrationIndex


class ServedDemonstrations:
    """The indexes of demonstrations of one namespace, updated with the episodes that the server has got since."""

    def __init__(self, episodes: LibraryEpisodes) -> None:
        """Create empty indexes of demonstrations."""
        self._episodes = episodes
        self._read: dict[str | None, tuple[DemonstrationIndex, set[str]]] = {}

    def read(self, environment: str | None) -> DemonstrationIndex:
        """Return the index of demonstrations of an environment, by its label; None stands for all episodes."""
        index, seen_ids = self._read.setdefault(environment, (DemonstrationIndex(), set()))
        for row in reversed(self._list_new(seen_ids)):
            seen_ids.add(row["id"])
            outcome = read_outcome(row)
            if outcome is None or row["trust"] != "trusted":
                continue
            if environment is not None and row["meta"].get("environment") != environment:
                continue
            steps = self._episodes.get(row["id"]).steps
            trial, split = row["meta"].get("demonstrations"), str(row["meta"].get("split") or "")
            index.add(row["id"], row["task"], steps, outcome=outcome, trial=trial, seed=row.get("seed"), split=split)
        return index

    def _list_new(self, seen_ids: set[str]) -> list[dict[str, Any]]:
        """Return the rows of the newest episodes until the first known one, newest first."""
        new: list[dict[str, Any]] = []
        while len(new) < 500:
            page = self._episodes.find(limit=50 if new or not seen_ids else 1, offset=len(new))
            fresh = [row for row in page if row["id"] not in seen_ids]
            new += fresh
            if not page or len(fresh) < len(page):
                break
        return new[:500]
