"""The experience library: what the agent did before, what it learnt from it, and recall of both.

SQLite is the truth; everything in memory is rebuilt from it. Many threads and many processes may
read and write one library. This file knows nothing of prompts, models or graphs.

    with ExperienceLibrary.open("experience.db") as library:
        library.record(trajectory)
        library.evolve()
        recollection = library.recall(state, k=3)
        verdict = library.check(state, "eat raw potato")
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, Literal, Self

from . import catalogue, clusters, credit, extraction, inspection, recall, tiers, transfer
from .bank import Bank
from .curator import Curator, Gate, expire
from .derived import Derived
from .embed import Embedder, RememberedEmbedder, open_embedder, refuse_other
from .errors import LibraryError, UnknownName
from .evolution import RATE_LIMITS, Evolution
from .guardrails import holds
from .inbox import Inbox, file_all
from .induction import Induction
from .ledger import dumps, namespace_id, read_steps
from .records import (
    Admission,
    EvolutionReport,
    Hit,
    Item,
    Kind,
    Operation,
    Problem,
    Recollection,
    Segment,
    State,
    Step,
    Summary,
    Trajectory,
    Trust,
    Verdict,
)
from .redaction import redact, redact_item, redact_names, redact_state, redact_trajectory, redact_values
from .search import How, Search
from .sidecar import SAVE_AFTER, drop_indices
from .situation import guard_keys
from .store import Store

DISCOUNT = 0.95
"""Per step, for the returns of recorded steps."""
EPISODES_READ = 500
"""Newest episodes that the first `evolve` of a process reads for skills and remedies."""


class ExperienceLibrary:
    """A durable collection of experience and of the items distilled from it; see `open`."""

    def __init__(self, store: Store, embedder: Embedder, namespace: str) -> None:
        self._store = store
        self._embedder = embedder
        self._lock = threading.RLock()
        self.namespace = namespace
        self._number = self._namespace_number()
        self._derived = Derived(store, self._number)
        self._search = Search(store, self._number, embedder)
        self._evolution = Evolution()
        self._induction = Induction()
        self._inbox = Inbox(store, self._number, DISCOUNT)
        self._inbox.on_filed = self._keep_filed
        self._read_up_to = 0
        self._just_recorded: dict[str, Trajectory] = {}
        self.gate: Gate | None = None
        """A learned judge of candidates, asked after the rules of admission; None admits by rules alone."""
        self._version: tuple[int, int] | None = None
        self._looked: int | None = None
        self._copies = 0
        self._steps_written = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | Path = "experience.db",
        embedder: str | Embedder | None = None,
        namespace: str = "default",
        read_only: bool = False,
    ) -> "ExperienceLibrary":
        """Open the library at `path` (":memory:" keeps it in this process), creating it if need be.

        Raises: NotALibrary, NewerSchema, LibraryUnwritable, EmbedderMismatch (see `errors`).
        """
        store = Store(path, read_only=read_only)
        try:
            inspection.rebuild_tiers(store)
            return cls(store, _agree_on_embedder(store, embedder), namespace)
        except BaseException:
            store.close()
            raise

    def _namespace_number(self) -> int:
        known = self._store.rows("SELECT id FROM namespaces WHERE name = ?", (self.namespace,))
        if known:
            return int(known[0][0])
        if self._store.read_only:
            names = [row[0] for row in self._store.rows("SELECT name FROM namespaces")]
            raise UnknownName.of("namespace", self.namespace, names)
        with self._store.transaction() as connection:
            return namespace_id(connection, self.namespace)

    @property
    def path(self) -> str:
        """Where the library is."""
        return self._store.path

    @property
    def read_only(self) -> bool:
        """Whether writes are refused."""
        return self._store.read_only

    @property
    def episodes(self) -> int:
        """Episodes recorded in this namespace, excluded ones apart."""
        with self._lock:
            return self._caught_up().episodes

    @property
    def embedder(self) -> Embedder:
        """What turns its texts into vectors."""
        return self._embedder

    # -- writing ----------------------------------------------------------------------------------

    def record(self, trajectory: Trajectory) -> str:
        """Write one episode; durable on return. Returns its id.

        An episode with the id of one that is there already is not written again, so that a caller
        who does not know whether it was written may repeat the call.
        """
        return self.record_many([trajectory])[0]

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Write episodes in one transaction, for an import or a group of rollouts; returns their ids."""
        with self._whole():
            return self._inbox.put(map(redact_trajectory, trajectories))

    def _keep_filed(self, episodes: Sequence[Trajectory]) -> None:
        for stored in episodes[-EPISODES_READ:]:
            if len(self._just_recorded) < EPISODES_READ:
                self._just_recorded[stored.id] = stored
        self._steps_written += sum(len(stored.steps) for stored in episodes)

    def add(self, item: Item) -> Admission:
        """Add one item, or say why not."""
        return self.add_many([item])[0]

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Add items in one transaction."""
        with self._transaction() as connection:
            curator = self._curator(connection)
            return [curator.admit(item) for item in items]

    def _curator(self, connection: Connection) -> Curator:
        return Curator(connection, self._number, self.episodes, self.gate)

    def apply(self, operations: Sequence[Operation], trajectory: Trajectory, shown: Sequence[str]) -> list[Admission]:
        """Carry out what an extractor asks for after reading a recorded episode; see `extraction`.

        `shown` are the ids of the items that it was shown, in the order that its updates count.
        """
        with self._transaction() as connection:
            items = [self.get(item_id) for item_id in shown]
            return extraction.apply(self._curator(connection), operations, trajectory, items)

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Rewrite items into one with the words of `item`: the first stays, the others retire, evidence is united."""
        with self._transaction() as connection:
            return self._curator(connection).rewrite([self.get(item_id) for item_id in item_ids], item)

    def restore(self, item: Item) -> None:
        """Write an item exactly as it is, past admission; for imports."""
        with self._transaction() as connection:
            catalogue.restore(connection, self._number, redact_item(item))

    def evolve(self) -> EvolutionReport:
        """Distil what was recorded since the last call into items, within the rate limits.

        Additions of a kind never exceed its limit; merging into what is there costs nothing.
        """
        with self._lock:
            derived = self._caught_up()
            self._read_episodes()
            proposals = self._proposals()
            unpinned = [item for item in derived.items.values() if not item.pinned]
            released = list(self._evolution.released(derived.values, iter(unpinned)))
            aging = any(item.ttl is not None for item in unpinned)
            if not (proposals or released or aging):
                return EvolutionReport()
            try:
                with self._transaction() as connection:
                    admissions = self._admit_within_limits(self._curator(connection), proposals)
                    for item, why in released:
                        catalogue.retire(connection, self._number, item.id, why)
                    expired = expire(connection, self._number, derived.episodes) if aging else []
            except BaseException:  # what was proposed was not written: propose it again
                self._evolution, self._induction, self._read_up_to = Evolution(), Induction(), 0
                self._forget()
                raise
            retired = (*(item.id for item, _ in released), *expired)
            return EvolutionReport(tuple(admissions), retired, len(proposals))

    def _read_episodes(self) -> None:
        """Read what was recorded since the last time, by this process or another, for skills and remedies."""
        new = self._store.rows(
            "SELECT seq, ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'trajectory' "
            "ORDER BY seq DESC LIMIT ?",
            (self._read_up_to, self._number, EPISODES_READ),
        )
        for seq, ref in reversed(new):
            known = self._just_recorded.get(ref)
            self._induction.read(self.trajectory(ref) if known is None else known)
            self._read_up_to = seq
        self._just_recorded.clear()

    def _proposals(self) -> list[tuple[Item, Callable[[], None], Callable[[], None]]]:
        """Every candidate, with what to call when it was put before the curator, and when it has to wait."""
        values = self._derived.values
        found: list[tuple[Item, Callable[[], None], Callable[[], None]]] = []
        for key, item in list(self._evolution.candidates(values)):
            found.append((item, _nothing, partial(self._evolution.postpone, key, values)))
        for candidate, item in list(self._induction.candidates()):
            found.append((item, partial(self._induction.taken, candidate), _nothing))
        return found

    @staticmethod
    def _admit_within_limits(
        curator: Curator, proposals: Iterable[tuple[Item, Callable[[], None], Callable[[], None]]]
    ) -> list[Admission]:
        left = dict(RATE_LIMITS)
        admissions = []
        for item, taken, wait in proposals:
            if not left.get(item.kind, 0):
                wait()
                continue
            admission = curator.admit(item)
            taken()
            left[item.kind] -= admission.status in ("added", "replaced")
            admissions.append(admission)
        return admissions

    def update(self, item_id: str, **changes: Any) -> Item:
        """Change fields of an item; the old values stay in its history."""
        return self._change(item_id, changes, "updated")

    def pin(self, item_id: str, pinned: bool = True) -> Item:
        """Protect an item from being replaced or evicted."""
        return self._change(item_id, {"pinned": pinned}, "pinned" if pinned else "unpinned")

    def retire(self, item_id: str, why: str) -> None:
        """Take an item out of use; it and the reason stay in the history."""
        with self._transaction() as connection:
            catalogue.retire(connection, self._number, self.get(item_id).id, redact(why))

    def release(self, item_id: str, why: str) -> Item:
        """Take an item out of quarantine, on a person's word; it is trusted from then on."""
        with self._transaction() as connection:
            return catalogue.release(connection, self._number, self.get(item_id), redact(why))

    def undo(self, item_id: str) -> Item:
        """Take back the last change of an item that was not taken back yet; its score stays as earned."""
        with self._transaction() as connection:
            return catalogue.undo(connection, self._number, self.get(item_id))

    def _change(self, item_id: str, changes: Mapping[str, Any], op: str) -> Item:
        with self._transaction() as connection:
            return catalogue.change(connection, self._number, self.get(item_id), redact_values(changes), op)

    def bank(self, task: str) -> Bank:
        """A short-lived bank that parallel teams share during one task; dropped when it closes."""
        return Bank(self._store, self._number, redact(task), self.add)

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
        """What past experience says about a state or a text. Empty is a valid answer.

        `actions` maps admissible actions to what this episode already tried (see
        `Situation.keys`); then the recollection has an estimate for each, and only with k > 0
        items and similar steps as well. `level="task"` retrieves whole episodes by task.
        `after` is the action just taken in this episode, "" at its beginning: steps that were taken
        after the same kind of action then count for more (see `ranking`).
        """
        state = state_or_text if isinstance(state_or_text, State) else State(state_or_text, task=task or "")
        if task is not None and not state.task:
            state = replace(state, task=task)
        state, asked = redact_state(state), actions or {}
        known = redact_names(asked)
        with self._lock:
            derived = self._caught_up()
            if level == "task":
                found = recall.by_task(
                    self._store, self._number, derived, state, k=k, budget_tokens=budget_tokens, actions=known
                )
                return _as_asked(found, asked, known)
            by_text = isinstance(state_or_text, str)
            found = recall.by_step(
                self._store,
                derived,
                self._search,
                state,
                k=k,
                kinds=kinds,
                budget_tokens=budget_tokens,
                actions=known,
                by_text=by_text,
                after=after if after is None else redact(after),
            )
            return _as_asked(found, asked, known)

    def check(self, state: State, action: str) -> Verdict:
        """Whether a guardrail forbids this action in this state."""
        with self._lock:
            derived = self._caught_up()
            return derived.guard.check(derived.situation(redact_state(state)), redact(action))

    def check_plan(self, state: State, actions: Iterable[str]) -> Verdict:
        """Whether a guardrail on whole plans forbids one of these actions to a plan made in this state."""
        with self._lock:
            derived = self._caught_up()
            return derived.guard.check_plan(derived.situation(redact_state(state)), map(redact, actions))

    def offered(self, state: State, kinds: Sequence[Kind] = ("skill", "remedy")) -> tuple[Item, ...]:
        """Active items of these kinds whose condition holds here, the best first."""
        with self._lock:
            derived = self._caught_up()
            situation = derived.situation(redact_state(state))
            found = [
                item
                for item in derived.items.values()
                if item.kind in kinds and (item.condition is None or holds(item.condition, situation, ""))
            ]
            return tuple(sorted(found, key=lambda item: (-item.score * item.confidence, item.id)))

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """All keys under which a step with this action in this state is filed."""
        with self._lock:
            situation, action = self._caught_up().situation(redact_state(state)), redact(action)
            return (*situation.keys(action, counts), *guard_keys(situation, action))

    def context(self, state: State, action: str) -> str:
        """What holds around the arguments of an action here: the condition of automatic guardrails."""
        with self._lock:
            return self._caught_up().situation(redact_state(state)).context(redact(action))

    def search(self, text: str, k: int = 10, *, how: How = "hybrid") -> list[Hit]:
        """Items and steps that speak of a text, best first; for people rather than for policies."""
        with self._lock:
            return recall.search(self._store, self._caught_up(), self._search, redact(text), k, how)

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
        return inspection.items(
            self._filed(),
            self._number,
            kinds,
            status,
            sort,
            limit,
            offset,
            text=text,
            trust=trust,
            source=source,
            writer=writer,
            signature=signature,
            location=location,
            tag=tag,
        )

    def get(self, item_id: str) -> Item:
        """An item of this namespace by its id; raises UnknownName."""
        return inspection.get(self._filed(), self._number, item_id)

    def history(self, item_id: str) -> list[dict[str, Any]]:
        """Every change of an item, oldest first: seq, at, op, detail."""
        return inspection.history(self._filed(), self._number, self.get(item_id).id)

    def usages(self, item_id: str) -> list[dict[str, Any]]:
        """Who was shown an item, when, in which arm, and how the episode ended."""
        return inspection.usages(self._filed(), self._number, self.get(item_id).id)

    def usefulness(self, item_id: str) -> dict[str, Any]:
        """What an item is worth by randomised show and withhold, with a 95% interval; see `credit.usefulness`."""
        with self._lock:
            return credit.usefulness(self._filed().connection, self._number, self.get(item_id).id)

    def trajectories(self, *, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Rows about episodes, newest first, without their steps."""
        return inspection.trajectories(self._filed(), self._number, limit, offset)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One episode with its steps; an unambiguous beginning of the id is enough."""
        return inspection.trajectory(self._filed(), self._number, trajectory_id)

    def steps(self, ids: Sequence[int]) -> list[Step]:
        """Steps of this namespace by id, in the order of the ids given; those that do not exist are left out."""
        where = "namespace = ? AND id IN (SELECT value FROM json_each(?))"
        found = {step.id: step for step in read_steps(self._filed(), where, (self._number, dumps(list(ids))))}
        return [found[ref] for ref in ids if ref in found]

    def summaries(self, signature: str | None = None, *, limit: int | None = None, offset: int = 0) -> list[Summary]:
        """What came of every kind of action, in one kind of situation or in all; the most tried first."""
        return list(tiers.summaries(self._filed(), self._number, signature, limit, offset))

    def evidence(self, summary_id: int, failure: str | None = None) -> list[int]:
        """The ids of the steps behind a count of a summary: all of them, or those with a failure ("none": without)."""
        return tiers.evidence(self._filed(), self._number, summary_id, failure)

    def segments(self, trajectory_id: str) -> list[Segment]:
        """The stretches of an episode between its gains; an unambiguous beginning of the id is enough."""
        ref = inspection.trajectory_id(self._filed(), self._number, trajectory_id)
        return tiers.segments(self._filed(), self._number, ref)

    def clusters(self, limit: int | None = None, offset: int = 0) -> list[dict[str, Any]]:
        """Situations that share a signature, the most frequent first: how often they were met, and what pays there."""
        return clusters.listed(self._filed(), self._number, limit, offset)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and ages; `scans` are the index searches of this process: a known situation adds none."""
        counted = inspection.stats(self._filed(), self._number, self.namespace, self._embedder)
        return {**counted, "scans": self._search.scans}

    def verify(self) -> list[Problem]:
        """Every derived structure checked against the truth; empty when all agree."""
        with self._lock:
            return inspection.verify(self._filed(), self._number)

    def repair(self) -> list[Problem]:
        """Rebuild from the truth what `verify` finds wrong; returns what was repaired."""
        with self._lock:
            problems = inspection.repair(self._filed(), self._number)
            self._forget()
            self._inbox.file()
            if any(problem.where.endswith("vectors") for problem in problems):
                self.index()
            return problems

    def index(self) -> None:
        """Embed what has no vector yet and read all values, so that the next recall need not."""
        with self._lock:
            derived = self._caught_up()
            self._search.index("states")
            self._search.index("items")
            derived.read_values()

    def export_jsonl(self, path: str | Path) -> int:
        """Write items and episodes as lines of JSON, all of one moment; returns how many lines."""
        with self._lock, self._filed().snapshot():
            return transfer.export_jsonl(self._store, self._number, path)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read what `export_jsonl` wrote, in one transaction; returns how many lines were new.

        The items of an untrusted file are quarantined, its usages and histories left out.
        """
        with self._transaction() as connection:

            def write(trajectory: Trajectory, at: str) -> None:
                self._inbox.write_alone(connection, redact_trajectory(trajectory), at)

            return transfer.Import(connection, self._store, self._number, self.record, write, trust).read(path)

    # -- life -------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Everything inside becomes durable together, after all that was recorded before."""
        with self._whole():
            self._inbox.on_file()
            with self._store.transaction() as connection:
                self._inbox.file()
                yield connection

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What was remembered of a transaction that failed is forgotten."""
        with self._lock:
            version = self._version
            try:
                yield
            except BaseException:
                self._inbox.forget()
                self._store.waiting = self._inbox.file
                if self._version != version:  # rows were read that are gone
                    self._forget()
                raise

    def _filed(self) -> Store:
        """What is read from: all that was recorded, by this process or another, is filed in it."""
        with self._lock:
            version = self._store.version()
            if self._looked != version or self._store.waiting is not None:
                self._inbox.file()
                self._looked = version
            return self._store

    def _forget(self) -> None:
        """Read anew what is derived."""
        self._derived = Derived(self._store, self._number)
        self._search = Search(self._store, self._number, self._embedder)
        self._version = None

    def _caught_up(self) -> Derived:
        version = (self._store.version(), self._store.connection.total_changes)
        if version != self._version:
            self._inbox.file()
            if self._copies != self._store.copies:
                self._copies = self._store.copies
                self._just_recorded.clear()
                self._forget()
            version = (version[0], self._store.connection.total_changes)
            with self._store.snapshot():
                changed = self._derived.catch_up()
            if "item" in changed:
                self._search.forget("items")
            self._version = version  # of before: what was written meanwhile is read the next time
        return self._derived

    def close(self) -> None:
        """Close the file, and keep what is derived beside it where that spares the next opening time.

        Closing twice is fine.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                with suppress(LibraryError):
                    if not self.read_only:
                        self._inbox.file()
                    if self._steps_written >= SAVE_AFTER:
                        self._caught_up().read_values()
                    self._derived.save()
                    self._search.save()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items())


