"""Rollouts in other processes: the same rollouts and weights as without, also when workers die."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainers.fake_vllm import serving
from tests.trainers.folder_base import save_base
from transformers import AutoModelForCausalLM

from hardwon.memory.errors import ConfigError, EngineFailure
from hardwon.trainers import loop, trainer
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.base_models import load_tokenizer
from hardwon.trainers.workers import pool
from hardwon.trainers.workers.inference_proxy import InferenceProxy
from hardwon.trainers.workers.pool import WorkerPool
from hardwon.trainers.workers.worker import RolloutWorker

from ..test_trainer import TIMES, assert_same
from .processes import Processes

LIBRARY = {
    "arms": {"control": 2, "library": 2},
    "library": {"recall": 2},
    "warmstart": {"examples": {"copies": 1}, "learning": {"updates": 2, "batch": 4}},
}
"""Recall and trials: everything that crosses the processes."""


def lines(out):
    """What was logged, except times and the figures of the workers."""
    read = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not (name.endswith(TIMES) or name.startswith("rollouts/"))}
        for line in read
    ]


@pytest.fixture
def processes(monkeypatch):
    """Runs with workers use these processes: `processes(3, 8)` lets the first two die after so many events."""

    def install(*deaths: int) -> Processes:
        cluster = Processes(*deaths)

        monkeypatch.setattr(pool, "RayCluster", lambda _: cluster)
        return cluster

    return install


def run(settings, folder, **rollouts):
    """Train in a folder of its own, and return it."""
    trainer.train({**settings, "rollouts": rollouts, "run": {**settings["run"], "out": str(folder)}})
    return folder


@pytest.mark.parametrize("more", [{}, LIBRARY], ids=["experience", "library"])
def test_two_workers_end_with_the_weights_of_none_also_if_workers_die(corridor, processes, tmp_path, more):
    settings = corridor(**more, run={"iterations": 2, "save_every": 2, "groups": 2}, eval={"every": 2, "copies": 1})
    alone = run(settings, tmp_path / "alone")
    processes()
    together = run(settings, tmp_path / "together", workers=2)
    assert_same(alone, together)
    assert lines(alone) == lines(together)
    cluster = processes(7, 16)
    killed = run(settings, tmp_path / "killed", workers=2)
    assert len(cluster.started) == 4
    assert cluster.closed
    assert_same(alone, killed)
    assert lines(alone) == lines(killed)
    logged = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("rollouts/workers_replaced", 0) for line in logged) == 2
    assert sum(line.get("rollouts/episodes_replayed", 0) for line in logged) > 0


@pytest.fixture
def server(tmp_path):
    """A vLLM server whose base is written as a folder, and the settings of a run with it."""
    base = save_base(tmp_path / "base")
    with serving(AutoModelForCausalLM.from_pretrained(base)) as fake:
        sections = {"engine": {"url": fake.url}, "model": {"base": str(base), "adapter": 2}}
        yield fake, {**sections, "arms": {"control": 2}, "guidance": {}, "warmstart": None}


def test_workers_ask_a_server_themselves(corridor, processes, server, tmp_path, monkeypatch):
    """No token passes through the learner; weights, figures and counted tokens are those of a run without workers."""
    fake, sections = server
    roles = {"policy": {"loss": {"entropy": 0.01}}}  # outcomes that are alike give no update
    run_settings = {"iterations": 2, "groups": 2, "rerolls": 0}
    settings = corridor(**sections, roles=roles, run=run_settings, eval={"every": 2, "copies": 1})
    alone = run(settings, tmp_path / "alone")
    assert take_named(fake) == {"v1", "v2", "v3"}, "the weights of two iterations and of the evaluation"
    monkeypatch.delattr(InferenceProxy, "answer")
    fake.adapters.clear()
    cluster = processes(3)
    together = run(settings, tmp_path / "together", workers=2)
    assert len(cluster.started) == 3, "one died"
    assert take_named(fake) == {"v1", "v2", "v3"}
    assert_same(alone, together)
    assert lines(alone) == lines(together)
    read = [[json.loads(line) for line in (out / "metrics.jsonl").open()] for out in (alone, together)]
    assert all(line["tokens_per_second"] > 0 for line in read[1] if line["kind"] == "train")
    assert {name.split("-")[1] for name in fake.adapters} == {"v3"}, "older weights are unloaded"


def take_named(fake):
    """The versions that completions were asked of since the last call."""
    asked, fake.asked = fake.asked, []
    return {body["model"].split("-")[1] for path, body in asked if path == "/v1/completions"}


def test_weights_that_a_worker_asks_for_stay_on_the_server(corridor, processes, server, tmp_path):
    """The learner loads newer ones while the workers play; the fake refuses weights that are unloaded."""
    _, sections = server
    more = {"iterations": 4, "groups": 2, "rerolls": 0}
    roles = {"policy": {**CORRECTED["policy"], "loss": {"old": "trainer", "entropy": 0.01}}}
    settings = corridor(**sections, roles=roles, run=more, eval={"every": 0})
    processes()
    out = run(settings, tmp_path / "run", workers=2, max_lag=2)
    logged = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    assert any("rollouts/lag_2" in line for line in logged)


def test_a_worker_sends_the_key_of_the_server(corridor, server, tmp_path, monkeypatch):
    """The environment variable with the key is on the learner's machine."""
    _, sections = server
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    config = of(corridor(**sections, run={"out": str(tmp_path / "run")}))
    host = SimpleNamespace(config=config, tokenizer=load_tokenizer(config.model.base), context=64)
    setup = pool.build_setup(host)
    assert "secret" not in repr(setup)
    monkeypatch.delenv("VLLM_API_KEY")
    worker = asyncio.run(started(setup))
    assert worker._scenes.source._server._client.headers["Authorization"] == "Bearer secret"
    worker._scenes.source._server.tokens_read = 7
    assert [worker._scenes.source.take_tokens_read() for _ in range(2)] == [7, 0], "tokens are told once"
    asyncio.run(worker.close())


