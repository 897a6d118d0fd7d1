"""A tally reads every episode once, and all again after one was graded or forgotten."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.runtime.loop import episode_tally
from hardwon.runtime.loop.budgets import LearnedBudget
from hardwon.runtime.loop.episode_tally import EpisodeTally
from hardwon.runtime.loop.routed_recall import STORES, RoutedRecall
from hardwon.runtime.strategies.guide import StrategyGuide
from hardwon.runtime.strategies.strategy import Strategy

PAGE = 4
NOW = State("now", task="bake")


def record(library, success=True, **meta):
    step = Step(NOW, "wait", NOW, Diagnosis(True))
    meta = {"environment": "house", **meta}
    return library.record(Trajectory("bake", (step,), success, float(bool(success)), meta=meta))


class Counting(ExperienceLibrary):
    """A library that counts the rows of episodes that it gives."""

    rows = 0

    def __init__(self, file):
        super().__init__(file)
        self._find = self.episodes.find
        self.episodes.find = self._count_found  # type: ignore[method-assign]

    def _count_found(self, ids=None, *, limit=None, offset=0):
        rows = self._find(ids, limit=limit, offset=offset)
        self.rows += len(rows)
        return rows

    def count(self, act):
        """Return what an act returns, and the rows that were read for it."""
        before = self.rows
        return act(), self.rows - before


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_tally, "PAGE", PAGE)
    with Counting.open(tmp_path / "library.db") as opened:
        yield opened


def tally(library):
    """A tally of the ids of the episodes that count."""
    return EpisodeTally(library, list[str], lambda ids, row: ids.append(row["id"]))


def test_every_episode_is_added_once_in_its_order(library):
    ids = [record(library) for _ in range(2 * PAGE + 7)]
    every = tally(library)
    assert every.read() == ids
    ids += [record(library) for _ in range(PAGE + 3)]
    record(library, success=None)
    assert every.read() == ids


def read_strategies(library):
    guide = StrategyGuide([Strategy(name="a"), Strategy(name="b")])
    return lambda: guide.choose("bake", library, "house").strategy


def read_stores(library):
    routed = RoutedRecall(library, {"far": library})
    return lambda: routed.measure_worth("far", "house")


def read_lengths(library):
    budget = LearnedBudget(library)
    return lambda: budget.limit([], NOW)


READERS = {
    "tally": lambda library: tally(library).read, "strategies": read_strategies, "stores": read_stores,
    "budget": read_lengths,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_one_more_episode_costs_one_page_however_many_there_are(library, reader):
    """Rows read: all at first, at most a page per new episode, and none without a new one."""
    for n in range(6 * PAGE):
        record(library, success=n % 2 == 0, strategy="ab"[n % 2], **{STORES: {"far": n % 3 == 0}})
    read = READERS[reader](library)
    assert library.count(read)[1] == 6 * PAGE
    assert library.count(read)[1] == 0
    for _ in range(3):
        record(library, strategy="b", **{STORES: {"far": True}})
        assert 0 < library.count(read)[1] <= PAGE
    fresh = READERS[reader](library)
    assert read() == fresh()


@pytest.mark.parametrize("reader", READERS)
def test_a_grade_and_an_act_of_forgetting_are_noticed(library, tmp_path, reader):
    """Also if another process graded: what was read before has changed."""
    ids = [
        record(library, success=n % 2 == 0, strategy="ab"[n % 2], **{STORES: {"far": n % 2 == 0}}) for n in range(10)
    ]
    read = READERS[reader](library)
    before = list(read()) if reader == "tally" else read()
    with ExperienceLibrary.open(tmp_path / "library.db") as other:
        for ref in ids[1::2]:
            other.grade(ref, success=True)
    assert read() == READERS[reader](library)()
    library.admin.forget(episode=ids[3])
    new = record(library, strategy="a", **{STORES: {"far": True}})  # so the number of episodes is the same again
    assert read() == READERS[reader](library)()
    if reader == "tally":
        assert before == ids
        assert read() == [*ids[:3], *ids[4:], new]


def test_a_grade_changes_which_strategy_is_chosen(library):
    guide = StrategyGuide([Strategy(name="a"), Strategy(name="b")])
    lost = [record(library, success=False, strategy="a") for _ in range(5)]
    for n in range(6):
        record(library, success=n < 3, strategy="b")
    assert guide.choose("bake", library, "house").strategy == "b"
    for ref in lost:
        library.grade(ref, success=True)
    assert guide.choose("bake", library, "house").strategy == "a"


def test_a_guide_tells_environments_and_libraries_apart(library):
    """What was read for one environment does not stay for another one."""
    guide = StrategyGuide([Strategy(name="a"), Strategy(name="b")])
    record(library, strategy="b")
    record(library, environment="yard", strategy="b", success=False)
    record(library, environment="yard", strategy="a")
    assert guide.choose("bake", library, "house").strategy == "b"
    assert guide.choose("bake", library, "yard").strategy == "a"
    with ExperienceLibrary.open(":memory:") as other:
        record(other, strategy="a")
        assert guide.choose("bake", other, "house").strategy == "a"
