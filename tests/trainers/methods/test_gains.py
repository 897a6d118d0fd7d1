"""MRT, iStar (OPRL) and InfoPO, and the helper of two levels: worked examples, degenerate cases, invariances."""

import pytest
from tests.trainers.methods.traces import close, make

from hardwon.trainers.methods.blocks.levels import scale_turns
from hardwon.trainers.methods.dr_grpo import dr_grpo
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.infopo import infopo
from hardwon.trainers.methods.mrt import mrt
from hardwon.trainers.methods.oprl import oprl


def test_mrt_by_hand():
    """J a .1, .4, .8 and b .1, .1, .2: A = a (.55, .60), b (-.60, -.55)."""
    found = mrt([make("a", 1.0, progress=[0.3, 0.4]), make("b", 0.0, progress=[0.0, 0.1])])
    close(found, {"a": [0.55, 0.60], "b": [-0.60, -0.55]})


def test_mrt_without_progress_is_dr_grpo():
    batch = [make("a", 1.0, progress=[0.2, 0.2]), make("b", 0.0, progress=[0.2])]
    close(mrt(batch), dr_grpo(batch))


def test_mrt_by_trace_gives_length_no_say():
    """Six turns of 0 beside one of 1: the mean of the traces' means is 1/2, that of all turns 1/7."""
    batch = [make("a", 1.0, progress=[1.0]), make("b", 1.0, progress=[0.0] * 6)]
    assert mrt(batch, alpha=1, per="trace") == {"a": [0.5], "b": [-0.5] * 6}
    assert mrt(batch, alpha=1)["a"] == pytest.approx([6 / 7])


def test_oprl_by_hand():
    """r = .1, .2 and -.1, 0: A = a (1.0944, 1.8690), b (-1.8690, -1.0944)."""
    found = oprl([make("a", 1.0, implicit=[0.1, 0.2]), make("b", 0.0, implicit=[-0.1, 0.0])])
    close(found, {"a": [1.0944, 1.8690], "b": [-1.8690, -1.0944]}, abs=1e-4)


def test_oprl_speaks_where_all_succeeded():
    found = oprl([make("a", 1.0, implicit=[0.1]), make("b", 1.0, implicit=[-0.1])])
    assert found["a"][0] > 0 > found["b"][0]


def test_oprl_does_not_change_with_a_constant_added_to_every_reward():
    batch = [make("a", 1.0, implicit=[0.1, 0.2]), make("b", 0.0, implicit=[-0.1])]
    moved = [make("a", 1.0, implicit=[1.1, 1.2]), make("b", 0.0, implicit=[0.9])]
    close(oprl(batch), oprl(moved))


def test_infopo_by_hand():
    """Equal outcomes, I = a (.4, .2), b (.1, .3): A = (.2905, -.0968), (-.2905, .0968); the last turn has none."""
    found = infopo([make("a", 1.0, observation=[0.4, 0.2, None]), make("b", 1.0, observation=[0.1, 0.3, None])])
    close(found, {"a": [0.2905, -0.0968, 0.0], "b": [-0.2905, 0.0968, 0.0]}, abs=1e-4)


def test_infopo_of_one_turn_is_grpo():
    batch = [make("a", 1.0, observation=[None]), make("b", 0.0, observation=[None])]
    close(infopo(batch), grpo(batch))


def test_infopo_is_closed_where_outcomes_differ():
    batch = [make("a", 1.0, observation=[0.9, None]), make("b", 0.0, observation=[-0.9, None])]
    close(infopo(batch), grpo(batch), abs=1e-5)


def test_infopo_does_not_change_with_the_scale_of_a_group():
    def batch(by):
        return [make("a", 1.0, observation=[0.04 * by, 0.02 * by]), make("b", 1.0, observation=[0.01 * by, 0.03 * by])]

    close(infopo(batch(1)), infopo(batch(5)), rel=1e-4)


def test_one_known_turn_has_nothing_to_be_compared_with():
    assert scale_turns({"a": [0.7, None], "b": [None]}, "z") == {"a": [0.0, 0.0], "b": [0.0]}
    assert scale_turns({"a": [0.7, 0.1]}, "raw") == {"a": [0.0, 0.0]}
