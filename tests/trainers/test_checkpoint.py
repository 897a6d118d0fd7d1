"""Checkpoints: whole or not there, the newest and the best, libraries as they were."""

import asyncio
import json
import os
import random
import sys
import time

import numpy as np
import pytest
import torch
from tests import warm
from tests.memory.fleet.conftest import server, url
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.checkpoint import (
    MANIFEST,
    Checkpoints,
    copy_library,
    copy_start,
    find,
    is_whole,
    put_library,
    random_states,
    restore_random_states,
)
from hardwon.trainers.evaluate import evaluate_checkpoint
from hardwon.trainers.session import Session, read_config
from hardwon.trainers.trainer import train

__all__ = ["server", "url"]


def writes(text):
    return lambda folder: (folder / "weights").write_text(text)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def names(checkpoints):
    return [path.name for path in checkpoints.all()]


def test_the_newest_and_the_best_are_kept(checkpoints):
    for iteration, score in enumerate((0.1, 0.9, None, 0.3, 0.2)):
        checkpoints.save(iteration, writes("x"), score)
    assert names(checkpoints) == ["000001", "000003", "000004"]
    assert checkpoints.best().name == "000001"
    assert checkpoints.latest().name == "000004"


@pytest.mark.parametrize("harm", ["cut", "missing", "manifest", "more"])
def test_a_torn_one_is_passed_over_with_a_word(checkpoints, harm):
    checkpoints.save(1, writes("good"))
    torn = checkpoints.save(2, writes("longer text"))
    match harm:
        case "cut":
            (torn / "weights").write_text("lon")
        case "missing":
            (torn / "weights").unlink()
        case "manifest":
            (torn / MANIFEST).write_text('{"files": ')
        case "more":
            (torn / "stray").write_text("?")
    told: list[str] = []
    assert checkpoints.latest(told.append).name == "000001"
    assert "000002 is torn and skipped" in told[0]


def test_what_fails_while_it_is_written_leaves_no_checkpoint(checkpoints):
    checkpoints.save(1, writes("good"))

    def fails(folder):
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fails)
    assert names(checkpoints) == ["000001"]
    checkpoints.save(2, writes("whole"))
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["000001", "000002"]


def test_one_that_was_torn_is_written_again(checkpoints):
    torn = checkpoints.save(1, writes("a"))
    (torn / "weights").unlink()
    checkpoints.save(1, writes("b"))
    assert is_whole(torn)
    assert (torn / "weights").read_text() == "b"


KILLED = """
import sys
from pathlib import Path
from hardwon.trainers.checkpoint import Checkpoints
checkpoints, n = Checkpoints(Path(sys.argv[1]), keep=3), 0
def write(folder):
    for part in range(20):
        (folder / f"part{part}").write_text(str(n) * 1000)
while True:
    checkpoints.save(n, write)
    n += 1
"""


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path):
    """kill -9 while it saves without end: what bears the name of a checkpoint is one."""
    folder = tmp_path / "checkpoints"
    writer = warm.Popen([sys.executable, "-c", KILLED, str(folder)])
    try:
        while not folder.exists() or len(Checkpoints(folder).all()) < 2:
            time.sleep(0.01)
        time.sleep(random.random() / 5)
    finally:
        writer.kill()
        writer.wait()
    told: list[str] = []
    left = Checkpoints(folder).all(told.append)
    assert told == []
    # between the rename and the pruning there is one more than is kept
    assert 2 <= len(left) <= 4


def test_a_checkpoint_is_found_by_its_run(tmp_path, checkpoints):
    saved = checkpoints.save(3, writes("x"))
    assert find(tmp_path) == find(checkpoints.folder) == find(saved) == saved
    with pytest.raises(ConfigError, match="there is no checkpoint in"):
        find(tmp_path / "elsewhere")
    (saved / "weights").unlink()
    with pytest.raises(ConfigError, match="is torn"):
        find(saved)


