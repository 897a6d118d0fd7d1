"""docs/memory.md is so: it makes its library, its commands run, and they print what it shows."""

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from hardwon.apps.cli.app import app

PAGE = (Path(__file__).parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"^\$ hardwon (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def in_a_line(text: str) -> str:
    """Without line ends and columns, which belong to the width of a page."""
    return " ".join(text.split())


def test_every_block_of_the_page_runs_and_prints_what_it_shows(hardwon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, block in FENCE.findall(PAGE):
        if language == "python":
            exec(compile(block, "docs/memory.md", "exec"), {"__name__": "page"})
            continue
        for call, shown in CALL.findall(block):
            printed = in_a_line(hardwon(*shlex.split(call)).stdout)
            for line in shown.splitlines():
                assert in_a_line(line) in printed, f"hardwon {call}"


def test_every_command_of_the_family_is_on_the_page():
    family: Any = typer.main.get_command(app)
    assert set(family.commands["memory"].commands) <= set(re.findall(r"hardwon memory (\w+)", PAGE))
