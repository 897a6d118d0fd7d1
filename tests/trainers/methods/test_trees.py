"""Estimators of trees and of attempts, by the worked examples of their papers."""

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from tests.trainers.methods.traces import close

from hardwon.trainers.algorithms.advantages import Trace, Turn, standardize
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.methods.aepo import aepo
from hardwon.trainers.methods.appo import appo
from hardwon.trainers.methods.arpo import arpo
from hardwon.trainers.methods.dr_grpo import dr_grpo
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.hbpo import hbpo, reward_budget
from hardwon.trainers.methods.rise import rise
from hardwon.trainers.methods.tree import tree


def make(name, outcome, actions, *, parent="", keep=0, entropy=None, label=""):
    """A trace that decided these actions after `keep` actions of its parent, which are named first."""
    own = tuple(Turn(action=action, step=keep + t) for t, action in enumerate(actions[keep:]))
    signals = {} if entropy is None else {"entropy": tuple(entropy)}
    fields = {"root": "branch" if parent else "", "parent": parent, "path": tuple(actions[:keep]), "label": label}
    return Trace(name, "g", own, outcome, signals=signals, **fields)


FAMILY = [
    make("a", 1, ["x", "y"]),
    make("b", 0, ["x", "z"], parent="a", keep=1),
    make("c", 0, ["p"]),
    make("d", 0, ["q"]),
]


def test_arpo_shares_the_mean_of_the_traces_through_a_turn():
    """Parent 1, its branch 0, two fresh 0: 0.75 and -0.25 three times; the shared prefix 0.25, trained once."""
    assert arpo(FAMILY) == {"a": [0.25, 0.75], "b": [-0.25], "c": [-0.25], "d": [-0.25]}


def test_a_branch_of_a_branch_counts_in_the_turns_of_both():
    deep = [*FAMILY, make("e", 1, ["x", "z", "w"], parent="b", keep=2)]
    values = arpo(deep)
    assert values["a"][0] == pytest.approx((0.6 - 0.4 + 0.6) / 3)
    assert values["b"] == [pytest.approx(0.1)]


@pytest.mark.parametrize("std", [False, True])
def test_without_branches_arpo_is_grpo(std):
    flat = [make(name, out, ["x", "y"]) for name, out in zip("abc", (1, 0, 0), strict=True)]
    close(arpo(flat, std=std), (grpo if std else dr_grpo)(flat))


def test_a_tree_values_a_node_by_its_leaves():
    """Leaves (1, 1), (1, 0): root 0.75, children 1 and 0.5: +0.25, -0.25; leaves 0, 0, +0.5, -0.5."""
    traces = [
        make("a", 1, ["l", "1"]),
        make("b", 1, ["l", "2"], parent="a", keep=1),
        make("c", 1, ["r", "1"]),
        make("d", 0, ["r", "2"], parent="c", keep=1),
    ]
    assert tree(traces) == {"a": [0.25, 0.0], "b": [0.0], "c": [-0.25, 0.5], "d": [-0.5]}
    assert sum(tree([traces[2], traces[3], traces[0], traces[1]])["c"]) == pytest.approx(1 - 0.75)
    assert tree(traces, globally=True)["c"] == [-0.5, 0.75]
    assert tree(traces, root=True)["a"][0] == pytest.approx(0.25 / 2**0.5)


def test_one_child_everywhere_teaches_nothing():
    traces = [make(name, 1, ["x", "y"]) for name in "abc"]
    assert tree(traces) == {name: [0.0, 0.0] for name in "abc"}


def test_appo_adds_what_the_branches_are_worth_up_to_the_split():
    """Begun [1, 0]: 1, -1; branches of the first [1, 0], of the second [0, 0]: prefixes 1.577 and -1.577."""
    traces = [make("a", 1, ["x", "y"]), make("b", 0, ["p", "q"])]
    for name, out, parent, first in (("c", 1, "a", "x"), ("d", 0, "a", "x"), ("e", 0, "b", "p"), ("f", 0, "b", "p")):
        traces.append(make(name, out, [first, name], parent=parent, keep=1))
    values = appo(traces)
    assert values["a"] == pytest.approx([1.5774, 1.0], abs=1e-3)
    assert values["b"] == pytest.approx([-1.5774, -1.0], abs=1e-3)
    assert [values[name] for name in "cdef"] == [[0.0]] * 4


def test_a_branch_s_own_later_turns_change_nothing_in_appo():
    one = [make("a", 1, ["x", "y"]), make("b", 0, ["p"]), make("c", 1, ["x", "k"], parent="a", keep=1)]
    other = [*one[:2], make("c", 1, ["x", "m", "n", "o"], parent="a", keep=1)]
    assert appo(one)["a"] == appo(other)["a"]


