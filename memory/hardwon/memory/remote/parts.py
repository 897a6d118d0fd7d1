"""The parts of a served library: what `ExperienceLibrary` has as `items`, `episodes` and `admin`, over HTTP.

Operations that need the file itself, such as `repair`, are not served, and raise an error.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hardwon.memory.bank import Bank, Entry
from hardwon.memory.errors import ConfigError, LibraryError
from hardwon.memory.grading.grades import Grade
from hardwon.memory.open_runs import OpenRuns
from hardwon.memory.parts.admin import LibraryAdmin
from hardwon.memory.parts.episodes import LibraryEpisodes
from hardwon.memory.parts.file import LibraryFile
from hardwon.memory.parts.items import LibraryItems
from hardwon.memory.records import Admission, Item, Kind, Problem, State, Step, Summary, Trajectory, Trust
from hardwon.memory.retrieval.request import fit_action, fit_state, fit_text
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.upkeep.jsonl import write_export
from hardwon.memory.validation import check_path
from hardwon.memory.values.demonstration_index import DemonstrationIndex
from hardwon.memory.values.effects import Effect
from hardwon.memory.wire import PAGE, Wire, make_answer_error, part, plain, read, read_fields

from .demonstrations import ServedDemonstrations

T = TypeVar("T")
_STATS: dict[str, Any] = {
    **dict.fromkeys(("schema", "episodes", "successes", "excluded", "steps", "states", "clusters", "size_bytes"), int),
    **dict.fromkeys(("items", "failures"), dict[str, Any]),
    "namespaces": list[str],
}
_USEFULNESS: dict[str, Any] = {
    **dict.fromkeys(("shown", "withheld"), int),
    **dict.fromkeys(("difference", "low", "high"), float | None),
}
"""Types of the fields of answers that are no records."""


class UnservedFile:
    """Stands for the file of a served library, which is on the server: every use raises an error."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> Any:
        if name == "_url":  # a missing `_url` must not call this method again
            raise AttributeError(name)
        raise _NotServed(f"{self._url} does not serve this operation. Use `hardwon memory` on the server's machine.")


