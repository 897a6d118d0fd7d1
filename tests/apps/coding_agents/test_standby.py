"""The standby of the hooks, and the lessons that they keep: fast answers, none of which is old."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

from hardwon.apps.coding_agents import standby
from hardwon.apps.coding_agents.events import HookEvent
from hardwon.apps.coding_agents.hook import answer_event, parse_arguments
from hardwon.apps.coding_agents.journal import Journal, may_be_forbidden
from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory

PROMPT = "Fix the failing test"


@pytest.fixture
def home(monkeypatch):
    """A folder whose path is short enough for a socket."""
    # a standby that ends while the folder is removed may still write its log
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("HARDWON_HOME", folder)
        monkeypatch.setattr(standby, "POLL_S", 0.02)
        monkeypatch.setattr(standby, "PATIENCE_S", 60)
        monkeypatch.chdir(folder)  # a standby changes the folder of its process
        yield folder


@pytest.fixture
def options(home):
    given = parse_arguments(["claude-code", "--library", f"{home}/work.db"])
    with ExperienceLibrary.open(given.library) as library:
        state = State("Request", task=PROMPT)
        step = Step(state, 'Bash(command="make test")', state, Diagnosis(True), 1.0)
        library.record_many(Trajectory(PROMPT, (step,), success=True, score=1.0, id=f"e{n}") for n in range(3))
        library.add(Item("insight", "run the tests first", "They take a second.", pinned=True))
    return given


def event(kind="prompt", prompt=PROMPT):
    names = {"prompt": "UserPromptSubmit", "session": "SessionStart"}
    return HookEvent(kind, names[kind], "s-1", "claude-code", prompt=prompt, arguments={})


@contextmanager
def serving(options):
    folder = Journal(options.library, "s-1").folder
    thread = threading.Thread(target=standby.serve, args=(folder,))
    thread.start()
    while not standby.find_socket(folder).exists():
        time.sleep(0.005)
    standby.ask(folder, options, event())  # the first answer imports the index
    yield folder, thread
    standby.find_socket(folder).unlink(missing_ok=True)
    thread.join(5)
    assert not thread.is_alive()


def answer(options, cwd=None, **fields):
    """Answer an event in a process of its own; return the text for the model, and whether it imported the library."""
    fields = {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": PROMPT, **fields}
    code = (
        "import sys; from hardwon.apps.coding_agents.hook import main; main(sys.argv[1:]); print(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "claude-code", "--library", options.library],
        input=json.dumps(fields), capture_output=True, text=True, env=dict(os.environ), check=True, cwd=cwd,
    )  # fmt: skip
    text, names = done.stdout.rsplit("\n", 2)[:2]
    given = json.loads(text)["hookSpecificOutput"]["additionalContext"] if text else ""
    return given, "hardwon.memory.library" in names.split()


def test_a_hook_asks_the_standby_and_does_not_import_the_library(options):
    with serving(options):
        answers = [answer(options) for _ in range(3)]  # on a busy machine one may take too long
    assert not all(is_imported for _, is_imported in answers)
    # an item may be left out of any of them, to measure what it is worth
    assert all("make test" in text for text, _ in answers)


def test_a_standby_knows_what_was_just_recorded(options):
    with serving(options) as (folder, _):
        before = standby.ask(folder, options, event(prompt="Rename the parser"))[0]
        with ExperienceLibrary.open(options.library) as library:
            state = State("Request", task="Rename the parser")
            step = Step(state, 'Edit(file="parser.py")', state, Diagnosis(True), 1.0)
            library.record(Trajectory(state.task, (step,), success=True, score=1.0))
        after = standby.ask(folder, options, event(prompt="Rename the parser"))[0]
    assert "Edit" not in before
    assert "Edit" in after


def test_a_standby_reads_the_library_of_the_folder_in_which_it_is_asked(options, tmp_path):
    options.library = "work.db"
    ExperienceLibrary.open(tmp_path / "work.db").close()
    with serving(options):
        assert answer(options) != ("", False)
        assert answer(options, cwd=tmp_path) == ("", False)


def test_a_hook_without_a_standby_answers_itself_and_starts_one(options, monkeypatch):
    started: list[object] = []
    monkeypatch.setattr(standby, "start", started.append)
    answered = answer_event(event(), options)
    assert "make test" in answered["hookSpecificOutput"]["additionalContext"]
    assert started == [Journal(options.library, "s-1").folder]


@pytest.mark.parametrize("broken", [{"event": ["prompt"]}, {"options": {}}])
def test_a_question_that_fails_ends_no_standby(options, monkeypatch, broken):
    with serving(options) as (folder, _):
        dumps = json.dumps
        with monkeypatch.context() as patched:
            patched.setattr(json, "dumps", lambda value: dumps({**value, **broken}))
            with pytest.raises(ValueError, match="Expecting value"):
                standby.ask(folder, options, event())
        assert standby.ask(folder, options, event())[0]


def test_garbage_ends_no_standby(options):
    with serving(options) as (folder, _):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(standby.find_socket(folder)))
            line.sendall(b"\xff{")
            line.shutdown(socket.SHUT_WR)
            assert line.recv(1) == b""
        assert standby.ask(folder, options, event())[0]


@pytest.mark.parametrize(
    ("content", "may_be"),
    [(["default", ["rm()"]], False), (["default", ["make()"]], True), (["other", []], True), ([], True), (7, True)],
)
def test_the_guards_of_another_namespace_say_nothing(tmp_path, content, may_be):
    """The namespaces of a library share the file of guards."""
    (tmp_path / "guards.json").write_text(json.dumps(content))
    assert may_be_forbidden(tmp_path / "guards.json", "default", "make()") is may_be


@pytest.mark.parametrize("ends", ["idle", "removed", "replaced"])
def test_a_standby_that_nobody_needs_ends(options, monkeypatch, ends):
    monkeypatch.setattr(standby, "IDLE_S", 0.1 if ends == "idle" else 600)
    folder = Journal(options.library, "s-1").folder
    thread = threading.Thread(target=standby.serve, args=(folder,))
    thread.start()
    path = standby.find_socket(folder)
    while ends != "idle" and not path.exists():
        time.sleep(0.005)
    if ends == "removed":
        path.unlink()
    if ends == "replaced":
        path.with_suffix(".other").touch()
        path.with_suffix(".other").replace(path)
    thread.join(20)
    assert not thread.is_alive()
    assert path.exists() == (ends == "replaced")


def test_no_standby_is_started_twice_or_in_a_path_that_is_too_long(options, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: started.append(1))
    with serving(options) as (folder, _):
        standby.start(folder)
    standby.start(tmp_path / ("long" * 30))
    assert not started
    standby.start(folder)
    assert started


def test_a_session_begins_with_lessons_from_a_file_until_the_library_changes(options):
    first, is_imported = answer(options, hook_event_name="SessionStart")
    assert is_imported
    assert "run the tests first" in first
    folder = Journal(options.library, "s-1").folder
    until = time.monotonic() + 30
    while not standby.find_socket(folder).exists() and time.monotonic() < until:
        time.sleep(0.02)  # a standby that begins after its socket was removed would answer the last hook
    try:
        assert answer(options, hook_event_name="SessionStart") == (first, False)
        journal = Journal(options.library, "s-1")
        assert journal.read_lessons(options.library, "default") == first
        assert journal.read_lessons(options.library, "other") is None
        with ExperienceLibrary.open(options.library) as library:
            library.add(Item("insight", "read the log", "It names the line.", pinned=True))
            standby.find_socket(folder).unlink(missing_ok=True)
            changed, is_imported = answer(options, hook_event_name="SessionStart")
            assert is_imported
        assert "read the log" in changed
    finally:
        standby.find_socket(folder).unlink(missing_ok=True)  # ends the standby that the hooks started


def test_a_hook_of_a_library_that_does_not_exist_imports_nothing(home):
    options = parse_arguments(["claude-code", "--library", f"{home}/none.db"])
    assert answer(options) == ("", False)
    assert answer(options, hook_event_name="SessionStart") == ("", False)
