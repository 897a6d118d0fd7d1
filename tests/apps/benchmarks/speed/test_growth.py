"""`hardwon bench growth`: rows for every size, of turns on copies that leave nothing behind."""

import pytest

from benchmarks.speed import growth
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
        seen.append((fold, seed, self._nodes.settings.learn, self._nodes.settings.guardrails, self.library.episodes))
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
