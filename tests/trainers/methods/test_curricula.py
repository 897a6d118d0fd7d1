"""Samplers: worked examples, degenerate cases, and that a resumed run draws the same."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samplers import open_sampler
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.methods.failures import compare_texts
from hardwon.trainers.methods.staged import find_level
from hardwon.trainers.methods.value import measure_value

WORLDS = [("", seed) for seed in range(3)]
every = pytest.mark.parametrize("name", sorted(PARTS.list_cards("sampler")))


def played(world, *outcomes, text="find the coin"):
    step = Step(State("hall", task=text), "wait", State("hall"), Diagnosis(True))
    return [Rollout(Trajectory(text, (step,), bool(o), id=f"{world}{n}"), (), "g") for n, o in enumerate(outcomes)]


def lengths(task, seed):
    """Paths of 3, 5 and 9 steps; nothing is known of the other instances."""
    number = {0: 3, 1: 5, 2: 9}.get(seed)
    step = Step(State("hall"), "wait", State("hall"), Diagnosis(True))
    return None if number is None else Trajectory("t", (step,) * number, True)


def build(name, worlds=WORLDS, most=4, **settings):
    return open_sampler({name: settings}, worlds, seed=3, most=most, reference=lengths)


@every
def test_a_state_that_was_saved_and_loaded_draws_the_same(name):
    first, worlds = build(name), [("", seed) for seed in range(12)]
    first = build(name, worlds)
    for number in range(4):
        drawn = first.draw(3)
        first.draw(1, without=drawn)
        first.observe({world: played(world, 1.0, 0.0) if number % 2 else played(world, 0.0, 0.0) for world in drawn})
    second = build(name, worlds)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        assert first.draw(3) == second.draw(3)
        first.observe({})
        second.observe({})
    assert [first.weigh(world) for world in worlds] == [second.weigh(world) for world in worlds]


@every
def test_draws_are_distinct_and_leave_out_what_they_are_told(name):
    sampler = build(name, [("", seed) for seed in range(6)])
    for _ in range(5):
        drawn = sampler.draw(3)
        assert len({*drawn}) == len(drawn)
        assert not {*drawn} & {*sampler.draw(2, without=drawn)}
        sampler.observe({world: played(world, 0.0, 1.0) for world in drawn})


@pytest.mark.parametrize("name", ["failures", "informative"])
def test_every_world_is_drawn_in_the_end(name):
    """A world of success 0 forever does not starve the rest."""
    sampler, counts = build(name, [("", seed) for seed in range(5)], most=2), Counter[Any]()
    for _ in range(120):
        drawn = sampler.draw(2)
        counts.update(drawn)
        sampler.observe({world: played(world, *([0.0, 0.0] if world[1] == 0 else [1.0, 0.0])) for world in drawn})
    assert min(counts[world] for world in sampler.worlds) > 2  # of 240 draws, with a weight of a tenth of the others'


def test_failures_by_hand():
    """World 0 failed, then world 1 with similarity .8: weights 1.43, 1.15, 1.00."""
    sampler = build("failures")
    sampler.fail(WORLDS[0], "a b c d")
    sampler.fail(WORLDS[1], "a b c d e")
    weights = sampler.get_weights()
    assert compare_texts("a b c d", "a b c d e") == 0.8
    assert [weights[world] for world in WORLDS] == pytest.approx([1.43, 1.15, 1.0])
    total = sum(weights.values())
    assert [weights[world] / total for world in WORLDS] == pytest.approx([0.3994, 0.3212, 0.2793], abs=1e-4)


def test_failures_without_any_is_uniform_and_success_lowers_a_weight():
    sampler = build("failures")
    assert {*sampler.get_weights().values()} == {1.0}
    sampler.observe({WORLDS[0]: played(WORLDS[0], 0.0, 0.0)})
    assert sampler.get_weights()[WORLDS[0]] == pytest.approx(1.15)
    sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0, 0.0)})
    assert sampler.get_weights()[WORLDS[0]] == pytest.approx(1.035)


def test_a_failure_is_described_by_its_task_its_last_step_and_the_last_refusal():
    """An episode whose environment broke, or that had no step, describes nothing, and neither does a success."""
    refusals = [Diagnosis(False, evidence=words) for words in ("the door is locked", "the key is gone")]
    first, last = (Step(State("hall", task="find the coin"), "open", State("hall"), one) for one in refusals)
    wait = replace(last, action="wait", diagnosis=Diagnosis(True))
    trajectory = Trajectory("find the coin", (first, last, wait), False, id="a")
    broken = replace(played(WORLDS[0], 0.0, text="boil water")[0], failed="the environment broke")
    empty = Rollout(Trajectory("", (), False, id="b"), (), "g")
    sampler = build("failures")
    sampler.observe({WORLDS[0]: [broken, empty, Rollout(trajectory, (), "g")]})
    assert sampler.state_dict()["failures"] == [[*WORLDS[0], "find the coin wait the key is gone"]]
    sampler.observe({WORLDS[1]: [empty], WORLDS[2]: played(WORLDS[2], 1.0)})
    assert sampler.state_dict()["failures"][1:] == [[*WORLDS[1], ""]]


def test_value_by_hand():
    """(0, 0, 0, 1): .75 x .5 = .375; (0, 0, 1, 1): .2887; all equal: 0."""
    found = [measure_value(one) for one in ([0, 0, 0, 1], [0, 0, 1, 1], [1, 1], [0, 0], [1])]
    assert found == pytest.approx([0.375, 0.2887, 0, 0, 0], abs=1e-4)
    assert measure_value([0, 0, 0, 2], 2.0) == pytest.approx(4 * 0.375)


def test_value_replaces_by_value_and_repeats_weigh_less():
    sampler = build("value", [("", seed) for seed in range(6)])
    sampler.observe({("", 5): played(("", 5), 0.0, 0.0, 0.0, 1.0)})
    assert sampler.draw(1, without=[("", 0)]) == [("", 5)]
    assert sampler.weigh(("", 5)) == pytest.approx(2**-0.5)
    assert sampler.weigh(("", 1)) == 1.0


def test_value_of_zero_everywhere_replaces_by_fresh_ones():
    sampler = build("value", [("", seed) for seed in range(6)])
    assert len(sampler.draw(2, without=[("", 0)])) == 2


def test_staged_by_hand():
    """Lengths 3, 5, 9 with bounds 4, 8: levels 0, 1, 2; without a reference the last."""
    assert [find_level(length, [4, 8]) for length in (3, 5, 9, None)] == [0, 1, 2, 2]
    sampler = build("staged")
    assert sampler.get_weights() == {WORLDS[0]: 1.0, WORLDS[1]: 0.0, WORLDS[2]: 0.0}
    for _ in range(2):
        sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0, 1.0)})
    assert sampler.get_weights() == {WORLDS[0]: 0.2, WORLDS[1]: 1.0, WORLDS[2]: 0.0}
    for world in [WORLDS[1]] * 2 + [WORLDS[2]] * 3:  # no level follows the last
        sampler.observe({world: played(world, 1.0, 1.0)})
    assert sampler.get_weights() == {WORLDS[0]: 0.2, WORLDS[1]: 0.2, WORLDS[2]: 1.0}


def test_staged_with_one_level_is_uniform():
    sampler = build("staged", bounds="99")
    assert {*sampler.get_weights().values()} == {1.0}


def test_informative_by_hand():
    """p = .5 has weight 1; after a group that all solved, p = .75 and 4 x .75 x .25."""
    sampler = build("informative")
    assert {*sampler.get_weights().values()} == {1.0}
    sampler.observe({WORLDS[0]: played(WORLDS[0], 1.0, 1.0)})
    assert sampler.get_weights()[WORLDS[0]] == pytest.approx(0.75)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="rising lengths"):
        build("staged", bounds="8, 4")
    with pytest.raises(UnknownName, match="informativ"):
        build("informativ")


def test_scaling_all_outcomes_scales_the_values_and_changes_no_draw():
    """VSPO: outcomes and their maximum times 3 scale every value, so the draws stay."""
    drawn = []
    for factor in (1.0, 3.0):
        values = [measure_value([0, 0, 0, factor], factor), measure_value([0, 0, factor, factor], factor)]
        drawn.append([value / sum(values) for value in values])
    assert drawn[0] == pytest.approx(drawn[1])


def test_the_order_of_instances_that_did_not_fail_does_not_matter():
    """Role-Agent: the same failures give the same weights in another order of the instances."""
    found = []
    for worlds in (WORLDS, WORLDS[::-1]):
        sampler = build("failures", worlds)
        sampler.fail(WORLDS[0], "a b c d")
        sampler.fail(WORLDS[1], "a b c d e")
        found.append({world: sampler.get_weights()[world] for world in WORLDS})
    assert found[0] == pytest.approx(found[1])


def test_the_order_of_the_instances_does_not_matter_to_their_levels():
    """CRAFT-GUI: levels follow the length of the reference alone."""
    assert build("staged").get_weights() == build("staged", WORLDS[::-1]).get_weights()