def test_a_library_in_use_is_copied_and_put_back(library, path, tmp_path):
    """SQLite's own backup: what is in the log beside the file is in the copy."""
    library.add(Item(kind="strategy", title="look", body="look around first"))
    assert os.path.exists(f"{path}-wal")  # noqa: PTH110
    copy_library(path, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0  # as private as the library itself
    library.add(Item(kind="strategy", title="leave", body="leave through the door"))
    assert [item.title for item in library.items.find()] != ["look"]
    library.close()
    put_library(tmp_path / "copy.db", path)
    assert path.stat().st_mode & 0o077 == 0
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "experience.db"]  # noqa: PTH208
    with ExperienceLibrary.open(path) as again:
        assert [item.title for item in again.items.find()] == ["look"]
        assert again.admin.verify() == []


def test_chance_goes_on_where_it_was(tmp_path):
    """torch, numpy and python; through a file."""

    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    torch.save(random_states(), tmp_path / "random.pt")
    expected = [drawn() for _ in range(3)]
    restore_random_states(torch.load(tmp_path / "random.pt", weights_only=True))
    assert [drawn() for _ in range(3)] == expected


def test_a_manifest_says_what_is_in_it(checkpoints):
    saved = checkpoints.save(7, writes("x"), 0.5)
    manifest = json.loads((saved / MANIFEST).read_text())
    assert (manifest["iteration"], manifest["score"], list(manifest["files"])) == (7, 0.5, ["weights"])


def test_a_run_starts_from_a_copy_of_a_shared_library(url, tmp_path, monkeypatch, episode):
    """The copy is a library of its own: what the run records stays in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ExperienceLibrary.open(url) as shared:
        shared.record(episode("open drawer"))
        digest = shared.admin.query(compute_digest)
    copy_start(url, tmp_path / "copy.db")
    with ExperienceLibrary.open(tmp_path / "copy.db") as copy:
        assert copy.admin.query(compute_digest) == digest
        copy.record(episode("close drawer"))
        assert copy.episodes.count() == 2
    with ExperienceLibrary.open(url) as shared:
        assert shared.episodes.count() == 1


def test_a_file_is_copied_as_before(tmp_path, episode):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        library.record(episode("open drawer"))
        copy_start(str(tmp_path / "library.db"), tmp_path / "copy.db")
        with ExperienceLibrary.open(tmp_path / "copy.db") as copy:
            assert copy.episodes.count() == 1


def test_a_checkpoint_recalls_from_the_library_that_is_named(corridor, tmp_path):
    """Both libraries of the session hold its episodes; neither it nor the checkpoint's own is written."""
    settings = corridor(
        arms={"control": 2, "retrieved": 2}, guidance={"retrieved": "library"}, run={"iterations": 1, "groups": 1}
    )
    settings["library"] = {"explored": {"train": {"seeds": "20-23"}}}
    train(settings)
    checkpoint, other = find(tmp_path / "run"), tmp_path / "other.db"
    door = State("A door.", task="get out")
    with ExperienceLibrary.open(other) as library:
        library.record(Trajectory("get out", (Step(door, "open door", door, Diagnosis(True)),), success=True))
    before = other.read_bytes()
    session = Session.restore(checkpoint, tmp_path / "work", recalled=other)
    assert session.start is not None
    assert [part.episodes.count() for part in (session.library, session.start)] == [1, 1]
    session.close()
    report = asyncio.run(evaluate_checkpoint(checkpoint, library=other))
    assert set(report) >= {"control", "retrieved"}
    assert other.read_bytes() == before


def test_settings_of_another_version_are_refused_by_name(tmp_path):
    stored = {"environment": {"name": "textworld"}, "engine": {"kind": "local"}}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=rf"{tmp_path} has other settings than this version reads: .*engine.kind"):
        read_config(tmp_path)


def test_a_checkpoint_that_recalls_nothing_refuses_a_library(corridor, tmp_path):
    train(corridor(run={"iterations": 1}))
    with pytest.raises(ConfigError, match=r"no arm of .* recalls"):
        asyncio.run(evaluate_checkpoint(find(tmp_path / "run"), library=tmp_path / "other.db"))
