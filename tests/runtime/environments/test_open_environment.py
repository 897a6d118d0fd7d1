"""Environments by name."""

import pytest

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments import describe_environments, open_environment
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
        UnknownName, match=r"unknown environment 'textwrld'\. Did you mean 'textworld'\? There are: alfworld, babyai"
    ):
        open_environment("textwrld")


def test_all_games_are_described():
    """By the environment they belong to."""
    games = describe_environments()
    assert "coin" in games["textworld"]
    assert "GoToLocal" in games["babyai"]


@pytest.mark.parametrize(
    ("name", "params"), [("bfcl", "choice=8"), ("bfcl", "choices=many"), ("alfworld", "folder=x"), ("miniwob", "a=1")]
)
def test_parameters_that_an_environment_does_not_have_are_refused(name, params):
    """With the one that it has."""
    with pytest.raises(ConfigError, match=r"choices|data|no parameters"):
        open_environment(name, params=params)


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
