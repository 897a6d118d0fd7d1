"""A library that a server holds: `tacit serve experience.db` there, and here

    with RemoteLibrary("http://127.0.0.1:8420", token="tacit_...", namespace="acme") as library:
        Agent(policy, library, environment).run()

It is an `ExperienceLibrary` in every call that an agent or a person makes, with the same records and the same
errors; what needs the file itself (repair, restoring an item past admission) is refused. Calls that may
be repeated without harm are tried again when the server does not answer. httpx is imported when one is made.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

from . import errors
from .bank import Bank, Entry
from .errors import ConfigError, LibraryError, LibraryUnreachable, MissingExtra, TacitError, UnknownName
from .library import ExperienceLibrary
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

T = TypeVar("T")

TRIES = 4
"""How often a call that may be repeated is made before the server counts as unreachable."""
WAIT_S = 0.2
"""Before the second try; twice as long before each further one."""
TIMEOUT_S = 60.0
PAGE = 1000
"""Rows that one request asks for."""


class RemoteLibrary(ExperienceLibrary):
    """One namespace of a served library; safe for many threads."""

    def __init__(self, url: str, token: str | None = None, namespace: str = "default") -> None:
        """Make the namespace where it is new and the token may.

        Raises: LibraryUnreachable, LibraryForbidden, UnknownName, ConfigError.
        """
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra.of("httpx", "serve") from error
        self.url = url.rstrip("/")
        self.namespace = namespace
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=TIMEOUT_S)
        except (ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"{url!r} is no address of a server ({error}). Give http://HOST:PORT.") from error
        try:
            about = self._about()
        except BaseException:
            self._http.close()
            raise
        self._read_only = bool(about["read_only"])
        self._embedder_name, self._fingerprint = str(about["embedder"]), str(about["fingerprint"])

    def _about(self) -> dict[str, Any]:
        try:
            return cast(dict[str, Any], self._get("about"))
        except UnknownName:
            return cast(dict[str, Any], self._send("POST", "namespaces", {"name": self.namespace}))

    def __getattr__(self, name: str) -> Any:
        """What an `ExperienceLibrary` has inside is the server's."""
        if name.startswith("_"):
            raise _NotServed(f"{self.url} does not serve this; do it beside the library's file, with `tacit memory`.")
        raise AttributeError(name)

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "RemoteLibrary":
        """The same as making one."""
        return cls(*args, **options)

    @property
    def path(self) -> str:
        """Where the library is: the server's address."""
        return self.url

    @property
    def read_only(self) -> bool:
        """Whether this token may not write."""
        return self._read_only

    @property
    def episodes(self) -> int:
        """Episodes recorded in this namespace, excluded ones apart."""
        return int(self._get("about")["episodes"])

    @property
    def embedder(self) -> Any:
        """The name and fingerprint of what turns its texts into vectors; it does so on the server."""
        return _Embedder(self._embedder_name, self._fingerprint)

    # -- writing ----------------------------------------------------------------------------------

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Write episodes in one transaction; each has its id before it is sent, so that a repeated call is one."""
        told = [
            trajectory if trajectory.id else replace(trajectory, id=uuid.uuid4().hex) for trajectory in trajectories
        ]
        answer = self._send("POST", "episodes", {"episodes": _plain(list[Trajectory], told)}, again=True)
        return [str(ref) for ref in answer["ids"]]

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Add items in one transaction."""
        return self._admissions("items", {"items": _plain(list[Item], list(items))})

    def apply(self, operations: Sequence[Operation], trajectory: Trajectory, shown: Sequence[str]) -> list[Admission]:
        """Carry out what an extractor asks for after reading a recorded episode; see `extraction`."""
        told = [
            {"item": _plain(Item, one.item), **({} if isinstance(one, Add) else {"indices": list(one.indices)})}
            for one in operations
            if not isinstance(one, Return)
        ]
        return self._admissions(f"episodes/{_part(trajectory.id)}/reading", {"operations": told, "shown": list(shown)})

    def _admissions(self, path: str, body: Mapping[str, Any]) -> list[Admission]:
        return _read(list[Admission], self._send("POST", path, body)["admissions"])

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Rewrite items into one with the words of `item`."""
        return _read(
            Admission, self._send("POST", "items/rewrite", {"ids": list(item_ids), "item": _plain(Item, item)})
        )

    def evolve(self) -> EvolutionReport:
        """Distil what was recorded since the last call into items, within the rate limits."""
        return _read(EvolutionReport, self._send("POST", "evolve"))

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        return _read(Item, self._send("PATCH", f"items/{_part(item_id)}", changes))

    def pin(self, item_id: str, pinned: bool = True) -> Item:
        """Protect an item from being replaced or evicted."""
        return self._changed(item_id, "pin", {"pinned": pinned})

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use; it and the reason stay in the history."""
        self._changed(item_id, "retire", {"why": why})

    def release(self, item_id: str, why: str) -> Item:
        """Take an item out of quarantine, on a person's word; it is trusted from then on."""
        return self._changed(item_id, "release", {"why": why})

    def undo(self, item_id: str) -> Item:
        """Take back the last change of an item that was not taken back yet."""
        return self._changed(item_id, "undo", None)

    def _changed(self, item_id: str, how: str, body: Mapping[str, Any] | None) -> Item:
        return _read(Item, self._send("POST", f"items/{_part(item_id)}/{how}", body))

    def bank(self, task: str) -> Bank:
        """A short-lived bank that parallel teams share during one task; dropped when it closes."""
        return RemoteBank(self._answer, task)

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
    ) -> Recollection:
        """What past experience says about a state or a text. Empty is a valid answer."""
        about = {"text": state_or_text} if isinstance(state_or_text, str) else {"state": asdict(state_or_text)}
        asked = {
            **about, "task": task, "k": k, "kinds": None if kinds is None else list(kinds),
            "budget_tokens": budget_tokens, "level": level, "actions": None if actions is None else dict(actions),
            "after": after,
        }  # fmt: skip
        return _read(Recollection, self._asked("recall", asked))

    def check(self, state: State, action: str) -> Verdict:
        """Whether a guardrail forbids this action in this state."""
        return _read(Verdict, self._asked("check", {"state": asdict(state), "action": action}))

    def check_plan(self, state: State, actions: Iterable[str]) -> Verdict:
        """Whether a guardrail on whole plans forbids one of these actions to a plan made in this state."""
        return _read(Verdict, self._asked("check-plan", {"state": asdict(state), "actions": list(actions)}))

    def offered(self, state: State, kinds: Sequence[Kind] = ("skill", "remedy")) -> tuple[Item, ...]:
        """Active items of these kinds whose condition holds here, the best first."""
        found = self._asked("offered", {"state": asdict(state), "kinds": list(kinds)})
        return tuple(_read(list[Item], found["items"]))

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """All keys under which a step with this action in this state is filed."""
        return tuple(self._asked("keys", {"state": asdict(state), "action": action, "counts": counts})["keys"])

    def context(self, state: State, action: str) -> str:
        """What holds around the arguments of an action here."""
        return str(self._asked("context", {"state": asdict(state), "action": action})["context"])

    def search(self, text: str, k: int = 10, *, how: Literal["hybrid", "dense", "text"] = "hybrid") -> list[Hit]:
        """Items and steps that speak of a text, best first."""
        return _read(list[Hit], self._get("search", text=text, k=k, how=how)["hits"])

    # -- inspection -------------------------------------------------------------------------------

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
        if kinds is not None and not kinds:
            return []
        filters = {
            "kind": kinds, "status": status or "all", "sort": sort, "signature": signature, "location": location,
            "tag": tag, "trust": trust, "source": source, "writer": writer, "text": text,
        }  # fmt: skip
        return _read(list[Item], self._paged("items", "items", limit, offset, filters))

    def get(self, item_id: str) -> Item:
        """An item of this namespace by its id; raises UnknownName."""
        return _read(Item, self._get(f"items/{_part(item_id)}"))

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Every change of an item, oldest first."""
        return self._rows(f"items/{_part(item_id)}/history")

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Who was shown an item, when, in which arm, and how the episode ended."""
        return self._rows(f"items/{_part(item_id)}/usages")

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """What an item is worth by randomised show and withhold, with a 95% interval."""
        return dict(self._get(f"items/{_part(item_id)}/usefulness"))

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Rows about episodes, newest first, without their steps."""
        return self._paged("episodes", "rows", limit, offset)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One episode with its steps; an unambiguous beginning of the id is enough."""
        return _read(Trajectory, self._get(f"episodes/{_part(trajectory_id)}"))

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Steps by id, in the order of the ids given; those that do not exist are left out."""
        found: list[Step] = []
        for at in range(0, len(ids), PAGE):
            found += _read(list[Step], self._get("steps", id=list(ids[at : at + PAGE]))["steps"])
        return found

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """What came of every kind of action, in one kind of situation or in all; the most tried first."""
        filters = {"signature": signature}
        return _read(list[Summary], self._paged("summaries", "summaries", limit, offset, filters))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """The ids of the steps behind a count of a summary."""
        return list(self._get(f"summaries/{summary_id}/evidence", failure=failure)["steps"])

    def segments(self, trajectory_id: str) -> list[Segment]:
        """The stretches of an episode between its gains."""
        return _read(list[Segment], self._get(f"episodes/{_part(trajectory_id)}/segments")["segments"])

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Situations that share a signature, the most frequent first."""
        return self._paged("clusters", "rows", limit, offset)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and ages."""
        return {**self._get("stats"), "path": self.url}

    def verify(self) -> list[Problem]:
        """Every derived structure checked against the truth; empty when all agree."""
        return _read(list[Problem], self._get("verify")["problems"])

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes as lines of JSON, all of one moment; returns how many lines."""
        content = self._answer("GET", "export").content
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}. Give a path in a folder.") from error
        return int(content.count(b"\n"))

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read what `export_jsonl` wrote, in one transaction; returns how many lines were new."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a file of an export.") from error
        answer = self._answer("POST", "import", {"trust": trust}, content=content, again=True)
        return int(answer.json()["lines"])

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._http.close()

    # -- the wire ---------------------------------------------------------------------------------

    def _rows(self, path: str) -> list[dict[str, Any]]:
        return list(self._get(path)["rows"])

    def _paged(
        self, path: str, name: str, limit: int | None, offset: int, filters: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """All rows that are asked for, a page at a time."""
        found: list[Any] = []
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self._get(path, limit=wanted, offset=offset + len(found), **(filters or {}))[name]
            found += page
            if len(page) < wanted:
                break
        return found

    def _get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, query, again=True).json()

    def _asked(self, path: str, body: Mapping[str, Any]) -> Any:
        """A question that changes nothing."""
        return self._send("POST", path, body, again=True)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Any:
        return self._answer(method, path, json=body, again=again).json()

    def _answer(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *, again: bool = False, **body: Any
    ) -> Any:
        """The server's answer; `again`: the call may be repeated without harm."""
        import httpx

        known = {name: value for name, value in (query or {}).items() if value is not None}
        parameters = {"namespace": self.namespace, **known}
        for left in reversed(range(TRIES)):
            wait_s = WAIT_S * 2 ** (TRIES - 1 - left)
            try:
                answer = self._http.request(method, path, params=parameters, **body)
            except httpx.ConnectError as error:  # nothing was sent: any call may be repeated
                if not left:
                    raise self._unreachable(error) from error
            except httpx.TransportError as error:
                if not again or not left:
                    raise self._unreachable(error) from error
            else:
                if answer.status_code == 429 and left:  # it was not let in: any call may be repeated
                    wait_s = max(wait_s, float(answer.headers.get("retry-after", 1)))
                elif answer.status_code < 400:
                    return answer
                else:
                    raise self._error(answer)
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _unreachable(self, error: Exception) -> LibraryUnreachable:
        return LibraryUnreachable(
            f"{self.url} does not answer ({error or type(error).__name__}). Start it with: tacit serve LIBRARY"
        )

    def _error(self, answer: Any) -> TacitError:
        """The error that the server raised."""
        try:
            told = answer.json()
            detail, name = str(told["detail"]), str(told["error"])
        except (ValueError, LookupError, TypeError):
            return LibraryError(f"{self.url} answered {answer.status_code}, not as tacit does. Is the address right?")
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TacitError):
            return kind(detail)
        return LibraryError(f"{self.url} answered {answer.status_code}: {detail}")


