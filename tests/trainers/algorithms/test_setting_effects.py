"""Settings away from their defaults: a default of 0 or 1 hides a wrong sign, factor or divisor."""

import math
import random
from dataclasses import replace

import pytest
from tests.trainers.algorithms.test_composers import end, make_path, specs
from tests.trainers.methods.test_curricula import WORLDS, build, played
from tests.trainers.methods.traces import close, draw_trace, make

from hardwon.trainers.algorithms.advantages import Turn
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts
from hardwon.trainers.methods.capo import capo
from hardwon.trainers.methods.decs import decs
from hardwon.trainers.methods.dr_grpo import dr_grpo
from hardwon.trainers.methods.empg import empg
from hardwon.trainers.methods.epo_strategy import epo_strategy
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.hae import compute_hierarchical
from hardwon.trainers.methods.hbpo import hbpo, reward_budget
from hardwon.trainers.methods.hdpo import hdpo
from hardwon.trainers.methods.igpo import igpo
from hardwon.trainers.methods.infopo import infopo
from hardwon.trainers.methods.learnat import learnat
from hardwon.trainers.methods.reinforce import reinforce
from hardwon.trainers.methods.spae import compute_gates, spae
from hardwon.trainers.methods.tp_grpo import tp_grpo

WEIGHTS_OF_ESTIMATORS = [
    ("gigpo", "omega"),
    ("slea", "omega"),
    ("hgpo", "episode"),
    ("hdpo", "weight"),
    ("mrt", "alpha"),
    ("oprl", "alpha"),
    ("infopo", "beta"),
    ("tp-grpo", "alpha"),
    ("prorag", "beta"),
    ("rlvmr", "weight"),
    ("rlvmr", "bonus"),
    ("empg", "zeta"),
]
WEIGHTS_OF_SHAPERS = [
    ("posterior", "format"),
    ("rubric", "eta"),
    ("stages", "format"),
    ("prediction", "weight"),
    ("overlong", "factor"),
    ("redistribute", "grounding"),
    ("retrospection", "beta"),
    ("rungs", "weight"),
    ("rungs", "price"),
]


def batch(seed=4):
    """Traces of one group, role and arm, so that all of them are compared."""
    chance = random.Random(seed)
    drawn = [draw_trace(number, chance) for number in range(8)]
    return [replace(trace, group="g", role="policy", arm="control") for trace in drawn]


@pytest.mark.parametrize(("name", "weight"), WEIGHTS_OF_ESTIMATORS)
def test_an_advantage_is_linear_in_the_weight_of_a_term(name, weight):
    without, whole, quarter = (PARTS.get("estimator", name)(batch(), **{weight: value}) for value in (0.0, 1.0, 0.25))
    assert without != whole
    for key in whole:
        mixed = [0.75 * a + 0.25 * b for a, b in zip(without[key], whole[key], strict=True)]
        assert quarter[key] == pytest.approx(mixed, abs=1e-9)


@pytest.mark.parametrize(("name", "weight"), WEIGHTS_OF_SHAPERS)
def test_a_shaped_reward_is_linear_in_its_weight(name, weight):
    def shaped(value):
        settings = {weight: value, **({"limit": 2, "buffer": 1} if name == "overlong" else {})}
        traces = PARTS.get("shaper", name)(batch(), **settings)
        return [figure for one in traces for figure in (one.outcome, *(turn.reward for turn in one.turns))]

    without, whole, quarter = map(shaped, (0.0, 1.0, 0.25))
    assert without != whole
    mixed = [0.75 * a + 0.25 * b for a, b in zip(without, whole, strict=True)]
    assert quarter == pytest.approx(mixed, abs=1e-9)


def test_capo_with_other_weights_by_hand():
    """Three for the outcome, less two for a wrong turn: (3, 1) and (-2, 0), mean 0.5, sd 2.0817."""
    values = capo([make("a", 1.0, steps=[1, 0]), make("b", 0.0, steps=[0, 1])], whole=3, process=2)
    close(values, {"a": [1.2010, 0.2402], "b": [-1.2010, -0.2402]}, abs=1e-4)


def test_tp_grpo_takes_the_weighted_accuracy_from_a_wrong_thought():
    """Two of four are right: o is .866, and 2 x 1/2 less for the wrong thought."""
    rows = [("a", 1.0, [1, 0]), ("b", 1.0, [1]), ("c", 0.0, [0]), ("d", 0.0, [0])]
    values = tp_grpo([make(name, outcome, steps=steps) for name, outcome, steps in rows], alpha=2)
    assert values["a"] == pytest.approx([0.866, -0.134], abs=1e-3)


