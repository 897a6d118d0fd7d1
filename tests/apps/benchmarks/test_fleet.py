"""The benchmark of a shared library runs and reports every figure."""

import pytest
from tests.memory.fleet.conftest import server, url

from benchmarks.fixtures import EPISODE
from benchmarks.speed import fleet, replicas
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError

__all__ = ["server", "url"]


def test_every_figure_is_measured(url, tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "CYCLES", 2)
    monkeypatch.setattr(fleet, "WRITERS", (1, 2))
    for name, value in (("LOADS", 1), ("LOAD_S", 0.5), ("RECALLS", 5)):
        monkeypatch.setattr(replicas, name, value)
    rows = fleet.measure(url, 60, lambda words: None)
    assert all(row["value"] > 0 for row in rows)
    assert {row["n"] for row in rows if row["what"] == "lag, median"} == {1, 2}


def test_a_database_with_a_library_is_left_alone(url, tmp_path):
    ExperienceLibrary.open(url, replica=tmp_path).close()
    with pytest.raises(ConfigError, match="holds a library"):
        fleet.measure(url, 200, lambda words: None)


@pytest.mark.parametrize(("who", "ways"), [(0, 5), (3, 4), (7, 3)])
def test_no_episode_is_offered_twice(who, ways):
    """To apply one again is cheaper, and the writers of most turns would be the first to do so."""
    assert replicas.count_ways(fleet.WRITERS, who) == ways
    steps = replicas.LOADS * replicas.LOAD_S * replicas.OFFER
    assert 1.1 * steps / EPISODE <= replicas.OFFERED
