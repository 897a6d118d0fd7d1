"""The pretrained model in a run: what a decision costs, and that its roles train, resume, export and act.

`make test-pretrained` writes the model and runs these tests. Four minutes on one core.
"""

import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tests.trainers.models.test_smollm2 import FOLDER
from tests.trainers.test_trainer import assert_same, lines
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent
from hardwon.runtime.environments import open_environment
from hardwon.trainers import load_policy
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.trainer import train

pytestmark = [
    pytest.mark.pretrained,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"there is no folder {FOLDER}; run: make test-pretrained"),
]
WORLD = "tests.trainers.corridor:Corridor"
POLICY = {"credit": {"name": "reinforce"}, "learner": {"lr": 0.001}}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def settings_of(out: Path, **sections: Any) -> dict[str, Any]:
    """Return the settings of a run of one short group; one of its two walks in `control` reaches the prize."""
    return {
        "environment": {"name": WORLD, "max_steps": 2},
        "tasks": {"train": {"seeds": "0-0"}, "eval": {"seeds": "100-100"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 8, "tries": 1},
        "model": {"base": str(FOLDER), "adapter": 4, "device": "cpu"},
        "arms": {"control": 2},
        "library": {"recall": 2},
        "roles": {"policy": POLICY},
        "eval": {"every": 0, "copies": 1, "temperature": 0},
        "run": {"iterations": 1, "groups": 1, "rerolls": 0, "save_every": 1, "threads": 1, "out": str(out)},
        **sections,
    }


def test_a_decision_reads_the_prompt_once_and_each_action_once(monkeypatch):
    """A listed action is scored after the shared prefix, and the next turn reads only what is new in it."""
    asked: list[Any] = []
    original = LocalEngine.generate

    async def generate(self, request):
        before, began = self.tokens_read, time.process_time()
        completion = await original(self, request)
        asked.append((request, self.tokens_read - before, time.process_time() - began))
        return completion

    monkeypatch.setattr(LocalEngine, "generate", generate)
    world = open_environment("textworld", game="twc")
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(load_policy(FOLDER), library, world, max_steps=4, learn=False)
        agent.run("dev", 100)
        agent.close()
    known = 0
    for request, tokens, _ in asked:
        choices = len(request.allowed.tree(()).parents)
        assert tokens <= len(request.prompt) - known + choices
        known = len(request.prompt)
    seconds = [taken for _, _, taken in asked]
    print("CPU-seconds of a decision:", ", ".join(f"{taken:.2f}" for taken in seconds))
    assert fmean(seconds) < 3.0  # about one on a quiet core


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One iteration of four roles, exported: (report, export, run)."""
    folder = tmp_path_factory.mktemp("smollm2")
    fed = {"distil": 0, "ready": 1}
    roles = {"policy": POLICY, "guide": {"settings": fed}, "extractor": {"settings": {"ready": 1}}}
    settings = settings_of(
        folder / "run",
        arms={"control": 2, "library": 2, "guided": 2},
        guidance={"guided": "role"},
        roles={**roles, "admission": {"settings": {"teams": 2, "runs": 2, "worlds": 1, "steps": 3}}},
    )
    return train(settings, export=folder / "export"), folder / "export", folder / "run"


def test_an_iteration_moves_the_adapter_of_the_policy(trained):
    """One of two walks succeeds, so its rows have an advantage, and B leaves zero."""
    report, _, run = trained
    assert report.iterations == 1
    steps = [
        torch.load(run / "checkpoints" / number / "policy.pt")["state"]["weights"] for number in ("000000", "000001")
    ]
    before, after = ({name: value for name, value in step.items() if "lora_B" in name} for step in steps)
    assert before
    assert all(not value.any() for value in before.values())
    assert all(value.any() for value in after.values())
    (line,) = [line for line in lines(run) if line["kind"] == "train"]
    assert line["policy/grad_norm"] > 0
    assert line["success/control"] == 0.5


def test_an_export_acts_on_the_command_line(trained, tmp_path):
    """`hardwon run --roles` with the export, and with each of its roles."""
    _, export, _ = trained
    options = (
        "--episodes 1 --eval-seeds 100-100 --eval-every 1 --max-steps 2 --arms empty,step --seed 0 --jobs 1 --json"
    )
    command = ["run", WORLD, f"--roles={export}", f"--out={tmp_path / 'out'}", *options.split()]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["arms"]) >= {"empty", "step"}


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path):
    """Bit for bit on the CPU, weights and what was logged."""
    train(settings_of(tmp_path / "one"), ["run.iterations=2"])
    train(settings_of(tmp_path / "two"))
    torch.manual_seed(977)
    train(settings_of(tmp_path / "two"), ["run.iterations=2"], resume=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    assert lines(tmp_path / "one") == lines(tmp_path / "two")
