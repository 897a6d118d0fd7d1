"""Consoles that cannot print a character show a replacement; no command ends in a traceback."""

import io
import json
import os
import shutil
import sys
from contextlib import suppress

import pytest
from starlette.testclient import TestClient

from hardwon.apps.cli import app
from hardwon.apps.coding_agents import hook
from hardwon.apps.http.app import create_app
from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory

TEXT = "退款 für Ada 🎉 → résumé"
ENCODINGS = ("cp1252", "cp932", "ascii", "latin-1")
COMMANDS = (
    ["memory", "ls"],
    ["memory", "ls", "--episodes"],
    ["memory", "stats"],
    ["memory", "search"],
    ["memory", "show"],
    ["memory", "verify"],
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("退款") / "bücher.db"
    step = Step(State(TEXT, task=TEXT), TEXT, State(TEXT, task=TEXT), Diagnosis(True), reward=1.0)
    with ExperienceLibrary.open(path) as opened:
        opened.record(Trajectory(TEXT, (step,), success=True))
        opened.add(Item("insight", TEXT, TEXT, source="person", id="i-1"))
    return path


def call(monkeypatch, encoding, function, *arguments):
    """Call a command whose streams have the encoding; return its code and what it printed."""
    streams = {
        name: io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for name in ("stdout", "stderr")
    }
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["hardwon", *map(str, arguments)])
    code: str | int = 0
    try:
        function()
    except SystemExit as end:
        code = end.code or 0
    return code, *(stream.buffer.getvalue().decode(encoding, "replace") for stream in streams.values())


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_character_is_printed_or_replaced(monkeypatch, library, encoding, command):
    question = {"search": [TEXT], "show": ["i-1"]}.get(command[1], [])
    code, printed, said = call(monkeypatch, encoding, app.main, *command[:2], library, *question, *command[2:])
    assert (code, "Traceback" in said) == (0, False)
    assert printed.strip()


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("command", [*COMMANDS, ["memory", "ls", "--json"]], ids=" ".join)
def test_a_library_whose_name_is_not_utf8_is_opened(monkeypatch, library, tmp_path, encoding, command):
    path = tmp_path / os.fsdecode(b"caf\xe9.db")
    shutil.copy(library, path)
    question = {"search": [TEXT], "show": ["i-1"]}.get(command[1], [])
    code, printed, said = call(monkeypatch, encoding, app.main, *command[:2], path, *question, *command[2:])
    assert (code, "Traceback" in said) == (0, False)
    assert printed.strip()


def test_the_server_says_a_name_that_is_not_utf8(library, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.db")
    shutil.copy(library, path)
    with TestClient(create_app(path), base_url="http://127.0.0.1", client=("127.0.0.1", 5)) as client:
        assert client.get("/v1/stats").json()["path"] == "caf\ufffd.db"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["doctor"], ["methods"]], ids=" ".join)
def test_frames_and_signs_of_our_own_are_printed_or_replaced(monkeypatch, encoding, command):
    _, printed, said = call(monkeypatch, encoding, app.main, *command)
    assert "Traceback" not in said
    assert printed.strip()


@pytest.mark.parametrize(
    "command", [["memory", "ls"], ["memory", "ls", "--json"], ["methods"], ["--help"]], ids=" ".join
)
def test_a_reader_that_left_ends_a_command_quietly(monkeypatch, capfd, library, command):
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    path = [library] if command[0] == "memory" else []
    monkeypatch.setattr(sys, "argv", ["hardwon", *command[:2], *map(str, path), *command[2:]])
    with pytest.raises(SystemExit) as end:
        app.main()
    with suppress(BrokenPipeError):
        stream.close()
    assert (end.value.code, capfd.readouterr().err) == (1, "")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_keeps_characters_that_the_console_cannot_print(monkeypatch, library, encoding):
    code, printed, _ = call(monkeypatch, encoding, app.main, "memory", "ls", library, "--json")
    assert code == 0
    assert TEXT in json.dumps(json.loads(printed), ensure_ascii=False)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_error_about_an_unprintable_name_stays_one_line(monkeypatch, tmp_path, encoding):
    code, _, said = call(monkeypatch, encoding, app.main, "memory", "ls", tmp_path / "没有🎉.db")
    assert code != 0
    assert len(said.splitlines()) == 1
    assert "there is no library at" in said


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_a_hook_reads_utf8_in_every_console(monkeypatch, tmp_path, encoding, mark):
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "prompt": TEXT}
    monkeypatch.setenv("HARDWON_HOME", str(tmp_path))
    seen = []

    def answer(event, options):
        seen.append(event.prompt)
        return {}

    monkeypatch.setattr(hook, "answer_event", answer)
    written = mark + json.dumps(event, ensure_ascii=False).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), encoding=encoding))
    assert hook.main(["claude-code", "--library", str(tmp_path / "work.db")]) == 0
    assert seen == [TEXT]
