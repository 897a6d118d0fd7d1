"""Shapers of rewards and length: worked examples, degenerate cases, invariances."""

from dataclasses import replace

import pytest
from hypothesis import given
from tests.trainers.methods.traces import batches, few, make

from hardwon.memory.errors import UnknownName
from hardwon.trainers.algorithms.advantages import group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.shapers import set_rewards, shape
from hardwon.trainers.methods.density import density
from hardwon.trainers.methods.overlong import overlong
from hardwon.trainers.methods.redistribute import redistribute
from hardwon.trainers.methods.retrospection import retrospection
from hardwon.trainers.methods.rungs import rungs

SETTINGS = {"overlong": {"limit": 3, "buffer": 2}}
every = pytest.mark.parametrize("name", sorted(PARTS.list_cards("shaper")))


@every
@few
@given(batch=batches)
def test_a_shaper_changes_outcomes_and_rewards_and_nothing_else(name, batch):
    shaped = shape(batch, [(name, SETTINGS.get(name, {}))])
    assert [one.id for one in shaped] == [one.id for one in batch]
    for before, after in zip(batch, shaped, strict=True):
        rewards = [turn.reward for turn in after.turns]
        assert set_rewards(replace(before, outcome=after.outcome), rewards) == after


@every
@few
@given(batch=batches)
def test_other_groups_change_nothing(name, batch):
    settings = SETTINGS.get(name, {})
    own = group_siblings(batch)[0]
    together = {one.id: one for one in shape(batch, [(name, settings)])}
    assert shape(own, [(name, settings)]) == [together[one.id] for one in own]


@every
@few
@given(batch=batches)
def test_the_order_of_siblings_does_not_matter(name, batch):
    if name == "scope":
        return  # its subgroups are drawn in order
    forward = {one.id: one for one in shape(batch, [(name, SETTINGS.get(name, {}))])}
    backward = {one.id: one for one in shape(batch[::-1], [(name, SETTINGS.get(name, {}))])}
    for key, one in forward.items():
        assert one.outcome == pytest.approx(backward[key].outcome)
        assert [t.reward for t in one.turns] == pytest.approx([t.reward for t in backward[key].turns])


def test_an_unknown_shaper_is_named_with_the_nearest_one():
    with pytest.raises(UnknownName, match="densty"):
        shape([make("a", 1.0)], [("densty", {})])


def paid(rewards, k):
    (shaped,) = density([set_rewards(make("a", 1.0, len(rewards)), rewards)], k=k)
    return [turn.reward for turn in shaped.turns]


def test_density_by_hand():
    """.1, .2, 0, .3: by two turns 0, .3, 0, .3; by three 0, 0, .3, .3; at the end 0, 0, 0, .6; one changes nothing."""
    rewards = [0.1, 0.2, 0.0, 0.3]
    assert paid(rewards, 2) == pytest.approx([0, 0.3, 0, 0.3])
    assert paid(rewards, 0) == pytest.approx([0, 0, 0, 0.6])
    assert paid(rewards, 1) == rewards
    assert paid(rewards, 3) == pytest.approx([0, 0, 0.3, 0.3])


def priced(length, **settings):
    (shaped,) = overlong([make("a", 0.0, length)], limit=20, **settings)
    return shaped.outcome


def test_overlong_by_hand():
    """L 20, C 5: 14 turns 0, 18 turns -.6, 21 turns -1; C = 0 is a step."""
    assert [priced(n) for n in (14, 18, 20, 21)] == pytest.approx([0, -0.6, -1, -1])
    assert [priced(n, buffer=0) for n in (20, 21)] == [0, -1]
    assert priced(18, factor=0.5) == pytest.approx(-0.3)


def test_overlong_counts_sampled_tokens():
    one = make("a", 0.0, 1)
    long = replace(one, turns=(replace(one.turns[0], tokens=21),))
    assert overlong([long], limit=20, unit="tokens")[0].outcome == -1


def rewards_of(*siblings, **settings):
    return [[turn.reward for turn in one.turns] for one in redistribute(siblings, **settings)]


def test_redistribute_by_hand():
    """c = (.5, 0), R = 1: the rest .5 is spread evenly, r = (.75, .25)."""
    assert rewards_of(make("a", 1.0, contribution=[0.5, 0.0])) == [[0.75, 0.25]]


def test_staying_alive_pays_nothing_where_all_turns_are_valid():
    """Two failures of 2 and 6 valid turns: the grounding term is 0 whatever the lengths."""
    found = rewards_of(make("a", 0.0, contribution=[0.0] * 2), make("b", 0.0, contribution=[0.0] * 6))
    assert found == [[0.0] * 2, [0.0] * 6]


def test_a_refused_turn_costs_against_the_group():
    found = rewards_of(make("a", 0.0, valid=False, contribution=[0.0]), make("b", 0.0, contribution=[0.0]))
    assert found == [[-0.25], [0.25]]


def test_redistribute_of_no_turns_is_empty():
    empty = replace(make("a", 1.0, contribution=[0.0]), turns=(), signals={"contribution": ()})
    assert rewards_of(empty) == [[]]


def test_retrospection_by_hand():
    """Progress 0, then .4, .3, 1: bonus .2, -.05, .35, whose sum is .5."""
    (shaped,) = retrospection([make("a", 1.0, retrospection=[0.4, 0.3, 1.0])])
    assert [turn.reward for turn in shaped.turns] == pytest.approx([0.2, -0.05, 0.35])
    (silent,) = retrospection([make("a", 1.0, retrospection=[0.4, None])])
    assert [turn.reward for turn in silent.turns] == [0.0, 0.0]


def read_rewards(traces):
    return [[turn.reward for turn in trace.turns] for trace in traces]


def test_needless_calls_cost_as_much_as_siblings_succeed():
    """Worked example, PROVE: two of three succeed, with 2 and 4 calls: the last two of the longer cost 2/3 each."""
    runs = [make("a", 1.0, calls=[4] * 2), make("b", 1.0, calls=[4] * 4), make("c", 0.0, calls=[4] * 5)]
    assert read_rewards(rungs(runs, price=0.75)) == [[0.0] * 2, [0.0, 0.0, -0.5, -0.5], [0.0] * 5]
    again = rungs([replace(trace, id=f"{trace.id} again") for trace in reversed(runs)], price=0.75)
    assert read_rewards(again)[::-1] == read_rewards(rungs(runs, price=0.75))  # invariance: order and names


def test_without_a_success_no_length_costs_anything():
    """Degenerate case, PROVE; nor does a turn of which nothing is known, or a group of equal lengths."""
    for outcomes in ((0.0, 0.5), (1.0, 1.0)):
        equal = [make("a", outcomes[0], calls=[4, None]), make("b", outcomes[1], calls=[None, 4])]
        assert read_rewards(rungs(equal)) == [[0.0, 0.0]] * 2
    assert read_rewards(rungs([make("a", 0.0, calls=[4] * 9), make("b", 0.0, calls=[4])])) == [[0.0] * 9, [0.0]]


def test_a_constant_added_to_all_progress_moves_the_first_turn_alone():
    """The differences of the later turns stay; p before the first turn is 0."""
    (one,) = retrospection([make("a", 1.0, retrospection=[0.4, 0.3, 0.9])])
    (two,) = retrospection([make("a", 1.0, retrospection=[0.5, 0.4, 1.0])])
    assert [t.reward for t in one.turns][1:] == pytest.approx([t.reward for t in two.turns][1:])
