"""How much an agent explores depends on its practice in the environment at hand."""

from dataclasses import replace
from typing import Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from hardwon.memory.storage.worlds import Worlds
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Decision


class Watcher:
    """A policy that takes the first action, and keeps the practice that each decision was told."""

    name = "watcher"
    reads: Literal["values", "text"] = "values"

    def __init__(self, before=lambda: None):
        self.saw, self._before = [], before

    def decide(self, context):
        self._before()
        self.saw.append(context.practice)
        return Decision(context.actions[0])

    async def adecide(self, context):
        return self.decide(context)


@pytest.fixture
def play(library, rooms):
    """Plays an episode of three steps, and returns its trajectory with the practice that the decisions were told."""

    def run(seed, **options):
        watcher = Watcher()
        agent = Agent(watcher, library, rooms(), max_steps=3, **options)
        trajectory = agent.run("", seed).trajectory
        agent.close()
        return trajectory, watcher.saw

    return run


def test_episodes_of_another_game_are_no_practice(library, episode, play):
    """An agent that begins a second game with the library of the first explores as much as with an empty one."""
    for seed in range(20):
        library.record(episode("open drawer", library=library, seed=seed))
    assert play(0)[1] == [0, 0, 0]


def test_own_episodes_are_practice(play):
    for seed in range(5):
        assert play(seed)[1] == [seed, seed, seed]


def test_practice_is_counted_once_an_episode(library, rooms, play):
    """Other agents may record into the library meanwhile."""
    trajectory, _ = play(0)
    numbers = iter(range(9))
    watcher = Watcher(lambda: library.record(replace(trajectory, id=f"other-{next(numbers)}")))
    Agent(watcher, library, rooms(), max_steps=3).run("", 1)
    assert watcher.saw == [1, 1, 1]


def test_each_episode_of_a_thread_is_counted_anew(library, rooms):
    watcher = Watcher()
    agent = Agent(watcher, library, rooms(), max_steps=1, checkpointer=InMemorySaver())
    for seed in range(3):
        agent.run("", seed, thread_id="t")
    assert watcher.saw == [0, 1, 2]


def test_a_frozen_agent_counts_nothing(play, monkeypatch):
    monkeypatch.delattr(Worlds, "count_kin")
    assert play(0, learn=False)[1] == [0, 0, 0]
