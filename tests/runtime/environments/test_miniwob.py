"""MiniWoB++ in a real browser; needs the extra, Chromium and its driver."""

import shutil

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime import Agent, EpisodicPolicy
from hardwon.runtime.environments.miniwob import MiniWob

pytest.importorskip("miniwob")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="there is no chromedriver here"),
]


@pytest.fixture(scope="module")
def login():
    world = MiniWob("login-user")
    yield world
    world.close()


def test_a_form_is_filled_in_and_sent(login):
    state = login.reset("train", 3)
    name, password = state.task.split('"')[1::2]
    state, *_ = login.step(f'type "{name}" into text username')
    assert f'text username with "{name}" in it' in state.observation
    login.step(f'type "{password}" into password password')
    _, reward, done, info = login.step("click button Login")
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_the_wrong_thing_loses(login):
    login.reset("train", 3)
    _, reward, done, info = login.step("click button Login")
    assert (reward, done, info["lost"]) == (0.0, True, True)


def test_actions_are_clicks_and_the_words_of_the_task(login):
    state = login.reset("train", 3)
    actions = login.admissible(state)
    assert "click button Login" in actions
    assert all(words in " ".join(actions) for words in state.task.split('"')[1::2])


def test_the_same_seed_is_the_same_page(login):
    assert login.reset("dev", 5) == login.reset("dev", 5)


def test_an_element_that_is_not_there_is_refused(login):
    login.reset("train", 3)
    assert "cannot be done here" in login.step("click button Logout")[3]["invalid"]


def test_an_agent_plays_it():
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(EpisodicPolicy(), library, MiniWob("click-button"), max_steps=5)
        assert agent.run("train", 1).success is not None
        agent.close()


def test_without_a_browser_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("MINIWOB_CHROME_BINARY", raising=False)
    with pytest.raises(ConfigError, match="Chromium and its driver"):
        MiniWob().reset()


def test_a_task_that_does_not_exist_is_refused():
    with pytest.raises(UnknownName):
        MiniWob("click-buttons")
