"""Steps of runs that are not over: on the disk at once, recorded when nobody else can, and never in the way."""

import os
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import LibraryUnwritable
from hardwon.memory.open_runs import OpenRuns
from hardwon.memory.open_runs.lines import StepWriter, read_steps
from hardwon.memory.open_runs.locks import LOCKS, Locked
from hardwon.memory.privacy.redaction import redact_state


@pytest.fixture
def folder(path: Path) -> Path:
    return Path(f"{path}.runs")


def add_steps(run, episode: Trajectory) -> None:
    run.add(*episode.steps)


def leave(path: Path, episode: Trajectory, namespace: str = "default") -> OpenRuns:
    """Leave a run behind as a killed process does, whose lock is free."""
    runs = OpenRuns(str(path), namespace)
    add_steps(runs.begin(episode.id, lambda: episode), episode)
    LOCKS._drop()
    return runs


def ids(library: ExperienceLibrary) -> list[str]:
    return [row["id"] for row in library.episodes.find()]


def test_a_run_without_steps_leaves_nothing(path, folder):
    with ExperienceLibrary.open(path) as library:
        library.episodes.open_run("e-1", lambda: Trajectory("", (), None))
    assert not folder.exists()


def test_a_run_that_ends_leaves_nothing(path, folder, episode):
    with ExperienceLibrary.open(path) as library:
        run = library.episodes.open_run("e-1", episode)
        add_steps(run, episode("open drawer", "look"))
        assert len(list(folder.glob("*.jsonl"))) == 1
        run.close()
        assert list(folder.glob("*.jsonl")) == []
    assert not folder.exists()


def test_steps_that_may_come_late_are_written_by_a_thread_in_their_order(path, folder, episode):
    whole = episode("open drawer", "look", "close drawer")
    with ExperienceLibrary.open(path) as library:
        run = library.episodes.open_run("e-1", episode)
        run.add_soon(*whole.steps[:2])
        assert not folder.exists()
        (timer,) = (thread for thread in threading.enumerate() if isinstance(thread, threading.Timer))
        timer.join()
        run.add_soon(whole.steps[2])
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.episodes.get("e-1").steps] == ["open drawer", "look", "close drawer"]


def test_steps_that_wait_when_their_episode_is_recorded_are_not_written(path, folder, episode):
    with ExperienceLibrary.open(path) as library:
        run = library.episodes.open_run("e-1", episode)
        run.add_soon(*episode("look").steps)
        run.close()
        library._runs._write_late()
        assert not folder.exists()


def test_runs_that_were_left_are_recorded_once_with_an_unknown_outcome(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1", success=True, score=1.0)
    leave(path, whole)
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as other:
        assert ids(library) == ids(other) == ["e-1"]
        recorded = library.episodes.get("e-1")
    assert (recorded.success, recorded.score, recorded.ending) == (None, 0.0, "abandoned")
    assert [(step.t, step.action) for step in recorded.steps] == [(0, "open drawer"), (1, "look")]
    assert [(step.pre, step.post) for step in recorded.steps] == [(step.pre, step.post) for step in whole.steps]
    assert not folder.exists()


def test_a_run_of_a_process_that_lives_is_left_alone(path, episode):
    with ExperienceLibrary.open(path) as library:
        add_steps(library.episodes.open_run("e-1", episode), episode("look"))
        with ExperienceLibrary.open(path) as other:
            assert ids(other) == []


def test_a_process_that_runs_for_long_records_what_another_one_left_when_it_evolves(path, episode):
    with ExperienceLibrary.open(path) as library:
        leave(path, replace(episode("look"), id="e-1"))
        assert ids(library) == []
        library.evolve()
        assert ids(library) == ["e-1"]


def test_every_namespace_records_its_own(path, episode):
    leave(path, replace(episode("look"), id="e-1"), namespace="ada")
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == []
    with ExperienceLibrary.open(path, namespace="ada") as library:
        assert ids(library) == ["e-1"]


def test_a_run_of_a_client_is_received_as_the_client_s(path, episode):
    leave(path, replace(episode("look"), id="e-1", writer="proxy", trust="untrusted"))
    with ExperienceLibrary.open(path) as library:
        recorded = library.episodes.get("e-1")
    assert (recorded.writer, recorded.trust) == ("proxy", "untrusted")


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_a_kill_cut_is_skipped(path, folder, episode, cut):
    leave(path, replace(episode("open drawer", "look"), id="e-1"))
    (file,) = folder.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-cut])
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.episodes.get("e-1").steps] == ["open drawer"]


def test_a_run_that_was_recorded_before_its_process_was_killed_is_dropped(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1", success=True)
    with ExperienceLibrary.open(path) as library:
        library.record(whole)
    leave(path, replace(whole, steps=whole.steps[:1]))
    with ExperienceLibrary.open(path) as library:
        assert library.episodes.get("e-1").success is True
    assert not folder.exists()


def test_a_run_that_cannot_be_recorded_now_waits(path, folder, episode, monkeypatch):
    leave(path, replace(episode("look"), id="e-1"))

    def refuse(library, trajectory, **_):
        raise LibraryUnwritable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ExperienceLibrary, "record", refuse)
        ExperienceLibrary.open(path).close()
    with ExperienceLibrary.open(path) as library:
        assert ids(library) == ["e-1"]


