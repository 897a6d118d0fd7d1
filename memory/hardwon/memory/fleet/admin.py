"""The administration of a shared library: its upkeep is entries of the log, which every replica applies."""

import itertools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, UnknownName
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.parts.admin import LibraryAdmin, WriteKind, check_request
from hardwon.memory.parts.file import LibraryFile
from hardwon.memory.parts.items import LibraryItems
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import Problem, Trust
from hardwon.memory.trust import opinions
from hardwon.memory.upkeep import forgetting, integrity
from hardwon.memory.upkeep.damage import names_damage
from hardwon.memory.upkeep.forgetting import ForgetReceipt
from hardwon.memory.validation import check_text

from . import snapshots
from .application.bank import SharedBank
from .application.values import SharedValues
from .file import ReplicaFile, Undo, make_keys
from .replica import Replica
from .storage import folders

LARGEST_IMPORT = 256 * 2**20
"""Largest size of an imported file in bytes: it is one entry, which is applied as a whole."""

logger = logging.getLogger("hardwon.memory")


@names_damage
class FleetAdmin(LibraryAdmin):
    """Administration of a shared namespace, with its log and its replica."""

    _file: ReplicaFile

    def __init__(
        self,
        file: ReplicaFile,
        items: LibraryItems,
        reopen: Callable[[str], AbstractContextManager[ExperienceLibrary]],
    ) -> None:
        super().__init__(file, items)
        self._reopen = reopen

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and ages of this namespace, with the position of the replica and its age in seconds.

        With an outbox, `outbox` is the number of episodes that wait for the server.
        """
        figures = {**super().stats(), "position": self.position, "staleness_s": round(self.staleness_s, 3)}
        return figures if self._file.outbox is None else {**figures, "outbox": self._file.outbox.count()}

    def once(self, key: str, request: str, write: Callable[[], str], *, change: WriteKind = "items") -> str:
        """Carry out a write once; see `LibraryAdmin.once`.

        The key of the write is that of its entry, of which the log holds one. The entry of a change of items has the
        answer, too; that to a grade is an entry after it. Other writes append the same if they are carried out again,
        and this host keeps their answers.
        """
        if change == "idempotent":
            return self._answer(key, request, write)
        if change == "outcomes":
            given = self._find_reply(key, request)
            if given is not None:
                return given
            answer = write()
            return self.once(key, request, lambda: answer)  # or that of another host, if it was faster
        with self._file.lock:
            self._file.entry_keys = (f"{key}-{number}" for number in itertools.count())
            try:
                carry_out = self._change_once if change == "items" else self._answer
                return carry_out(key, request, write)
            finally:
                self._file.entry_keys, self._file.reply = make_keys(), None

    def _change_once(self, key: str, request: str, write: Callable[[], str]) -> str:
        """Change items once, and keep the answer beside the change."""
        with self._file.transaction():  # other hosts wait, so the log is complete
            given = self._find_reply(key, request)
            if given is None:
                given = write()
                self._file.reply = request, given
            return given

    def _find_reply(self, key: str, request: str) -> str | None:
        """Return the answer in the log; None if there is none."""
        entry = self._file.log.find("items", f"{key}-0")
        return None if entry is None else check_request(entry["reply"][0], request, entry["reply"][1])

    def forget(
        self,
        *,
        episode: str | None = None,
        writer: str | None = None,
        text: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        """Delete experience permanently, from every replica and from the log; see `LibraryAdmin.forget`.

        Every replica deletes it when it reaches the entry that this call appends. The content of the log is erased
        after a snapshot was stored that new replicas begin from.
        """
        what, value = forgetting.parse_selector(episode=episode, writer=writer, text=text, namespace=namespace)
        if what == "namespace" and value != self._file.namespace:
            self._check_namespace(value)
            with self._reopen(value) as other:
                return other.admin.forget(namespace=value, dry_run=dry_run)
        self._file.sync()
        estimate = super().forget(**{what: value}, dry_run=True)
        sought = {"text": value, "namespace": ""}.get(what)  # every entry holds the empty text
        if sought is not None and (quoting := snapshots.count_quoting(self._file.log, sought)):
            estimate = replace(estimate, counts={**estimate.counts, "log entries": quoting})
        if dry_run:
            return estimate
        self._file.check_writable()
        if not self._file.log.may_manage():
            raise LibraryForbidden(
                f"{self._file.path}: the role may not forget in the namespace {self._file.namespace!r}. The owner "
                "grants it: hardwon memory grant ADDRESS ROLE --manage"
            )
        at = self._file.append_once("forget", [what, value])
        self._file.note_write()
        self._file.sync()
        return self._complete(replace(estimate, dry_run=False), at)

    def _complete(self, receipt: ForgetReceipt, entry: int) -> ForgetReceipt:
        """Return a receipt with what this replica stored about an entry, after erasing what the log holds."""
        rows = self._file.store.rows("SELECT at, counts, digest, erased FROM receipts ORDER BY id DESC LIMIT 1")
        at, _, digest, is_erased = rows[0] if rows else (receipt.at, "", receipt.digest, 0)
        try:
            self._file.follower.erase()
        except LibraryError as error:
            logger.warning("%s The replicas forget, but the content of the log is not erased yet.", error)
            is_erased = 0
        return replace(receipt, at=at, digest=digest, erased=bool(is_erased))

    def _check_namespace(self, name: str) -> None:
        if name not in (names := [name for (name,) in self._file.log.read("SELECT name FROM hardwon.namespaces")]):
            raise UnknownName.of("namespace", name, names)

    def import_jsonl(self, path: str | Path, trust: Trust = "trusted") -> int:
        """Read a file that `export_jsonl` wrote, as one entry of the log; see `LibraryAdmin.import_jsonl`."""
        self._file.check_writable()
        lines = read_export(path)
        count, values = 0, None
        with self._file.lock, self._file.appending("import", lambda: values):
            try:
                with LibraryFile.transaction(self._file) as connection:
                    count = Replica(self._file.store, self._file.number).load_lines(connection, trust, lines)
                    raise Undo
            except Undo:
                pass
            if count:
                values = [trust, lines]
        return count

    def repair(self) -> list[Problem]:
        """Fill the replica again from the log if `verify` reports problems."""
        self._file.check_writable()
        with self._file.lock:
            self._file.sync()
            problems = integrity.verify(self._file.filed(), self._file.number)
            if problems:
                self._file.follower.refill()
                self._file.reset()
            return problems

    def verify(self) -> list[Problem]:
        """Check every derived structure of the replica, and list episodes of the outbox that the log refused."""
        problems = [] if self._file.outbox is None else self._file.outbox.refused()
        return [
            *super().verify(),
            *(
                Problem(f"outbox {ref}", why, "Record the episode again under another id, then delete the outbox.")
                for ref, why in problems
            ),
        ]

    def bank(self, task: str) -> SharedBank:
        """Return a short-lived memory that teams on several machines share during one task."""
        check_text("task", task)
        file = self._file
        return SharedBank(file.store, file.number, redact(task), self._promote, file.log, file.sync, file.next_key)

    def open_values(self) -> SharedValues:
        """Return the values that applications on several machines stored; see `LibraryAdmin.open_values`."""
        return SharedValues(self._file)

    def count_rating(self, client: str, *, most: int) -> None:
        """Count one rating of a client, over all processes of this host; see `LibraryAdmin.count_rating`."""
        check_text("client", client)
        with self._file.lock, self._file.store.transaction() as connection:
            opinions.count_rating(connection, client, most, time.time())

    @property
    def replica(self) -> str:
        """Return the path of the replica's file on this host."""
        return self._file.store.path

    @property
    def position(self) -> int:
        """Return the position in the log up to which the replica is filled."""
        return self._file.follower.position

    @property
    def staleness_s(self) -> float:
        """Return the seconds since the replica last held everything that was in the log."""
        return self._file.follower.staleness_s

    def sync(self) -> int:
        """Apply everything that is in the log now, and return the position."""
        return self._file.sync()

    def store_snapshot(self, *, folder: str | None = None) -> int:
        """Store a copy of this replica, from which new replicas begin; return its position.

        The process that learns items does so by itself whenever the log has grown enough.
        """
        self._file.check_writable()
        if folder is not None:
            folders.choose(self._file.log, folder)
        self._file.sync()
        return self._file.follower.store_snapshot()


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
            library.admin.import_jsonl(path)
            library.admin.export_jsonl(clean)
        return clean.read_text(encoding="utf-8").split("\n")[:-1]
