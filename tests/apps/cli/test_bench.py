"""`hardwon bench` and sample tasks without a clone: one line that says where they are."""

import pytest
import typer
from typer.testing import CliRunner

from hardwon.apps.cli import bench
from hardwon.apps.cli.app import Commands
from hardwon.apps.shared import clone
from hardwon.memory.errors import ConfigError


@pytest.fixture
def without_clone(monkeypatch, tmp_path):
    """Hardwon as a wheel installs it: no benchmarks beside it."""
    monkeypatch.setattr(clone, "_ROOT", tmp_path)


@pytest.mark.parametrize("words", [["bench"], ["bench", "recall", "--json"], ["bench", "--help"]])
def test_bench_without_a_clone_names_the_next_step(without_clone, words):
    commands = typer.Typer(cls=Commands)
    commands.callback()(lambda: None)
    bench.add_to(commands)
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 2
    assert "make install" in done.output
    assert len(done.output.splitlines()) == 1


def test_clone_that_is_there_is_found():
    root = clone.find_clone()
    assert root is not None
    assert (root / "examples" / "team_tasks").is_dir()


def test_error_names_what_needs_the_clone(without_clone):
    with pytest.raises(ConfigError, match="archive needs a clone"):
        clone.use_clone("The errand archive")
