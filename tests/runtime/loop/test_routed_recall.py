"""Recall from several libraries, each as far as it pays (R1-Router, arXiv:2505.22095): row 54."""

from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, Estimate, ExperienceLibrary, Item, Outcome, Recollection, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, LibraryUnreachable
from hardwon.memory.records import Hit
from hardwon.runtime import Agent
from hardwon.runtime.loop.routed_recall import (
    STORES,
    MergedRecall,
    RoutedRecall,
    combine_estimates,
    merge_recollections,
)

from .rows import fake_library

NOW = State("You stand at a door.", task="get out")


def episodes(*groups: tuple[dict[str, bool], int, int], environment="house", trust="trusted") -> Any:
    """A library with some episodes: for each group the stores used, the successes, and the episodes."""
    rows = [
        {"id": f"{at} {n}", "success": n < won, "trust": trust, "meta": {"environment": environment, STORES: used}}
        for at, (used, won, count) in enumerate(groups)
        for n in range(count)
    ]
    return fake_library(rows, recall=lambda *_, **__: Recollection())


def remember(library, action, reward):
    step = Step(NOW, action, NOW, Diagnosis(True), reward)
    library.record(Trajectory(NOW.task, (step,), reward > 0, reward))


def test_the_store_with_a_positive_worth_is_used():
    """Worked example, row 54: A 8/10 with and 5/10 without, B 5/10 and 5/10: worth .3 and 0, so A alone."""
    library = episodes(({"A": True}, 8, 10), ({"A": False}, 5, 10), ({"B": True}, 5, 10), ({"B": False}, 5, 10))
    routed = RoutedRecall(library, {"A": library, "B": library})
    assert routed.measure_worth("A", "house") == pytest.approx(0.3)
    assert routed.measure_worth("B", "house") == 0
    assert routed.choose("an episode", "house", tries=False) == {"A": True, "B": False}


def test_graded_outcomes_tell_the_worth_of_a_store():
    """No episode succeeds: .7 with it and .4 without it."""
    rows = [
        {"id": f"{n}", "success": False, "score": (0.4, 0.7)[n % 2], "total_reward": 0.0, "trust": "trusted",
         "meta": {"environment": "house", "outcome": "score", STORES: {"A": bool(n % 2)}}}
        for n in range(20)
    ]  # fmt: skip
    library = fake_library(rows, recall=lambda *_, **__: Recollection())
    assert RoutedRecall(library, {"A": library}).measure_worth("A", "house") == pytest.approx(0.3)


def test_no_store_is_used_where_none_helps():
    library = episodes(({"A": True}, 2, 10), ({"A": False}, 5, 10))
    routed = RoutedRecall(library, {"A": library})
    assert routed.choose("x", "house", tries=False) == {"A": False}
    assert routed.limit_to({"A": False}) is library


def test_estimates_count_as_much_as_the_steps_behind_them():
    """Worked example: 0 from 1 step and 1 from 3 steps is 0.75."""
    merged = combine_estimates([Estimate(0.0, 1, "own"), None, Estimate(1.0, 3, "far")])
    assert (merged.value, merged.n, merged.key) == (0.75, 4, "own")
    assert combine_estimates([Estimate(0.0), Estimate(1.0, 3, "far")]).key == "far"


def test_what_loses_in_another_store_counts_as_much_as_the_steps_behind_it():
    """Worked example: never in 1 step and always in 3 steps is 0.75; without any step, the first one decides."""
    own, far = Estimate(0.0, 1, "own"), Estimate(0.0, 3, "far", lost=1.0)
    assert combine_estimates([own, None, far]).lost == 0.75
    assert combine_estimates([Estimate(0.0), far]).lost == 1.0
    assert combine_estimates([Estimate(0.0, lost=0.5), Estimate(0.0)]).lost == 0.5


def test_the_best_hits_of_all_stores_are_kept():
    def hit(name, similarity, score):
        return Hit(Item(id=name, kind="strategy", title=name, score=score), similarity, "")

    own = Recollection(items=(hit("weak", 0.9, 0.1), hit("good", 0.8, 0.9)))
    other = Recollection(items=(hit("fair", 0.9, 0.5),), outcomes={"go": Outcome(1)})
    merged = merge_recollections(own, [other], 2)
    assert [hit.what.id for hit in merged.items if isinstance(hit.what, Item)] == ["good", "fair"]
    assert merge_recollections(Recollection(outcomes={"go": Outcome(9)}), [other], 2).outcomes["go"].n == 9


@pytest.mark.parametrize(
    ("own", "elsewhere", "path"),
    [("cluster", ["hybrid"], "cluster"), ("empty", ["empty", "hybrid"], "hybrid"), ("empty", ["empty"], "empty")],
)
def test_the_first_store_that_knows_something_says_how_it_was_found(own, elsewhere, path):
    parts: list[Any] = [Recollection(path=name) for name in (own, *elsewhere)]
    assert merge_recollections(parts[0], parts[1:], 2).path == path