@names_damage
class RemoteItems(LibraryItems):
    """The items of a served namespace."""

    def __init__(self, file: LibraryFile, wire: Wire) -> None:
        super().__init__(file)
        self._wire = wire

    def _query(self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]) -> list[Item]:
        if kinds is not None and not kinds:  # an empty list is no query parameter, and would return all kinds
            return []
        text = by.get("text")
        filters = {**by, "kind": kinds, "status": by["status"] or "all", "text": text and fit_text(text)}
        return read(list[Item], self._wire.paged("items", "items", limit, offset, filters))

    def get(self, item_id: str) -> Item:
        """Return an item of this namespace by id. Raises UnknownName."""
        return read(Item, self._wire.get(f"items/{part(item_id)}"))

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Propose several items to the curator, in one transaction."""
        proposals = list(items)
        body = {"items": plain(list[Item], proposals)}
        return check_count(read(list[Admission], self._wire.send("POST", "items", body)["admissions"]), proposals)

    def merge(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Merge several items into one with the words of `item`; see `LibraryItems.merge`."""
        return read(
            Admission, self._wire.send("POST", "items/rewrite", {"ids": list(item_ids), "item": plain(Item, item)})
        )

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        if "pinned" in changes:
            item = self._post_change(item_id, "pin", {"pinned": changes.pop("pinned")})
            if not changes:
                return item
        return read(Item, self._wire.send("PATCH", f"items/{part(item_id)}", changes))

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use; the item and the reason stay in the history."""
        self._post_change(item_id, "retire", {"why": why})

    def release(self, item_id: str, why: str) -> Item:
        """Release an item from quarantine; it is trusted from then on."""
        return self._post_change(item_id, "release", {"why": why})

    def undo(self, item_id: str) -> Item:
        """Undo the last change of an item that was not undone yet."""
        return self._post_change(item_id, "undo", None)

    def _post_change(self, item_id: str, how: str, body: Mapping[str, Any] | None) -> Item:
        """Post a change of an item, and return the changed item."""
        return read(Item, self._wire.send("POST", f"items/{part(item_id)}/{how}", body))

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Return every change of an item, oldest first."""
        return read(list[dict[str, Any]], self._wire.get(f"items/{part(item_id)}/history")["rows"])

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Return the usages of an item, with arm and outcome."""
        return read(list[dict[str, Any]], self._wire.get(f"items/{part(item_id)}/usages")["rows"])

    def effects(self, item_id: str) -> list[Effect]:
        """Return the measured effect of an item in each world; see `ExperienceLibrary.items.effects`."""
        return read(list[Effect], self._wire.get(f"items/{part(item_id)}/effects")["effects"])

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """Return the effect of showing an item versus withholding it at random, with a 95 % interval."""
        return read_fields(self._wire.get(f"items/{part(item_id)}/usefulness"), _USEFULNESS)

    def settle_trial(self, item_ids: Iterable[str], worked: bool) -> None:
        """Do nothing: the server grants no trial that is not recorded."""


@names_damage
class RemoteEpisodes(LibraryEpisodes):
    """The recorded episodes of a served namespace; the steps of those that are not over stay on this host."""

    def __init__(self, file: LibraryFile, wire: Wire, runs: OpenRuns, *, raw: bool) -> None:
        super().__init__(file, runs)
        self._wire, self._raw = wire, raw
        self._demonstrations = ServedDemonstrations(self)

    def count(self, state: State | None = None, actions: Iterable[str] = ()) -> int:
        """Return the number of episodes in this namespace: the server does not say which are of one environment."""
        return read(int, self._wire.get("about")["episodes"])

    def find(
        self, ids: Collection[str] | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Return rows about episodes, newest first, without their steps. The server does not look up `ids`."""
        if ids is not None:
            return super().find(ids)
        return read(list[dict[str, Any]], self._wire.paged("episodes", "rows", limit, offset, {"sort": "recorded"}))

    def get(self, episode_id: str) -> Trajectory:
        """Return an episode with its steps, by its id or an unambiguous prefix of it."""
        return read(Trajectory, self._wire.get(f"episodes/{part(episode_id)}"))

    def receive(self, trajectories: Iterable[Trajectory], *, writer: str, trust: Trust) -> list[str]:
        """Record episodes. The server decides by the token of this connection who wrote them, and on their trust.

        Args:
            trajectories: The episodes.
            writer: Not sent: the server names the token.
            trust: Not sent: a token with the right `record` alone is untrusted.
        """
        return send_episodes(self._wire, trajectories)

    def grades(self, episode_id: str) -> list[Grade]:
        """Return the grades of an episode, oldest first; see `ExperienceLibrary.episodes.grades`."""
        return read(list[Grade], self._wire.get(f"episodes/{part(episode_id)}/grades")["grades"])

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Return steps by id, in the given order. Unknown ids are skipped."""
        steps: list[Step] = []
        for at in range(0, len(ids), PAGE):
            steps += read(list[Step], self._wire.get("steps", id=list(ids[at : at + PAGE]))["steps"])
        return steps

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """Return the attempts by kind of action in one kind of situation, or in all, the most frequent first."""
        filters = {"signature": signature}
        return read(list[Summary], self._wire.paged("summaries", "summaries", limit, offset, filters))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """Return the ids of the steps behind a count of a summary."""
        return read(list[int], self._wire.get(f"summaries/{summary_id}/evidence", failure=failure)["steps"])

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return the keys under which a step with this action in this state is filed."""
        query = {"state": asdict(fit_state(state)), "action": fit_action(action), "counts": counts}
        return tuple(read(list[str], self._wire.ask("keys", query)["keys"]))

    def context(self, state: State, action: str) -> str:
        """Return the words around the arguments of an action in a state."""
        query = {"state": asdict(fit_state(state)), "action": fit_action(action)}
        return read(str, self._wire.ask("context", query)["context"])

    def index_demonstrations(self, environment: str | None = None, actions: Iterable[str] = ()) -> DemonstrationIndex:
        """Return the demonstrations of one environment, or of all, read as recorded episodes.

        Raises:
            ConfigError: The client was opened without `raw`, which needs the right `log`.
        """
        if not self._raw:
            raise ConfigError(
                "Demonstrations are episodes word for word. Open RemoteLibrary(..., raw=True) with a token that has "
                "the right log, or use another planner than demonstrations."
            )
        return self._demonstrations.read(environment)


