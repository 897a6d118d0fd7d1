"""Extrapolated weights: the straight line of training, read at a later step (RELEX)."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers import train
from hardwon.trainers.checkpoint import DERIVED, HISTORY, find, read_history
from hardwon.trainers.config.loading import of
from hardwon.trainers.models.extrapolation import extrapolate, fit_line
from hardwon.trainers.trainer import extrapolate_run


def make(values):
    return {at: {"w": torch.tensor(value, dtype=torch.float64)} for at, value in values.items()}


def test_a_straight_line_goes_on():
    """Changes (1, 0), (2, 0), (3, 0): (10, 0) at step 10."""
    weights, fits = extrapolate(make({0: [5.0, 1], 1: [6.0, 1], 2: [7.0, 1], 3: [8.0, 1]}), 10)
    assert weights["w"].tolist() == pytest.approx([15.0, 1.0])
    assert fits["w"].r2 == pytest.approx(1.0)


def test_the_line_has_an_intercept():
    """Changes 3, 4, 5 are 2 + t: 12 at step 10."""
    weights, _ = extrapolate(make({0: [1.0], 1: [4.0], 2: [5.0], 3: [6.0]}), 10)
    assert weights["w"].tolist() == pytest.approx([13.0])


def test_time_is_the_step_and_not_the_number_of_the_file():
    weights, _ = extrapolate(make({0: [0.0], 10: [1.0], 30: [3.0]}), 60)
    assert weights["w"].tolist() == pytest.approx([6.0])


def test_one_change_is_no_line_and_two_are_an_exact_one():
    with pytest.raises(ConfigError, match="two more"):
        extrapolate(make({0: [0.0], 1: [1.0]}), 5)
    _, fits = extrapolate(make({0: [0.0], 1: [3.0], 2: [4.0]}), 5)
    assert fits["w"].r2 == pytest.approx(1.0)


def test_a_step_of_the_past_is_refused():
    with pytest.raises(ConfigError, match="not behind"):
        extrapolate(make({0: [0.0], 1: [1.0], 2: [2.0]}), 2)


def test_the_sign_of_the_vector_and_the_order_of_tensors_do_not_matter():
    history = {at: {"a": torch.tensor([1.0 * at, -at]), "b": torch.tensor([-2.0 * at])} for at in range(4)}
    other = {at: dict(reversed(list(weights.items()))) for at, weights in history.items()}
    one, two = extrapolate(history, 8)[0], extrapolate(other, 8)[0]
    assert one["a"].tolist() == pytest.approx([8.0, -8.0])
    assert {name: value.tolist() for name, value in one.items()} == {n: v.tolist() for n, v in two.items()}


def test_constant_tensors_stay():
    weights, fits = extrapolate(make({0: [3.0], 1: [3.0], 2: [3.0]}), 9)
    assert weights["w"].tolist() == [3.0]
    assert fits == {}


def test_of_a_lora_the_product_is_extrapolated():
    """A and B both grow linearly, so their product does not; it has rank 1 and is factored without loss."""
    a, b = torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([[3.0], [4.0]], dtype=torch.float64)
    history = {at: {"x.lora_A.p.weight": a, "x.lora_B.p.weight": b * at} for at in range(4)}
    weights, fits = extrapolate(history, 10)
    product = weights["x.lora_B.p.weight"] @ weights["x.lora_A.p.weight"]
    assert product.tolist() == [pytest.approx(row) for row in (10 * b @ a).tolist()]
    assert fits["x.lora_A.p.weight"].lost == pytest.approx(0.0)


def test_a_noisy_line_explains_less():
    chance = random.Random(0)
    _, _, r2 = fit_line([1.0, 2, 3, 4], [chance.random() for _ in range(4)])
    assert r2 < 0.99


def test_a_run_keeps_its_history_and_a_new_run_holds_the_derived_checkpoint(corridor, tmp_path):
    config = of(corridor(run={"history": 1, "iterations": 3, "rerolls": 0}))
    train(config)
    out = Path(config.run.out)
    assert sorted(read_history(out / HISTORY)) == [0, 1, 2, 3]
    before = {path: path.read_bytes() for path in out.rglob("*.pt")}
    new = extrapolate_run(config, 30)
    assert new == tmp_path / "run-at-30"
    derived = find(new)
    report = json.loads((derived / DERIVED).read_text(encoding="utf-8"))
    assert (report["steps"], report["step"]) == ([0, 1, 2, 3], 30)
    saved, latest = (torch.load(path / "policy.pt", weights_only=True) for path in (derived, find(out)))
    moved = [n for n, v in saved["state"]["weights"].items() if not torch.equal(v, latest["state"]["weights"][n])]
    assert moved
    assert {path: path.read_bytes() for path in out.rglob("*.pt")} == before
    with pytest.raises(ConfigError, match="exists already"):
        extrapolate_run(config, 30)


def test_a_run_without_a_history_is_refused(corridor):
    config = of(corridor(run={"iterations": 1, "rerolls": 0}))
    train(config)
    with pytest.raises(ConfigError, match="no history"):
        extrapolate_run(replace(config), 30)