def test_nothing_of_another_store_gets_credit_in_the_own_library(tmp_path):
    """Ids of two libraries may be equal: those of another store name it, and its steps have none."""
    with ExperienceLibrary.open(tmp_path / "own.db") as own, ExperienceLibrary.open(tmp_path / "far.db") as far:
        remember(far, "open door", 1.0)
        far.add(Item(kind="strategy", title="Open the door."))
        found = MergedRecall(own, {"far": far}).recall(NOW, actions={"open door": ""})
        assert found.steps
        assert found.items
        assert all(hit.what.id is None for hit in found.steps)
        assert all(str(hit.what.id).startswith("far:") for hit in found.items)
        assert found.estimates["open door"].steps == ()


def test_the_worth_of_another_environment_or_of_strangers_says_nothing():
    known = ({"A": True}, 0, 9), ({"A": False}, 9, 9)
    for library in (episodes(*known, environment="mine"), episodes(*known, trust="untrusted")):
        assert RoutedRecall(library, {"A": library}).measure_worth("A", "house") is None


def test_an_unknown_store_is_measured_by_episodes_that_go_without_it():
    library = episodes()
    routed = RoutedRecall(library, {"A": library})
    drawn = [routed.choose(f"episode {n}", "house", tries=True)["A"] for n in range(200)]
    assert 60 < sum(drawn) < 140
    assert all(routed.choose(f"episode {n}", "house", tries=False)["A"] for n in range(20))
    good = episodes(({"A": True}, 9, 9), ({"A": False}, 0, 9))
    known = [RoutedRecall(good, {"A": good}).choose(f"episode {n}", "house", tries=True)["A"] for n in range(200)]
    assert 160 < sum(known) < 200


def test_an_agent_uses_a_store_and_records_that_it_did(workshop, tmp_path):
    """What another library knows is done in the first episode, and the record says whence."""
    with ExperienceLibrary.open(tmp_path / "far.db") as far, ExperienceLibrary.open(tmp_path / "own.db") as own:
        teacher = Agent("episodic", far, workshop(goal="wood"), max_steps=20)
        for seed in range(30):
            teacher.run(seed=seed)

        def count_steps(recaller, library=own):
            agent = Agent("episodic", library, workshop(goal="wood"), max_steps=20, learn=False, recaller=recaller)
            results = [agent.run(seed=seed) for seed in range(10)]
            return sum(len(result.trajectory.steps) for result in results), results[0].trajectory

        alone, _ = count_steps(None)
        together, trajectory = count_steps(RoutedRecall(own, {"far": far}))
        assert together == count_steps(None, far)[0]  # an empty library of one's own adds nothing
        assert alone > together
        assert trajectory.meta[STORES] == {"far": True}
        learner = Agent("episodic", own, workshop(goal="wood"), recaller=RoutedRecall(own, {"far": far}))
        for seed in range(12):
            learner.run(seed=seed)
        assert {row["meta"][STORES]["far"] for row in own.episodes.find()} == {True, False}
        assert RoutedRecall(own, {"far": far}).measure_worth("far", "workshop") is not None
        assert own.admin.verify() == []


def test_a_name_with_a_colon_is_refused():
    with pytest.raises(ConfigError, match="'a:b'"):
        RoutedRecall(episodes(), {"a:b": episodes()})


def test_a_store_that_is_down_does_not_stop_the_own_library(tmp_path, caplog):
    def fail(*_, **__):
        raise LibraryUnreachable("the server does not answer")

    actions = {"open door": "", "wait": ""}
    with ExperienceLibrary.open(tmp_path / "own.db") as library:
        remember(library, "open door", 1.0)
        library.recall(NOW, actions=actions)
        down: Any = SimpleNamespace(recall=fail)
        found = MergedRecall(library, {"down": down}).recall(NOW, actions=actions)
        assert found.estimates == library.recall(NOW, actions=actions).estimates
        assert found.estimates["open door"].n
        assert "nothing is recalled from down: the server does not answer" in caplog.text
        with pytest.raises(LibraryUnreachable):
            MergedRecall(down, {"down": library}).recall(NOW, actions=actions)


def test_an_episode_counts_as_one_without_a_store_that_was_down(workshop, tmp_path):
    """It does not wait for the store again either; the other store is as ever."""
    with ExperienceLibrary.open(tmp_path / "own.db") as own, ExperienceLibrary.open(tmp_path / "far.db") as far:
        calls = []

        def fail_later(*args, **options):
            calls.append(1)
            if len(calls) > 2:
                raise LibraryUnreachable("the server does not answer")
            return far.recall(*args, **options)

        failing: Any = SimpleNamespace(recall=fail_later)
        routed = RoutedRecall(own, {"down": failing, "far": far})
        agent = Agent("random", own, workshop(), recaller=routed, max_steps=6, withhold=False)
        result = agent.run(seed=0)
        assert result.trajectory.meta[STORES] == {"down": False, "far": True}
        assert (len(calls), len(result.trajectory.steps)) == (3, 6)
        calls.clear()
        assert own.episodes.find()[0]["meta"][STORES] == {"down": False, "far": True}
