"""Later versions of recorded episodes."""

import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import UnknownName


def make(calls, success: bool | None, ref="e-1", task="refund the order", **fields):
    def state(n):
        return State(f"Request: {task}. {n} calls so far", task=task, feedback=f"result {n}")

    steps = tuple(
        Step(state(n), call, state(n + 1), Diagnosis(True, Failure.NONE), float(bool(success)) * (n == len(calls) - 1))
        for n, call in enumerate(calls)
    )
    return Trajectory(task, steps, success, float(bool(success)), id=ref, ending="", **fields)


ROOT = Path(__file__).parents[3]
SHORT, LONG = ["look()", "find()"], ["look()", "find()", "take()", "refund()"]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path) as library:
        library.record_many([make(["look()", "leave()"], n % 2 == 0, f"o-{n}", f"task {n}") for n in range(6)])
        library.record(make(SHORT, False))
    return path


@pytest.mark.parametrize("before", [False, True, None])
@pytest.mark.parametrize("after", [False, True, None])
def test_a_version_is_as_if_it_had_been_recorded(tmp_path, before, after):
    with ExperienceLibrary.open(tmp_path / "a.db") as library, ExperienceLibrary.open(tmp_path / "b.db") as other:
        for n in range(3):
            for each in (library, other):
                each.record(make(["look()", "leave()"], n > 0, f"o-{n}", f"task {n}"))
        library.record(make(SHORT, before))
        library.episodes.replace_many([(make(LONG, after), ["e-1"])])
        other.record(make(LONG, after))
        episode, expected = library.episodes.get("e-1"), other.episodes.get("e-1")
        assert (episode.success, episode.score, episode.ending) == (after, expected.score, expected.ending)
        assert [(s.action, s.reward, s.return_to_go) for s in episode.steps] == [
            (s.action, s.reward, s.return_to_go) for s in expected.steps
        ]
        assert library.admin.verify() == []
        assert {s.pattern: (s.n, s.mean_return) for s in library.episodes.summaries()} == {
            s.pattern: (s.n, s.mean_return) for s in other.episodes.summaries()
        }
        assert library.episodes.count() == other.episodes.count()
        assert len(library.episodes.find()) == 4


@pytest.mark.parametrize("before", [False, True])
def test_an_item_that_was_shown_is_credited_for_the_outcome_of_the_version(tmp_path, before):
    scores = []
    for name in ("replaced", "recorded"):
        with ExperienceLibrary.open(tmp_path / f"{name}.db") as library:
            item = library.add(Item("insight", "find before you take", source="person")).item_id or ""

            def shown(calls, success, item=item):
                episode = make(calls, success)
                return replace(episode, steps=tuple(replace(s, why={"recalled": [item]}) for s in episode.steps))

            library.record(shown(SHORT if name == "replaced" else LONG, before if name == "replaced" else not before))
            if name == "replaced":
                revision = library.revision
                library.episodes.replace_many([(shown(LONG, not before), ["e-1"])])
                assert library.revision[1] != revision[1]
            scores.append(library.items.get(item).score)
            assert library.admin.verify() == []
    assert scores[0] == pytest.approx(scores[1])


def test_a_writer_that_is_killed_leaves_one_version(path):
    """Killed after the old version is deleted, and after the new one is written."""
    code = """
import os, signal, sys
from hardwon.memory import ExperienceLibrary
from hardwon.memory.upkeep.forgetting import replacement
from tests.memory.upkeep.test_replacement import LONG, make
name = sys.argv[2]
held, original = replacement.Replacement, getattr(replacement.Replacement, name)
def stop(self, *given):
    if name != "_write":
        original(self, *given)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(held, name, stop)
with ExperienceLibrary.open(sys.argv[1]) as library:
    library.episodes.replace_many([(make(LONG, True), ["e-1"])])
"""
    for name in ("_write", "_move_evidence"):
        done = subprocess.run([sys.executable, "-c", code, str(path), name], cwd=ROOT, capture_output=True, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with ExperienceLibrary.open(path) as library:
            assert [len(library.episodes.get("e-1").steps), library.admin.verify()] == [2, []]
    with ExperienceLibrary.open(path) as library:
        library.episodes.replace_many([(make(LONG, True), ["e-1"])])
        assert len(library.episodes.get("e-1").steps) == 4


def test_several_versions_become_one(path):
    with ExperienceLibrary.open(path) as library:
        library.record(make(LONG[:3], False, "e-2"))
        library.episodes.replace_many([(make(LONG, True), ["e-1", "e-2"])])
        assert len(library.episodes.find()) == 7
        assert len(library.episodes.get("e-1").steps) == 4
        with pytest.raises(UnknownName):
            library.episodes.get("e-2")
        assert library.admin.verify() == []


@pytest.mark.parametrize("graded", ["e-1", "e-2"])
def test_the_grade_of_a_person_stays(path, graded):
    with ExperienceLibrary.open(path) as library:
        library.record(make(LONG[:3], False, "e-2"))
        library.grade(graded, success=True, why="she got her money", grader="ada")
        library.episodes.replace_many([(make(LONG, False), ["e-1", "e-2"])])
        episode = library.episodes.get("e-1")
        assert (episode.success, episode.steps[-1].reward, len(episode.steps)) == (True, 1.0, 4)
        assert [grade.grader for grade in library.episodes.grades("e-1")] == ["ada"]
        assert library.admin.verify() == []
        library.grade("e-1", success=False)
        assert library.episodes.get("e-1").success is False


def test_items_rest_on_the_new_steps(path):
    with ExperienceLibrary.open(path) as library:
        steps = [step.id or 0 for step in library.episodes.get("e-1").steps]
        item = (
            library.add(Item("insight", "find before you take", source="person", provenance=tuple(steps))).item_id or ""
        )
        library.episodes.replace_many([(make(LONG, True), ["e-1"])])
        new = [step.id for step in library.episodes.get("e-1").steps]
        assert library.items.get(item).provenance == tuple(new[:2])
        assert library.admin.verify() == []


def test_reasons_of_the_same_calls_stay(path):
    shown = make(SHORT, True, "e-3")
    with ExperienceLibrary.open(path) as library:
        item = library.add(Item("insight", "find before you take", source="person")).item_id or ""
        steps = tuple(replace(step, why={"recalled": [item]}) for step in shown.steps)
        library.record(replace(shown, steps=steps))
        score = library.items.get(item).score
        library.episodes.replace_many([(make(LONG, True, "e-3"), ["e-3"])])
        assert [usage["trajectory_id"] for usage in library.items.usages(item)] == ["e-3"] * len(
            library.items.usages(item)
        )
        assert library.items.get(item).score == score
        assert [step.why.recalled for step in library.episodes.get("e-3").steps] == [(item,), (item,), None, None]
        assert library.admin.verify() == []


def test_a_version_that_cannot_be_written_changes_nothing(path, monkeypatch):
    with ExperienceLibrary.open(path) as library:
        monkeypatch.setattr(library._file.inbox, "write_alone", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            library.episodes.replace_many([(make(LONG, True), ["e-1"])])
        assert len(library.episodes.get("e-1").steps) == 2
        assert library.admin.verify() == []


def test_other_processes_see_the_new_version(path):
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as other:
        state = library.episodes.get("e-1").steps[0].pre
        other.recall(state)
        library.episodes.replace_many([(make(LONG, True), ["e-1"])])
        assert len(other.episodes.get("e-1").steps) == 4
        assert sqlite3.connect(path).execute("SELECT count(*) FROM trajectories").fetchone() == (7,)
