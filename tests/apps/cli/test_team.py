"""Teams on errands: the archive, the house, the live view, the clock that counts."""

import asyncio
import io
import json
import random
import time

import pytest
from examples.team_tasks.archive import Archive, Clerk
from examples.team_tasks.scout import Map
from examples.team_tasks.slow import Slow
from rich.console import Console

from benchmarks.harness.intervals import bootstrap
from benchmarks.learning import team
from benchmarks.learning.clock import run_counted
from hardwon.apps.cli import team_errands
from hardwon.apps.cli.team import View
from hardwon.apps.cli.team_errands import Latency
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.runtime import AdmitAll, AdmitNone, Agent
from hardwon.runtime.teams.sharing import TeamEvent
from hardwon.runtime.teams.sharing_policy import LogisticAdmission

HALL = "You are in the hall. To the North you see the kitchen. To the East you see a closed wood door."


def sent(k, admission, seed=3, what="archive"):
    """A run of a team, in no time."""
    with ExperienceLibrary.open(":memory:") as library, team_errands.open_errand(what, seed, Latency()) as asked:
        return run_counted(team_errands.create_team(asked, range(k), library, admission).arun(asked.task, asked.seed))


# -- the clock


def test_a_minute_of_waiting_takes_no_time_and_counts_as_a_minute():
    async def wait():
        began = asyncio.get_running_loop().time()
        await asyncio.gather(asyncio.sleep(60), asyncio.sleep(30))
        return asyncio.get_running_loop().time() - began

    began = time.perf_counter()
    assert 60 <= run_counted(wait()) < 61
    assert time.perf_counter() - began < 10


def test_what_a_thread_would_do_is_done_at_once():
    """Time does not run ahead of it: the timer that is due later comes later; what it raises is raised."""

    async def both():
        order = []

        async def threaded():
            await asyncio.to_thread(time.sleep, 0.05)
            order.append("thread")

        async def timed():
            await asyncio.sleep(5)
            order.append("timer")

        await asyncio.gather(timed(), threaded())
        return order

    async def failing():
        await asyncio.to_thread(int, "x")

    assert run_counted(both()) == ["thread", "timer"]
    with pytest.raises(ValueError, match="invalid literal"):
        run_counted(failing())


# -- the archive


def test_an_archive_is_real_files_and_its_question_has_one_answer(tmp_path):
    archive = Archive(tmp_path, 7)
    assert len(list(tmp_path.glob("*.txt"))) == 30
    environment = archive.environment(Latency())
    environment.reset(archive.question)
    assert asyncio.run(environment.astep(f'finish(answer="{archive.answer}")'))[3]["success"]
    other = Archive(tmp_path / "other", 8)
    assert other.answer != archive.answer


