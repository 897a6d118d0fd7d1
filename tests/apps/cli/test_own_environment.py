"""`MODULE:CLASS` from the current folder, without PYTHONPATH, in every command that plays; and seeds that exist."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from hardwon.apps.experiment import versions
from hardwon.apps.experiment.seeds import choose_seeds
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments import _OPENERS, count_seeds, open_environment

ROOT = Path(__file__).parents[3]

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
    name = "door"

    def reset(self, task, seed):
        pass

    step = clone = reset
    close = None
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with an environment in a file, on no search path."""
    (tmp_path / "own_door_world.py").write_text(WORLD)
    (tmp_path / "own_broken_world.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("own_door_world", "own_door_words"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_run_plays_an_environment_of_the_current_folder(folder, hardwon_json):
    told = hardwon_json("run", "own_door_world:Door", "--episodes", 4, "--arms", "random,step", "--out", folder / "out")
    assert (told["environment"], told["eval"]["seeds"]) == ("own_door_world:Door", [100, 149])
    assert told["arms"]["step"]["success_rate"] == 1.0


PLAY = ("run", "own_door_world:Door", "--episodes", 2, "--eval-seeds", "0-1", "--arms", "empty,step", "--jobs", 1)


def test_the_default_folder_names_the_environment_and_its_game(folder, hardwon_json):
    hardwon_json(*PLAY)
    hardwon_json(*PLAY, "--game", "oak door")
    assert {path.name for path in (folder / "runs").iterdir()} == {
        "own_door_world-Door",
        "own_door_world-Door-oak-door",
    }


def test_results_are_not_shown_as_new(folder, hardwon):
    first, again = hardwon(*PLAY), hardwon(*PLAY)
    assert "Nothing is played" not in first.stderr
    assert "Nothing is played: runs/own_door_world-Door has all results, of 20" in again.stderr
    assert "To start anew: rm -r runs/own_door_world-Door" in again.stderr
    assert "episodes  " not in again.stderr  # no progress without work
    assert first.stdout == again.stdout


def test_a_changed_source_of_the_environment_is_another_experiment(folder, hardwon):
    (folder / "own_door_words.py").write_text("WORDS = 'A closed door.'")
    (folder / "own_door_late.py").write_text("WORDS = 'An open door.'")
    (folder / "own_door_rules.json").write_text("{}")
    (folder / "rules").mkdir()
    (folder / "rules" / "oak.txt").write_text("oak")
    (folder / "own_door_notes.py").write_text("1")
    world = folder / "own_door_world.py"
    named = "RULES = 'own_door_rules.json', 'rules', 'runs', '..'\ndef look():\n    import own_door_late\n"
    world.write_text("from own_door_words import WORDS\n" + named + WORLD)
    assert hardwon(*PLAY).exit_code == 0
    (folder / "own_door_notes.py").write_text("2")  # no part of it
    assert hardwon(*PLAY).exit_code == 0
    for name in ("own_door_words.py", "own_door_late.py", "own_door_rules.json", "rules/oak.txt", "own_door_world.py"):
        before = (folder / name).read_text()
        (folder / name).write_text(f"{before}\n# changed\n")
        refused = hardwon(*PLAY, expect=2)
        assert "the source of own_door_world:Door has changed" in refused.stderr, name
        assert "rm -r runs/own_door_world-Door" in refused.stderr
        (folder / name).write_text(before)


def test_another_version_is_another_experiment(folder, hardwon, monkeypatch):
    assert hardwon(*PLAY).exit_code == 0
    monkeypatch.setattr("hardwon.apps.experiment.versions.version", lambda name: "99.0")
    refused = hardwon(*PLAY, expect=2)
    assert "the version of hardwon was" in refused.stderr


def test_a_changed_source_of_hardwon_is_another_experiment(folder, hardwon, monkeypatch):
    """A clone changes without a new version; what is in the folder was played by other code."""
    (folder / "memory" / "__pycache__").mkdir(parents=True)
    module = folder / "memory" / "library.py"
    module.write_text("1")
    monkeypatch.setattr("hardwon.apps.experiment.versions._find_folders", lambda: [module.parent])
    assert hardwon(*PLAY).exit_code == 0
    (folder / "memory" / "__pycache__" / "library.pyc").write_text("2")
    assert hardwon(*PLAY).exit_code == 0
    module.write_text("2")
    assert "the source of hardwon has changed" in hardwon(*PLAY, expect=2).stderr


def test_the_source_of_hardwon_is_all_that_plays_and_learns():
    folders = versions._find_folders()
    assert [folder.relative_to(ROOT).parts[0] for folder in folders] == ["memory", "runtime", "apps"]
    assert set(versions.PACKAGES) <= set(_OPENERS)


def test_a_run_says_its_cost_first_and_plays_three_agents(folder, hardwon):
    run = hardwon("run", "own_door_world:Door", "--episodes", 4, "--eval-seeds", "0-1", "--jobs", 1)
    tests = (2 + 2 * 5) * 2
    assert f"{3 * (4 + tests)} episodes of at most 50 steps: 4 to learn from and {tests} to test" in run.stderr
    assert "agent seeds 0, 1, 2" in run.stdout
    assert "one agent seed" not in run.stdout


def test_one_agent_seed_is_said_to_be_one(folder, hardwon):
    run = hardwon(*PLAY, "--seed", 4)
    assert "Agents of other seeds differ" in run.stdout


def test_a_team_plays_it(folder, hardwon):
    assert json.loads(hardwon("team", "own_door_world:Door", "--call-s", 0, "--teams", 2, "--json").stdout)["success"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("own_nothing:Door", UnknownName, "No module named 'own_nothing'"),
        ("own_door_world:Gate", UnknownName, "no attribute 'Gate'"),
        ("own_broken_world:Door", UnknownName, "ZeroDivisionError"),
        ("own_door_world:NoWorld", ConfigError, "it has no admissible, close. Add"),
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
    learned, tested = choose_seeds(partial(open_environment, "bfcl"), None, "dev", None)
    assert (learned, tested) == (tuple(range(100)), tuple(range(50)))
    for seed in (learned[-1], tested[-1]):
        world.reset("train" if seed == 99 else "dev", seed)


def test_large_folds_have_the_usual_seeds_and_what_is_asked_for_is_kept():
    assert choose_seeds(partial(open_environment, "babyai"), None, "dev", None) == (
        tuple(range(450)),
        tuple(range(100, 150)),
    )
    assert choose_seeds(partial(open_environment, "babyai"), "3-4", "dev", "7") == ((3, 4), (7,))
    assert choose_seeds(partial(open_environment, "babyai"), None, "dev", "7")[1] == (7,)


def test_help_names_every_environment(hardwon):
    shown = hardwon("run", "--help").stdout
    assert all(name in shown for name in [*_OPENERS, "MODULE:CLASS"])
