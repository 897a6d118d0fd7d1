"""The runs in which published methods act: the base configuration with the settings of a method and of its example."""

import json
from pathlib import Path

from hardwon.trainers.config.loading import load
from hardwon.trainers.config.methods import collect_example
from hardwon.trainers.config.schema import TrainConfig

ROOT = Path(__file__).parents[3]
BASE = ROOT / "examples" / "methods" / "base.yaml"


def list_overrides(method: str) -> list[str]:
    """Return the settings of a method's example as `a.b=value`."""
    return [f"{path}={json.dumps(value)}" for path, value in collect_example(method).items()]


def load_example(method: str) -> TrainConfig:
    """Return the settings of the run in which a method acts."""
    return load(BASE, list_overrides(method), method=method)
