"""Environments by name."""

import sys

import pytest

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments import count_seeds, open_environment
from hardwon.runtime.environments.babyai import BabyAI
from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.runtime.environments.tools.environment import ToolEnvironment


@pytest.mark.parametrize("name", ["textworld", "TextWorldExpress", "twx"])
def test_textworld_has_its_names(name):
    """Games and parameters go to it."""
    environment = open_environment(name, game="coin", params="numLocations=2")
    assert isinstance(environment, TextWorldExpress)
    assert (environment.name, environment.params) == ("textworld/coin", "numLocations=2")


def test_textworld_plays_mapreader_unless_told_otherwise():
    """The game that shows learning soonest."""
    assert open_environment("textworld").name == "textworld/mapreader"


@pytest.mark.parametrize("name", ["babyai", "minigrid"])
def test_babyai_has_its_names(name):
    """A game is a level."""
    environment = open_environment(name, game="PickupLoc")
    assert isinstance(environment, BabyAI)
    assert environment.name == "babyai/PickupLoc"


def test_babyai_has_no_parameters():
    """They would be ignored, so they are refused."""
    with pytest.raises(ConfigError, match="babyai takes no parameters"):
        open_environment("babyai", params="size=5")


def test_an_unknown_environment_lists_those_there_are():
    """With the nearest one."""
    with pytest.raises(
        UnknownName,
        match=r"unknown environment 'textwrld'\. Did you mean 'textworld'\? There are: MODULE:CLASS, alfworld, babyai",
    ):
        open_environment("textwrld")


@pytest.mark.parametrize(
    ("name", "params"), [("bfcl", "choice=8"), ("bfcl", "choices=many"), ("alfworld", "folder=x"), ("miniwob", "a=1")]
)
def test_parameters_that_an_environment_does_not_have_are_refused(name, params):
    """With the one that it has."""
    with pytest.raises(ConfigError, match=r"choices|data|no parameters"):
        open_environment(name, params=params)


@pytest.mark.parametrize(
    ("name", "kind", "game", "params", "made"),
    [
        ("bfcl", "bfcl.Bfcl", None, "", (("base",), {"choices": 0})),
        ("bfcl", "bfcl.Bfcl", "miss_func", "choices=8", (("miss_func",), {"choices": 8})),
        ("alfworld", "alfworld.AlfWorld", None, "", (("all",), {"data": ""})),
        ("alfworld", "alfworld.AlfWorld", "look", "data=here", (("look",), {"data": "here"})),
        ("scienceworld", "scienceworld.ScienceWorld", None, "", (("find-plant",), {"choices": False})),
        ("scienceworld", "scienceworld.ScienceWorld", "boil", "choices=1", (("boil",), {"choices": True})),
        ("miniwob", "miniwob.MiniWob", None, "", (("click-button",), {})),
        ("miniwob", "miniwob.MiniWob", "login", "", (("login",), {})),
    ],
)
def test_an_environment_is_opened_with_its_defaults_or_what_is_given(monkeypatch, name, kind, game, params, made):
    """Whether its package is installed or not."""
    monkeypatch.setattr(f"hardwon.runtime.environments.{kind}", lambda *args, **options: (args, options))
    assert open_environment(name, game=game, params=params) == made


def test_choices_of_scienceworld_are_on_or_off():
    with pytest.raises(ConfigError, match="choices is '2'"):
        open_environment("scienceworld", params="choices=2")


def test_only_an_environment_with_folds_of_its_own_counts_its_seeds(rooms):
    assert count_seeds(BabyAI("GoToLocal"), "train") == 1_000_000
    assert count_seeds(rooms(), "train") is None


@pytest.mark.parametrize(("before", "is_added"), [(["/lib"], True), (["", "/lib"], False)])
def test_the_current_folder_is_searched_for_an_environment_once(monkeypatch, tmp_path, before, is_added):
    """An empty entry stands for it already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*before])
    for _ in range(2):
        with pytest.raises(UnknownName):
            open_environment("no_such_module:World")
    assert sys.path == [*before, *[str(tmp_path)] * is_added]


def look(at: str) -> str:
    """Look."""
    return f"nothing at {at}"


@pytest.mark.parametrize(
    ("make", "needs"),
    [(lambda: BabyAI("GoToLocal"), "minigrid"), (lambda: TextWorldExpress("coin"), "textworld_express"),
     (lambda: ToolEnvironment([look]), "langchain_core")],
    ids=["babyai", "textworld", "tools"],
)  # fmt: skip
def test_an_action_needs_a_running_episode(make, needs):
    """There is none before the first reset, and none after the environment was closed."""
    pytest.importorskip(needs)
    environment = make()
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("wait")
    environment.reset()
    environment.close()
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("wait")
