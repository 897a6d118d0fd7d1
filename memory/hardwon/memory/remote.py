"""A library that a server holds: `hardwon serve experience.db` there, and here

    with RemoteLibrary("http://127.0.0.1:8420", token="hardwon_...", namespace="acme") as library:
        Agent(policy, library, environment).run()

It is an `ExperienceLibrary` in every call that an agent or a person makes, with the same records and the same
errors; what needs the file itself (repair, restoring an item past admission) is refused. How the calls are made
is in `wire`.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

from .bank import Bank, Entry
from .errors import ConfigError, LibraryError, UnknownName
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
from .values.effects import Effect
from .wire import PAGE, Wire, part, plain, read


class RemoteLibrary(ExperienceLibrary):
    """One namespace of a served library; safe for many threads."""

    def __init__(self, url: str, token: str | None = None, namespace: str = "default") -> None:
        """Make the namespace where it is new and the token may.

        Raises: LibraryUnreachable, LibraryForbidden, UnknownName, ConfigError.
        """
        self.namespace = namespace
        self._wire = Wire(url, token, namespace)
        try:
            about = self._about()
        except BaseException:
            self._wire.close()
            raise
        self._read_only = bool(about["read_only"])
        self._evolves = "write" in about.get("rights", ["write"])
        self._embedder_name, self._fingerprint = str(about["embedder"]), str(about["fingerprint"])

    def _about(self) -> dict[str, Any]:
        try:
            return cast(dict[str, Any], self._wire.get("about"))
        except UnknownName:
            return cast(dict[str, Any], self._wire.send("POST", "namespaces", {"name": self.namespace}))

    def __getattr__(self, name: str) -> Any:
        """What an `ExperienceLibrary` has inside is the server's."""
        if name.startswith("_") and name != "_wire":
            raise _NotServed(
                f"{self._wire.url} does not serve this; do it beside the library's file, with `hardwon memory`."
            )
        raise AttributeError(name)

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "RemoteLibrary":
        """The same as making one."""
        return cls(*args, **options)

    @property
    def path(self) -> str:
        """Where the library is: the server's address."""
        return self._wire.url

    @property
    def read_only(self) -> bool:
        """Whether this token may not record."""
        return self._read_only

    @property
    def episodes(self) -> int:
        """Episodes recorded in this namespace, excluded ones apart."""
        return int(self._wire.get("about")["episodes"])

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
        answer = self._wire.send("POST", "episodes", {"episodes": plain(list[Trajectory], told)}, again=True)
        return [str(ref) for ref in answer["ids"]]

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Add items in one transaction."""
        return self._admissions("items", {"items": plain(list[Item], list(items))})

    def apply(self, operations: Sequence[Operation], trajectory: Trajectory, shown: Sequence[str]) -> list[Admission]:
        """Carry out what an extractor asks for after reading a recorded episode; see `learning.extraction`."""
        told = [
            {"item": plain(Item, one.item), **({} if isinstance(one, Add) else {"indices": list(one.indices)})}
            for one in operations
            if not isinstance(one, Return)
        ]
        return self._admissions(f"episodes/{part(trajectory.id)}/reading", {"operations": told, "shown": list(shown)})

    def _admissions(self, path: str, body: Mapping[str, Any]) -> list[Admission]:
        return read(list[Admission], self._wire.send("POST", path, body)["admissions"])

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Rewrite items into one with the words of `item`."""
        return read(
            Admission, self._wire.send("POST", "items/rewrite", {"ids": list(item_ids), "item": plain(Item, item)})
        )

    def evolve(self) -> EvolutionReport:
        """Distil what was recorded since the last call into items, within the rate limits.

        For a token that may not write, the server does so itself when it takes an episode: the report is empty.
        """
        if not self._evolves:
            return EvolutionReport()
        return read(EvolutionReport, self._wire.send("POST", "evolve"))

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        return read(Item, self._wire.send("PATCH", f"items/{part(item_id)}", changes))

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
        return read(Item, self._wire.send("POST", f"items/{part(item_id)}/{how}", body))

    def bank(self, task: str) -> Bank:
        """A short-lived bank that parallel teams share during one task; dropped when it closes."""
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
    ) -> Recollection:
        """What past experience says about a state or a text. Empty is a valid answer."""
        about = {"text": state_or_text} if isinstance(state_or_text, str) else {"state": asdict(state_or_text)}
        asked = {
            **about, "task": task, "k": k, "kinds": None if kinds is None else list(kinds),
            "budget_tokens": budget_tokens, "level": level, "actions": None if actions is None else dict(actions),
            "after": after,
        }  # fmt: skip
        return read(Recollection, self._wire.ask("recall", asked))

    def check(self, state: State, action: str, *, again: bool = False) -> Verdict:
        """Whether a guardrail forbids this action in this state; `again`: it just failed and nothing worked since."""
        asked = {"state": asdict(state), "action": action, "again": again, "about_to_run": False}
        return read(Verdict, self._wire.ask("check", asked))

    def enforce(self, state: State, action: str, *, again: bool = False, keep: bool = True) -> Verdict:
        """Check an action that is about to run: a refusal is counted, and a trial that is due is given.

        Without `keep` the server writes nothing, and no trial is given.
        """
        asked = {"state": asdict(state), "action": action, "again": again, "about_to_run": keep}
        return read(Verdict, self._wire.ask("check", asked))

    def settle_trial(self, item_ids: Iterable[str], worked: bool) -> None:
        """Do nothing: of what is not recorded the server learns nothing."""

    def check_plan(self, state: State, actions: Iterable[str]) -> Verdict:
        """Whether a guardrail on whole plans forbids one of these actions to a plan made in this state."""
        return read(Verdict, self._wire.ask("check-plan", {"state": asdict(state), "actions": list(actions)}))

    def offered(
        self, state: State, kinds: Sequence[Kind] = ("skill", "remedy"), *, masked: bool = False
    ) -> tuple[Item, ...]:
        """Active items of these kinds whose condition holds here, the best first; see `ExperienceLibrary.offered`."""
        asked = {"state": asdict(state), "kinds": list(kinds), **({"masked": True} if masked else {})}
        found = self._wire.ask("offered", asked)
        return tuple(read(list[Item], found["items"]))

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """All keys under which a step with this action in this state is filed."""
        return tuple(self._wire.ask("keys", {"state": asdict(state), "action": action, "counts": counts})["keys"])

    def context(self, state: State, action: str) -> str:
        """What holds around the arguments of an action here."""
        return str(self._wire.ask("context", {"state": asdict(state), "action": action})["context"])

    def search(self, text: str, k: int = 10, *, how: Literal["hybrid", "dense", "text"] = "hybrid") -> list[Hit]:
        """Items and steps that speak of a text, best first."""
        return read(list[Hit], self._wire.get("search", text=text, k=k, how=how)["hits"])

    # -- inspection -------------------------------------------------------------------------------

    def _listed(
        self, kinds: Sequence[Kind] | None, limit: int | None, offset: int, by: Mapping[str, Any]
    ) -> list[Item]:
        if kinds is not None and not kinds:
            return []
        asked = {**by, "kind": kinds, "status": by["status"] or "all"}
        return read(list[Item], self._wire.paged("items", "items", limit, offset, asked))

    def get(self, item_id: str) -> Item:
        """An item of this namespace by its id; raises UnknownName."""
        return read(Item, self._wire.get(f"items/{part(item_id)}"))

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Every change of an item, oldest first."""
        return list(self._wire.get(f"items/{part(item_id)}/history")["rows"])

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Who was shown an item, when, in which arm, and how the episode ended."""
        return list(self._wire.get(f"items/{part(item_id)}/usages")["rows"])

    def effects(self, item_id: str) -> list[Effect]:
        """What an item does in each world; see `ExperienceLibrary.effects`."""
        return read(list[Effect], self._wire.get(f"items/{part(item_id)}/effects")["effects"])

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """What an item is worth by randomised show and withhold, with a 95% interval."""
        return dict(self._wire.get(f"items/{part(item_id)}/usefulness"))

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Rows about episodes, newest first, without their steps."""
        return self._wire.paged("episodes", "rows", limit, offset)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One episode with its steps; an unambiguous beginning of the id is enough."""
        return read(Trajectory, self._wire.get(f"episodes/{part(trajectory_id)}"))

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Steps by id, in the order of the ids given; those that do not exist are left out."""
        found: list[Step] = []
        for at in range(0, len(ids), PAGE):
            found += read(list[Step], self._wire.get("steps", id=list(ids[at : at + PAGE]))["steps"])
        return found

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """What came of every kind of action, in one kind of situation or in all; the most tried first."""
        filters = {"signature": signature}
        return read(list[Summary], self._wire.paged("summaries", "summaries", limit, offset, filters))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """The ids of the steps behind a count of a summary."""
        return list(self._wire.get(f"summaries/{summary_id}/evidence", failure=failure)["steps"])

    def segments(self, trajectory_id: str) -> list[Segment]:
        """The stretches of an episode between its gains."""
        return read(list[Segment], self._wire.get(f"episodes/{part(trajectory_id)}/segments")["segments"])

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Situations that share a signature, the most frequent first."""
        return self._wire.paged("clusters", "rows", limit, offset)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and ages."""
        return {**self._wire.get("stats"), "path": self._wire.url}

    def verify(self) -> list[Problem]:
        """Every derived structure checked against the truth; empty when all agree."""
        return read(list[Problem], self._wire.get("verify")["problems"])

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes as lines of JSON, all of one moment; returns how many lines."""
        content = self._wire.answer("GET", "export").content
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
        answer = self._wire.answer("POST", "import", {"trust": trust}, content=content, again=True)
        return int(answer.json()["lines"])

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        self._wire.close()


