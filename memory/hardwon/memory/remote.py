"""Client for a library that `hardwon serve experience.db` serves.

    with RemoteLibrary("http://127.0.0.1:8420", token="hardwon_...", namespace="acme") as library:
        Agent(policy, library, environment).run()

A `RemoteLibrary` has the methods of an `ExperienceLibrary`, with the same records and the same errors. Operations that
need the file itself, such as `repair` and `restore`, raise an error. The HTTP client is in `wire`.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from .bank import Bank, Entry
from .errors import ConfigError, LibraryError, UnknownName
from .grading.grades import Grade
from .learning.extraction import Extractor
from .library import ExperienceLibrary
from .open_runs import OpenRuns
from .privacy.private_files import find_cache
from .records import (
    Add,
    Admission,
    EvolutionReport,
    Hit,
    Item,
    Kind,
    Operation,
    Problem,
    Recollection,
    Return,
    Segment,
    State,
    Step,
    Summary,
    Trajectory,
    Trust,
    Verdict,
)
from .remote_demonstrations import ServedDemonstrations
from .situations.episode_map import EpisodeMap, Trail
from .values.demonstration_index import DemonstrationIndex
from .values.effects import Effect
from .values.lookahead import Lookahead
from .wire import PAGE, Wire, make_answer_error, part, plain, read, read_fields

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


class RemoteLibrary(ExperienceLibrary):
    """One namespace of a served library. Safe to use from several threads."""

    def __init__(self, url: str, token: str | None = None, namespace: str = "default", *, raw: bool = False) -> None:
        """Connect to a server, and create the namespace if it does not exist and the token permits it.

        Args:
            url: Address of the server, such as "http://127.0.0.1:8420".
            token: Access token. None if the server needs none.
            namespace: Namespace to work in.
            raw: Let `recall` and `offered` return recorded steps and items word for word, as a local library does. The
                token needs the right `log`. By default, the server leaves out values of other requests, and steps that
                did the same are one step.

        Raises:
            LibraryUnreachable: The server does not answer.
            LibraryForbidden: The token does not permit this namespace.
            UnknownName: The namespace does not exist and cannot be created.
            ConfigError: The address is not valid.
        """
        # no super().__init__: there is no file, and inherited methods that need one reach __getattr__
        self.namespace = namespace
        self._raw = raw
        self._wire = Wire(url, token, namespace)
        self._demonstrations = ServedDemonstrations(
            lambda limit, offset: self.trajectories(limit=limit, offset=offset), self.trajectory
        )
        try:
            about = self._about()
        except BaseException:
            self._wire.close()
            raise
        self._read_only = read(bool, about["read_only"])
        self._evolves = "write" in read(list[str], about.get("rights", ["write"]))
        self._embedder_name, self._fingerprint = read(str, about["embedder"]), read(str, about["fingerprint"])
        # Steps of runs that are not over stay on this host, apart for each token, because it names the writer.
        account = blake2b(f"{url}\n{token}".encode(), digest_size=12).hexdigest()
        self._runs = OpenRuns(str(find_cache() / f"client-{account}"), namespace)
        self._record_abandoned()

    def _about(self) -> dict[str, Any]:
        """Return the server's description of the namespace, which is created if it does not exist."""
        try:
            return cast(dict[str, Any], self._wire.get("about"))
        except UnknownName:
            return cast(dict[str, Any], self._wire.send("POST", "namespaces", {"name": self.namespace}))

    def __getattr__(self, name: str) -> Any:
        """Raise an error that explains that internals of an `ExperienceLibrary` are not served."""
        if name.startswith("_") and name != "_wire":  # a missing `_wire` must not call this method again
            raise _NotServed(
                f"{self._wire.url} does not serve this operation. Use `hardwon memory` on the server's machine."
            )
        raise AttributeError(name)

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "RemoteLibrary":
        """Connect to a server; the same as calling the class.

        Args:
            *args: Positional arguments of the class.
            **options: Keyword arguments of the class.
        """
        return cls(*args, **options)

    def reopen(self, namespace: str | None = None) -> "RemoteLibrary":
        """Connect to the server again, as another handle with the same token; see `ExperienceLibrary.reopen`."""
        name = self.namespace if namespace is None else namespace
        return RemoteLibrary(self._wire.url, self._wire.token, name, raw=self._raw)

    @property
    def path(self) -> str:
        """Return the address of the server."""
        return self._wire.url

    @property
    def read_only(self) -> bool:
        """Return whether the token does not permit recording."""
        return self._read_only

    @property
    def episodes(self) -> int:
        """Return the number of episodes in this namespace, without excluded ones."""
        return read(int, self._wire.get("about")["episodes"])

    def count_practice(self, state: State, actions: Iterable[str] = ()) -> int:
        """Return the number of episodes in this namespace: the server does not say which are of one environment."""
        return self.episodes

    @property
    def revision(self) -> tuple[int, int]:
        """Return the number of episodes, and a number that changes when recorded ones are graded or forgotten."""
        description = self._wire.get("about")
        return read(int, description["episodes"]), read(int, description["edition"])

    @property
    def embedder(self) -> Any:
        """Return the name and fingerprint of the embedder, which runs on the server."""
        return _Embedder(self._embedder_name, self._fingerprint)

    # -- writing ----------------------------------------------------------------------------------

    def _record_abandoned(self) -> None:
        """Send the runs of processes of this host that are gone; they wait if the server does not take them."""
        if not self._read_only:
            with suppress(LibraryError):
                self._runs.record_abandoned(self._record_again)

    def record_continued(self, whole: Trajectory) -> str:
        """Record an episode; see `ExperienceLibrary.record_continued`.

        A server replaces no episode, so the whole one is recorded beside its beginning, under another id.
        """
        is_new = self._find_beginning(whole) is None
        return self._record_whole(whole if is_new else replace(whole, id=f"{whole.id}-whole"))

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Record several episodes in one transaction; see `ExperienceLibrary.record_many`.

        Every episode gets its id before it is sent, so that a retried request does not record it twice.
        """
        episodes = [
            trajectory if trajectory.id else replace(trajectory, id=uuid.uuid4().hex) for trajectory in trajectories
        ]
        body = {"episodes": plain(list[Trajectory], episodes)}
        answer = self._wire.answer("POST", "episodes", has_key=False, json=body)
        return self._check_count(read(list[str], answer["ids"]), episodes)

    def receive(self, trajectories: Iterable[Trajectory], *, writer: str, trust: Trust) -> list[str]:
        """Record episodes as `record_many` does.

        The server decides, by the token of this connection, who wrote them and whether to trust them.

        Args:
            trajectories: The episodes.
            writer: Not sent: the server names the token.
            trust: Not sent: a token with the right `record` alone is untrusted.
        """
        return self.record_many(trajectories)

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Propose several items to the curator, in one transaction."""
        proposals = list(items)
        return self._check_count(self._admissions("items", {"items": plain(list[Item], proposals)}), proposals)

    def _check_count(self, results: list[T], sent: Sequence[Any]) -> list[T]:
        """Return the results of a write if there is one for each record."""
        if len(results) != len(sent):
            raise make_answer_error(f"has {len(results)} results for {len(sent)} records")
        return results

    def apply(
        self, operations: Sequence[Operation], trajectory: Trajectory, seen_ids: Sequence[str]
    ) -> list[Admission]:
        """Apply the operations of an extractor that read a recorded episode; see `ExperienceLibrary.apply`."""
        requests = [
            {
                "item": plain(Item, operation.item),
                **({} if isinstance(operation, Add) else {"indices": list(operation.indices)}),
            }
            for operation in operations
            if not isinstance(operation, Return)
        ]
        body = {"operations": requests, "shown": list(seen_ids)}
        return self._admissions(f"episodes/{part(trajectory.id)}/reading", body)

    def _admissions(self, path: str, body: Mapping[str, Any]) -> list[Admission]:
        return read(list[Admission], self._wire.send("POST", path, body)["admissions"])

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Merge several items into one with the words of `item`; see `ExperienceLibrary.rewrite`."""
        return read(
            Admission, self._wire.send("POST", "items/rewrite", {"ids": list(item_ids), "item": plain(Item, item)})
        )

    def evolve(self, *, extractor: Extractor | None = None) -> EvolutionReport:
        """Learn items from the episodes recorded since the last call; see `ExperienceLibrary.evolve`.

        If the token does not permit writing, the server evolves the library whenever it receives an episode, and the
        report is empty.

        Raises:
            ConfigError: An extractor is given. It reads episodes on the server.
        """
        if extractor is not None:
            raise ConfigError(
                f"{self._wire.url} reads its episodes itself. Start it with: hardwon serve LIBRARY --extractor MODEL"
            )
        self._record_abandoned()
        # not an error: the runtime evolves after each episode, whatever its token permits
        if not self._evolves:
            return EvolutionReport()
        return read(EvolutionReport, self._wire.send("POST", "evolve"))

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        return read(Item, self._wire.send("PATCH", f"items/{part(item_id)}", changes))

    def feedback(self, item_id: str, helped: bool, *, writer: str = "", episode: str = "") -> Item:
        """Report whether an item helped; see `ExperienceLibrary.feedback`.

        Args:
            item_id: The id, or an unambiguous prefix of it.
            helped: Whether the item helped.
            writer: Ignored: the server knows the writer by its token.
            episode: Id of the recorded episode in which the item was used.

        Returns:
            The item with its new score. If the token may not read, an insight without content that has only the id.

        Raises:
            TooMuchFeedback: The item is already rated for this episode, or there were too many ratings in a minute.
            UnknownName: The item or the episode does not exist.
        """
        body = {"helped": helped, "episode": episode}
        answer = self._wire.send("POST", f"items/{part(item_id)}/feedback", body)
        if not answer.has_content:
            return Item("insight", "not readable with this token", id=item_id)
        return read(Item, answer)

    def grade(
        self,
        episode_id: str,
        *,
        success: bool | None = None,
        score: float | None = None,
        unknown: bool = False,
        why: str = "",
        lesson: str = "",
        instead: str = "",
        step: int | None = None,
        grader: str = "",
        trust: Trust = "trusted",
    ) -> Grade:
        """Grade, correct or explain a recorded episode; see `ExperienceLibrary.grade`.

        A token that may only record grades the episodes that it recorded. The server decides on `trust`, and puts the
        name of the token before `grader`.
        """
        body = {
            "success": success, "score": score, "unknown": unknown, "why": why, "lesson": lesson, "instead": instead,
            "step": step, "grader": grader,
        }  # fmt: skip
        return read(Grade, self._wire.send("POST", f"episodes/{part(episode_id)}/grade", body))

    def grades(self, episode_id: str) -> list[Grade]:
        """Return the grades of an episode, oldest first; see `ExperienceLibrary.grades`."""
        return read(list[Grade], self._wire.get(f"episodes/{part(episode_id)}/grades")["grades"])

    def pin(self, item_id: str, pinned: bool = True) -> Item:
        """Protect an item from being replaced or evicted."""
        return self._post_change(item_id, "pin", {"pinned": pinned})

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

    def bank(self, task: str) -> Bank:
        """Return a short-lived memory that parallel teams share during one task."""
        return RemoteBank(self._wire, task)

    # -- recall -----------------------------------------------------------------------------------

    def recall(
        self,
        state_or_text: State | str,
        *,
        task: str | None = None,
        k: int = 5,
        kinds: Sequence[Kind] | None = None,
        budget_tokens: int | None = None,
        level: Literal["step", "task"] = "step",
        actions: Mapping[str, str] | None = None,
        after: str | None = None,
        beside: Item | None = None,
    ) -> Recollection:
        """Return the past experience that fits a state or a text; see `ExperienceLibrary.recall`.

        Raises:
            ConfigError: There is an item beside the library.
        """
        if beside is not None:
            raise ConfigError(
                f"a served library does not rank an item beside it, such as {beside.title!r:.60}; open its file."
            )
        about = {"text": state_or_text} if isinstance(state_or_text, str) else {"state": asdict(state_or_text)}
        query = {
            **about, "task": task, "k": k, "kinds": None if kinds is None else list(kinds),
            "budget_tokens": budget_tokens, "level": level, "actions": None if actions is None else dict(actions),
            "after": after, "raw": self._raw,
        }  # fmt: skip
        return read(Recollection, self._wire.ask("recall", query))

    def check(self, state: State, action: str, *, again: bool = False) -> Verdict:
        """Return whether a guardrail forbids an action in a state; see `ExperienceLibrary.check`."""
        # the same endpoint serves `enforce`, which counts refusals; a mere check must not
        query = {"state": asdict(state), "action": action, "again": again, "about_to_run": False}
        return read(Verdict, self._wire.ask("check", query))

    def enforce(
        self, state: State, action: str, *, again: bool = False, keep: bool = True, by_hours: bool = False
    ) -> Verdict:
        """Check an action that is about to run, count a refusal, and grant a trial that is due.

        Without `keep`, the server writes nothing and grants no trial. See `ExperienceLibrary.enforce`.
        """
        query = {"state": asdict(state), "action": action, "again": again, "about_to_run": keep}
        return read(Verdict, self._wire.send("POST", "check", query))

    def settle_trial(self, item_ids: Iterable[str], worked: bool) -> None:
        """Do nothing: the server grants no trial that is not recorded."""

    def check_plan(self, state: State, actions: Iterable[str]) -> Verdict:
        """Return whether a guardrail on whole plans forbids any action of a plan."""
        return read(Verdict, self._wire.ask("check-plan", {"state": asdict(state), "actions": list(actions)}))

    def offered(
        self, state: State, kinds: Sequence[Kind] = ("skill", "remedy"), *, masked: bool = False
    ) -> tuple[Item, ...]:
        """Return the active items whose condition holds in a state; see `ExperienceLibrary.offered`."""
        query = {"state": asdict(state), "kinds": list(kinds), "masked": masked, "raw": self._raw}
        answer = self._wire.ask("offered", query)
        return tuple(read(list[Item], answer["items"]))

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap | None = None) -> Lookahead:
        """Return what each action is expected to bring; see `ExperienceLibrary.look_ahead`.

        Without `raw`, actions at other locations are those that were possible there, and none are imagined.
        """
        trail = plain(Trail, (episode or EpisodeMap()).trace())
        query = {"state": asdict(state), "actions": list(actions), "trail": trail, "raw": self._raw}
        return read(Lookahead, self._wire.ask("foresee", query))

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

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """Return the keys under which a step with this action in this state is filed."""
        query = {"state": asdict(state), "action": action, "counts": counts}
        return tuple(read(list[str], self._wire.ask("keys", query)["keys"]))

    def context(self, state: State, action: str) -> str:
        """Return the words around the arguments of an action in a state."""
        return read(str, self._wire.ask("context", {"state": asdict(state), "action": action})["context"])

    def search(self, text: str, k: int = 10, *, how: Literal["hybrid", "dense", "text"] = "hybrid") -> list[Hit]:
        """Search items and steps by text; see `ExperienceLibrary.search`."""
        return read(list[Hit], self._wire.get("search", text=text, k=k, how=how)["hits"])

    # -- inspection -------------------------------------------------------------------------------

    def _query_items(
        self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]
    ) -> list[Item]:
        if kinds is not None and not kinds:  # an empty list is no query parameter, and would return all kinds
            return []
        filters = {**by, "kind": kinds, "status": by["status"] or "all"}
        return read(list[Item], self._wire.paged("items", "items", limit, offset, filters))

    def get(self, item_id: str) -> Item:
        """Return an item of this namespace by id. Raises UnknownName."""
        return read(Item, self._wire.get(f"items/{part(item_id)}"))

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Return every change of an item, oldest first."""
        return read(list[dict[str, Any]], self._wire.get(f"items/{part(item_id)}/history")["rows"])

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Return the usages of an item, with arm and outcome."""
        return read(list[dict[str, Any]], self._wire.get(f"items/{part(item_id)}/usages")["rows"])

    def effects(self, item_id: str) -> list[Effect]:
        """Return the measured effect of an item in each world; see `ExperienceLibrary.effects`."""
        return read(list[Effect], self._wire.get(f"items/{part(item_id)}/effects")["effects"])

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """Return the effect of showing an item versus withholding it at random, with a 95 % interval."""
        return read_fields(self._wire.get(f"items/{part(item_id)}/usefulness"), _USEFULNESS)

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Return rows about episodes, newest first, without their steps."""
        return read(list[dict[str, Any]], self._wire.paged("episodes", "rows", limit, offset, {"sort": "recorded"}))

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """Return an episode with its steps, by its id or an unambiguous prefix of it."""
        return read(Trajectory, self._wire.get(f"episodes/{part(trajectory_id)}"))

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

    def segments(self, trajectory_id: str) -> list[Segment]:
        """Return the segments of an episode between its rewards."""
        return read(list[Segment], self._wire.get(f"episodes/{part(trajectory_id)}/segments")["segments"])

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Return the situations that share a signature, the most frequent first."""
        return read(list[dict[str, Any]], self._wire.paged("clusters", "rows", limit, offset))

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace."""
        return {**read_fields(self._wire.get("stats"), _STATS), "path": self._wire.url}

    def verify(self) -> list[Problem]:
        """Check every derived structure against the recorded episodes and items; empty if all agree."""
        return read(list[Problem], self._wire.get("verify")["problems"])

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes to a JSONL file, and return the number of lines."""
        content = self._wire.request("GET", "export").content
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}. Give a path in an existing folder."
            ) from error
        return int(content.count(b"\n"))

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Send a file that `export_jsonl` wrote, and return the number of new lines."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Give the path of an exported file.") from error
        answer = self._wire.answer("POST", "import", {"trust": trust}, content=content)
        return read(int, answer["lines"])

    def close(self) -> None:
        """Send the runs that are not over, and close the connections. Closing twice is allowed."""
        with suppress(LibraryError):
            self._runs.close(self._record_again)
        self._wire.close()


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


class _Embedder:
    """Name and fingerprint of a server's embedder."""

    def __init__(self, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
