"""Rollout workers as Ray actors: two or three of them, one killed, end with the weights of none."""

import os

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.workers import ray_cluster
from hardwon.trainers.workers.ray_cluster import RayCluster, RayWorker

from ..test_trainer import assert_same
from .test_workers import lines, run

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine with three CPUs, which every run of the module joins."""
    ray_cluster._connect(3)
    yield
    ray.shutdown()


@pytest.mark.parametrize("actors", [2, 3])
def test_actors_end_with_the_weights_of_none_also_if_one_is_killed(corridor, cluster, tmp_path, monkeypatch, actors):
    settings = corridor(run={"iterations": 2, "save_every": 2, "groups": 2})
    alone = run(settings, tmp_path / "alone")
    killed: list[RayWorker] = []
    call = RayWorker.call

    async def kill_once(self, method, *arguments):
        found = await call(self, method, *arguments)
        if method == "events" and not killed and found:
            killed.append(self)  # before the next await: the other worker has events as well
            os.kill(await self.actor.__ray_call__.remote(lambda _: os.getpid()), 9)
        return found

    monkeypatch.setattr(RayWorker, "call", kill_once)
    together = run(settings, tmp_path / "together", workers=actors)
    assert len(killed) == 1
    assert_same(alone, together)
    assert lines(alone) == lines(together)


def test_more_workers_than_cpus_are_refused(cluster):
    with pytest.raises(ConfigError, match=r"rollouts\.workers is 500, and the Ray cluster has \d+ CPUs"):
        RayCluster(500)
