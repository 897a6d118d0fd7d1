"""The settings of runs that an earlier version began."""

import json
import warnings

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.loading import REMOVED, of
from hardwon.trainers.config.schema import as_dict
from hardwon.trainers.session import read_config

BASE = {"environment": {"name": "textworld"}, "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}}}


def save(folder, **values):
    """Write the settings of a run as an earlier version did, all removed ones included, and return them as read now."""
    config = of({**BASE, "warmstart": {}, "run": {"balance": values.get("balance") is not None}})
    stored = as_dict(config)
    stored["engine"] |= {"kind": "local", "key": None, "model": None}
    stored["model"]["tiny"] |= {"seed": 0}
    stored["program"] |= {"at_once": 8, "library": "", "recorded": ""}
    stored["rollouts"] |= {"ray": "auto"}
    stored["run"] |= {"balance": values.get("balance"), "wandb": values.get("wandb")}
    stored["warmstart"]["learning"] |= {"budget": 4096, "seed": 0}
    stored["roles"]["policy"]["loss"] |= {"cap": 2.0}
    stored["warmstart"]["examples"] |= {"circles": values.get("circles", "drop"), "seed": 0}
    stored["roles"]["policy"]["learner"] |= {"clip": values.get("clip", 1.0)}
    (folder / "config.json").write_text(json.dumps(stored))
    return config


@pytest.mark.parametrize("balance", [None, {"low": 0.5, "high": 1.2, "step": 0.05, "right": 8}])
def test_a_removed_setting_that_says_what_every_run_does_is_left_out(tmp_path, balance):
    config = save(tmp_path, balance=balance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(tmp_path, is_resumed=True) == read_config(tmp_path) == config


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"clip": 0.5}, r"roles\.\*\.learner\.clip=0\.5"),
        ({"circles": "keep"}, r"warmstart\.examples\.circles='keep'"),
        ({"balance": {"low": 0.5, "high": 1.2, "step": 0.1, "right": 8}}, r"run\.balance\.step=0\.1"),
    ],
)
def test_a_run_that_would_go_on_differently_is_read_with_a_warning_and_not_resumed(tmp_path, values, path):
    """An ancestor of a run, or one that is evaluated or exported, is only read."""
    config = save(tmp_path, **values)
    with pytest.raises(ConfigError, match=rf"{path}, and this version.*warmstart\.run"):
        read_config(tmp_path, is_resumed=True)
    with pytest.warns(UserWarning, match=path):
        assert read_config(tmp_path) == config


def test_a_removed_setting_that_changes_no_result_lets_a_run_go_on(tmp_path):
    config = save(tmp_path, wandb="project")
    with pytest.warns(UserWarning, match="run.wandb='project'"):
        assert read_config(tmp_path, is_resumed=True) == config


def test_removed_settings_are_gone():
    for path in REMOVED:
        value = {path.rpartition(".")[2]: REMOVED[path]}
        for section in reversed(path.replace("*", "policy").split(".")[:-1]):
            value = {section: value}
        with pytest.raises(ConfigError, match=r"is no setting|must be true or false"):
            of({**BASE, **value})
