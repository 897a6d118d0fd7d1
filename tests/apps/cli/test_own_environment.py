"""`MODULE:CLASS` from the current folder, without PYTHONPATH, in every command that plays; and seeds that exist."""

import json
import sys

import pytest

from hardwon.apps.cli.run import choose_seeds
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments import count_seeds, open_environment

WORLD = '''
from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info


class Door:
    """Opening it is the task."""

    name = "door"

    def __init__(self, game="door"):
        self.game = game

    def reset(self, task="", seed=0):
        return State("A closed door.", task="open the door")

    def step(self, action):
        won = action == "open door"
        return State("An open door." if won else "A closed door.", task="open the door"), float(won), won, Info(
            success=won, score=float(won)
        )

    def admissible(self, state):
        return ["open door", "wait"]

    def clone(self):
        return Door(self.game)

    def close(self):
        pass


class NoWorld:
    pass
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with an environment in a file, on no search path."""
    (tmp_path / "own_door_world.py").write_text(WORLD)
    (tmp_path / "own_broken_world.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "own_door_world", raising=False)
    return tmp_path


def test_run_plays_an_environment_of_the_current_folder(folder, hardwon_json):
    told = hardwon_json("run", "own_door_world:Door", "--episodes", 4, "--arms", "random,step", "--out", folder / "out")
    assert (told["environment"], told["eval"]["seeds"]) == ("own_door_world:Door", [100, 149])
    assert told["arms"]["step"]["success_rate"] == 1.0


def test_eval_and_team_play_it(folder, hardwon, hardwon_json):
    told = hardwon_json("eval", "random", "--environment", "own_door_world:Door", "--seeds", "0-3")
    assert all(arm["episodes"] for arm in told.values())
    assert json.loads(hardwon("team", "own_door_world:Door", "--call-s", 0, "--teams", 2, "--json").stdout)["success"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("own_nothing:Door", UnknownName, "No module named 'own_nothing'"),
        ("own_door_world:Gate", UnknownName, "no attribute 'Gate'"),
        ("own_broken_world:Door", UnknownName, "ZeroDivisionError"),
        ("own_door_world:NoWorld", ConfigError, "needs reset, step"),
        (":", UnknownName, "Give MODULE:CLASS"),
    ],
)
def test_an_environment_that_cannot_be_opened_is_refused_in_words(folder, name, error, words):
    with pytest.raises(error, match=words):
        open_environment(name)


def test_a_class_that_takes_no_parameters_says_so(folder):
    assert open_environment("own_door_world:Door", game="gate").game == "gate"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot be called as Door"):
        open_environment("own_door_world:Door", params="n=1")


def test_nothing_in_the_folder_replaces_what_is_installed(folder):
    (folder / "textwrap.py").write_text("class Door: pass")
    with pytest.raises(UnknownName, match="no attribute 'Door'"):
        open_environment("textwrap:Door")


# ---- seeds


def test_the_default_seeds_are_those_that_an_environment_has():
    pytest.importorskip("bfcl_eval")
    world = open_environment("bfcl")
    assert (count_seeds(world, "train"), count_seeds(world, "dev")) == (100, 50)
    learned, tested = choose_seeds("bfcl", None, "", None, "dev", None)
    assert (learned, tested) == (tuple(range(100)), tuple(range(50)))
    for seed in (learned[-1], tested[-1]):
        world.reset("train" if seed == 99 else "dev", seed)


def test_large_folds_have_the_usual_seeds_and_what_is_asked_for_is_kept():
    assert choose_seeds("babyai", None, "", None, "dev", None) == (tuple(range(450)), tuple(range(100, 150)))
    assert choose_seeds("babyai", None, "", "3-4", "dev", "7") == ((3, 4), (7,))
    assert choose_seeds("babyai", None, "", None, "dev", "7")[1] == (7,)


def test_help_names_every_environment(hardwon):
    from hardwon.runtime.environments import describe_environments

    shown = hardwon("run", "--help").stdout
    assert all(name in shown for name in [*describe_environments(), "MODULE:CLASS"])