def test_igpo_discounts_what_follows():
    rows = [make("a", 1.0, answer=[0.2, 0.9]), make("b", 0.0, answer=[0.0, 0.1])]
    (first, last), (half, same) = igpo(rows, discount=1.0)["a"], igpo(rows, discount=0.5)["a"]
    assert last == same
    assert half == pytest.approx(first - 0.5 * last)


def test_infopo_gives_a_turn_a_share_of_the_next_one_s_term():
    rows = [make("a", 1.0, observation=[0.4, 0.2, None]), make("b", 1.0, observation=[0.1, 0.3, None])]
    close(
        infopo(rows, discount=0.5),
        {"a": [0.2905 - 0.0484, -0.0968, 0.0], "b": [-0.2905 + 0.0484, 0.0968, 0.0]},
        abs=1e-4,
    )


def test_infopo_s_gate_opens_with_its_temperature():
    """Outcomes 1 and 0 have the sd .7071: at a temperature of 1 the gate is .3302, where .5 gives .2905."""
    rows = [make("a", 1.0, observation=[0.4, 0.2, None]), make("b", 0.0, observation=[0.1, 0.3, None])]
    plain, values = grpo(rows), infopo(rows, temperature=1.0)
    gained = [value - base for value, base in zip(values["a"], plain["a"], strict=True)]
    assert gained == pytest.approx([0.2905 * 0.3302 / 0.5, -0.0968 * 0.3302 / 0.5, 0.0], abs=1e-4)


def test_infopo_is_bounded_by_the_spread_of_the_outcomes():
    """Terms with a sd of 3.87 over the batch are scaled by 1 / 3.87."""
    rows = [make("a", 1.0, observation=[12.0, 6.0]), make("b", 1.0, observation=[3.0, 9.0])]
    near = [make("a", 1.0, observation=[0.4, 0.2]), make("b", 1.0, observation=[0.1, 0.3])]
    sd = math.sqrt(15)
    assert infopo(rows)["a"] == pytest.approx([value / sd for value in infopo(near)["a"]], rel=1e-4)


def test_reinforce_discounts_the_rewards_to_come():
    """Rewards 1, 2 at 1/2: returns 2 and 2, against 0: the baseline is 1."""
    paid = replace(make("a", 1.0, 2), turns=(Turn(1.0), Turn(2.0)))
    assert reinforce([paid, make("b", 0.0)], discount=0.5) == {"a": [1.0, 1.0], "b": [-1.0]}


def test_empg_with_sharper_weights_by_hand():
    """Entropies 0, 1 and 1/2 of one group, k = 2 and a bonus exp(-3 h) x 0.1 of the next turn."""
    rows = [make("a", 1.0, entropy=[0.0, 1.0]), make("b", 0.0, entropy=[0.5])]
    base = grpo(rows)
    mean = (1 + math.exp(-2) + math.exp(-1)) / 3
    raw = [
        base["a"][0] / mean + 0.1 * math.exp(-3),
        base["a"][1] * math.exp(-2) / mean,
        base["b"][0] * math.exp(-1) / mean,
    ]
    values = empg(rows, k=2, future=3, zeta=0.1)
    assert [*values["a"], *values["b"]] == pytest.approx([value - sum(raw) / 3 for value in raw])


def test_spae_s_gate_falls_with_its_weight_after_its_bound():
    assert compute_gates([0.2, 0.95, 0.97], 1.0, 0.9) == pytest.approx([1.0, 1.0, math.exp(-1)])
    assert compute_gates([0.2, 0.95, 0.97], 0.5, 0.1) == pytest.approx(
        [1.0, 0.6839, 0.5 + 0.5 * math.exp(-2)], abs=1e-4
    )
    assert compute_gates([None, 0.9, 0.91, None], 0.5, 0.9)[:3] == [1.0, 1.0, 1.0]


def test_spae_without_its_step_term_has_the_sign_of_the_outcome():
    rows = [make("a", 1.0, answer=[0.4, 1.0], confidence=[0, 0]), make("b", 0.0, answer=[0.9], confidence=[0])]
    values = spae(rows, xi=0.0)
    assert values["a"][0] == values["a"][1] > 0 > values["b"][0]


