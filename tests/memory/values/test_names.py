"""Names in choices and lookahead values: things of one kind that only attributes or numbers tell apart."""

import numpy as np
import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.situations.keys import Situation
from hardwon.memory.situations.lookahead_keys import COLUMNS, NAMED, SPECIAL
from hardwon.memory.values.cells import Cell, weigh_part
from hardwon.memory.values.choices import Choices
from hardwon.memory.values.lookahead_table import Mean, _count_episodes, _Links
from hardwon.memory.values.tuning import TUNING


def cell(values):
    made = Cell()
    for number, value in enumerate(values, 1):
        made.add(value, number, episode=number)
    return made


def of(part, kind):
    return weigh_part((part.n, part.episodes, part.total), (kind.n, kind.episodes, kind.total, kind.squares))


def test_a_name_counts_as_far_as_its_mean_differs_beyond_chance():
    """Worked example: 4 steps with 1, and 4 with 0. Nothing varies within them, and the variance of all is 1/4.

    v = 2 (1/4) / 8 = 1/16, s^2 = 1/16 (1/4 + 1/4) = 1/32, d = 1, and f = 1 - 9/32.
    """
    assert TUNING.doubt_of_thing == 9.0
    assert of(cell([1] * 4), cell([1, 0] * 4)) == pytest.approx(1 - 9 / 32)
    assert of(cell([1] * 3), cell([1, 0] * 3)) == pytest.approx(1 - 9 * (1 / 12) * (2 / 3))
    # 3 and 3 with one exception: v = (2/3 + 2 (2/9)) / 6 = 5/27, d = 2/3, and chance explains it
    assert of(cell([1] * 3), cell([1, 0, 1, 0, 1, 1])) == 0.0


def test_without_a_difference_or_other_things_a_name_counts_for_nothing():
    """Degenerate: the only door ever taken, and equal doors whose sums are not exact."""
    assert of(cell([1, 1, 1]), cell([1, 1, 1])) == 0.0
    for n in range(3, 40):
        assert of(cell([0.1] * n), cell([0.1] * 50)) == 0.0
    assert of(cell([0.0] * 9), cell([0.0] * 17)) == 0.0
    # a single find among 30 empty drawers
    assert of(cell([1.0]), cell([1.0] + [0.0] * 30)) == of(cell([0.0] * 30), cell([1.0] + [0.0] * 30)) == 0


def test_steps_of_one_episode_are_one_piece_of_evidence():
    """A thing that was taken five times in one game shows no more than a thing that was taken once."""
    own, kind = Cell(), Cell()
    for number, (value, episode, is_own) in enumerate([(1.0, 1, True)] * 5 + [(0.0, e, False) for e in range(2, 7)]):
        kind.add(value, number, episode=episode)
        if is_own:
            own.add(value, number, episode=episode)
    assert (own.n, own.episodes, kind.episodes) == (5, 1, 6)
    assert of(own, kind) == 0.0
    # each step an episode: n = m = 5, v = 2 (1/4) / 10 = .05, s^2 = .02, and f = 1 - 9 (.02)
    assert of(cell([1] * 5), cell([1, 0] * 5)) == pytest.approx(0.82)
    # two steps in each of 5 and 5 episodes: the same
    pairs = [(value, episode) for episode in range(10) for value in (episode % 2,) * 2]
    own, kind = Cell(), Cell()
    for number, (value, episode) in enumerate(pairs):
        kind.add(value, number, episode=episode)
        if value:
            own.add(value, number, episode=episode)
    assert of(own, kind) == pytest.approx(0.82)


@pytest.mark.parametrize(("scale", "shift"), [(1, -3.0), (-1, 0.0), (100, 7.0), (1e-3, 0.0)])
def test_the_weight_of_a_name_does_not_depend_on_the_scale_or_level_of_returns(scale, shift):
    """Invariances: f is a ratio of differences and variances."""
    own, rest = [0.9, 0.8, 1.0, 0.7], [0.1, 0.3, 0.0, 0.2, 0.1]
    expected = of(cell(own), cell(own + rest))
    assert 0.5 < expected < 1.0
    own, rest = ([scale * value + shift for value in values] for values in (own, rest))
    assert of(cell(own), cell(own + rest)) == pytest.approx(expected)


def test_successes_show_which_of_several_things_was_chosen():
    """Choices without any failure: the left door was taken each time that both could be."""
    choices, hall = Choices(), State("A hall.", task="leave the hall")
    step = Step(hall, "take left door", hall, Diagnosis(True), 1.0, 0, admissible=("take left door", "take right door"))
    for _ in range(12):
        choices.read((step,), frozenset())
    left, right, green = (
        choices.share(Situation(hall).keys(f"take {name} door", "tried 0")) for name in ("left", "right", "green")
    )
    assert left > 0.9 > 0.1 > right
    assert green == pytest.approx(0.5, abs=0.1)
    choices = Choices()
    choices.read((step,) * 12, frozenset())
    left, right = (choices.share(Situation(hall).keys(f"take {name} door", "tried 0")) for name in ("left", "right"))
    assert left == right, "a single episode"


def test_lookahead_values_weigh_names_in_the_same_way():
    """A key with a name weighs as a key of any other column with the same steps would, times f."""
    own, rest = [0.9, 0.8, 1.0, 0.7], [0.1, 0.3, 0.0, 0.2, 0.1]
    keys = np.zeros((9, COLUMNS), dtype=np.int32)
    keys[:, SPECIAL], keys[:4, NAMED], keys[4:, NAMED] = 1, 2, 3
    keys[:, 0] = [4] * 4 + [5] * 5
    made = Mean.of(keys, np.array(own + rest), 6)
    expected = [of(cell(part), cell(own + rest)) for part in (own, rest)]
    assert made.weight[2:4] / made.weight[4:6] == pytest.approx(expected)
    assert made.mean[2:4] == pytest.approx([np.mean(own), np.mean(rest)])
    alone = np.where(keys == 3, 2, keys)
    assert Mean.of(alone, np.array(own + rest), 6).weight[2] == 0.0, "without any other thing of the kind"
    shares = _count_episodes(keys, [4, 1, 1, 1, 1, 1], 6)
    assert shares[1:4].tolist() == [6 / 9, 1 / 4, 1.0]
    assert Mean.of(keys, np.array(own + rest), 6, shares).weight[2] == 0.0, "four steps of one episode"
    few = Mean.of(keys[2:], np.array([1.0, 1.0] + [0.0] * 5), 6)
    assert few.weight[2] == few.weight[3] == 0.0, "two steps are too few"


@pytest.mark.parametrize(("share", "counts"), [(1.0, True), (1 / 9, False)])
def test_what_a_step_makes_possible_is_weighed_by_episodes_as_well(share, counts):
    """12 steps with each of two doors, the left of which open something worth 1, in many episodes and in few."""
    keys = np.zeros((24, COLUMNS), dtype=np.int32)
    keys[:, SPECIAL], keys[:12, NAMED], keys[12:, NAMED] = 1, 2, 3
    opened = np.array([[step, 24, 0, 0] for step in range(12)], dtype=np.int64)
    ids = np.concatenate([keys, np.full((1, COLUMNS), 4, dtype=np.int32)])
    links = _Links(ids, keys, np.full(5, share), np.ones(24, dtype=np.bool_), opened)
    unlock = links.fit(lambda unlocked: np.where(np.arange(25) == 24, 1.0, 0.0), 5)
    assert unlock.mean[2:4].tolist() == [1.0, 0.0]
    assert [bool(weight) for weight in unlock.weight[2:4]] == [counts, counts]
