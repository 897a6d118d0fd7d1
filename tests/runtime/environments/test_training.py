"""One iteration of `hardwon train` in the bundled environments, with a small base that has learned nothing.

`make test-environments` runs it in those that need packages of their own.
"""

import json
import shutil

import pytest
import torch
import yaml
from tests.runtime.environments.test_alfworld import data as data  # the games
from tests.trainers.folder_base import build_settings
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.trainers.checkpoint import find

NO_DRIVER = pytest.mark.skipif(shutil.which("chromedriver") is None, reason="there is no chromedriver here")


def train_once(tmp_path, name):
    """Train the policy alone for an iteration; return the tensors of its adapter that start at 0."""
    few = {
        "environment": {"name": name, "max_steps": 2},
        "tasks": {"train": {"fold": "train", "seeds": "0-1"}, "eval": {"fold": "dev", "seeds": "0-1"}},
        "explore": {"worlds": {"fold": "train", "seeds": "2-3"}, "steps": 20, "tries": 1},
        "arms": {"control": 2},
        # no episode of two steps succeeds, so without the entropy nothing would move
        "roles": {"policy": {"loss": {"entropy": 0.1}, "settings": {"max_tokens": 24}}},
    }
    settings = build_settings(tmp_path, **few)
    settings["run"] |= {"iterations": 1, "groups": 1, "rerolls": 0}
    shape = tmp_path / "base" / "config.json"  # the tools of bfcl are some 5,000 tokens for this base
    shape.write_text(json.dumps({**json.loads(shape.read_text("utf-8")), "max_position_embeddings": 16384}), "utf-8")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(config), "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["iterations"] == 1
    saved = torch.load(find(tmp_path / "run") / "policy.pt", weights_only=True)
    assert saved["version"] == 2
    return [value for name, value in saved["state"]["weights"].items() if "lora_B" in name]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("babyai", "minigrid"),
        ("bfcl", "bfcl_eval"),
        ("wiki", None),
        ("alfworld", "alfworld"),
        ("scienceworld", "scienceworld"),
        pytest.param("miniwob", "miniwob", marks=[pytest.mark.browser, NO_DRIVER]),
    ],
)
def test_an_iteration_in_a_bundled_environment_moves_the_adapter(name, package, tmp_path, monkeypatch, request):
    if package is not None:
        pytest.importorskip(package)
    if name == "alfworld":
        monkeypatch.setenv("ALFWORLD_DATA", request.getfixturevalue("data"))
    moved = train_once(tmp_path, name)
    assert moved
    assert all(value.any() for value in moved)