class RemoteBank(Bank):
    """A bank that a server holds."""

    def __init__(self, call: Callable[..., Any], task: str) -> None:
        self._call = call
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key; returns the entry's number."""
        return int(self._asked("POST", "entries", {"team": team, "key": key, "value": value})["id"])

    def entries(self, after: int = 0) -> list[Entry]:
        """What there is, without the values, oldest first; only what came after the entry of this number."""
        return _read(list[Entry], self._asked("GET", "entries", after=after)["entries"])

    def pull(self, entry: int, reader: str) -> str:
        """The value of an entry; the pull is logged."""
        return str(self._asked("POST", "pull", {"entry": entry, "reader": reader})["value"])

    def pulls(self, *, own: bool = False) -> list[tuple[int, str]]:
        """(entry, reader) of every pull by another team, or of every pull of an own entry."""
        return _read(list[tuple[int, str]], self._asked("GET", "pulls", own=own)["pulls"])

    def promote(self, item: Item, episode: str) -> Admission:
        """Keep something beyond the task, on the word of an episode that succeeded."""
        return _read(Admission, self._asked("POST", "promote", {"item": _plain(Item, item), "episode": episode}))

    def drop(self) -> None:
        """Forget all entries of the task."""
        self._call("DELETE", "bank/entries", {"task": self.task}, again=True)

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        told = {} if body is None else {"json": body}
        return self._call(method, f"bank/{path}", {"task": self.task, **query}, again=method == "GET", **told).json()


class _NotServed(LibraryError, AttributeError):
    """Asked of a served library: what only its file has."""


class _Embedder:
    """What is known of a server's embedder."""

    def __init__(self, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint


def _part(ref: str) -> str:
    return quote(ref, safe="")


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _read(kind: type[T], value: Any) -> T:
    """A record out of JSON."""
    return cast(T, _adapter(cast(Any, kind)).validate_python(value))


def _plain(kind: Any, value: Any) -> Any:
    """A record as JSON."""
    return _adapter(kind).dump_python(value, mode="json")
