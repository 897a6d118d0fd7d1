# mypy: disable-error-code="arg-type"
"""A mistyped word, path or name ends a command at once, with the value and what to do; nothing is left behind."""

import os
import shutil
import sys

import pytest

from hardwon.memory import ExperienceLibrary, State
from hardwon.memory.errors import ConfigError, WrongType
from hardwon.memory.remote import RemoteLibrary

SEE = State("You see a drawer.", task="find a spoon")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "episodc"], "unknown policy 'episodc'. Did you mean 'episodic'? There are: PROVIDER:MODEL"),
        (["--policy", "ranked:lookahed"], "unknown policy 'lookahed'. Did you mean 'lookahead'?"),
        (["--eval-fold", "tset"], "unknown fold 'tset'. Did you mean 'test'? There are: dev, test, train."),
        (["--game", "1", "--out", "FILE"], "FILE cannot be used: File exists. Give another path"),
    ],
)
def test_a_mistyped_option_of_a_run(hardwon, tmp_path, monkeypatch, arguments, words):
    """Before a word about its cost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("mine")
    code = 1 if "FILE" in arguments else 2
    said = hardwon("run", "wiki", "--episodes", "1", *arguments, expect=code).stderr
    assert words in said
    assert ("episodes of at most" in said) == ("FILE" in arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_the_list_of_policies_has_all_forms(hardwon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = hardwon("run", "wiki", "--policy", "nothing", expect=2).stderr
    assert all(name in said for name in ("auto", "folder:PATH", "ranked:NAME", "ranked@EXPORT:NAME", "lookahead"))


@pytest.mark.parametrize("command", [["memory", "ls"], ["memory", "stats"], ["memory", "why"], ["memory", "retire"]])
def test_a_library_that_is_not_there(hardwon, tmp_path, command):
    """The ways to one are those of people who bring their own agent."""
    more = {"why": ["refund"], "retire": ["itm", "--why", "old"]}.get(command[1], [])
    said = hardwon(*command, tmp_path / "missing.db", *more, expect=1).stderr
    assert "with your agent (ExperienceLibrary.open), `hardwon proxy` or `hardwon hook install`" in said
    assert "textworld" not in said


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--port", "0"],
        ["serve", "--port", "0", "--read-only"],
        ["serve", "token", "list"],
        ["memory", "stats"],
    ],
)
@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        *((path, 2, f"{path!r} names no file") for path in ("", ".", "/", "a\0b.db")),
        ("loop.db", 1, "loop.db"),
        ("a" * 300, 1, "File name too long"),
    ],
)
def test_every_command_refuses_what_names_no_file(hardwon, tmp_path, monkeypatch, command, path, code, words):
    """The names of its file of tokens and of its folder are made of it before the library is opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.db").symlink_to("loop.db")
    done = hardwon(*command, path, expect=code)
    assert words in " ".join(done.stderr.split())
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("command", [("hook", "install", "claude-code", "--library"), ("proxy",)])
def test_servers_and_hooks_refuse_what_can_be_no_library(hardwon, tmp_path, monkeypatch, command):
    """A hook would fail in silence, and the proxy would wait for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes, longer than a header")
    for path, words in (
        (notes, "not a hardwon library"),
        (tmp_path, "is a folder"),
        (tmp_path / "a/b.db", "not exist"),
    ):
        assert words in hardwon(*command, path, expect=1).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["proxy", "own.db", "--upstream", "http://["], "upstream is 'http://['; use a URL such as"),
        (["proxy", "own.db", "--upstream", "http://127.0.0.1:99999/v1"], "99999/v1'; use a URL such as"),
        (["run", "own_leaving:Door"], "'own_leaving:Door' cannot be imported"),
        (["run", "wiki", "--train-seeds", "²"], "seeds are '²'; write them as A-B"),
        (["run", "wiki", "--eval-seeds", "0-99999999999"], "name at most 1,000,000 of them"),
        (["run", "wiki", "--params", "entities=²"], "entities is '²'; use a whole number"),
        (["run", "wiki", "--eval-every", "²"], "--eval-every is '²'; give a number"),
        (["run", "wiki", "--eval-seeds", "9" * 5000], "write them as A-B"),
        (["eval", ".", "--fold", "\udcff"], "--fold '\\udcff' (str) contains"),
        (["memory", "reembed", "own.db", "--embedder", "hashing:²"], "hashing dimension is '²'; use a whole number"),
    ],
)
def test_a_value_that_nearly_has_the_form(hardwon, tmp_path, monkeypatch, arguments, words):
    """Digits that are no numbers, an address with half a bracket, a module that ends the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "own_leaving.py").write_text("raise SystemExit(3)")
    ExperienceLibrary.open("own.db").close()
    assert words in hardwon(*arguments, expect=2).stderr


def test_a_library_whose_name_is_not_text_is_recalled_from(hardwon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / os.fsdecode(b"caf\xe9.db")
    ExperienceLibrary.open(other).close()
    sizes = ("--episodes", 1, "--eval-seeds", "100-100", "--seed", 0, "--jobs", 1, "--arms", "task", "--out", "out")
    assert hardwon("run", "wiki", *sizes, "--beside", other).exit_code == 0


def test_an_export_writes_over_nothing_but_an_export(hardwon, tmp_path):
    """`memory export work.db other.db` is not a way to copy a library."""
    for name in ("work.db", "other.db"):
        ExperienceLibrary.open(tmp_path / name).close()
    for target in ("work.db", "other.db"):
        refused = hardwon("memory", "export", tmp_path / "work.db", tmp_path / target, expect=2)
        assert "is there and no export" in refused.stderr
        assert (tmp_path / target).read_bytes().startswith(b"SQLite")


def test_a_served_library_names_arguments_as_a_local_one(serving, learnt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(shutil.copy(learnt, tmp_path / "own.db")) as url, RemoteLibrary(url) as library:
        with pytest.raises(ConfigError, match=r"after: input should be a valid string. You sent 0"):
            library.recall(SEE, after=0)
        with pytest.raises(WrongType, match=r"actions is 5 \(int\); give a list of text"):
            library.look_ahead(SEE, 5)
        with pytest.raises(ConfigError, match="cannot be sent"):
            library.recall(SEE, budget_tokens=float("nan"))
        with pytest.raises(ConfigError, match="is there and no export"):
            library.admin.export_jsonl(tmp_path / "own.db")
