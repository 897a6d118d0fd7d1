"""The benchmark of a shared library runs and reports every figure."""

import pytest
from tests.memory.fleet.conftest import server, url

from benchmarks.speed import fleet
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError

__all__ = ["server", "url"]


def test_every_figure_is_measured(url, tmp_path, monkeypatch):
    for name, value in (("WRITERS", (2,)), ("ROUNDS", 1), ("EACH", 5), ("LAGS", 3), ("RECALLS", 5)):
        monkeypatch.setattr(fleet, name, value)
    rows = fleet.measure(url, 200, lambda words: None)
    assert len(rows) == 7
    assert all(row["value"] > 0 for row in rows)


def test_a_database_with_a_library_is_left_alone(url, tmp_path):
    ExperienceLibrary.open(url, replica=tmp_path).close()
    with pytest.raises(ConfigError, match="holds a library"):
        fleet.measure(url, 200, lambda words: None)
