"""Lite PPO, HDPO, HBPO and DECS: worked examples, degenerate cases, invariances."""

import pytest
from tests.trainers.methods.traces import close, make

from hardwon.trainers.methods.decs import decs
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.hbpo import reward_budget
from hardwon.trainers.methods.hdpo import hdpo
from hardwon.trainers.methods.lite import lite


def test_lite_by_hand():
    """Groups [1, 0] and [1, 1]: the batch's sd is .5, so 1, -1, 0, 0."""
    batch = [make("a", 1.0), make("b", 0.0), make("c", 1.0, group="h"), make("d", 1.0, group="h")]
    close(lite(batch), {"a": [1.0], "b": [-1.0], "c": [0.0], "d": [0.0]}, abs=1e-5)
    close(lite(batch), lite(batch[2:] + batch[:2]))


def test_lite_with_equal_rewards_is_zero():
    assert lite([make("a", 1.0), make("b", 1.0)]) == {"a": [0.0], "b": [0.0]}


def test_hdpo_by_hand():
    """Right with T = 0, 1, 3 and one wrong: .6637, .4673, .3691, -1.5."""
    batch = [make("a", 1.0, 1), make("b", 1.0, 2), make("c", 1.0, 4), make("d", 0.0, 9)]
    found = hdpo(batch)
    assert [found[name][0] for name in "abcd"] == pytest.approx([0.6637, 0.4673, 0.3691, -1.5], abs=1e-4)


def test_hdpo_with_one_right_trace_is_grpo_whatever_the_length_of_wrong_ones():
    one = hdpo([make("a", 1.0, 3), make("b", 0.0, 1)])
    two = hdpo([make("a", 1.0, 3), make("b", 0.0, 8)])
    assert one["a"][0] == pytest.approx(0.7071, abs=1e-4)
    assert one["b"][0] == two["b"][0]


def test_budget_reward_by_hand():
    """L = 4096: n 1024, b 2048: 2.8284; n 3072: 1.2807."""
    assert reward_budget(1024, 2048, 4096) == pytest.approx(2.8284, abs=1e-4)
    assert reward_budget(3072, 2048, 4096) == pytest.approx(1.2807, abs=1e-4)


def test_decs_by_hand():
    """Length 6 of 10: 1.04 against 1.1; one position with 1.04, 1.1, 0: .327, .387, -.713."""
    batch = [
        make("a", 1.0, redundant=[1] + [0] * 5),
        make("b", 1.0, redundant=[0]),
        make("c", 0.0, redundant=[0]),
    ]
    found = decs(batch, longest=10)
    assert [found[name][0] for name in "abc"] == pytest.approx([0.327, 0.387, -0.713], abs=1e-3)
    assert found["a"][1] == 0.0  # no sibling got as far


def test_decs_measures_a_redundant_turn_by_the_longest_trace():
    """2 of 4 turns: 1.05 against 1.1; a trace without any turn has no advantage."""
    batch = [make("a", 1.0, redundant=[1, 0]), make("b", 1.0, redundant=[0] * 4)]
    close(decs(batch), {"a": [-0.025, 0.0], "b": [0.025, 0.0, 0.0, 0.0]})
    assert decs([make("a", 1.0, 0, redundant=[])]) == {"a": []}


def test_decs_of_wrong_traces_is_zero_and_their_redundant_turns_do_nothing():
    close(decs([make("a", 0.0, redundant=[1, 0]), make("b", 0.0, redundant=[0])]), {"a": [0.0, 0.0], "b": [0.0]})
    one = decs([make("a", 1.0, redundant=[0]), make("b", 0.0, redundant=[0])])
    two = decs([make("a", 1.0, redundant=[0]), make("b", 0.0, redundant=[1])])
    close(one, two)


def test_decs_at_a_position_where_all_are_right():
    """1.04, 1.1, 1.1 at one position: -.04, .02, .02; the order of the traces does not matter."""
    batch = [make("a", 1.0, redundant=[1] + [0] * 5), make("b", 1.0, redundant=[0]), make("c", 1.0, redundant=[0])]
    found = decs(batch, longest=10)
    assert [found[name][0] for name in "abc"] == pytest.approx([-0.04, 0.02, 0.02], abs=1e-3)
    close(found, decs(batch[::-1], longest=10))


def test_hdpo_without_a_right_trace_is_grpo():
    batch = [make("a", 0.0, 1), make("b", 0.0, 5)]
    close(hdpo(batch), grpo(batch))