def test_aepo_scales_by_the_entropy_of_the_turn():
    """H = [0, 2], A = 1: 0.8586 and 1.1414."""
    traces = [make("a", 1, ["x", "y"], entropy=(0.0, 2.0)), make("b", 0, ["p"], entropy=(None,))]
    scale = arpo(traces, std=True)["a"][0]
    assert [value / scale for value in aepo(traces)["a"]] == pytest.approx([0.8586, 1.1414], abs=1e-4)
    equal = [replace(trace, signals={"entropy": (0.5,) * len(trace.turns)}) for trace in traces]
    assert aepo(equal) == arpo(equal, std=True)


def test_the_factor_of_aepo_never_changes_a_sign():
    entropies = (0.0, *(1.0 for _ in range(40)))
    traces = [make("a", 1, [str(n) for n in range(41)], entropy=entropies), make("b", 0, ["p"], entropy=(1.0,))]
    assert min(aepo(traces, weight=1.0)["a"]) == 0.0


ATTEMPTS = [
    make("1", 0, ["x"]),
    make("2", 0, ["y"], parent="1", label="try 2"),
    make("3", 1, ["z"], parent="2", label="try 3"),
]


def test_only_the_better_attempt_is_a_target():
    """Rewards 0, 0, 1: attempt 3, with weight 1."""
    assert rise(ATTEMPTS) == {"1": [0.0], "2": [0.0], "3": [1.0]}
    assert rise(ATTEMPTS, criterion="best") == {"1": [0.0], "2": [0.0], "3": [1.0]}


def test_a_first_success_is_no_better_attempt():
    assert rise([make("1", 1, ["x"])]) == {"1": [0.0]}
    assert rise([make("1", 1, ["x"])], criterion="success") == {"1": [1.0]}


def test_a_target_with_equal_actions_counts_once():
    again = [make("4", 0, ["x"]), make("5", 1, ["z"], parent="4", label="try 2")]
    values = rise([*ATTEMPTS, *again])
    assert (values["3"], values["5"]) == ([1.0], [0.0])


@pytest.mark.parametrize("name", [name for name, card in PARTS.list_cards("estimator").items() if card.tree])
def test_the_order_of_the_traces_and_other_groups_change_nothing(name):
    traces = [replace(trace, signals={"entropy": (0.5,) * len(trace.turns)}) for trace in FAMILY]
    expected = PARTS.get("estimator", name)(traces)
    other = [replace(trace, id=f"o{trace.id}", group="h", outcome=1.0, parent="") for trace in traces]
    shuffled = [*traces, *other]
    random.Random(0).shuffle(shuffled)
    values = PARTS.get("estimator", name)(shuffled)
    close({key: values[key] for key in expected}, expected)


@pytest.mark.parametrize("name", [name for name, card in PARTS.list_cards("estimator").items() if card.tree])
def test_a_lone_trace_teaches_nothing(name):
    lone = make("a", 1, ["x", "y"], entropy=(0.1, 0.2))
    assert PARTS.get("estimator", name)([lone])["a"] == [0.0, 0.0]


class TestHbpo:
    def make(self, name, outcome, budget, turns):
        return make(name, outcome, [f"{name}{n}" for n in range(turns)], label=f"budget {budget}")

    def test_both_terms(self):
        traces = [self.make("a", 1, 2, 2), self.make("b", 0, 2, 2), self.make("c", 1, 4, 4), self.make("d", 0, 4, 1)]
        rewards = [reward_budget(2, 2, 8), 0.0, reward_budget(4, 4, 8), 0.0]
        gap = fmean(rewards[:2]) - 4 * math.cos(math.pi * 2 / 16)
        values = hbpo(traces)
        assert values["a"] == pytest.approx([standardize(rewards)[0] + gap] * 2)
        assert values["b"] == pytest.approx([standardize(rewards)[1] + gap] * 2)

    def test_with_one_budget_the_second_term_is_a_constant(self):
        traces = [self.make(name, out, 4, 3) for name, out in zip("abc", (1, 0, 0), strict=True)]
        values = hbpo(traces)
        rewards = [reward_budget(3, 4, 8), 0.0, 0.0]
        shift = {round(values[t.id][0] - z, 9) for t, z in zip(traces, standardize(rewards), strict=True)}
        assert len(shift) == 1

    def test_the_order_of_the_budgets_does_not_matter(self):
        traces = [self.make(name, n % 2, 2 + n, 2) for n, name in enumerate("abcd")]
        close(hbpo(traces), hbpo(traces[::-1]))

    def test_a_lone_trace_teaches_nothing(self):
        assert hbpo([self.make("a", 1, 2, 1)]) == {"a": [0.0]}


def test_appo_without_branches_is_the_z_of_the_begun():
    """Begun [1, 0]: 1 and -1 by the standard deviation of the population."""
    close(appo([make("a", 1, ["x", "y"]), make("b", 0, ["p"])]), {"a": [1.0, 1.0], "b": [-1.0]}, abs=1e-5)
