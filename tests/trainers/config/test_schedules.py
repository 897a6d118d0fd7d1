"""Schedules: values by iteration, what is refused, and that one entry is the number itself."""

from pathlib import Path

import pytest
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory.errors import ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schedules import look_up

HORIZON = [[0, 6], [100, 13], [200, 20]]


def test_a_horizon_by_hand():
    """PlayContext min(step // 100, last): 99: 6; 100: 13; 200 and later: 20."""
    assert [look_up(HORIZON, iteration) for iteration in (0, 99, 100, 200, 999)] == [6, 6, 13, 20, 20]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"environment.steps": [[0, 6]]}, "did you mean environment.max_steps"),
        ({"environment.max_steps": []}, "the first at iteration 0"),
        ({"environment.max_steps": [[1, 6]]}, "the first at iteration 0"),
        ({"environment.max_steps": [[0, 6], [0, 7]]}, "the first at iteration 0"),
        ({"environment.max_steps": [[0, "six"]]}, "the first at iteration 0"),
        ({"environment.max_steps": 6}, "the first at iteration 0"),
        ({"environment.max_steps": [[0, 4]]}, "environment.max_steps, with which evaluations play, is 6"),
    ],
)
def test_a_wrong_schedule_is_refused(corridor, schedule, message):
    with pytest.raises(ConfigError, match=message):
        of(corridor(schedule=schedule))


def test_one_entry_is_the_number_itself(corridor, tmp_path):
    plain = corridor(run={"iterations": 2, "out": str(tmp_path / "a")})
    schedule = {"environment.max_steps": [[0, 6]], "run.temperature": [[0, 1.0]]}
    same = {**corridor(run={"iterations": 2, "out": str(tmp_path / "b")}), "schedule": schedule}
    one, two = train(plain).out, train(same).out
    assert_same(one, two)
    assert lines(one) == [{k: v for k, v in line.items() if k != "share/cut"} for line in lines(two)]


def test_a_short_horizon_cuts_episodes_and_is_followed(corridor):
    """One step at first, so nobody reaches an end; then six."""
    schedule = {"environment.max_steps": [[0, 1], [1, 6]]}
    out = train({**corridor(run={"iterations": 2, "rerolls": 0}), "schedule": schedule}).out
    first, second = metrics.read(Path(out))
    assert first["steps/control"] == 1.0
    assert first["share/cut"] > 0
    assert second["steps/control"] > 1.0
