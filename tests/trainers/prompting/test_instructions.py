"""The roles' instructions are compared with those that weights were trained on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainers.folder_base import save_base

from hardwon.memory.errors import ConfigError
from hardwon.trainers import train
from hardwon.trainers.exports import read_manifest
from hardwon.trainers.prompting import instructions
from hardwon.trainers.session import INSTRUCTIONS


def change(monkeypatch, purpose="write"):
    changed = replace(instructions.INSTRUCTIONS[purpose], ask="What is it?")
    monkeypatch.setattr(instructions, "INSTRUCTIONS", {**instructions.INSTRUCTIONS, purpose: changed})


def test_equal_texts_pass():
    instructions.check(instructions.describe(), "export/guide")


def test_a_changed_text_is_refused_even_if_the_version_was_forgotten(monkeypatch):
    saved = instructions.describe()
    change(monkeypatch)
    with pytest.raises(ConfigError, match=f"export was trained with version {instructions.VERSION}.* texts of write"):
        instructions.check(saved, "export")


def test_a_text_that_no_role_was_asked_may_change(monkeypatch):
    saved = instructions.describe()
    change(monkeypatch)
    instructions.check(saved, "export", ["policy", "guide"])
    with pytest.raises(ConfigError, match="texts of write differ"):
        instructions.check(saved, "export", ["policy", "extractor"])


def test_a_record_of_an_older_form_is_refused():
    with pytest.raises(ConfigError, match=r"version 2 .* texts of guide differ"):
        instructions.check({"version": 2, "digest": "0"}, "export", ["guide"])


def test_every_deciding_purpose_has_two_different_words():
    for purpose, each in instructions.INSTRUCTIONS.items():
        assert (each.yes != each.no) is (purpose != "write")
        assert all(word in each.ask for word in (each.yes, each.no)), purpose


def test_every_text_belongs_to_a_role():
    assert {purpose for asked in instructions.ASKED.values() for purpose in asked} == {*instructions.INSTRUCTIONS}


@pytest.fixture
def run(corridor, tmp_path):
    """A run of a chat base with a policy and an extractor, after one iteration."""
    settings = corridor(
        model={"base": str(save_base(tmp_path / "base")), "adapter": 2, "device": "cpu"},
        arms={"control": 2, "library": 2},
        roles={"extractor": {}},
        warmstart=None,
        run={"iterations": 1, "groups": 1, "rerolls": 0},
    )
    return settings, train(settings, export=tmp_path / "export")


def test_a_checkpoint_and_an_export_say_what_they_were_trained_on(run, tmp_path, monkeypatch):
    """Both are refused with other texts; those of a role that the run does not have may change."""
    settings, report = run
    saved = json.loads((Path(report.checkpoint) / INSTRUCTIONS).read_text())
    assert saved == instructions.describe() == read_manifest(tmp_path / "export").instructions
    change(monkeypatch, "share")
    assert train(settings, ["run.iterations=2"], resume=True).iterations == 2
    read_manifest(tmp_path / "export")
    change(monkeypatch, "write")
    with pytest.raises(ConfigError, match=r"checkpoints.* texts of write differ"):
        train(settings, ["run.iterations=3"], resume=True)
    with pytest.raises(ConfigError, match=r"export was trained with .* texts of write differ"):
        read_manifest(tmp_path / "export")