def test_learnat_s_margin_is_weighted():
    """Parts .9 and .4: sigmoid(log .5) is 1/3, and sigmoid(2 log .5) is 1/5."""
    rows = [make("a", 1.0, part=[0.9], actions=["x"]), make("b", 0.0, part=[0.4], actions=["y"])]
    single, double = learnat(rows), learnat(rows, alpha=2.0)
    assert double["a"][0] / single["a"][0] == pytest.approx(0.6)
    assert double["b"] == [-double["a"][0]]


def test_hae_by_hand():
    """Discount .9, decays .5 in a segment and .8 over segments; two turns, then one that is paid 1."""
    low, high = compute_hierarchical([0, 0, 1], [0, 2], [0.5, 0.25, 0.1], [0.4, 0.2], 0.9, 0.5, 0.8)
    assert low == pytest.approx([-0.3065, -0.07, 0.9])
    assert high == pytest.approx([0.2804, 0.8])


def test_hae_discounts_within_a_segment():
    """Rewards 1 and 1 at 1/2 without any value: 1.5 for the segment, and 1 + .25 for its first turn."""
    low, high = compute_hierarchical([1, 1], [0], [0.0, 0.0], [0.0], 0.5, 0.5, 1.0)
    assert (low, high) == ([1.25, 1.0], [1.5])


def test_epo_strategy_discounts_by_its_setting():
    """Scores 1 and then the outcome 1 at 1/2: 1.5 and 1, by the largest 1 and 2/3; the sibling has 0 and 0."""
    rows = [make("a", 1.0, steps=[1, 0]), make("b", 0.0, steps=[0, 0])]
    mean = (1 + 2 / 3) / 4
    close(epo_strategy(rows, discount=0.5), {"a": [1 - mean, 2 / 3 - mean], "b": [-mean, -mean]})


def test_hdpo_pays_for_readable_answers_by_its_share():
    """Half for being right and half for being readable: 1, 1/2 and 0 without the term of length."""
    rows = [make("a", 1.0), make("b", 0.0), make("c", 0.0, actions=[""])]
    values = hdpo(rows, format=0.5, weight=0.0)
    assert [values[name][0] for name in "abc"] == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)


def test_decs_weighs_length():
    """Length 6 of 10 and beta 1: a needless turn earns 1.4, a needed one 2."""
    rows = [make("a", 1.0, redundant=[1] + [0] * 5), make("b", 1.0, redundant=[0])]
    values = decs(rows, beta=1.0, longest=10)
    assert [values["a"][0], values["b"][0]] == pytest.approx([-0.3, 0.3])


def test_hbpo_s_scale_is_half_of_its_setting_times_the_largest_budget():
    rows = [replace(make(name, out, 3), label="budget 4") for name, out in zip("ab", (1.0, 0.0), strict=True)]
    at_budget = 4 * math.cos(math.pi * 4 / 24)
    reward = reward_budget(3, 4, 12)
    values = hbpo(rows, scale=6.0)
    assert values["a"][0] - values["b"][0] == pytest.approx(math.sqrt(2), abs=1e-4)
    assert (values["a"][0] + values["b"][0]) / 2 == pytest.approx(reward / 2 - at_budget)


def test_hbpo_without_a_budget_teaches_nothing():
    assert hbpo([make("a", 1.0, 2), make("b", 0.0)]) == {"a": [0.0, 0.0], "b": [0.0]}


