"""The ablation of co-evolution: what a frozen role is, what is paired, and what the tables say."""

from pathlib import Path

import pytest
import torch
from examples.experiments.together import ARMS, bootstrap, compute_differences, format_tables, measure, train_arm
from tests.trainers.test_together import TOGETHER

from hardwon.trainers.config.schema import Worlds, of

SETTINGS = {
    "environment": {"name": "corridor:Corridor", "max_steps": 4},
    "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-101"}},
    "explore": {"worlds": {"seeds": "0-3"}, "steps": 10, "tries": 2},
    "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
    "warmstart": {"learning": {"updates": 2, "batch": 4}},
    "eval": {"every": 0},
    **TOGETHER,
}


def weights(checkpoint, role):
    return torch.load(Path(checkpoint) / f"{role}.pt", weights_only=True)["state"]["weights"]


def same(one, other, role):
    ours, theirs = weights(one, role), weights(other, role)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_frozen_role_ends_as_it_began_and_the_others_do_not(tmp_path, monkeypatch):
    """From one start: the arm in which nothing learns is that start."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "trainers"))
    torch.set_num_threads(1)
    settings = of({**SETTINGS, "run": {"iterations": 5, "groups": 2, "out": str(tmp_path / "start")}})
    start = train_arm(settings, "none learns", tmp_path)
    ended = train_arm(settings, "guide frozen", tmp_path)
    assert same(start, ended, "guide")
    assert not same(start, ended, "policy")
    found = measure(ended, Worlds(seeds="100-100"), 1)
    assert {"success control", "harm guided", "tokens retrieved", "team reward"} <= set(found["#100"])


def report(**success):
    """One seed with three worlds; success without memory by arm."""
    names = ("success retrieved", "success guided", "harm retrieved", "harm guided", "shared", "pulled", "team reward")
    rest = dict.fromkeys((*names, "tokens control", "tokens retrieved", "tokens guided"), 0.0)
    return {
        "0": {
            arm: {
                f"w{n}": {"success control": value, **rest}
                for n, value in enumerate(success.get(arm.split()[0], [0.0] * 3))
            }
            for arm in ARMS
        }
    }


def test_differences_are_paired_by_seed_and_world():
    given = report(all=[1.0, 0.5, 0.0], policy=[0.0, 0.5, 0.5])
    assert compute_differences(given, "policy frozen", "success control") == [1.0, 0.0, -0.5]


def test_a_world_that_one_of_the_two_has_not_is_left_out():
    given = report(all=[1.0, 1.0, 1.0])
    del given["0"]["policy frozen"]["w1"]
    assert compute_differences(given, "policy frozen", "success control") == [1.0, 1.0]


def test_a_range_that_leaves_0_out_is_marked():
    told = format_tables(report(all=[1.0, 1.0, 1.0], policy=[1.0, 1.0, 1.0])).splitlines()
    ahead = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in told[len(ARMS) + 2 :] if "frozen" in line
    }
    assert ahead["policy frozen"] == "+0.00 (+0.00 to +0.00)"
    assert ahead["guide frozen"] == "+1.00 (+1.00 to +1.00) *"


@pytest.mark.parametrize("values", [[1.0] * 5, [0.0, 1.0, 1.0]])
def test_the_range_holds_the_mean(values):
    low, high = bootstrap(values)
    assert low <= sum(values) / len(values) <= high
