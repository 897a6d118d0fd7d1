"""What is read of the world's record alone: the answer of an episode."""

import math
import re
from dataclasses import replace

import pytest
from tests.trainers.sources.test_sources import read, rollout

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import to_trace
from hardwon.trainers.config.sources import check_source
from hardwon.trainers.methods.scope import scope
from hardwon.trainers.sources.world import find_answer


def steps(*actions):
    return [Step(State("hall"), action, State("hall"), Diagnosis(True), t=t) for t, action in enumerate(actions)]


def test_the_last_action_that_fits_is_the_answer():
    pattern = re.compile(r"answer:? (.+)", re.IGNORECASE)
    assert find_answer(pattern, ["answer blue", "look", "Answer:  RED  ball", "look"]) == "red ball"
    assert find_answer(pattern, ["look", "my answer red"]) == ""
    assert find_answer(re.compile(".+"), ["look", "Go East"]) == "go east"


def test_answers_and_their_confidence_feed_scope():
    rollouts = [rollout("a", steps("look", "go east")), rollout("b", steps("go west")), rollout("c", steps("go west"))]
    rows = [replace(row, logprobs=(-2.0,)) for row in rollouts[0].rows]
    rollouts[0] = replace(rollouts[0], rows=tuple(rows))
    found, sources = read("answers", {"pattern": "go (.+)"}, *rollouts)
    traces = [to_trace(one) for one in found]
    assert [trace.facts["answer"] for trace in traces] == ["east", "west", "west"]
    assert traces[0].scores["confidence"] == pytest.approx(math.exp(-2.0))
    assert [trace.outcome for trace in scope(traces, votes=3)] != [trace.outcome for trace in traces]
    assert sources.drain_metrics()["signal/answers/missing"] == 0.0


def test_an_episode_without_an_answer_does_not_vote():
    (found,), sources = read("answers", {"pattern": "go (.+)"}, rollout("a", steps("look", "look")))
    assert to_trace(found).facts["answer"] == ""
    assert "confidence" not in to_trace(found).scores
    assert sources.drain_metrics()["signal/answers/missing"] == 1.0


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="regular expression"):
        check_source("answers", {"pattern": "("})