class TestSamplers:
    def test_failures_by_other_weights(self):
        """World 0 failed, then world 1 with similarity .8: 1 + .5 + .8 x 1, 1.5 and 1."""
        sampler = build("failures", boost=1.0, self_boost=0.5)
        sampler.fail(WORLDS[0], "a b c d")
        sampler.fail(WORLDS[1], "a b c d e")
        assert [sampler.get_weights()[world] for world in WORLDS] == pytest.approx([2.3, 1.5, 1.0])

    def test_only_the_nearest_failures_gain_and_only_so_many_are_kept(self):
        for settings, weights in (({"nearest": 1}, [1.0, 2.0]), ({"kept": 1}, [1.0, 2.0]), ({}, [4 / 3, 2.0])):
            sampler = build("failures", boost=1.0, self_boost=0.0, **settings)
            for world, text in zip(WORLDS, ("a x", "b a", "a b"), strict=True):
                sampler._weights.clear()
                sampler.fail(world, text)
            assert [sampler.get_weights()[world] for world in WORLDS[:2]] == pytest.approx(weights)

    def test_a_weight_falls_to_one_and_not_below(self):
        sampler = build("failures", decay=0.5)
        sampler.observe({WORLDS[0]: played(WORLDS[0], 0.0)})
        for _ in range(2):
            sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0)})
            assert sampler.get_weights()[WORLDS[0]] == 1.0

    def test_a_level_opens_at_its_rate_over_so_many_iterations(self):
        sampler = build("staged", advance=0.5, over=2)
        for outcomes, level in (((1.0, 0.0), 0), ((1.0, 0.0), 1)):
            metrics = sampler.observe({WORLDS[0]: played(WORLDS[0], *outcomes)})
            assert metrics["sampler/level"] == level
        assert all(world != WORLDS[2] for world in sampler.draw(4))

    def test_a_level_opens_after_its_patience_and_the_last_one_stays(self):
        sampler = build("staged", patience=2, old=0.5)
        levels = [sampler.observe({world: played(world, 0.0)})["sampler/level"] for world in WORLDS * 3]
        assert levels == [0, 0, 0, 1, 1, 1, 1, 2, 2]
        assert sampler.get_weights() == {WORLDS[0]: 0.5, WORLDS[1]: 0.5, WORLDS[2]: 1.0}

    def test_success_moves_by_the_rate_down_to_the_floor(self):
        """All solved: .5 + .25 x .5, so 4 x .625 x .375; without any success, the floor in the end."""
        sampler = build("informative", rate=0.25, floor=0.2)
        sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0)})
        assert sampler.get_weights()[WORLDS[0]] == pytest.approx(0.9375)
        for _ in range(20):
            sampler.observe({WORLDS[1]: played(WORLDS[1], 0.0)})
        assert sampler.get_weights()[WORLDS[1]] == 0.2

    def test_a_value_grows_with_the_largest_outcome(self):
        for largest, value in ((1.0, 0.375), (2.0, 0.875)):
            sampler = build("value", largest=largest)
            metrics = sampler.observe({WORLDS[0]: played(WORLDS[0], 0.0, 0.0, 0.0, 1.0)})
            assert metrics["sampler/value"] == pytest.approx(value)

    def test_the_largest_weight_is_reported_in_multiples_of_the_mean(self):
        sampler = build("failures", self_boost=1.0)
        metrics = sampler.observe({WORLDS[0]: played(WORLDS[0], 0.0)})
        assert metrics["sampler/weight_max"] == pytest.approx(2 / 4 * 3)


class TestComposers:
    def test_starts_are_drawn_by_their_temperature(self):
        composer = PARTS.get("composer", "starts")(ComposerParts(), kappa=0.5)
        assert composer.list_probabilities([1.0, 0.0]) == pytest.approx(
            [math.exp(2) / (math.exp(2) + 1), 1 / (math.exp(2) + 1)]
        )

    def test_the_gap_of_entropies_is_as_strong_as_its_setting(self):
        composer = PARTS.get("composer", "aepo")(ComposerParts(), sensitivity=2.0)
        assert composer.share_begun(math.log(3)) == pytest.approx(0.9)

    def test_a_mixed_group_counts_as_failed_below_the_bounds(self):
        for settings, first in (({"spread": 1.0}, 0), ({"mean": 0.9}, 0), ({"spread": 1.0, "mean": 0.9}, 1)):
            composer = PARTS.get("composer", "successes")(ComposerParts(walk=lambda *_: make_path(3)), **settings)
            composer.observe([end(specs()[0], 1).rollout])
            mixed = [end(replace(spec, salt="t"), spec.copy == 3) for spec in specs()]
            assert composer.finish(mixed)[0].outcome == first

    def test_only_the_newest_successes_are_kept(self):
        composer = PARTS.get("composer", "successes")(ComposerParts(walk=lambda *_: make_path(3)), size=2)
        composer.observe([end(spec, 1).rollout for spec in specs()])
        (kept,) = composer.state_dict().values()
        assert [item["id"] for item in kept] == [spec.session for spec in specs()[2:]]


def test_dr_grpo_is_the_estimator_without_any_term():
    rows = [make("a", 1.0, progress=[0.1]), make("b", 0.0, progress=[0.7])]
    close(PARTS.get("estimator", "mrt")(rows, alpha=0.0), dr_grpo(rows))
