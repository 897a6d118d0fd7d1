"""What the tests of runs share: a world and settings that train in a second."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """The same number of threads gives the same bits, and leaves the others to other tests."""
    torch.set_num_threads(1)


@pytest.fixture
def corridor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Makes settings of a run in the corridor, in a folder of its own: `corridor(run={"iterations": 3})`."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)

    def make(**sections: dict[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "environment": {"name": "corridor:Corridor", "max_steps": 6},
            "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
            "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
            "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
            "arms": {"control": 3, "experience": 3},
            "roles": {"policy": {"learner": {"lr": 0.003}, "credit": {"name": "gigpo"}}},
            "warmstart": {"learning": {"updates": 5, "batch": 4}},
            "eval": {"every": 0, "copies": 1},
            "run": {"iterations": 4, "groups": 3, "rerolls": 1, "save_every": 2, "out": str(tmp_path / "run")},
        }
        for name, values in sections.items():
            if name in ("arms", "guidance", "warmstart") or not isinstance(settings.get(name), dict):
                settings[name] = values
            else:
                settings[name] = {**settings[name], **values}
        return settings

    return make
