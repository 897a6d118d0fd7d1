"""The roles' instructions are compared with those that weights were trained on."""

from dataclasses import replace

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.prompting import instructions


def test_equal_texts_pass():
    instructions.check(instructions.describe(), "export/guide")


def test_a_changed_text_is_refused_even_if_the_version_was_forgotten(monkeypatch):
    saved = instructions.describe()
    changed = replace(instructions.INSTRUCTIONS["keep"], ask="Keep it?")
    monkeypatch.setattr(instructions, "INSTRUCTIONS", {**instructions.INSTRUCTIONS, "keep": changed})
    with pytest.raises(ConfigError, match="export/guide was trained with version 2"):
        instructions.check(saved, "export/guide")


def test_every_deciding_purpose_has_two_different_words():
    for purpose, each in instructions.INSTRUCTIONS.items():
        assert (each.yes != each.no) == (purpose not in ("write", "judge", "refine"))
        assert all(word in each.ask for word in (each.yes, each.no)), purpose
