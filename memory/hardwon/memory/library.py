"""The experience library: what the agent did before, what it learnt from it, and recall of both.

SQLite is the truth; everything in memory is rebuilt from it. Many threads and many processes may
read and write one library. This file knows nothing of prompts, models or graphs.

    with ExperienceLibrary.open("experience.db") as library:
        library.record(trajectory)
        library.evolve()
        recollection = library.recall(state, k=3)
        verdict = library.check(state, "eat raw potato")
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, Literal, Self
from weakref import ref

from . import items as catalogue
from .bank import Bank
from .errors import LibraryError, UnknownName
from .guardrails.conditions import holds
from .guardrails.probation import WEAKENED, Probation, Standing
from .learning import extraction
from .learning.consolidation import Distiller, admit_within_limits
from .learning.curator import Curator, Gate, expire
from .privacy.private_files import OwnLock
from .privacy.redaction import redact, redact_names, redact_state, redact_trajectory
from .records import (
    Admission,
    EvolutionReport,
    Hit,
    Item,
    Kind,
    Operation,
    Problem,
    Recollection,
    State,
    Trajectory,
    Trust,
    Verdict,
)
from .retrieval import recall
from .retrieval.cache import Derived
from .retrieval.embedders import Embedder
from .retrieval.search import How, Search
from .storage.cache_files import SAVE_AFTER
from .storage.database import Store
from .trust.intake import has_keys, received, with_keys
from .upkeep import forgetting, integrity, jsonl, queries
from .upkeep.administration import TendedLibrary
from .upkeep.damage import names_damage
from .upkeep.rekeying import rekey
from .upkeep.setup import agree_on_embedder, namespace_number, reembed as reembed
from .upkeep.write_buffer import Inbox
from .validation import (
    check_choice,
    check_count,
    check_episode,
    check_episodes,
    check_id,
    check_item,
    check_items,
    check_kinds,
    check_object,
    check_state,
    check_text,
    check_texts,
)
from .values.effects import Effect

KEYS_AFTER = 64
"""Episodes recorded without keys after which the words that keys depend on are read again."""


@names_damage
class ExperienceLibrary(TendedLibrary):
    """A durable collection of experience and of the items distilled from it; see `open`."""

    def __init__(self, store: Store, embedder: Embedder, namespace: str) -> None:
        self._store = store
        self._embedder = embedder
        self._lock = OwnLock(store.path)
        self.namespace = namespace
        self._number = namespace_number(store, namespace)
        self._derived = Derived(store, self._number)
        self._search = Search(store, self._number, embedder)
        self._distiller = Distiller(store, self._number)
        self._probation = Probation(store, self._number)
        self._inbox = Inbox(store, self._number)
        self._inbox.on_filed = self._keep_filed
        store.on_forgotten = self._start_anew
        self.gate: Gate | None = None
        """A learned judge of candidates, asked after the rules of admission; None admits by rules alone."""
        self._version: tuple[int, int] | None = None
        self._looked: int | None = None
        self._copies = 0
        self._steps_written = 0
        self._keyed = 0
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
        check_id("namespace", namespace)
        store = Store(path, read_only=read_only)
        try:
            integrity.rebuild_tiers(store)
            rekey(store)
            forgetting.finish(store)
            return cls(store, agree_on_embedder(store, embedder), namespace)
        except BaseException:
            store.close()
            raise

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

        Raises: ConfigError, or WrongType, for an episode that cannot be kept; see `validation`.
        """
        return self.record_many([trajectory])[0]

    def record_many(self, trajectories: Iterable[Trajectory]) -> list[str]:
        """Write episodes in one transaction, for an import or a group of rollouts; returns their ids.

        Raises: ConfigError, or WrongType, naming the index of an episode that cannot be kept; then none is written.
        """
        with self._lock:
            episodes = self._with_keys(check_episodes(trajectories))
            version = self._version
            try:
                return self._inbox.put(episodes)
            except BaseException:  # `_whole` takes as long as a small insertion
                self._take_back(version)
                raise

    def _with_keys(self, episodes: list[Trajectory]) -> list[Trajectory]:
        """Give keys to the steps that have none.

        Keys depend on the words that many episodes share. They are read again once in a while only, because reading
        files what was recorded, and filing each episode alone takes three times as long as filing many.
        """
        if all(map(has_keys, episodes)):
            return episodes
        if self._version is None or self._keyed >= KEYS_AFTER:
            self._caught_up()
            self._keyed = 0
        self._keyed += len(episodes)

        def keys(state: State, action: str, counts: str) -> tuple[str, ...]:
            return self._derived.keys(redact_state(state), redact(action), counts)

        return [with_keys(one, keys) for one in episodes]

    def receive(self, trajectories: Iterable[Trajectory], *, writer: str, trust: Trust) -> list[str]:
        """Write episodes that came through a door, in one transaction; returns their ids.

        `writer` and `trust` are the door's, whatever the episodes say, and their keys are worked out here. See `doors`.
        """
        with self._lock:
            return self.record_many(
                [received(one, self.keys, writer=writer, trust=trust) for one in list(trajectories)]
            )

    def _keep_filed(self, episodes: Sequence[Trajectory]) -> None:
        self._distiller.keep(episodes)
        self._steps_written += sum(len(stored.steps) for stored in episodes)

    def add(self, item: Item) -> Admission:
        """Add one item, or say why not."""
        return self.add_many([item])[0]

    def add_many(self, items: Iterable[Item]) -> list[Admission]:
        """Add items in one transaction."""
        items = check_items(items)
        with self._transaction() as connection:
            curator = self._curator(connection)
            return [curator.admit(item) for item in items]

    def _curator(self, connection: Connection) -> Curator:
        return Curator(connection, self._number, self.episodes, self.gate)

    def apply(self, operations: Sequence[Operation], trajectory: Trajectory, shown: Sequence[str]) -> list[Admission]:
        """Carry out what an extractor asks for after reading a recorded episode; see `learning.extraction`.

        `shown` are the ids of the items that it was shown, in the order that its updates count.
        """
        check_episode(trajectory)
        with self._transaction() as connection:
            items = [self.get(item_id) for item_id in shown]
            return extraction.apply(self._curator(connection), operations, trajectory, items)

    def rewrite(self, item_ids: Sequence[str], item: Item) -> Admission:
        """Rewrite items into one with the words of `item`: the first stays, the others retire, evidence is united."""
        check_item(item)
        with self._transaction() as connection:
            return self._curator(connection).rewrite([self.get(item_id) for item_id in item_ids], item)

    def evolve(self) -> EvolutionReport:
        """Distil what was recorded since the last call into items, within the rate limits.

        Additions of a kind never exceed its limit; merging into what is there costs nothing.
        """
        with self._lock:
            derived = self._caught_up()
            self._distiller.read(self.trajectory)
            proposals = self._distiller.proposals(derived.values)
            unpinned = [item for item in derived.items.values() if not item.pinned]
            released = self._distiller.released(derived.values, unpinned)
            over = {item.id for item, _ in released}
            weakened = [one for one in self._distiller.weakened(derived.values, unpinned) if one[0].id not in over]
            idle = [one for one in self._distiller.idle(derived, unpinned) if one[0].id not in over]
            aging = any(item.ttl is not None for item in unpinned)
            if not (proposals or released or weakened or idle or aging):
                return EvolutionReport()
            try:
                with self._transaction() as connection:
                    admissions = admit_within_limits(self._curator(connection), proposals)
                    for item, why in released:
                        catalogue.retire(connection, self._number, item.id, why)
                    for item, why in weakened:
                        catalogue.weaken(connection, self._number, item, WEAKENED, why)
                    needed = {one.item_id for one in admissions}
                    idle = [one for one in idle if one[0].id not in needed]
                    for item, why in idle:
                        catalogue.retire(connection, self._number, item.id, why, until_needed=True)
                    expired = expire(connection, self._number, derived.episodes) if aging else []
            except BaseException:  # what was proposed was not written: propose it again
                self._distiller.start_over()
                self._forget()
                raise
            self._distiller.reopen(item for item, _ in idle)
            retired = (*(item.id for item, _ in (*released, *idle)), *expired)
            return EvolutionReport(tuple(admissions), retired, len(proposals))

    def forget(
        self,
        *,
        episode: str | None = None,
        writer: str | None = None,
        text: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> forgetting.ForgetReceipt:
        """Delete experience for good: rows, indices, summaries, history, and the items that rest on nothing else.

        Give one of: the id of an episode, the name of a writer, a text that episodes or items hold in any field
        (whatever its case), or a namespace, which is deleted whole. Items with other evidence are made anew
        from it. The bytes are gone from the file, its log and the files beside it. `dry_run` counts what would go.

        Raises: UnknownName for an episode or namespace that does not exist; ConfigError for more than one of these.
        """
        what, value = forgetting.one_selector(episode=episode, writer=writer, text=text, namespace=namespace)
        with self._lock:
            self._filed()
            number = self._number
            if what == "namespace":
                number = self._number_of(value)
                Inbox(self._store, number).file()
            elif not dry_run:
                self._inbox.on_file()
            try:
                return forgetting.forget(self._store, number, what, value, dry_run=dry_run)
            finally:
                self._looked = self._version = None

    def _number_of(self, namespace: str) -> int:
        """The number of a namespace that exists."""
        known = dict(self._store.rows("SELECT name, id FROM namespaces"))
        if namespace not in known:
            raise UnknownName.of("namespace", namespace, known)
        return int(known[namespace])

    def bank(self, task: str) -> Bank:
        """A short-lived bank that parallel teams share during one task; dropped when it closes."""
        check_text("task", task)
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
        after the same kind of action then count for more (see `retrieval.ranking`).
        """
        check_text("task", task or "")
        check_text("after", after or "")
        check_count("k", k)
        check_kinds(kinds)
        check_choice("level", level, ("step", "task"))
        if budget_tokens is not None:
            check_count("budget_tokens", budget_tokens)
        if actions is not None:
            check_object("actions", actions)
            check_texts("actions", tuple(actions.values()))
        state = state_or_text if isinstance(state_or_text, State) else State(state_or_text, task=task or "")
        check_state(state)
        if task is not None and not state.task:
            state = replace(state, task=task)
        state, asked = redact_state(state), actions or {}
        known = redact_names(asked)
        with self._lock:
            derived = self._caught_up()
            if level == "task":
                found = recall.by_task(
                    self._store, self._search, derived, state, k=k, budget_tokens=budget_tokens,
                    actions=known, after=after and redact(after),
                )  # fmt: skip
            else:
                found = recall.by_step(
                    self._store, derived, self._search, state, k=k, kinds=kinds, budget_tokens=budget_tokens,
                    actions=known, by_text=isinstance(state_or_text, str), after=after and redact(after),
                )  # fmt: skip
        return _as_asked(found, asked, known)

    def check(self, state: State, action: str, *, again: bool = False) -> Verdict:
        """Whether a guardrail forbids this action in this state.

        Pass `again=True` when the same action failed in this run and nothing worked since.
        """
        _check_asked(state, action)
        with self._lock:
            derived = self._caught_up()
            situation, action = derived.situation(redact_state(state)), redact(action)
            return derived.guard.check(situation.after_failure(action) if again else situation, action)

    def enforce(self, state: State, action: str, *, again: bool = False, keep: bool = True) -> Verdict:
        """Check an action that is about to run: a refusal is counted, and a trial that is due is given.

        On a trial the verdict allows the action and names the guardrails; whoever runs it says so in the
        step's `why` ({"overrode": items, "trial": items}), by which its outcome decides. See `probation`.
        Without `keep` nothing is written: the counts are this process's, and `settle_trial` takes the outcome.
        """
        verdict = self.check(state, action, again=again)
        if verdict.allowed:
            return verdict
        with self._lock:
            items = self._caught_up().items
            known = tuple(items[ref] for ref in verdict.items if ref in items)
            if self._probation.lifted.issuperset(verdict.items):
                return replace(verdict, allowed=True)
            trial = self._probation.admits(known, self._derived.episodes, keep=keep)
        return replace(verdict, allowed=True, trial=True) if trial else verdict

    def settle_trial(self, item_ids: Iterable[str], worked: bool) -> None:
        """Take the outcome of a trial that nobody records; it holds in this process. See `enforce`."""
        with self._lock:
            self._probation.settle(item_ids, worked)

    def standing(self, item_id: str) -> Standing:
        """How a guardrail stands on its probation: refusals, trials, and when the next one is due."""
        with self._lock:
            self._filed()
            return self._probation.standing(self.get(item_id).id)

    def effects(self, item_id: str) -> list[Effect]:
        """What an item does in each world, from episodes that were shown it and that it was held back from at random.

        In a world where it surely hurts it is masked: not offered there, but now and then; elsewhere as before.
        """
        with self._lock:
            return self._caught_up().effects(self.get(item_id))

    def check_plan(self, state: State, actions: Iterable[str]) -> Verdict:
        """Whether a guardrail on whole plans forbids one of these actions to a plan made in this state."""
        actions = list(actions)
        _check_asked(state, *actions)
        with self._lock:
            derived = self._caught_up()
            return derived.guard.check_plan(derived.situation(redact_state(state)), map(redact, actions))

    def offered(
        self, state: State, kinds: Sequence[Kind] = ("skill", "remedy"), *, masked: bool = False
    ) -> tuple[Item, ...]:
        """Active items of these kinds whose condition holds here, the best first.

        Those that hurt in the world of this state are left out; `masked` returns them instead. See `effects`.
        """
        check_state(state)
        check_kinds(kinds)
        with self._lock:
            derived = self._caught_up()
            situation = derived.situation(redact_state(state))
            left_out, worlds = derived.masked(situation.state), derived.related(situation.state)
            found = [
                item
                for item in derived.items.values()
                if item.kind in kinds
                and (item.id in left_out) == masked
                and derived.counts_in(item, worlds)
                and (item.condition is None or holds(item.condition, situation, ""))
            ]
            return tuple(sorted(found, key=lambda item: (-item.score * item.confidence, item.id)))

    def keys(self, state: State, action: str, counts: str = "") -> tuple[str, ...]:
        """All keys under which a step with this action in this state is filed."""
        _check_asked(state, action, counts)
        with self._lock:
            return self._caught_up().keys(redact_state(state), redact(action), counts)

    def context(self, state: State, action: str) -> str:
        """What holds around the arguments of an action here: the condition of automatic guardrails."""
        _check_asked(state, action)
        with self._lock:
            return self._caught_up().situation(redact_state(state)).context(redact(action))

    def search(self, text: str, k: int = 10, *, how: How = "hybrid") -> list[Hit]:
        """Items and steps that speak of a text, best first; for people rather than for policies."""
        check_text("text", text)
        check_count("k", k)
        check_choice("how", how, ("hybrid", "dense", "text"))
        with self._lock:
            derived = self._caught_up()
            return recall.search(self._store, derived, self._search, self._version, redact(text), k, how)

    def forget_findings(self) -> None:
        """Forget what searches found for situations met before: recall then depends on the library's content alone."""
        with self._lock:
            self._derived.bound.clear()
            self._derived.near.clear()
            self._derived.ranked.clear()

    # -- inspection -------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and ages; `scans` are the index searches of this process: a known situation adds none."""
        counted = queries.stats(self._filed(), self._number, self.namespace, self._embedder)
        return {**counted, "scans": self._search.scans}

    def verify(self) -> list[Problem]:
        """Every derived structure checked against the truth; empty when all agree."""
        with self._lock:
            return integrity.verify(self._filed(), self._number)

    def repair(self) -> list[Problem]:
        """Rebuild from the truth what `verify` finds wrong; returns what was repaired."""
        with self._lock:
            problems = integrity.repair(self._filed(), self._number)
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
            return jsonl.export_jsonl(self._store, self._number, path)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read what `export_jsonl` wrote, in one transaction; returns how many lines were new.

        The items of an untrusted file are quarantined, its usages and histories left out.
        """
        with self._transaction() as connection:

            def write(trajectory: Trajectory, at: str) -> None:
                self._inbox.write_alone(connection, redact_trajectory(trajectory), at)

            return jsonl.Import(connection, self._store, self._number, self.record, write, trust).read(path)

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
                self._take_back(version)
                raise

    def _take_back(self, version: tuple[int, int] | None) -> None:
        """Forget what was read since a version, in a transaction that failed."""
        self._inbox.forget()
        self._store.waiting = self._inbox.file
        if self._version != version:  # rows were read that are gone
            self._forget()

    @contextmanager
    def at_once(self) -> Iterator[object | None]:
        """Hold the library, unless another thread does, so that what is called inside waits for none.

        Gives what stays equal as long as nothing is written; None where it is held, or something new has to be read.
        """
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            with self._store.at_once() as free:
                version = (self._store.version(), self._store.connection.total_changes) if free else None
                yield (ref(self._derived), version) if free and version == self._version else None
        finally:
            self._lock.release()

    def _filed(self) -> Store:
        """What is read from: all that was recorded, by this process or another, is filed in it."""
        with self._lock:
            version = self._store.version()
            if self._looked != version or self._store.waiting is not None:
                self._store.heed()
                self._inbox.file()
                self._looked = version
            return self._store

    def _start_anew(self) -> None:
        """Drop all that was read: something was forgotten, by this process or another."""
        self._number = namespace_number(self._store, self.namespace)
        self._inbox.start_anew(self._number)
        self._distiller = Distiller(self._store, self._number)
        self._forget()

    def _forget(self) -> None:
        """Read anew what is derived."""
        self._derived = Derived(self._store, self._number)
        self._search = Search(self._store, self._number, self._embedder)
        self._version = None

    def _caught_up(self) -> Derived:
        version = (self._store.version(), self._store.connection.total_changes)
        if version != self._version:
            self._store.heed()
            self._inbox.file()
            if self._copies != self._store.copies:
                self._copies = self._store.copies
                self._distiller.forget()
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

        Closing twice is fine. In a forked process nothing is kept: the library is the parent's.
        """
        if not self._lock.is_mine():
            self._store.close()
            return
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


def _check_asked(state: State, *actions: str) -> None:
    """Check a state and the actions that are asked about in it."""
    check_state(state)
    check_texts("actions", actions)


def _as_asked(found: Recollection, asked: Mapping[str, str], known: Mapping[str, str]) -> Recollection:
    """The recollection with its estimates under the actions as they were asked for."""
    if known is asked:
        return found
    estimates = {action: found.estimates[redact(action)] for action in asked if redact(action) in found.estimates}
    return replace(found, estimates=estimates)
