"""Arms: what an arm does stands in its fields, and its name is only a label."""

import ast
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from hardwon.apps.experiment import BASELINE, LEARNER, SETUPS
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import CONTROL, Arm
from hardwon.trainers.config.loading import of

ROOT = Path(__file__).parents[3]


def test_an_arm_is_a_value():
    arm = Arm("guided", "role")
    assert arm == Arm("guided", "role")
    assert {arm: 1}[Arm("guided", "role")] == 1
    with pytest.raises(FrozenInstanceError):
        arm.name = "other"  # type: ignore[misc]


def test_a_frozen_arm_keeps_its_memory_and_has_a_name_of_its_own():
    assert Arm("guided", "role").freeze() == Arm("guided-frozen", "role", frozen=True)


@pytest.mark.parametrize("name", ["retrieved", "control-frozen", "controlled-by-hand", "none", ""])
def test_a_name_alone_stands_for_recall_from_the_library(name):
    assert Arm.of(name) == Arm(name, "library")
    assert Arm.of(name).has_memory


@pytest.mark.parametrize("name", ["contol", "Control", "control ", "CONTROL", "controll", "ctrol", "cotnrol"])
def test_a_mistyped_control_is_no_arm_that_recalls(name):
    with pytest.raises(ConfigError, match=rf"arm is '{name}'; use 'control', or Arm\('{name}', 'library'\)"):
        Arm.of(name)


def test_only_the_exact_name_control_stands_for_no_memory():
    assert Arm.of(CONTROL) == Arm("control", "none")
    assert not Arm.of(CONTROL).has_memory
    assert Arm.of(Arm("control", "library")).has_memory


def test_arms_of_training_come_from_the_settings_and_not_from_their_names():
    """A name that looks like a frozen copy is a name like any other."""
    config = of(
        {
            "environment": {"name": "textworld"},
            "arms": {"control": 3, "old-frozen": 2, "guided": 2},
            "guidance": {"old-frozen": "library", "guided": "role"},
            "roles": {"policy": {}, "guide": {}},
            "eval": {"copies": 5},
        }
    )
    old, guided = Arm("old-frozen", "library"), Arm("guided", "role")
    assert config.list_arms() == {Arm("control"): 3, old: 2, guided: 2}
    evaluated = config.list_evaluated_arms()
    assert list(evaluated) == [Arm("control"), old, guided, old.freeze(), guided.freeze()]
    assert set(evaluated.values()) == {5}
    assert set(config.list_evaluated_arms(2).values()) == {2}


def test_arms_of_an_experiment_are_listed_with_what_they_do():
    assert {name for name, setup in SETUPS.items() if not setup.arm.has_memory} == {"random", BASELINE.name}
    assert [name for name, setup in SETUPS.items() if setup.level == "task"] == ["task"]
    assert [name for name, setup in SETUPS.items() if not setup.guardrails] == ["unguarded"]
    assert SETUPS[LEARNER.name].arm == LEARNER


PARSING = {"removesuffix", "removeprefix", "endswith", "startswith", "partition", "rpartition", "split"}


def find_parsed_arms(source: str) -> list[int]:
    """Return the lines that call a method of parsing on something named arm, or on its name."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in PARSING
        and any(part in ("arm", "arm_name") for part in ast.unparse(node.func.value).replace("_", ".").split("."))
    ]


def test_no_code_parses_the_name_of_an_arm():
    """What an arm does stood in suffixes of its name once."""
    assert find_parsed_arms("a\nspec.arm.endswith('-frozen')") == [2]
    files = [path for top in ("runtime", "trainers", "apps", "examples") for path in (ROOT / top).rglob("*.py")]
    assert len(files) > 100
    assert {str(path): lines for path in files if (lines := find_parsed_arms(path.read_text(encoding="utf-8")))} == {}