def test_a_run_that_waits_for_a_person_is_recorded_after_a_week(path, folder, episode):
    with ExperienceLibrary.open(path) as library:
        run = library.episodes.open_run("e-1", episode)
        add_steps(run, episode("look"))
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
        run = library.episodes.open_run("e-1", episode)
        run.add(whole.steps[0])
        run.pause()
        run.add(whole.steps[1])
    with ExperienceLibrary.open(path) as library:
        assert len(library.episodes.get("e-1").steps) == 2


def test_a_run_that_goes_on_in_another_process_begins_its_file_anew(path, folder, episode):
    whole = replace(episode("open drawer", "look"), id="e-1")
    with ExperienceLibrary.open(path) as library:
        run = library.episodes.open_run("e-1", episode)
        run.add(whole.steps[0])
        run.pause()
    with ExperienceLibrary.open(path) as library:
        add_steps(library.episodes.open_run("e-1", episode), whole)
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.episodes.get("e-1").steps] == ["open drawer", "look"]
    assert list(folder.glob("*")) == []


def test_a_run_that_begins_again_in_its_process_begins_its_file_anew(path, episode):
    whole = replace(episode("open drawer", "look"), id="e-1")
    with ExperienceLibrary.open(path) as library:
        library.episodes.open_run("e-1", episode).add(whole.steps[0])
        library.episodes.open_run("e-1", episode).add(*whole.steps)
    with ExperienceLibrary.open(path) as library:
        assert [step.action for step in library.episodes.get("e-1").steps] == ["open drawer", "look"]


def test_secrets_are_not_on_the_disk_and_nobody_else_reads_the_files(path, folder, episode):
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    with ExperienceLibrary.open(path) as library:
        add_steps(library.episodes.open_run("e-1", episode), episode(f"login {secret}"))
        (file,) = folder.glob("*.jsonl")
        assert secret not in file.read_text()
        assert (folder.stat().st_mode | file.stat().st_mode) & 0o077 == 0


def test_a_folder_that_cannot_be_written_stops_nothing(path, folder, episode, caplog):
    folder.write_text("a file stands here")
    with ExperienceLibrary.open(path) as library:
        add_steps(library.episodes.open_run("e-1", episode), episode("look"))
        library.record(replace(episode("look"), id="e-1"))
    assert "not on the disk yet" in caplog.text


def test_a_library_in_memory_keeps_nothing(episode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ExperienceLibrary.open(":memory:") as library:
        add_steps(library.episodes.open_run("e-1", episode), episode("look"))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_leaves_the_lock_to_its_parent(path, folder, episode):
    """Otherwise the runs of a killed server would wait for the end of its last worker."""
    with ExperienceLibrary.open(path) as library:
        add_steps(library.episodes.open_run("e-1", episode), episode("look"))
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
            LOCKS._drop()  # the parent is killed
            (lock,) = folder.glob("*.lock")
            with Locked(lock):
                pass
        finally:
            os.close(ends)
            os.waitpid(child, 0)
            for end in (waits, ready, begins):
                os.close(end)


# ---- lines


def calls(*texts: str) -> list[State]:
    """States that show all calls so far, as those of tools do."""
    request, results = "Request: Find Ada.", list[str]()
    states = [State(request, task="Find Ada.")]
    for text in texts:
        results.append(f'look(for="{len(states)}")\n{text}')
        states.append(State("\n\n> ".join([request, *results[-8:]]), task="Find Ada.", feedback=text))
    return states


def steps_between(states: list[State]) -> list[Step]:
    return [
        Step(pre, f'look(for="{t + 1}")', post, Diagnosis(True, diff={"feedback": post.feedback, "moves": t}), 0.5, t)
        for t, (pre, post) in enumerate(pairwise(states))
    ]


RESULTS = ["a house\n\nwith a garden", "\u2028 a line\x85of its own", "", "a house", "a house", *map(str, range(20))]


def test_steps_are_read_as_they_were_written():
    steps = steps_between(calls(*RESULTS))
    writer = StepWriter()
    assert list(read_steps([writer.encode(step) for step in steps])) == steps


def test_a_line_does_not_grow_with_the_run():
    writer = StepWriter()
    sizes = [len(writer.encode(step)) for step in steps_between(calls(*(f"{n} " * 400 for n in range(100, 180))))]
    assert max(sizes[1:]) < 1.3 * min(sizes[1:])


def test_a_step_with_a_secret_is_without_it_and_so_are_those_that_show_it_again():
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    states = calls("first", f"the key is {secret}", *map(str, range(12)))
    writer = StepWriter()
    lines = [writer.encode(step) for step in steps_between(states)]
    assert not any(secret in line for line in lines)
    read = list(read_steps(lines))
    assert [step.post for step in read] == [redact_state(state) for state in states[1:]]


def test_lines_that_are_missing_spoil_no_other():
    """A disk that is full for a while: what refers to a line that is missing is skipped, and never read wrongly."""
    steps = steps_between(calls(*map(str, range(6))))
    steps_at = {step.post.feedback: step.t for step in steps}
    writer = StepWriter()
    lines = [writer.encode(step) for step in steps[:3]]
    writer.start_over()
    lines += [writer.encode(step) for step in steps[3:]]
    for missing in range(6):
        read = list(read_steps(lines[:missing] + lines[missing + 1 :]))
        assert [step.t for step in read] == list(range(len(read)))
        assert [step for step in read if replace(step, t=steps_at[step.post.feedback]) not in steps] == []
        assert len(read) >= 3 - (missing > 2)
