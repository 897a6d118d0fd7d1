"""Imports into a shared library."""

import pytest
from tests.memory.fleet.conftest import server as server, url as url

from hardwon.memory import ExperienceLibrary

from .test_versions import claude, langfuse, langsmith, load as load, openai, otel


@pytest.mark.parametrize("make", [claude, openai, langsmith])
def test_a_log_that_grew_updates_its_episode_on_every_host(load, tmp_path, url, make):
    """The parts of a trace, too."""
    with ExperienceLibrary.open(url) as one:
        assert load(*make(2, finished=False), into=one) == (1, 0)
        (before,) = one.episodes.find()
        assert load(*make(4), into=one) == (0, 1)
        assert load(*make(4), into=one) == load(*make(2, finished=False), into=one) == (0, 0)
        (row,) = one.episodes.find()
    assert (row["id"], row["n_steps"], row["success"]) == (before["id"], 4, 1)
    with ExperienceLibrary.open(url, replica=tmp_path / "other") as two:
        assert two.episodes.find() == [row]
        assert two.admin.verify() == []


@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_parts_of_a_trace_are_one_episode_on_every_host(load, tmp_path, url, make):
    lines = make(4)
    with ExperienceLibrary.open(url) as one:
        assert [load(*part, into=one) for part in (lines[:3], lines[3:])] == [(1, 0), (0, 1)]
        assert [row["n_steps"] for row in one.episodes.find()] == [4]
