"""Snapshots in a folder outside the database: sealed, replaced, forgotten, and never left behind."""

import builtins
import os
import signal
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from tests import warm
from tests.memory.fleet.test_shared import settle
from tests.memory.fleet.test_upkeep import SECRET, fill

from hardwon.memory.errors import ConfigError, LibraryError, LibraryForbidden, LibraryUnreachable, MissingExtra
from hardwon.memory.fleet import snapshots
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log, grant
from hardwon.memory.fleet.storage import folders
from hardwon.memory.fleet.storage.sealing import PART, BrokenSeal, seal, unseal

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("cryptography")
KEY = bytes(32)


@pytest.fixture(params=["file", "memory"])
def folder(request, tmp_path) -> str:
    return (tmp_path / "bucket").as_uri() if request.param == "file" else f"memory://{uuid4().hex}"


def list_files(folder: str) -> dict[str, bytes]:
    system, path = fsspec.core.url_to_fs(folder)
    return {name: system.cat_file(name) for name in system.find(path)}


def note_fetches(monkeypatch) -> list[int]:
    fetched: list[int] = []
    inner = Log.fetch

    def fetch(log, after, *limit):
        fetched.append(after)
        return inner(log, after, *limit)

    monkeypatch.setattr(Log, "fetch", fetch)
    return fetched


def find_file(log: Log) -> folders.SealedFile:
    snapshot = snapshots.find(log)
    assert snapshot is not None
    assert snapshot.file is not None
    return snapshot.file


def test_a_new_replica_begins_from_a_folder(connect, episode, folder, monkeypatch):
    monkeypatch.setattr(snapshots, "FEW", 1)
    one = connect("a")
    fill(one, episode)
    position = one.admin.store_snapshot(folder=folder)
    assert one._file.log.read("SELECT count(*) FROM hardwon.chunks") == [(0,)]
    (content,) = list_files(folder).values()
    assert content[:4] != bytes.fromhex("28b52ffd")  # not plain Zstandard
    fetched = note_fetches(monkeypatch)
    two = connect("b")
    assert min(fetched, default=position) == position
    assert len(settle(one, two)) == 1
    assert two.admin.verify() == []


def test_one_file_is_kept_and_the_database_may_be_chosen_again(connect, episode, folder):
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    first = list_files(folder)
    one.record(episode("close drawer", id="after"))
    one.admin.store_snapshot()
    second = list_files(folder)
    assert len(second) == 1
    assert not first.keys() & second.keys()
    one.admin.store_snapshot(folder="database")
    assert list_files(folder) == {}
    assert one._file.log.read("SELECT count(*) > 0 FROM hardwon.chunks") == [(True,)]
    assert one._file.log.read("SELECT count(*) FROM hardwon.unneeded") == [(0,)]


def test_forgetting_makes_the_old_file_unreadable_before_it_is_deleted(connect, episode, folder, monkeypatch):
    """A storage may keep old versions, so deleting the file is not enough: its key goes with its row."""
    monkeypatch.setattr(snapshots, "FEW", 1)
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    ((key,),) = one._file.log.read("SELECT secret FROM hardwon.snapshots")
    (before,) = list_files(folder)
    assert one.admin.forget(text="zebra").erased
    assert before not in list_files(folder)
    rows = one._file.log.read("SELECT secret FROM hardwon.snapshots")
    assert len(rows) == 1
    assert bytes(rows[0][0]) != bytes(key)
    two = connect("b")
    assert len(settle(one, two)) == 1
    two.close()
    assert SECRET.encode() not in Path(two.admin.replica).read_bytes()


@pytest.mark.parametrize(("where", "is_stored"), [("_insert", False), ("delete_unneeded", True)])
def test_a_killed_process_leaves_no_file_behind(connect, episode, url, tmp_path, where, is_stored):
    folder = (tmp_path / "bucket").as_uri()
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    script = (
        "import os, sys\n"
        "from hardwon.memory import ExperienceLibrary\n"
        "from hardwon.memory.fleet import snapshots\n"
        "from hardwon.memory.fleet.storage import folders\n"
        f"setattr({'folders' if is_stored else 'snapshots'}, {where!r}, lambda *_: os.kill(os.getpid(), 9))\n"
        "ExperienceLibrary.open(sys.argv[1], replica=sys.argv[2]).admin.store_snapshot()\n"
    )
    child = warm.run([sys.executable, "-c", script, url, str(tmp_path / "killed")], timeout=180)
    assert child.returncode == -signal.SIGKILL
    assert len(list_files(folder)) == 2
    if not is_stored:  # it may still be written: only after an hour is it known that nobody needs it
        one.admin.store_snapshot()
        assert len(list_files(folder)) == 2
        one._file.log.write("UPDATE hardwon.unneeded SET due = clock_timestamp() WHERE namespace = %(namespace)s")
    one.admin.store_snapshot()
    assert len(list_files(folder)) == 1
    assert find_file(one._file.log).name in next(iter(list_files(folder)))
    assert one._file.log.read("SELECT count(*) FROM hardwon.unneeded") == [(0,)]


def test_a_file_that_took_too_long_is_not_stored(connect, episode, folder, monkeypatch):
    monkeypatch.setattr(folders, "UPLOAD_S", -1)
    one = connect("a")
    fill(one, episode)
    with pytest.raises(LibraryUnreachable, match=r"within -1 s.*--folder database"):
        one.admin.store_snapshot(folder=folder)
    assert snapshots.find(one._file.log) is None
    monkeypatch.undo()
    one.admin.store_snapshot()
    assert len(list_files(folder)) == 1


