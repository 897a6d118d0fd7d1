"""The protocol of `hardwon bench alfworld`, without its games: splits, versions, resuming, leaks, silence."""

import json
import tarfile
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness.results import Results
from benchmarks.learning import alfworld as bench, alfworld_games as games
from hardwon.memory import Diagnosis, ExperienceLibrary, Reasons, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.environments.alfworld import AlfWorld

SETUP = bench.Setup(
    split="thirds", fold=0, source="walkthroughs", seeds=1, max_steps=9, most=0, learn_games=2, test_games=2,
    alfworld=games.PINNED, textworld="1", python="3",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Games on six floor plans, two games each."""
    for plan in range(1, 7):
        for trial in ("a", "b"):
            file = tmp_path / "games" / f"pick_and_place_simple-Cup-None-Shelf-{plan}" / trial / games.GAME
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"walkthrough": ["look"]}))
    return tmp_path / "games"


def test_no_floor_plan_is_both_learned_and_tested(folder):
    """Each plan is held out in exactly one fold, and each game is in exactly one part."""
    tested: list[str] = []
    for fold in range(3):
        parts = games.split_games(folder, "thirds", fold)
        plans = {part: {games.find_floor_plan(file) for file in files} for part, files in parts.items()}
        assert not plans["learn"] & plans["test"]
        assert len(parts["learn"]) + len(parts["test"]) == 12
        tested += parts["test"]
    assert len(tested) == len(set(tested)) == 12


def test_a_missing_folder_and_an_unknown_split_say_what_to_do(folder, tmp_path):
    with pytest.raises(ConfigError, match="not a folder"):
        games.find_folder(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="alfworld-download"):
        games.find_folder(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(UnknownName, match="thirds"):
        games.split_games(folder, "halves", 0)
    with pytest.raises(ConfigError, match="no game to learn"):
        games.split_games(folder, "official", 0)


def test_an_archive_of_games_is_unpacked_once(folder, tmp_path):
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "some.tar.xz", "w:xz") as file:
        file.add(folder, "train")
    found = games.find_folder(tmp_path / "data", tmp_path / "unpacked")
    assert len(list(found.rglob(games.GAME))) == 12
    (tmp_path / "data" / "some.tar.xz").write_bytes(b"damaged since then")
    assert games.find_folder(tmp_path / "data", tmp_path / "unpacked") == found
    assert games.find_folder(folder, tmp_path / "other") == folder  # games are read where they lie


def test_another_version_of_alfworld_is_refused(monkeypatch):
    monkeypatch.setattr(games, "version", lambda name: "0.3.0")
    with pytest.raises(ConfigError, match=f"alfworld=={games.PINNED}"):
        games.check_version()

    def fail(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(games, "version", fail)
    with pytest.raises(MissingExtra):
        games.check_version()


def test_results_continue_after_a_kill(tmp_path):
    """The last line was being written when the process was killed; that episode is played again."""
    path = tmp_path / "results.jsonl"
    results = Results(path, asdict(SETUP))
    results.add({"arm": "own", "seed": 0, "game": "one", "success": True})
    with path.open("a") as file:
        file.write('{"arm": "own", "seed": 0, "ga')
    again = Results(path, asdict(SETUP))
    assert again.find(arm="own", seed=0, game="one")
    assert not again.find(arm="none", seed=0, game="one")
    again.add({"arm": "own", "seed": 0, "game": "two", "success": False})
    assert [row["game"] for row in Results(path, asdict(SETUP)).rows] == ["one", "two"]
    other = bench.Setup(**{**asdict(SETUP), "fold": 1})
    with pytest.raises(ConfigError, match="another setup"):
        Results(path, asdict(other))


def record(library, seed, task="put cup in shelf"):
    now = State("A shelf.", task=task)
    step = Step(now, "put cup in shelf", now, Diagnosis(True), reward=1.0, admissible=("put cup in shelf",))
    meta = {"environment": "alfworld/all"}
    return library.record(Trajectory(task, (step,), True, 1.0, seed=seed, meta=meta))


class Recalling:
    """An agent whose decision was based on the steps with these ids."""

    def __init__(self, *ids):
        self.ids = ids

    def run(self, task, seed):
        step = Step(State("now"), "wait", State("now"), Diagnosis(True), why=Reasons(similar=self.ids))
        return SimpleNamespace(trajectory=Trajectory("task", (step,), False, 0.0, ending="step_limit"))


def test_what_was_recorded_in_the_same_game_must_not_be_recalled():
    with ExperienceLibrary.open(":memory:") as library:
        record(library, 0)
        record(library, 1)
        player = bench._Player("own", Recalling(2), library, ("a/one/x/g", "a/two/x/g"))  # type: ignore[arg-type]
        row = player.play(0, bench.name_game("a/one/x/g"), 0)
        assert row["shown"] == ["step:2"]
        assert row["loaded"] == 2
        with pytest.raises(bench.Leaked, match="two/x"):
            player.play(1, bench.name_game("a/two/x/g"), 0)


@pytest.mark.parametrize(("arm", "fails"), [("own", True), ("steps", True), ("other", False), ("none", False)])
def test_an_arm_that_shows_nothing_is_an_error_where_it_must_speak(arm, fails, tmp_path, monkeypatch):
    @contextmanager
    def open_arm(*arguments):
        with ExperienceLibrary.open(":memory:") as library:
            yield bench._Player(arm, Recalling(), library, ())  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "_open_arm", open_arm)
    results, folds = Results(tmp_path / "results.jsonl", asdict(SETUP)), {"learn": (), "test": ("a/one/x/g",)}
    if not fails:
        bench.play_seed(SETUP, folds, [arm], 0, tmp_path, results)
        return
    with pytest.raises(ConfigError, match="showed nothing"):
        bench.play_seed(SETUP, folds, [arm], 0, tmp_path, results)


def test_an_empty_library_is_an_error(tmp_path):
    (tmp_path / "own-0.learned").touch()
    with (
        pytest.raises(ConfigError, match="loaded 0"),
        bench._open_arm("own", SETUP, {"learn": (), "test": ()}, 0, tmp_path),
    ):
        pass


def test_a_shuffled_library_has_the_same_steps_under_other_tasks():
    with ExperienceLibrary.open(":memory:") as source, ExperienceLibrary.open(":memory:") as target:
        for seed in range(4):
            record(source, seed, f"put cup number {seed} away")
        games.shuffle_library(source, target, seed=3)
        before = {row["seed"]: row["task"] for row in source.episodes.find()}
        after = {row["seed"]: row["task"] for row in target.episodes.find()}
        assert before.keys() == after.keys()
        assert set(before.values()) == set(after.values())
        assert all(before[seed] != after[seed] for seed in before)


def test_a_library_that_is_learned_says_how_many_games_are_left(capsys):
    """Every tenth of them; what an interrupted run recorded is not played again."""
    here, played = State("A kitchen.", task="look"), []
    with ExperienceLibrary.open(":memory:") as library:
        library.record(Trajectory("look", (Step(here, "look", here, Diagnosis(True)),), True))
        agent: Any = SimpleNamespace(run=lambda *game: played.append(game), close=list)
        games._learn(agent, library, "learn", 30)
    assert played == [("learn", n) for n in range(1, 30)]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" games")[0] for line in lines] == [f"learned from {n} of 30" for n in range(3, 31, 3)]
    assert lines[-1].endswith("about 0 min left")


def test_figures_are_by_arm_seed_and_kind():
    rows = [
        {"arm": "own", "seed": 0, "game": f"pick-{n}", "success": n < 3, "loaded": 5, "shown": ["a"], "steps": 4}
        for n in range(4)
    ]
    (own,) = bench.summarise([*rows, {**rows[0], "success": None}], ["own"], SETUP)
    assert own["success"] == 0.75
    assert own["solved"] == [3]
    assert own["kinds"] == {"pick": [3, 4]}
    assert own["excluded"] == 1
    (none,) = bench.summarise(rows, ["none"], SETUP)
    assert none["solved"] == [0]


def test_an_environment_plays_the_games_that_it_is_given():
    world = AlfWorld(folds={"learn": ("one",), "test": ("two", "three")})
    assert world.count_seeds("test") == 2
    assert world.clone().count_seeds("learn") == 1
    with pytest.raises(UnknownName, match="learn"):
        world.reset("train")
    with pytest.raises(ConfigError, match="2 games"):
        world.reset("test", 2)
