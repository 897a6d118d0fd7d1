"""A run warns of a guide whose hints did worse than the recalled text."""

import json
from pathlib import Path

import pytest

from hardwon.trainers.config.loading import load
from hardwon.trainers.metrics import FILE, is_worse
from hardwon.trainers.trainer import find_harmful_guides, find_harmful_memory

EXAMPLES = Path(__file__).parents[4] / "examples"


def rows(guided, retrieved):
    return [
        {"iteration": at, "kind": "train", "success/guided": a, "success/retrieved": b}
        for at, (a, b) in enumerate(zip(guided, retrieved, strict=True))
    ]


@pytest.mark.parametrize(
    ("guided", "worse"),
    [
        ([0.5, 0.4, 0.6, 0.5, 0.4, 0.6], True),
        ([0.9, 0.4, 0.9, 0.5, 0.9, 0.6], False),  # -0.05 with a standard error of 0.1
        ([0.9, 0.9, 0.9, 0.9, 0.9, 0.9], False),
        ([0.0, 0.0, 0.0, 0.0], False),  # too few iterations
    ],
)
def test_an_arm_is_worse_if_its_difference_exceeds_two_standard_errors(guided, worse):
    lines = [*rows(guided, [0.75] * len(guided)), {"iteration": 99, "success/guided": None, "success/retrieved": 1.0}]
    assert is_worse(lines, "success/guided", "success/retrieved") is worse


def test_a_run_warns_of_a_guide_that_hurts_and_names_the_next_step(tmp_path):
    config = load(EXAMPLES / "train_smollm2.yaml")
    lines = rows([0.5, 0.4, 0.6, 0.5, 0.4, 0.6], [0.75] * 6)
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (warning,) = find_harmful_guides(config, tmp_path)
    assert "guided solves fewer tasks than retrieved" in warning
    assert "roles.json" in warning
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in rows([0.9] * 6, [0.75] * 6)))
    assert find_harmful_guides(config, tmp_path) == ()


def test_a_run_warns_of_memory_that_hurts(tmp_path):
    config = load(EXAMPLES / "train_smollm2.yaml")
    lines = [
        {"iteration": n, "kind": "train", "success/retrieved": 0.4 + 0.1 * (n % 2), "success/control": 0.75}
        for n in range(6)
    ]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (warning,) = find_harmful_memory(config, tmp_path)
    assert "retrieved solves fewer tasks than control" in warning
    equal = [{**line, "success/retrieved": line["success/control"]} for line in lines]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in equal))
    assert find_harmful_memory(config, tmp_path) == ()