def test_without_the_folder_a_replica_is_filled_from_the_log(connect, episode, folder, monkeypatch, caplog):
    monkeypatch.setattr(snapshots, "FEW", 1)
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    (name,) = list_files(folder)
    fsspec.core.url_to_fs(folder)[0].rm_file(name)
    assert len(settle(one, connect("b"))) == 1
    assert "is missing" in caplog.text
    assert "filled from the log" in caplog.text


def test_forgetting_does_not_wait_for_a_folder(connect, episode, tmp_path, caplog):
    """Then the snapshot is in the database, and a replica that was away begins from it."""
    one = connect("a")
    fill(one, episode)
    bucket = tmp_path / "bucket"
    one.admin.store_snapshot(folder=bucket.as_uri())
    bucket.rename(tmp_path / "gone")
    bucket.write_text("no folder")
    assert one.admin.forget(text="zebra").erased
    assert "stored in the database instead" in caplog.text
    assert one._file.log.read("SELECT count(*) > 0 FROM hardwon.chunks") == [(True,)]
    assert len(settle(one, connect("b"))) == 1
    with pytest.raises(LibraryUnreachable, match=r"bucket.*cannot be written.*credentials"):
        one.admin.store_snapshot(folder=bucket.as_uri())


def test_erased_entries_need_the_folder(connect, episode, folder):
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    one.admin.forget(text="zebra")
    (name,) = list_files(folder)
    fsspec.core.url_to_fs(folder)[0].rm_file(name)
    with pytest.raises(LibraryUnreachable, match=r"is missing.*hardwon memory snapshot"):
        connect("b")


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"x" + content[1:]])
def test_a_changed_file_is_refused(connect, episode, folder, damage, monkeypatch):
    monkeypatch.setattr(snapshots, "FEW", 1)
    one = connect("a")
    fill(one, episode)
    one.admin.store_snapshot(folder=folder)
    ((name, content),) = list_files(folder).items()
    fsspec.core.url_to_fs(folder)[0].pipe_file(name, damage(content))
    with pytest.raises(LibraryError, match=r"damaged.*hardwon\.snapshots"):
        connect("b")


def test_only_the_owner_chooses_a_folder(connect, episode, server, url, tmp_path, folder):
    """A tenant uses it, and its rows cannot name a file of another namespace."""
    one = connect("a")
    fill(one, episode)
    name = f"keeper_{os.getpid()}_{uuid4().hex[:6]}"
    server.sql(f"CREATE ROLE {name} LOGIN")
    grant(url, name, "default", write=True, manage=True)
    tenant = server.url(url.split("/")[3].split("?")[0], name)
    with FleetLibrary.connect(tenant, replica=tmp_path / "t2") as library:
        with pytest.raises(LibraryForbidden):
            library.admin.store_snapshot(folder=folder)
        one.admin.store_snapshot(folder=folder)
        library.admin.store_snapshot()
        assert len(list_files(folder)) == 1
        file = find_file(library._file.log)
        library._file.log.write("DELETE FROM hardwon.snapshots WHERE namespace = %(namespace)s")
        library._file.log.write(
            "INSERT INTO hardwon.unneeded VALUES (%(namespace)s, %(folder)s, '../../x', '-infinity')",
            {"folder": file.folder},
        )
        with pytest.raises(LibraryForbidden):
            library._file.log.write("INSERT INTO hardwon.unneeded VALUES (999, 1, 'x', '-infinity')")
    with pytest.raises(LibraryError, match="no name of a snapshot's file"):
        folders.find(one._file.log, file.folder).delete("../../x")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("bucket", ConfigError, "bucket is no folder for all hosts.*s3://BUCKET/FOLDER"),
        ("ftp://me:hunter2@host/x", ConfigError, r"\[password\]"),
        ("nothing://x", ConfigError, "nothing://x/.*no folder of fsspec.*s3://BUCKET/FOLDER"),
    ],
)
def test_an_address_that_is_no_folder_is_refused(connect, address, error, words):
    with pytest.raises(error, match=words) as raised:
        connect("a").admin.store_snapshot(folder=address)
    assert "hunter2" not in str(raised.value)


def test_a_missing_package_is_named(connect, monkeypatch):
    one = connect("a")
    inner = builtins.__import__

    def refuse(name, *rest):
        if name == "fsspec":
            raise ModuleNotFoundError(name=name)
        return inner(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"fsspec.*pip install '\.\[storage\]'"):
        one.admin.store_snapshot(folder="memory://x")


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1])
def test_a_sealed_file_opens_with_its_key_alone(size):
    content = os.urandom(size)
    parts = [content[at : at + PART] for at in range(0, size, PART)]
    sealed = b"".join(seal(parts, KEY))

    def read(data: bytes):
        left = bytearray(data)

        def take(count: int) -> bytes:
            part = bytes(left[:count])
            del left[:count]
            return part

        return take

    assert b"".join(unseal(read(sealed), KEY)) == content
    if size:
        with pytest.raises(BrokenSeal):
            list(unseal(read(sealed), bytes([1]) * 32))
        with pytest.raises(BrokenSeal):
            list(unseal(read(sealed[: PART + 16] if size > PART else sealed[:-1]), KEY))