@names_damage
class RemoteAdmin(LibraryAdmin):
    """The administration of a served namespace."""

    def __init__(self, file: LibraryFile, wire: Wire, items: LibraryItems, about: Mapping[str, Any]) -> None:
        super().__init__(file, items)
        self._wire = wire
        self._read_only = read(bool, about["read_only"])
        self._embedder = ServedEmbedder(read(str, about["embedder"]), read(str, about["fingerprint"]))

    @property
    def read_only(self) -> bool:
        """Return whether the token does not permit recording."""
        return self._read_only

    @property
    def embedder(self) -> Any:
        """Return the name and fingerprint of the embedder, which runs on the server."""
        return self._embedder

    def bank(self, task: str) -> Bank:
        """Return a short-lived memory that parallel teams share during one task."""
        return RemoteBank(self._wire, task)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace."""
        return {**read_fields(self._wire.get("stats"), _STATS), "path": self._wire.url}

    def verify(self) -> list[Problem]:
        """Check every derived structure against the recorded episodes and items; empty if all agree."""
        return read(list[Problem], self._wire.answer("GET", "verify", limit="whole")["problems"])

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes to a JSONL file, and return the number of lines."""
        with write_export(path) as file:
            self._wire.download("export", file)
        with Path(path).open("rb") as whole:
            return sum(1 for _ in whole)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Send a file that `export_jsonl` wrote, and return the number of new lines."""
        check_path(path)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Give the path of an exported file.") from error
        answer = self._wire.answer("POST", "import", {"trust": trust}, limit="whole", content=content)
        return read(int, answer["lines"])


def send_episodes(wire: Wire, trajectories: Iterable[Trajectory]) -> list[str]:
    """Record episodes on the server. Each gets its id before it is sent, so that a retried request records it once."""
    episodes = [
        trajectory if trajectory.id else replace(trajectory, id=uuid.uuid4().hex) for trajectory in trajectories
    ]
    body = {"episodes": plain(list[Trajectory], episodes)}
    answer = wire.answer("POST", "episodes", has_key=False, json=body)
    return check_count(read(list[str], answer["ids"]), episodes)


def check_count(results: list[T], sent: Sequence[Any]) -> list[T]:
    """Return the results of a write if there is one for each record."""
    if len(results) != len(sent):
        raise make_answer_error(f"has {len(results)} results for {len(sent)} records")
    return results


@dataclass(frozen=True)
class _Pull:
    entry: int
    reader: str


class RemoteBank(Bank):
    """The bank of a served library."""

    def __init__(self, wire: Wire, task: str) -> None:
        self._wire = wire
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key, and return the id of the entry, or 0 if the server held it back."""
        return read(int, self._request("POST", "entries", {"team": team, "key": key, "value": value})["id"] or 0)

    def entries(self, after: int = 0) -> list[Entry]:
        """Return the entries after the given id without their values, oldest first."""
        return read(list[Entry], self._request("GET", "entries", after=after)["entries"])

    def pull(self, entry: int, reader: str) -> str:
        """Return the value of an entry, and log the pull."""
        return read(str, self._request("POST", "pull", {"entry": entry, "reader": reader})["value"])

    def pulls(self, *, own: bool = False) -> list[tuple[int, str]]:
        """Return (entry, reader) of every logged pull of other teams' entries or, with `own`, of own entries."""
        rows = read(list[_Pull], self._request("GET", "pulls", own=own)["pulls"])
        return [(row.entry, row.reader) for row in rows]

    def promote(self, item: Item, episode: str) -> Admission:
        """Propose an item to the library with the evidence of a successful episode; see `Bank.promote`."""
        return read(Admission, self._request("POST", "promote", {"item": plain(Item, item), "episode": episode}))

    def drop(self) -> None:
        """Delete all entries of the task, with their pulls."""
        self._wire.answer("DELETE", "bank/entries", {"task": self.task})

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Send a request about this bank, and return the JSON answer."""
        content: dict[str, Any] = {} if body is None else {"json": body}
        query = {"task": self.task, **query}
        return self._wire.answer(method, f"bank/{path}", query, **content)


class _NotServed(LibraryError, AttributeError):
    """An operation needs the library's file, which is on the server."""


class ServedEmbedder:
    """Name and fingerprint of a server's embedder."""

    def __init__(self, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