def test_nothing_outside_of_the_archive_is_read(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    environment = Archive(tmp_path / "archive", 7).environment(Latency(0, 0, 0))
    environment.reset("x")
    state, *_ = environment.step('read(file="../secret")')
    assert "there is no" in state.feedback


@pytest.mark.parametrize("seed", range(3))
def test_a_clerk_finds_the_answer_in_a_way_of_its_own(tmp_path, seed):
    with (
        ExperienceLibrary.open(":memory:") as library,
        team_errands.open_errand("archive", seed, Latency(0, 0, 0)) as asked,
    ):
        runs = [
            Agent(Clerk(n, Latency(0, 0, 0)), library, asked.environment, learn=False, max_steps=80).run(asked.task)
            for n in range(2)
        ]
    assert all(run.success for run in runs)
    assert [step.action for step in runs[0].trajectory.steps] != [step.action for step in runs[1].trajectory.steps]


def test_sharing_saves_calls_and_time_at_the_same_success():
    alone, shared = sent(3, AdmitNone()), sent(3, AdmitAll())
    assert alone.success
    assert shared.success
    assert shared.calls < 0.8 * alone.calls
    assert shared.seconds < 0.8 * alone.seconds


# -- the house


def test_a_map_goes_to_the_nearest_thing_that_nobody_has_seen():
    found, chance = Map(), random.Random(0)
    found.add_room(HALL)
    assert found.find_direction("hall", chance) in ("north", "east")
    found.add_exit("hall", "north", "You are in the kitchen. To the South you see the hall.")
    assert not found.is_unseen("hall", "north")
    assert found.find_direction("hall", chance) == "east"
    found.add_room("You are in the pantry. There is also a coin. To the West you see the hall.")
    found.exits["hall"]["east"] = "pantry"
    assert found.find_direction("kitchen", chance) == "south"
    assert found.find_direction("hall", chance) == "east"


def test_scouts_find_the_coin_together():
    pytest.importorskip("textworld_express", reason="needs the textworld extra")
    result = sent(3, AdmitAll(), seed=5, what="rooms")
    assert result.success
    assert result.pulls


def test_an_errand_or_an_admission_that_does_not_exist_is_named():
    with pytest.raises(UnknownName, match="archive, rooms"), team_errands.open_errand("shopping", 0, Latency()):
        pass
    with pytest.raises(UnknownName, match="none"):
        team_errands.open_admission("some")


def test_an_environment_that_is_slow_can_do_what_it_could(tmp_path):
    slow = Archive(tmp_path, 1).environment(Latency(0, 0, 0)).clone()
    assert isinstance(slow, Slow)
    slow.reset("x")
    assert slow.changes_nothing('read(file="falcon")')
    assert not slow.changes_nothing('note(text="x")')
    slow.close()


# -- the commands


def test_hardwon_team_tells_everything_as_json(hardwon_json, tmp_path):
    path = tmp_path / "bank.db"
    told = hardwon_json("team", "archive", "--teams", 2, "--call-s", 0.01, "--admission", "all", "--library", path)
    assert told["success"]
    assert {one["admitted"] for one in told["shared"]} == {True}
    used = {one["entry"]: one["used_by"] for one in told["shared"] if one["used_by"]}
    assert set(used) == {entry for entry, _ in told["pulls"]}
    with ExperienceLibrary.open(path) as library:
        assert library._file.store.rows("SELECT * FROM bank_entries") == []


def test_hardwon_team_in_words(hardwon):
    told = hardwon("team", "archive", "-k", 2, "--call-s", 0.01).stdout
    assert "(right), first team" in told
    assert "answered by another team" in told


@pytest.mark.parametrize(
    "wrong", [["nowhere"], ["archive", "--aggregate", "loudest"], ["archive", "--admission", "some"]]
)
def test_a_call_that_is_wrong_says_so(hardwon, wrong):
    assert hardwon("team", *wrong, expect=2).stderr


def test_the_live_view_shows_who_does_what():
    view = View(2)
    view.handle_event(TeamEvent("team 1", "step", "read(file=1)"))
    view.handle_event(TeamEvent("team 1", "shared", "read(file=1) -> a page", 1))
    view.handle_event(TeamEvent("team 2", "pulled", "read(file=1) -> a page", 1))
    shown = io.StringIO()
    Console(file=shown, width=100).print(view.table())
    assert "team 2  reads read(file=1) -> a page" in shown.getvalue()
    assert "team 1 shares read(file=1) -> a page" in shown.getvalue()


def test_bench_team_rows(hardwon_json, tmp_path, monkeypatch):
    """Arms on the same tasks; test tasks are no training tasks; the admission is kept."""
    monkeypatch.setattr(team, "RUNS", 2)
    rows = hardwon_json("bench", "team", "--tasks", 1, "--seeds", 1, "--rounds", 1, "--teams", "1,3", "--out", tmp_path)
    found = {(row["k"], row["sharing"]): row for row in rows["rows"]}
    assert set(found) == {(1, "none"), (3, "none"), (3, "all"), (3, "learned")}
    assert all(row["success"] == 1.0 for row in found.values())
    assert found[3, "all"]["saved_%"] > 10
    assert found[3, "none"]["key_tokens"] == 0
    assert LogisticAdmission.load(tmp_path / "admission-0.json").weights.any()
    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert all(run["task"] >= team.TEST for run in runs)


def test_saved_is_paired_with_the_same_runs_without_sharing():
    assert team.compute_saved([(6.0, 10.0), (6.0, 10.0)]) == pytest.approx(40.0)
    low, high = bootstrap([(5.0, 10.0), (7.0, 10.0)] * 20, team.compute_saved)
    assert low < 40.0 < high
