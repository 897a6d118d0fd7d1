"""The temperature that follows the number of different successes (B-STaR)."""

import random

import pytest
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.samplers.balance import Balance, score_balance
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.loading import of

HERE = State("x")
BASE = {"environment": {"name": "textworld"}, "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}}}


def played(*actions, success=True, failed=""):
    steps = tuple(Step(HERE, action, HERE, Diagnosis(True)) for action in actions)
    return Rollout(Trajectory("x", steps, success), (), "x#1", failed)


def group(right, wrong=0, again=0):
    """Return episodes of a task instance: different successes, failures, and repetitions of the first success."""
    return [
        *(played(f"take {n}") for n in range(right)),
        *(played("take 0") for _ in range(again)),
        *(played(f"drop {n}", success=False) for n in range(wrong)),
    ]


@pytest.mark.parametrize(("right", "wrong", "score"), [(4, 1, 0.4), (8, 8, 0.5), (10, 0, 1.0)])
def test_the_worked_examples(right, wrong, score):
    """4 of 5: 1/2 times 4/5. 8 of 16: 1 times 1/2. 10 of 10: 1."""
    assert score_balance([group(right, wrong)], 8) == pytest.approx(score)


def test_the_score_is_a_mean_over_instances_and_a_repetition_counts_once():
    assert score_balance([group(4, 1), group(8, 8)], 8) == pytest.approx(0.45)
    assert score_balance([group(4, again=1)], 8) == score_balance([group(4, 1)], 8)
    assert score_balance([[*group(4, 1), played("take 9", failed="timeout")]], 8) == pytest.approx(0.4)
    assert score_balance([], 8) == score_balance([[]], 8) == score_balance([group(0, 3)], 8) == 0.0


def test_the_order_of_the_episodes_does_not_matter():
    episodes = group(3, 2, again=2)
    shuffled = random.Random(1).sample(episodes, len(episodes))
    assert score_balance([episodes, group(1)], 8) == score_balance([group(1), shuffled], 8)


def climb(best, start=1.0, rounds=40):
    """Return the temperatures that are played where the success is best at one of them."""
    balance, temperatures = Balance(start=start), []
    for _ in range(rounds):
        temperatures.append(balance.temperature)
        different = round(100 - 100 * abs(balance.temperature - best))
        balance.observe([group(different, 100 - different)])
    return temperatures, balance


@pytest.mark.parametrize(("best", "ends"), [(0.7, 0.7), (1.15, 1.15), (2.0, 1.2), (0.1, 0.5)])
def test_it_climbs_to_the_best_temperature_within_the_bounds(best, ends):
    temperatures, balance = climb(best)
    assert balance.state_dict()["kept"] == pytest.approx(ends)
    assert all(0.5 <= temperature <= 1.2 for temperature in temperatures)
    assert temperatures[0] == 1.0


def test_without_a_success_the_temperature_stays():
    balance = Balance(start=1.0)
    found = [balance.observe([group(0, 4)]) for _ in range(6)]
    assert {figures["balance/kept"] for figures in found} == {1.0}
    assert [figures["balance/temperature"] for figures in found] == [1.0, 1.05, 1.0, 0.95, 1.0, 1.05]


def test_a_restored_one_goes_on():
    _, balance = climb(0.7, rounds=5)
    again = Balance(start=1.0)
    again.load_state_dict(balance.state_dict())
    assert (again.temperature, again.observe([group(1)])) == (balance.temperature, balance.observe([group(1)]))


@pytest.mark.parametrize(
    ("run", "more", "says"),
    [
        ({"temperature": 2.0, "balance": True}, {}, r"temperature is 2\.0, and run\.balance goes from 0\.5 to 1\.2"),
        ({"balance": True}, {"schedule": {"run.temperature": [[0, 1.0]]}}, "schedule.run.temperature depends on it"),
        (
            {"balance": True},
            {"roles": {"policy": {"credit": {"name": "empg"}, "sources": {"entropy": {}}}}},
            "roles.policy.sources depends on it",
        ),
    ],
)
def test_what_contradicts_it_is_refused(run, more, says):
    with pytest.raises(ConfigError, match=says):
        of({**BASE, **more, "run": run})


def test_a_run_plays_what_it_says_and_goes_on_bit_for_bit(corridor, tmp_path):
    """The samples and the loss have the temperature of their iteration; without the setting nothing changes."""
    settings = corridor(arms={"control": 3}, warmstart=None, eval={"every": 0})
    settings["run"] |= {"iterations": 4, "balance": True, "save_every": 1}
    train(settings, [f"run.out={tmp_path / 'one'}"])
    train(settings, [f"run.out={tmp_path / 'two'}", "run.iterations=1"])
    train(settings, [f"run.out={tmp_path / 'two'}"], resume=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    assert lines(tmp_path / "one") == lines(tmp_path / "two")
    heats = [line["balance/temperature"] for line in metrics.read(tmp_path / "one") if line["kind"] == "train"]
    assert heats[:2] == [1.0, 1.05]
    # one update on samples of the current policy: every ratio is 1 if the loss is at the temperature of sampling
    for line in metrics.read(tmp_path / "one"):
        assert line.get("policy/kl_old", 0.0) == pytest.approx(0.0, abs=1e-5)
