"""`hardwon bench growth`: rows for every size, of turns on copies that leave nothing behind."""

import pytest

from benchmarks.speed import growth
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent

pytest.importorskip("textworld_express", reason="needs the textworld extra")


@pytest.fixture
def played(monkeypatch):
    """Folds and seeds of the episodes played, by few of each."""
    for name, value in {"TESTED": 1, "SEEDS": 2, "ROUNDS": 2, "FROZEN": 1, "LEARNING": 1}.items():
        monkeypatch.setattr(growth, name, value)
    seen = []
    real = Agent.run

    def run(self, fold, seed):
        seen.append(
            (fold, seed, self._nodes.settings.learn, self._nodes.settings.guardrails, self.library.episodes.count())
        )
        return real(self, fold, seed)

    monkeypatch.setattr(Agent, "run", run)
    return seen


def test_growth_goes_on_beyond_the_worlds_of_a_fold(played):
    """A row for every size, with what a step costs and what it brings; worlds that are used up come again."""
    rows = growth.measure("coin", [1, 3], print)
    assert [row["episodes"] for row in rows] == [1, 3]
    assert [seed for fold, seed, *_ in played if fold == "train"][:3] == [0, 1, 0]
    for row in rows:
        assert row["frozen_ms_per_step"] > 0
        assert row["learning_ms_per_step"] > 0
        assert 0 <= row["score"] <= 1
        assert 0 <= row["score_without"] <= 1
        assert row["guardrails"] >= 0
        assert row["retired"] >= 0


def test_every_size_is_tested_with_guardrails_and_without(played):
    """Frozen both times, on the library as it was at that size."""
    growth.measure("coin", [1, 3], print)
    tests = [(mode, episodes) for fold, _, learn, mode, episodes in played if fold == "test" and not learn]
    assert {(bool(mode), episodes) for mode, episodes in tests} >= {(True, 1), (False, 1), (True, 3), (False, 3)}


def test_turns_of_a_size_do_not_grow_its_library(played):
    """Each turn learns on a copy of its own, which begins with as many episodes as the one before."""
    growth.measure("coin", [2], print)
    turns = [episodes for fold, _, learn, _, episodes in played if fold == "train" and learn][2:]
    assert turns == [2, 3, 2, 3]


def test_an_interrupted_measurement_continues_with_what_it_has(played, monkeypatch, tmp_path):
    """Nothing is learned or measured twice, and every result is told as soon as it is there."""
    lines: list[str] = []
    with monkeypatch.context() as broken:
        broken.setattr(growth, "_measure_cost", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            growth.measure("coin", [1, 3], lines.append, tmp_path)
    assert sum("'success_without'" in line for line in lines) == 2
    before = len(played)
    rows = growth.measure("coin", [1, 3], lines.append, tmp_path)
    assert [row["episodes"] for row in rows] == [1, 3]
    assert {episodes for *_, episodes in played[before:]} <= {1, 2, 3, 4}
    assert len(played) - before == 2 * growth.ROUNDS * 4
    assert sum("'learning_ms_per_step'" in line for line in lines) == growth.ROUNDS
    again = len(played)
    assert growth.measure("coin", [1, 3], lines.append, tmp_path) == rows
    assert len(played) == again


def test_learning_that_was_interrupted_continues_in_its_library(played, monkeypatch, tmp_path):
    """The library tells how many episodes it has."""
    real = Agent.run

    def stop(self, fold, seed):
        if (fold, seed, self.library.episodes.count()) == ("train", 1, 1):
            raise KeyboardInterrupt
        return real(self, fold, seed)

    with monkeypatch.context() as broken:
        broken.setattr(Agent, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            growth.measure("coin", [3], print, tmp_path)
    before = len(played)
    growth.measure("coin", [3], print, tmp_path)
    assert [seed for fold, seed, *_ in played[before:] if fold == "train"][:2] == [1, 0]


def test_a_folder_of_another_measurement_is_refused(played, tmp_path):
    """Its libraries are those of another game."""
    growth.measure("coin", [1], print, tmp_path)
    with pytest.raises(ConfigError, match="--out"):
        growth.measure("mapreader", [1], print, tmp_path)
