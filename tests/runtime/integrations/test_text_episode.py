"""Episodes of an environment as text: when they end, what they show then, and their score."""

import pytest

from hardwon.memory import State
from hardwon.runtime.integrations.text_episode import TextEpisode


class Stairs:
    """Four steps up, each of which earns a quarter; facts about the episode only if there are any."""

    name = "stairs"

    def __init__(self, feedback="", info=(), reward=0.25):
        self.at, self.feedback, self.info, self.reward = 0, feedback, dict(info), reward

    def reset(self, task="", seed=0):
        self.at = 0
        return State("You are on step 0.", task="climb")

    def step(self, action):
        self.at += 1
        done = self.at == 4
        info = {"success": True} if done else {}
        return State(f"You are on step {self.at}.", feedback=self.feedback), self.reward, done, {**info, **self.info}

    def admissible(self, state):
        return ["climb"]

    def clone(self):
        return Stairs()

    def close(self):
        pass


def begin(max_steps=9, **fields):
    episode = TextEpisode(Stairs(**fields), max_steps=max_steps)
    episode.begin()
    return episode


def test_an_episode_that_has_not_begun_is_neither_over_nor_won():
    episode = TextEpisode(Stairs(), max_steps=9)
    assert (episode.is_over, episode.success, episode.score) == (False, False, 0.0)


def test_rewards_add_up_where_there_is_no_score_and_a_success_is_1():
    episode = begin()
    scores = []
    for _ in range(4):
        episode.answer("climb")
        scores.append((episode.score, episode.success, episode.is_over))
    assert scores == [(0.25, False, False), (0.5, False, False), (0.75, False, False), (1.0, True, True)]
    episode.begin()
    assert (episode.score, episode.success, episode.is_over) == (0.0, False, False)


def test_a_score_of_the_environment_comes_before_its_rewards():
    episode = begin(info={"score": 0.1})
    episode.answer("climb")
    assert episode.score == 0.1


@pytest.mark.parametrize(("feedback", "shown"), [("You puff.", "You puff."), ("", "You are on step 2.")])
def test_at_the_limit_the_last_result_is_shown_and_no_further_turn(feedback, shown):
    episode = begin(max_steps=2, feedback=feedback, reward=0.0)
    assert "climb" in episode.answer("climb")
    last = episode.answer("climb")
    assert episode.is_over
    assert shown in last
    assert "admissible" not in last.lower()
    assert "Answer" not in last
