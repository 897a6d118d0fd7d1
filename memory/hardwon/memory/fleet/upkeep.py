"""Upkeep of a shared library: what a file does to itself is an entry of the log here, which every replica applies."""

import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, LibraryUnreachable, UnknownName
from hardwon.memory.grading.grades import Grade
from hardwon.memory.grading.regrading import Regrading, pack_grade, unpack_grade
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.records import Problem, Trajectory, Trust
from hardwon.memory.storage.clock import now
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.upkeep import forgetting, integrity, jsonl
from hardwon.memory.upkeep.forgetting import ForgetReceipt
from hardwon.memory.upkeep.forgetting.replacement import EpisodeVersion
from hardwon.memory.upkeep.maintenance import WriteKind, check_request
from hardwon.memory.upkeep.write_buffer import DISCOUNT

from . import snapshots
from .entries import locate_steps, pack
from .replica import Replica
from .replicated import ReplicatedLibrary, make_keys
from .storage import folders

LARGEST_IMPORT = 256 * 2**20
"""Largest size of an imported file in bytes: it is one entry, which is applied as a whole."""

logger = logging.getLogger("hardwon.memory")


class Undo(Exception):
    """Rolls back the transaction in which a change was computed."""


class TendedReplica(ReplicatedLibrary):
    """The methods of a shared library that maintain it."""

    @abstractmethod
    def reopen(self, namespace: str | None = None) -> "TendedReplica":
        """Open the library again, as another handle."""

    def once(self, key: str, request: str, write: Callable[[], str], *, change: WriteKind = "items") -> str:
        """Carry out a write once; see `ExperienceLibrary.once`.

        The key of the write is that of its entry, of which the log holds one. The entry of a change of items has the
        answer, too. Other writes append the same if they are carried out again, and this host keeps their answers.
        """
        if change == "idempotent":
            return self._answer(key, request, write)
        with self._lock:
            self._keys = (f"{key}-{number}" for number in itertools.count())
            try:
                carry_out = self._change_once if change == "items" else self._answer
                return carry_out(key, request, write)
            finally:
                self._keys, self._reply = make_keys(), None

    def _change_once(self, key: str, request: str, write: Callable[[], str]) -> str:
        """Change items once, and keep the answer beside the change."""
        with self._transaction():  # other hosts wait, so the log is complete
            entry = self._log.find("items", f"{key}-0")
            if entry is not None:
                stored, answer = entry["reply"]
                return check_request(stored, request, answer)
            answer = write()
            self._reply = request, answer
            return answer

    @contextmanager
    def _appending(self, kind: str, read: Callable[[], Any]) -> Iterator[int]:
        """Compute a change at the end of the log in the body, and append what `read` returns then, unless it is None.

        No other process changes items meanwhile. Yields the term of the lease.
        """
        key, values = self._next_key(), None
        try:
            with self._log.change() as term:
                self._follower.catch_up()
                yield term
                values = read()
                if values is not None:
                    self._log.append(kind, [(key, pack(values))], term=term)
        except LibraryUnreachable:
            # The connection may have been lost after the server committed: ask before reporting a failure.
            if values is None or self._log.find(kind, key) is None:
                raise
        self._note_write()

    def forget(
        self,
        *,
        episode: str | None = None,
        writer: str | None = None,
        text: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        """Delete experience permanently, from every replica and from the log; see `ExperienceLibrary.forget`.

        Every replica deletes it when it reaches the entry that this call appends. The content of the log is erased
        after a snapshot was stored that new replicas begin from.
        """
        what, value = forgetting.parse_selector(episode=episode, writer=writer, text=text, namespace=namespace)
        if what == "namespace" and value != self.namespace:
            self._check_namespace(value)
            with self.reopen(value) as other:
                return other.forget(namespace=value, dry_run=dry_run)
        self.sync()
        estimate = super().forget(**{what: value}, dry_run=True)
        sought = {"text": value, "namespace": ""}.get(what)  # every entry holds the empty text
        if sought is not None and (quoting := snapshots.count_quoting(self._log, sought)):
            estimate = replace(estimate, counts={**estimate.counts, "log entries": quoting})
        if dry_run:
            return estimate
        self._check_writable()
        if not self._log.may_manage():
            raise LibraryForbidden(
                f"{self.path}: the role may not forget in the namespace {self.namespace!r}. The owner grants it: "
                "hardwon memory grant ADDRESS ROLE --manage"
            )
        at = self._append_once("forget", [what, value])
        self._note_write()
        self.sync()
        return self._complete(replace(estimate, dry_run=False), at)

    def _complete(self, receipt: ForgetReceipt, entry: int) -> ForgetReceipt:
        """Return a receipt with what this replica stored about an entry, after erasing what the log holds."""
        rows = self._store.rows("SELECT at, counts, digest, erased FROM receipts ORDER BY id DESC LIMIT 1")
        at, _, digest, is_erased = rows[0] if rows else (receipt.at, "", receipt.digest, 0)
        try:
            self._follower.erase()
        except LibraryError as error:
            logger.warning("%s The replicas forget, but the content of the log is not erased yet.", error)
            is_erased = 0
        return replace(receipt, at=at, digest=digest, erased=bool(is_erased))

    def _write_grade(self, grade: Grade, episode: Trajectory) -> Grade:
        """Append a grade to the log; every replica computes in its place what it changes."""
        self._check_writable()
        values: Any = None
        with self._appending("grade", lambda: values):
            try:
                with ExperienceLibrary._transaction(self) as connection:
                    # Read again at the end of the log: another host may have graded the episode in the meantime.
                    now = self.trajectory(episode.id)
                    keys = [step.keys for step in episode.steps] if now.success is None else []
                    grade = replace(grade, previous_success=now.success, previous_score=now.score)
                    values = pack_grade(grade, keys)
                    grade, now = unpack_grade({**values}, lambda ref: now)
                    grade = Regrading(self._store, connection, self._number, DISCOUNT).apply(grade, now)
                    if not grade.is_new:
                        values = None
                    raise Undo
            except Undo:
                pass
        return grade

    def _check_namespace(self, name: str) -> None:
        if name not in (names := [name for (name,) in self._log.read("SELECT name FROM hardwon.namespaces")]):
            raise UnknownName.of("namespace", name, names)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read a file that `export_jsonl` wrote, as one entry of the log; see `ExperienceLibrary.import_jsonl`."""
        self._check_writable()
        lines = read_export(path)
        count, values = 0, None
        with self._lock, self._appending("import", lambda: values):
            try:
                with ExperienceLibrary._transaction(self) as connection:
                    count = Replica(self._store, self._number).load_lines(connection, trust, lines)
                    raise Undo
            except Undo:
                pass
            if count:
                values = [trust, lines]
        return count

    def _write_versions(self, versions: Sequence[EpisodeVersion]) -> None:
        """Append later versions of episodes to the log as lines of an export, which every replica applies.

        Without a right to forget, an episode of which a version became part stays beside it.
        """
        self._check_writable()
        steps = sorted({ref for new, _ in versions for step in new.steps for ref in step.why.similar or ()})
        places = locate_steps(self._store, self._number, steps)
        lines = [
            dumps(jsonl.encode_line(replace(new, id=refs[0]), self._log.read_clock() or now(), places))
            for new, refs in versions
        ]
        with self._lock, self._appending("import", lambda: ["trusted", lines]):
            pass

    def repair(self) -> list[Problem]:
        """Fill the replica again from the log if `verify` reports problems."""
        self._check_writable()
        with self._lock:
            self.sync()
            problems = integrity.verify(self._filed(), self._number)
            if problems:
                self._follower.refill()
                self._reset()
            return problems

    def verify(self) -> list[Problem]:
        """Check every derived structure of the replica, and list episodes of the outbox that the log refused."""
        problems = [] if self._outbox is None else self._outbox.refused()
        return [
            *super().verify(),
            *(
                Problem(f"outbox {ref}", why, "Record the episode again under another id, then delete the outbox.")
                for ref, why in problems
            ),
        ]

    def store_snapshot(self, *, folder: str | None = None) -> int:
        """Store a copy of this replica, from which new replicas begin; return its position.

        The process that learns items does so by itself whenever the log has grown enough.
        """
        self._check_writable()
        if folder is not None:
            folders.choose(self._log, folder)
        self.sync()
        return self._follower.store_snapshot()


def read_export(path: str | Path) -> list[str]:
    """Return the lines of an exported file without secrets and in the current format."""
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). Check the path.") from error
    if size > LARGEST_IMPORT:
        raise ConfigError(
            f"{path} has {size} bytes; a shared library imports at most {LARGEST_IMPORT} at once. Split the file "
            "by episodes, and keep the order of its lines."
        )
    # Through a library: it checks and redacts, and completes files of older versions.
    with TemporaryDirectory(prefix="hardwon-import-") as folder:
        clean = Path(folder) / "clean.jsonl"
        with closing(ExperienceLibrary.open(Path(folder) / "import.db", embedder="hashing")) as library:
            library.import_jsonl(path)
            library.export_jsonl(clean)
        return clean.read_text(encoding="utf-8").split("\n")[:-1]
