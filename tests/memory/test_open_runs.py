"""Steps of runs that are not over: on the disk at once, recorded when nobody else can, and never in the way."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hardwon.memory import ExperienceLibrary, Trajectory, open_runs
from hardwon.memory.errors import LibraryUnwritable
from hardwon.memory.open_runs import OpenRuns


@pytest.fixture
def folder(path: Path) -> Path:
    return Path(f"{path}.runs")


def add_steps(run, episode: Trajectory) -> None:
    for step in episode.steps:
        run.add(replace(episode, steps=(step,)))


def leave(path: Path, episode: Trajectory, namespace: str = "default") -> OpenRuns:
    """Leave a run behind as a killed process does, whose lock is free."""
    runs = OpenRuns(str(path), namespace)
    add_steps(runs.begin(episode.id), episode)
    open_runs._LOCKS._drop()
    return runs


def ids(library: ExperienceLibrary) -> list[str]:
    return [row["id"] for row in library.trajectories()]


def test_a_run_without_steps_leaves_nothing(path, folder):
    with ExperienceLibrary.open(path) as library:
        library.open_run("e-1")
    assert not folder.exists()


def test_a_run_that_ends_leaves_nothing(path, folder, episode):
    with ExperienceLibrary.open(path) as library:
        run = library.open_run("e-1")
        add_steps(run, episode("open drawer", "look"))
        assert len(list(folder.glob("*.jsonl"))) == 1
        run.close()
        assert list(folder.glob("*.jsonl")) == []
    assert not folder.exists()


def test_runs_that_were_left_are_recorded_once_with_an_unknown_outcome(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1", success=True, score=1.0)
    leave(path, whole)
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as other:
        assert ids(library) == ids(other) == ["e-1"]
        recorded = library.trajectory("e-1")
    assert (recorded.success, recorded.score, recorded.ending) == (None, 0.0, "abandoned")
    assert [(step.t, step.action) for step in recorded.steps] == [(0, "open drawer"), (1, "look")]
    assert [(step.pre, step.post) for step in recorded.steps] == [(step.pre, step.post) for step in whole.steps]
    assert not folder.exists()


def test_a_run_of_a_process_that_lives_is_left_alone(path, episode):
    with ExperienceLibrary.open(path) as library:
        add_steps(library.open_run("e-1"), replace(episode("look"), id="e-1"))
        with ExperienceLibrary.open(path) as other:
            assert ids(other) == []


def test_every_namespace_records_its_own(path, episode):
    leave(path, replace(episode("look"), id="e-1"), namespace="ada")
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == []
    with ExperienceLibrary.open(path, namespace="ada") as library:
        assert ids(library) == ["e-1"]


def test_a_run_of_a_client_is_received_as_the_client_s(path, episode):
    leave(path, replace(episode("look"), id="e-1", writer="proxy", trust="untrusted"))
    with ExperienceLibrary.open(path) as library:
        recorded = library.trajectory("e-1")
    assert (recorded.writer, recorded.trust) == ("proxy", "untrusted")


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_a_kill_cut_is_skipped(path, folder, episode, cut):
    leave(path, replace(episode("open drawer", "look"), id="e-1"))
    (file,) = folder.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-cut])
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.trajectory("e-1").steps] == ["open drawer", "look"][: 2 - (cut > 1)]


def test_a_run_that_was_recorded_before_its_process_was_killed_is_dropped(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1", success=True)
    with ExperienceLibrary.open(path) as library:
        library.record(whole)
    leave(path, replace(whole, steps=whole.steps[:1]))
    with ExperienceLibrary.open(path) as library:
        assert library.trajectory("e-1").success is True
    assert not folder.exists()


def test_a_run_that_cannot_be_recorded_now_waits(path, folder, episode, monkeypatch):
    leave(path, replace(episode("look"), id="e-1"))

    def refuse(library, trajectory):
        raise LibraryUnwritable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ExperienceLibrary, "record", refuse)
        ExperienceLibrary.open(path).close()
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == ["e-1"]


def test_a_run_that_waits_for_a_person_is_recorded_after_a_week(path, folder, episode):
    with ExperienceLibrary.open(path) as library:
        run = library.open_run("e-1")
        add_steps(run, replace(episode("look"), id="e-1"))
        run.pause()
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == []
    (file,) = folder.glob("paused.*")
    os.utime(file, (0, time.time() - 8 * 24 * 3600))
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == ["e-1"]
    assert list(folder.glob("paused.*")) == []


def test_a_run_that_goes_on_after_a_pause_keeps_its_steps(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1")
    with ExperienceLibrary.open(path) as library:
        run = library.open_run("e-1")
        run.add(replace(whole, steps=whole.steps[:1]))
        run.pause()
        run.add(replace(whole, steps=whole.steps[1:]))
    with ExperienceLibrary.open(path) as library:
        assert len(library.trajectory("e-1").steps) == 2


def test_a_run_that_goes_on_in_another_process_begins_its_file_anew(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1")
    with ExperienceLibrary.open(path) as library:
        run = library.open_run("e-1")
        run.add(replace(whole, steps=whole.steps[:1]))
        run.pause()
    with ExperienceLibrary.open(path) as library:
        add_steps(library.open_run("e-1"), whole)
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.trajectory("e-1").steps] == ["open drawer", "look"]
    assert list(folder.glob("*")) == []


def test_secrets_are_not_on_the_disk_and_nobody_else_reads_the_files(path, folder, episode):
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    with ExperienceLibrary.open(path) as library:
        add_steps(library.open_run("e-1"), episode(f"login {secret}"))
        (file,) = folder.glob("*.jsonl")
        assert secret not in file.read_text()
        assert (folder.stat().st_mode | file.stat().st_mode) & 0o077 == 0


def test_a_folder_that_cannot_be_written_stops_nothing(path, folder, episode, caplog):
    folder.write_text("a file stands here")
    with ExperienceLibrary.open(path) as library:
        add_steps(library.open_run("e-1"), episode("look"))
        library.record(replace(episode("look"), id="e-1"))
    assert "not on the disk yet" in caplog.text


def test_a_library_in_memory_keeps_nothing(episode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ExperienceLibrary.open(":memory:") as library:
        add_steps(library.open_run("e-1"), episode("look"))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_leaves_the_lock_to_its_parent(path, folder, episode):
    """Otherwise the runs of a killed server would wait for the end of its last worker."""
    with ExperienceLibrary.open(path) as library:
        add_steps(library.open_run("e-1"), episode("look"))
        waits, ends = os.pipe()
        ready, begins = os.pipe()
        child = os.fork()
        if not child:
            os.close(ends)
            os.write(begins, b"x")
            os.read(waits, 1)  # until the parent closes its end
            os._exit(0)
        try:
            os.read(ready, 1)
            open_runs._LOCKS._drop()  # the parent is killed
            (lock,) = folder.glob("*.lock")
            with open_runs._Locked(lock):
                pass
        finally:
            os.close(ends)
            os.waitpid(child, 0)
            for end in (waits, ready, begins):
                os.close(end)
