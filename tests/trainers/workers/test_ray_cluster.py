"""Which cluster workers are started on, with a Ray that is not installed."""

from types import SimpleNamespace

import pytest

from hardwon.memory.errors import EngineUnreachable
from hardwon.trainers.workers import ray_cluster
from hardwon.trainers.workers.ray_cluster import RayCluster


@pytest.fixture
def connect(monkeypatch):
    """Open the workers where Ray answers at these addresses; return the list of what it is asked for."""
    asked = []

    def open_cluster(*answering, workers=2):
        def init(address, **how):
            asked.append((address, how.get("num_cpus")))
            if address not in answering:
                raise ConnectionError if address == "auto" else RuntimeError("the raylet died.\ndetails")

        done = {name: lambda *given, **how: None for name in ("shutdown", "kill", "get")}
        cpus = {"CPU": float(workers)}
        ray = SimpleNamespace(
            init=init, is_initialized=bool, cluster_resources=lambda: cpus, remote=lambda **how: id, **done
        )
        monkeypatch.setattr(ray_cluster, "_import_ray", lambda: ray)
        RayCluster(workers)

    return open_cluster, asked


@pytest.mark.parametrize("address", ["", "head:6379"])
def test_a_cluster_that_runs_is_joined(monkeypatch, connect, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    open_cluster, asked = connect
    open_cluster("auto", "local")
    assert asked == [("auto", None)]


def test_an_address_without_a_cluster_is_refused_and_nothing_is_started(monkeypatch, connect):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    open_cluster, asked = connect
    with pytest.raises(EngineUnreachable, match="no Ray cluster answers at RAY_ADDRESS=head:6379"):
        open_cluster("local")
    assert asked == [("auto", None)]


def test_without_a_cluster_ray_starts_on_this_machine_with_a_cpu_for_each_worker(monkeypatch, connect):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    open_cluster, asked = connect
    open_cluster("local", workers=3)
    assert asked == [("auto", None), ("local", 3)]


def test_ray_that_does_not_start_is_tried_again_and_says_where_to_look(monkeypatch, connect):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    open_cluster, asked = connect
    with pytest.raises(EngineUnreachable, match="Ray did not start on this machine: the raylet died"):
        open_cluster()
    assert [address for address, _ in asked] == ["auto", *["local"] * 3]
