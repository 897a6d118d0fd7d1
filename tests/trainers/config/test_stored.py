"""The settings of runs that an earlier version began."""

import json
import re
import warnings
from dataclasses import asdict

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.loading import HARMLESS, REMOVED, of
from hardwon.trainers.config.schema import ModelConfig, as_dict
from hardwon.trainers.exports import FORMAT, MANIFEST, Manifest, read_manifest
from hardwon.trainers.session import read_config

BASE = {"environment": {"name": "textworld"}, "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}}}


def save(folder, path="", value=None, **run):
    """Write the settings of a run as an earlier version did, all removed ones included, and return them as read now."""
    config = of({**BASE, "warmstart": {}, "run": run})
    stored = as_dict(config)
    for removed, default in [*REMOVED.items(), ("engine.kind", "local"), *([(path, value)] if path else [])]:
        *sections, name = removed.replace("*", "policy").split(".")
        place = stored
        for section in sections:
            if not isinstance(place[section], dict):  # numbers of what is true or false now
                place[section] = {}
            place = place[section]
        place[name] = default
    (folder / "config.json").write_text(json.dumps(stored))
    return config


def test_removed_settings_that_say_what_every_run_does_are_left_out(tmp_path):
    config = save(tmp_path, balance=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(tmp_path, is_resumed=True) == read_config(tmp_path) == config


def test_a_setting_that_is_true_or_false_now_may_have_been_left_out(tmp_path):
    config = save(tmp_path, "run.balance", None)
    assert read_config(tmp_path, is_resumed=True) == config


@pytest.mark.parametrize("path", sorted({*REMOVED} - HARMLESS))
def test_a_run_that_would_go_on_differently_is_read_with_a_warning_and_not_resumed(tmp_path, path):
    """An ancestor of a run, or one that is evaluated or exported, is only read."""
    config = save(tmp_path, path, 0.25, balance=True)
    with pytest.raises(ConfigError, match=rf"{re.escape(path)}=0\.25, and this version.*warmstart\.run"):
        read_config(tmp_path, is_resumed=True)
    with pytest.warns(UserWarning, match=rf"{re.escape(path)}=0\.25"):
        assert read_config(tmp_path) == config


@pytest.mark.parametrize("path", sorted(HARMLESS))
def test_a_removed_setting_that_changes_no_result_lets_a_run_go_on(tmp_path, path):
    config = save(tmp_path, path, 5, balance=True)
    with pytest.warns(UserWarning, match=rf"{re.escape(path)}=5"):
        assert read_config(tmp_path, is_resumed=True) == config


def test_removed_settings_are_gone():
    for path in REMOVED:
        value = {path.rpartition(".")[2]: REMOVED[path]}
        for section in reversed(path.replace("*", "policy").split(".")[:-1]):
            value = {section: value}
        with pytest.raises(ConfigError, match=r"is no setting|must be true or false"):
            of({**BASE, **value})


def test_an_export_of_an_earlier_version_is_read(tmp_path):
    """It has the settings of its model, of which one was removed."""
    manifest = Manifest(ModelConfig(base="tiny", prompt="compact"), {"policy": {}}, "")
    saved = {"format": FORMAT, **asdict(manifest)}
    saved["model"]["tiny"]["seed"] = 0
    (tmp_path / MANIFEST).write_text(json.dumps(saved))
    assert read_manifest(tmp_path) == manifest
