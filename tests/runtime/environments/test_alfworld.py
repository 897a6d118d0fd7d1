"""ALFWorld; needs the extra, and games: `ALFWORLD_DATA`, or those of the folder beside the repository."""

import json
import os
import random
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, EnvironmentFailure, UnknownName
from hardwon.runtime import Agent, EpisodicPolicy
from hardwon.runtime.environments.alfworld import FOLDERS, KINDS, AlfWorld, games

ARCHIVE = Path(__file__).parents[4] / "shared/data/alfworld/train_subset.tar.xz"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    if "ALFWORLD_DATA" in os.environ:
        return os.environ["ALFWORLD_DATA"]
    if not ARCHIVE.exists():
        pytest.skip("there are no ALFWorld games here; set ALFWORLD_DATA")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(ARCHIVE) as archive:
        # Python before 3.11.4 has no filters, and refuses the argument.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safe)
    return str(folder)


@pytest.fixture
def world(data):
    pytest.importorskip("alfworld")
    world = AlfWorld("look_at_obj_in_light", data=data)
    yield world
    world.close()


def test_every_kind_has_games_to_learn_from(data):
    assert all(games(data, kind, "train") for kind in KINDS)


def test_no_game_of_one_fold_is_about_what_a_game_of_another_is(data):
    about = [{Path(game).parts[-3] for game in games(data, "all", fold)} for fold in FOLDERS]
    assert sum(map(len, about)) == len(set().union(*about))


def test_a_state_says_where_one_is_and_what_one_carries(world):
    state = world.reset("train", 0)
    assert state.task
    assert "You carry: nothing." in state.observation
    place = next(action for action in world.admissible(state) if action.startswith("go to "))
    state, reward, done, info = world.step(place)
    assert state.location == place.removeprefix("go to ")
    assert state.feedback.startswith(f"You arrive at {state.location}.")
    assert (reward, done, info.get("invalid")) == (0.0, False, None)


def test_what_is_carried_leaves_its_place(world):
    state = world.reset("train", 0)
    for place in world.admissible(state):
        state, *_ = world.step(place)
        taking = [action for action in world.admissible(state) if action.startswith("take ")]
        if taking:
            break
    state, *_ = world.step(taking[0])
    taken = taking[0].removeprefix("take ").partition(" from ")[0]
    assert f"You carry: {taken}." in state.observation
    assert f" a {taken}" not in state.observation.partition("You carry")[0]


def test_what_cannot_be_done_says_so(world):
    world.reset("train", 0)
    assert world.step("fly to the moon")[3]["invalid"] == "Nothing happens."


def test_the_gold_path_solves_the_running_game(world):
    with pytest.raises(ConfigError, match="call reset first"):
        world.gold_path()
    world.reset("train", 0)
    *_, (_, reward, done, info) = map(world.step, world.gold_path())
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_a_game_without_a_solution_breaks_no_other(world, tmp_path):
    """Training then leaves it out, as any game whose environment fails."""
    world.reset("train", 0)
    world._file = str(tmp_path / "game.tw-pddl")
    Path(world._file).write_text("{}")
    with pytest.raises(EnvironmentFailure, match=r"game\.tw-pddl contains no walkthrough \(KeyError"):
        world.gold_path()


def test_a_range_of_seeds_has_every_kind_of_task(data):
    """Files in the order of their names would give the first seeds one kind only."""
    files = games(data, "all", "train")
    assert {Path(file).parts[-3].partition("-")[0] for file in files[:40]} == {*KINDS}
    assert sorted(files) == sorted(file for kind in KINDS for file in games(data, kind, "train"))


def test_games_in_several_threads_do_not_disturb_each_other(data):
    """Episodes of training run at once; TextWorld's parsers have a state in globals."""
    pytest.importorskip("alfworld")

    def play(seed):
        with closing(AlfWorld("all", data=data)) as world:
            world.reset("train", seed)
            *_, (_, _, _, info) = map(world.step, world.gold_path())
            return info["success"]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(play, range(12)))


def test_an_agent_plays_it(world):
    with ExperienceLibrary.open(":memory:") as library:
        result = Agent(EpisodicPolicy(), library, world, max_steps=5).run("train", 1)
        assert (result.success is not None, library.episodes.count()) == (True, 1)


def test_cached_parsing_and_translation_change_no_word_of_a_game(world, data):
    """The same game as TextWorld plays it by itself, in a process that caches nothing."""
    file, seed = games(data, world.game, "train")[0], 0
    plain = json.loads(subprocess.run([sys.executable, "-c", PLAIN, file], capture_output=True, check=True).stdout)
    arguments = sys.argv
    world.reset("train", seed)
    assert sys.argv is arguments
    rng, shown = random.Random(0), [world._valid]
    for _ in range(10):
        after = world._env.step(rng.choice(world._valid))[0]
        world._valid = after.admissible_commands
        shown += [after.feedback, world._valid]
    assert shown == plain


PLAIN = """
import json, random, sys
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
env = textworld.start(sys.argv[1], textworld.EnvInfos(won=True, admissible_commands=True), [AlfredDemangler()])
state, rng = env.reset(), random.Random(0)
shown = [state.admissible_commands]
for _ in range(10):
    state = env.step(rng.choice(state.admissible_commands))[0]
    shown += [state.feedback, state.admissible_commands]
print(json.dumps(shown))
"""


def test_a_fold_that_does_not_exist_is_refused(data):
    with pytest.raises(UnknownName):
        AlfWorld(data=data).reset("training")


def test_without_games_it_says_where_they_go(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ConfigError, match="Set ALFWORLD_DATA"):
        AlfWorld()