class RemoteBank(Bank):
    """A bank that a server holds."""

    def __init__(self, wire: Wire, task: str) -> None:
        self._wire = wire
        self.task = task

    def put(self, team: str, key: str, value: str) -> int:
        """Share a value under a short key; returns the entry's number."""
        return int(self._asked("POST", "entries", {"team": team, "key": key, "value": value})["id"])

    def entries(self, after: int = 0) -> list[Entry]:
        """What there is, without the values, oldest first; only what came after the entry of this number."""
        return read(list[Entry], self._asked("GET", "entries", after=after)["entries"])

    def pull(self, entry: int, reader: str) -> str:
        """The value of an entry; the pull is logged."""
        return str(self._asked("POST", "pull", {"entry": entry, "reader": reader})["value"])

    def pulls(self, *, own: bool = False) -> list[tuple[int, str]]:
        """(entry, reader) of every pull by another team, or of every pull of an own entry."""
        return [(int(one["entry"]), str(one["reader"])) for one in self._asked("GET", "pulls", own=own)["pulls"]]

    def promote(self, item: Item, episode: str) -> Admission:
        """Keep something beyond the task, on the word of an episode that succeeded."""
        return read(Admission, self._asked("POST", "promote", {"item": plain(Item, item), "episode": episode}))

    def drop(self) -> None:
        """Forget all entries of the task."""
        self._wire.answer("DELETE", "bank/entries", {"task": self.task}, again=True)

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        told = {} if body is None else {"json": body}
        answer = self._wire.answer(method, f"bank/{path}", {"task": self.task, **query}, again=method == "GET", **told)
        return answer.json()


class _NotServed(LibraryError, AttributeError):
    """Asked of a served library: what only its file has."""


class _Embedder:
    """What is known of a server's embedder."""

    def __init__(self, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
