"""`hardwon bench methods`: equal tokens, intervals for all methods together, and a run that a kill interrupts."""

import json
import os
import signal

import numpy as np
import pytest
import typer

from benchmarks.training import forks, methods
from benchmarks.training.method_settings import METHODS, STEADY
from hardwon.memory.errors import UnknownName
from hardwon.trainers.config.methods import list_methods
from hardwon.trainers.loop import TrainingLoop


@pytest.fixture
def small(monkeypatch):
    imitation = methods.IMITATION | {"learning": {"updates": 2, "batch": 4, "lr": 0.002}}
    for name, value in {"BUDGET": 300, "FIRST": 1, "TEST": "6000-6001", "EXPLORED": 20, "IMITATION": imitation}.items():
        monkeypatch.setattr(methods, name, value)
    monkeypatch.setattr(methods, "TINY", methods.TINY | {"hidden": 16, "layers": 1, "intermediate": 16})


@pytest.mark.parametrize(
    ("methods_beside", "freedom_seeds", "critical"),
    [(2, 11, 2.38), (3, 21, 2.41), (1, 10_001, 1.96)],
)
def test_intervals_are_those_of_dunnetts_table(methods_beside, freedom_seeds, critical):
    """Two-sided, 95 %: with 2 others and 20 degrees of freedom, 2.38; with 3 and 60, 2.41; one other is Student's."""
    values = np.zeros((methods_beside + 1, freedom_seeds))
    values[1, ::2] = 1.0
    rest = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    freedom = methods_beside * (freedom_seeds - 1)
    error = np.sqrt((rest**2).sum() / freedom * 2 / freedom_seeds)
    assert methods.compute_margin(values) / error == pytest.approx(critical, abs=0.02)


def test_a_margin_ignores_what_all_methods_of_a_seed_share():
    """A seed whose start is better raises all of its methods; it says nothing about their differences."""
    values = np.random.default_rng(1).normal(size=(4, 5))
    assert methods.compute_margin(values + np.array([0, 9, 0, 3, -5])) == pytest.approx(methods.compute_margin(values))


def test_one_seed_has_no_interval_and_equal_results_have_one_of_width_zero():
    assert methods.compute_margin(np.ones((3, 1))) is None
    assert methods.compute_margin(np.ones((1, 5))) is None
    assert methods.compute_margin(np.ones((3, 5))) == 0


def build_rows(values):
    costs = {"sampled": 10, "trained": 5, "cpu_s": 1.0}
    return [
        {"world": "end", "method": name, "seed": seed, "success": success, **costs}
        for name, own in values.items()
        for seed, success in enumerate(own)
    ]


def test_methods_are_paired_with_plain_grpo_by_seed():
    rows = build_rows({"start": [0.1, 0.2], "grpo": [0.3, 0.5], "rloo": [0.2, 0.1]})
    best, other = methods.compare(rows, ["grpo", "rloo"], "end")
    assert (best["method"], best["minus_grpo"], best["low"]) == ("grpo", 0.0, None)
    assert other["minus_grpo"] == pytest.approx(-0.25)
    assert other["low"] < -0.25 < other["high"]
    assert other["worst_seed_minus_start"] == pytest.approx(-0.1)


def test_every_method_is_one_of_the_catalog_and_there_are_more_than_twenty():
    assert {method for method, _ in METHODS.values()} <= {*list_methods()}
    assert len(METHODS) > 20
    assert {method for method, _ in STEADY.values()} == {"grpo"}


def test_a_killed_measurement_continues_and_spends_equal_tokens(small, tmp_path, monkeypatch, hardwon_json):
    """A run that was killed goes on from its checkpoint, and what is done is not done again."""
    spoken = []

    def kill(text):
        spoken.append(text)
        if len(spoken) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        methods.measure(["grpo", "gigpo"], ["way"], [0], "tiny", tmp_path, kill)
    assert [text.split(":")[0] for text in spoken] == ["1 of 3", "2 of 3"]
    options = ("--methods", "gigpo", "--seeds", "0", "--world", "way", "--out", str(tmp_path))
    table = hardwon_json("bench", "methods", *options)["rows"]
    assert {row["method"] for row in table} == {"grpo", "gigpo"}
    assert all(row["sampled"] == pytest.approx(300, rel=0.5) for row in table)
    names = [json.loads(line)["method"] for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]]
    assert names == ["start", "grpo", "gigpo"]
    assert not [*tmp_path.glob("run-*")]


def test_a_stopped_measurement_keeps_no_unfinished_run(small, tmp_path, monkeypatch):
    """SIGTERM ends a run after its iteration: what it solves then is no result, and no other run begins."""
    monkeypatch.setattr(methods, "BUDGET", 10**6)
    play = TrainingLoop._iterate

    async def stop(loop):
        await play(loop)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingLoop, "_iterate", stop)
    with pytest.raises(typer.Exit):
        methods.measure(["grpo", "gigpo"], ["way"], [0], "tiny", tmp_path, print)
    assert [json.loads(line)["method"] for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]] == [
        "start"
    ]
    assert [path.name for path in tmp_path.glob("run-*")] == ["run-0-way-grpo"]


def test_an_unknown_method_is_refused_with_the_names():
    with pytest.raises(UnknownName, match="rloo"):
        methods._choose("nope", METHODS, "method")


def test_a_wrong_way_is_a_dead_end_or_final():
    """In the world with a reward at the end alone, one comes back; in the other, a right choice is paid at once."""
    for world, paid in ((forks.Forks(), 0.0), (forks.PaidForks(), 0.25)):
        state = world.reset("train", 7)
        sign = state.observation.rstrip(".").split()[-1]
        right = forks.MEANING[sign]
        wrong = next(way for way in forks.WAYS if way != right)
        after, reward, *_ = world.step(wrong)
        assert reward == 0.0
        assert (world.admissible(after) == [forks.BACK]) is world.turns_back
        world.reset("train", 7)
        assert world.step(right)[1] == paid


def test_the_start_teaches_nothing_about_some_signs():
    """In its split, a worn sign means any way; elsewhere it means the same in every task."""
    meanings: dict[str, set[tuple[str, str]]] = {"start": set(), "train": set()}
    world = forks.PaidForks()
    for seed in range(60):
        for fold, seen in meanings.items():
            world.reset(fold, seed)
            seen.update(zip(world._signs, world._ways, strict=True))
    assert len(meanings["train"]) == len(forks.SIGNS)
    assert len(meanings["start"]) == len(forks.SIGNS) + 2 * len(forks.WORN)
