"""EMPG, IGPO and SPAE: worked examples, degenerate cases, invariances."""

import math

import pytest
from tests.trainers.methods.traces import close, make

from hardwon.trainers.methods.empg import empg
from hardwon.trainers.methods.igpo import igpo
from hardwon.trainers.methods.spae import compute_bonuses, compute_gates, compute_potentials, spae


def test_empg_by_hand():
    """One turn each; entropies 0 and 1: g = exp(-h) / mean; then centered."""
    batch = [make("a", 1.0, entropy=[0.0]), make("b", 0.0, entropy=[1.0])]
    mean, base = (1 + math.exp(-1)) / 2, 0.5 / math.sqrt(0.5)
    raw = [base / mean, -base * math.exp(-1) / mean]
    found = empg(batch)
    assert [found["a"][0], found["b"][0]] == pytest.approx([x - sum(raw) / 2 for x in raw], rel=1e-5)


def test_empg_with_equal_entropies_pays_a_little_for_length():
    """Two successes of 2 and 6 turns: +0.0125, and -0.0375 for the last turns."""
    found = empg([make("a", 1.0, entropy=[0.7] * 2), make("b", 1.0, entropy=[0.7] * 6)])
    assert found["a"] == pytest.approx([0.0125, -0.0375])
    assert found["b"] == pytest.approx([0.0125] * 5 + [-0.0375])


def test_empg_by_group_does_not_see_other_groups():
    own = [make("a", 1.0, entropy=[0.1, 0.9]), make("b", 0.0, entropy=[0.5])]
    other = [make("c", 1.0, group="h", entropy=[7.0]), make("d", 0.0, group="h", entropy=[0.0])]
    together = empg([*own, *other], per="group")
    close(empg(own), {name: together[name] for name in "ab"})


def test_igpo_by_hand():
    """Gains 0.2 - 0 and then the outcome; all four rewards standardized together before discounting."""
    batch = [make("a", 1.0, answer=[0.2, 0.9]), make("b", 0.0, answer=[0.0, 0.1])]
    rewards = [0.2, 1.0, 0.0, 0.0]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    z = [(r - mean) / std for r in rewards]
    assert igpo(batch)["a"] == pytest.approx([z[0] + z[1], z[1]], rel=1e-4)


def test_igpo_with_constant_probabilities_has_only_outcomes():
    found = igpo([make("a", 1.0, answer=[0.3], scores={"answer": 0.3}), make("b", 0.0, answer=[0.3])])
    assert found["a"][0] == pytest.approx(0.5 / math.sqrt(0.5), rel=1e-4)


def test_igpo_does_not_change_with_a_common_factor_of_all_rewards():
    def scaled(by):
        return [make("a", by, answer=[0.2 * by, by]), make("b", 0.0, answer=[0.4 * by, 0.1 * by])]

    close(igpo(scaled(1.0)), igpo(scaled(100.0)), rel=1e-3)


def potential(answer, confidence):
    return compute_potentials(make("a", 1.0, answer=[answer], confidence=[confidence]))[0]


def test_spae_potential():
    """Phi(1, 1) = 1, Phi(0, 1) = -1, Phi(1, 0) = 0.5."""
    assert (potential(1, 1), potential(0, 1), potential(1, 0)) == (1.0, -1.0, 0.5)
    assert potential(None, 1) is None


def test_spae_by_hand():
    """Phi 0.2, 0.95, 0.97, c(R) = 0.5: before the last z 0.2091, 1.0683, 0.0646."""
    potentials = [0.2, 0.95, 0.97]
    gates = compute_gates(potentials, 0.5, 0.9)
    (bonus,) = compute_bonuses({"a": potentials}).values()
    assert gates == pytest.approx([1, 1, 0.6839], abs=1e-4)
    assert bonus == pytest.approx([-0.5818, 1.1365, -0.5547], abs=1e-4)
    raw = [0.5 * f + 0.5 * g for f, g in zip(gates, bonus, strict=True)]
    assert raw == pytest.approx([0.2091, 1.0683, 0.0646], abs=1e-4)


def test_spae_standardizes_over_the_batch():
    """With confidence 0, Phi is half the answer's probability; the sibling's turn has nothing known."""
    found = spae([make("a", 1.0, answer=[0.4, 1.0], confidence=[0, 0]), make("b", 0.0, answer=[None], confidence=[0])])
    values = [value for own in found.values() for value in own]
    assert sum(values) == pytest.approx(0.0, abs=1e-9)
    assert found["a"][1] > found["a"][0] > found["b"][0]


def test_spae_with_equal_changes_has_no_step_term():
    assert compute_bonuses({"a": [0.5], "b": [0.1]}) == {"a": [0.0], "b": [0.0]}


def test_spae_bonus_does_not_change_with_the_scale_of_all_changes():
    close(compute_bonuses({"a": [0.0, 0.1, 0.4]}), compute_bonuses({"a": [0.0, 0.2, 0.8]}))
