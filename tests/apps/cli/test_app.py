import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.speed import start as bench_start
from hardwon.apps.cli import app
from hardwon.apps.shared import common
from hardwon.memory import errors

ROOT = Path(__file__).parents[3]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from commands(inner, (*path, name))


TREE = typer.main.get_command(app.app)
COMMANDS = dict(commands(TREE))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_parameter_has_help(path):
    assert COMMANDS[path].help
    assert [p.name for p in COMMANDS[path].params if not p.help and p.name != "help"] == []


SERVERS = (("mcp",), ("serve", "start"), ("proxy",), ("hook", "run"))
"""Commands that answer over a wire, and print nothing."""


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in SERVERS], ids=" ".join)
def test_every_command_can_print_json(path):
    assert "--json" in {option for parameter in COMMANDS[path].params for option in parameter.opts}


@pytest.mark.parametrize("wing", ["memory", "runtime"])
def test_every_command_that_a_message_names_exists(wing):
    """`Re-embed it with: hardwon memory reembed PATH --embedder NAME` must be something one can type."""
    said = "\n".join(file.read_text() for file in (ROOT / wing).rglob("*.py"))
    named = set(re.findall(r"hardwon (memory|bench) ([a-z]+)", said)) | {
        (w,) for w in re.findall(r"hardwon (run|doctor)\b", said)
    }
    assert named <= set(COMMANDS)


@pytest.mark.parametrize(
    ("path", "option"), [(("memory", "reembed"), "--embedder"), (("memory", "stats"), "--migrate")]
)
def test_the_options_that_messages_name_exist(path, option):
    assert option in {name for parameter in COMMANDS[path].params for name in parameter.opts}


def test_version(hardwon):
    assert re.fullmatch(r"hardwon \d+\.\d+\.\d+\S*\n", hardwon("--version").stdout)


@pytest.mark.parametrize("start", bench_start.STARTS)
def test_starting_imports_nothing_heavy(start):
    heavy = bench_start.heavy_imports(bench_start.STARTS[start])
    assert heavy == []


def raising(monkeypatch, error: BaseException) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(common, "say_json", fail)
    monkeypatch.setattr("hardwon.apps.cli.doctor.say_json", fail)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("a"), 2),
        (errors.UnknownName("a"), 2),
        (errors.MissingExtra("a"), 2),
        (errors.NotALibrary("a"), 1),
        (errors.EnvironmentCrashed("a"), 1),
        (errors.PolicyFailure("a"), 1),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(hardwon, monkeypatch, error, code):
    raising(monkeypatch, error)
    result = hardwon("doctor", "--json", expect=code)
    assert result.stdout == ""
    assert result.stderr == f"error: {error}\n"


def test_a_bug_is_not_disguised_as_an_error(hardwon, monkeypatch):
    raising(monkeypatch, ValueError("a bug"))
    assert isinstance(hardwon("doctor", "--json", expect=1).exception, ValueError)


def test_a_wrong_call_exits_with_2(hardwon):
    assert "No such command" in hardwon("memory", "sing", expect=2).stderr
    assert "Missing argument" in hardwon("memory", "show", expect=2).stderr


def test_an_interruption_says_where_the_library_is(hardwon, learnt, monkeypatch):
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hardwon.memory.parts.admin.LibraryAdmin.stats", interrupted)
    result = hardwon("memory", "stats", learnt, expect=130)
    assert result.stderr == f"interrupted. The library is at {learnt}; finished writes are kept.\n"