def _nothing() -> None:
    """What is done where nothing is to be done."""


def _as_asked(found: Recollection, asked: Mapping[str, str], known: Mapping[str, str]) -> Recollection:
    """The recollection with its estimates under the actions as they were asked for."""
    if known is asked:
        return found
    estimates = {action: found.estimates[redact(action)] for action in asked if redact(action) in found.estimates}
    return replace(found, estimates=estimates)


def reembed(
    path: str | Path, embedder: str | Embedder, on_embedded: Callable[[int, int], None] = lambda done, of: None
) -> Embedder:
    """Make `embedder` the library's own and embed all of it, in every namespace; goes on where a killed one stopped.

    `on_embedded` is told how many of how many texts are embedded, each time some were written.
    """
    chosen = open_embedder(embedder)
    store = Store(path)
    try:
        with store.transaction() as connection:
            if store.rows("SELECT value FROM meta WHERE name = 'fingerprint'") != [(chosen.fingerprint,)]:
                connection.execute("DELETE FROM vectors")
                _remember(store, chosen)
                drop_indices(store)
        file_all(store, DISCOUNT)
        inspection.embed_all(store, chosen, on_embedded)
    finally:
        store.close()
    return chosen


def _agree_on_embedder(store: Store, wanted: str | Embedder | None) -> Embedder:
    """The library's own embedder; another one is refused with the command that re-embeds."""
    known = dict(store.rows("SELECT name, value FROM meta WHERE name IN ('embedder', 'fingerprint')"))
    if known and wanted is None:
        return RememberedEmbedder(known["embedder"], known["fingerprint"], store.path)
    embedder = open_embedder(wanted)
    if known:
        refuse_other(embedder, known["embedder"], known["fingerprint"], store.path)
    if known or store.read_only:
        return embedder
    with store.transaction() as connection:
        taken = connection.execute("SELECT 1 FROM meta WHERE name = 'fingerprint'").fetchone()
        if not taken:
            _remember(store, embedder)
    return _agree_on_embedder(store, embedder) if taken else embedder  # another process was first


def _remember(store: Store, embedder: Embedder) -> None:
    store.connection.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        [("embedder", embedder.name), ("fingerprint", embedder.fingerprint)],
    )