def test_a_worker_deletes_its_folder_before_it_closes_a_slow_environment(corridor, server, tmp_path):
    """The cluster kills workers that take too long at the end."""
    _, sections = server
    config = of(corridor(**sections, run={"out": str(tmp_path / "run")}))
    host = SimpleNamespace(config=config, tokenizer=load_tokenizer(config.model.base), context=64)
    worker = asyncio.run(started(pool.build_setup(host)))
    folder, there = worker._scenes._folder, []
    assert folder.exists()
    worker._scenes.environment = SimpleNamespace(close=lambda: there.append(folder.exists()))
    asyncio.run(worker.close())
    assert there == [False]


async def started(setup):
    return RolloutWorker(setup)


def test_a_worker_that_dies_again_and_again_ends_the_run(corridor, processes, tmp_path):
    processes(*[1] * 20)
    with pytest.raises(EngineFailure, match="killed by the test"):
        run(corridor(run={"iterations": 1}), tmp_path / "run", workers=1)


def test_an_error_in_an_episode_reaches_the_run(corridor, processes, tmp_path, monkeypatch):
    def refuse(self, state):
        raise ConfigError("the corridor is closed.")

    settings = corridor(run={"iterations": 1}, warmstart=None)
    cluster = processes()
    start = cluster.start

    async def start_broken(setup):
        monkeypatch.setattr("corridor.Corridor.admissible", refuse)
        return await start(setup)

    cluster.start = start_broken
    with pytest.raises(ConfigError, match="the corridor is closed"):
        run(settings, tmp_path / "run", workers=1)


def test_rows_name_the_library_version(corridor, processes, tmp_path, monkeypatch):
    seen: set[str] = set()
    cluster = processes()
    play = WorkerPool.play

    async def look(self, *args, **how):
        rollouts = await play(self, *args, **how)
        seen.update(row.snapshot for rollout in rollouts for row in rollout.rows)
        return rollouts

    monkeypatch.setattr(WorkerPool, "play", look)
    run(corridor(**LIBRARY, run={"iterations": 2, "groups": 1, "rerolls": 0}), tmp_path / "run", workers=1)
    assert seen == {"library@0", "library@1"}
    assert len(cluster.started) == 1


# -- playing while learning ---------------------------------------------------------------------------

CORRECTED = {"policy": {"loss": {"old": "trainer"}, "learner": {"lr": 0.003}, "credit": {"name": "gigpo"}}}


def test_no_row_is_older_than_the_bound_and_a_stopped_run_goes_on(corridor, processes, tmp_path, capsys):
    run_settings = {"iterations": 5, "groups": 2, "save_every": 2, "rerolls": 0}
    settings = corridor(roles=CORRECTED, run=run_settings, warmstart=None)
    processes()
    out = run({**settings, "run": {**settings["run"], "iterations": 3}}, tmp_path / "run", workers=2, max_lag=2)
    processes(9)
    more = {"rollouts": {"workers": 2, "max_lag": 2}, "run": {**settings["run"], "out": str(out)}}
    trainer.train({**settings, **more}, resume=True)
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in logged] == [1, 2, 3, 4, 5]
    lags = [{int(name[13:]) for name in line if name.startswith("rollouts/lag_")} for line in logged]
    assert lags[0] == {0}
    assert max(max(each) for each in lags) == 2
    assert max(line.get("policy/mismatch", 0.0) for line in logged) > 0
    assert all(0 <= line["rollouts/worker_idle"] <= 1 and 0 <= line["rollouts/learner_idle"] <= 1 for line in logged)
    # whole groups: every arm of every group is there
    assert all(line["episodes"] == 12 for line in logged)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, r"rollouts\.max_lag is 1, and roles\.policy\.loss has kind ppo and old sampled"),
        ({"tasks": {"compose": {"prefixed": {}}}}, r"tasks\.compose needs the rollouts of the current weights"),
    ],
)
def test_old_weights_need_a_correction(more, message):
    roles = CORRECTED if more else {"policy": {}}
    with pytest.raises(ConfigError, match=message):
        of({"environment": {"name": "textworld"}, "roles": roles, "rollouts": {"workers": 1, "max_lag": 1}, **more})


def test_a_run_warns_if_the_weights_have_moved_far(corridor, processes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, "DRIFT", 1e-6)
    roles = {"policy": {**CORRECTED["policy"], "learner": {"lr": 0.1}}}
    settings = corridor(roles=roles, run={"iterations": 3, "groups": 2, "rerolls": 0, "out": str(tmp_path / "run")})
    processes()
    trainer.train({**settings, "rollouts": {"workers": 1, "max_lag": 1}}, quiet=False)
    assert "from the weights that played, above" in capsys.readouterr().err
