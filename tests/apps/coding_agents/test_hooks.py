"""Hooks of coding agents, called as the agents call them: a process of its own, the documented JSON on stdin."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.apps.coding_agents.events import read_event
from hardwon.apps.coding_agents.experience import record_pending
from hardwon.apps.coding_agents.hook import answer_event, parse_arguments
from hardwon.apps.coding_agents.install import find_settings, format_command, install_hooks, uninstall_hooks
from hardwon.apps.coding_agents.journal import Journal
from hardwon.apps.importers import filing, reading
from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.errors import ConfigError
from hardwon.memory.parts.episodes import LibraryEpisodes
from hardwon.runtime.integrations.tool_run import SOURCE
from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING

GUARD = Item(
    "guardrail", "Never force a push", "It lost work.", "When pushing", condition={"text": "Request"},
    forbids='Bash(command="git push --force")', confidence=0.9,
)  # fmt: skip


class Session:
    """A session of a coding agent, whose hooks run in this process and record at once."""

    def __init__(self, tmp_path, monkeypatch, agent="claude-code", session="s-1", options=()):
        self.library, self.agent, self.session = tmp_path / "work.db", agent, session
        self.transcript = tmp_path / "transcript.jsonl"
        self.options = parse_arguments([agent, "--library", str(self.library), *options])
        self.options.session = session
        self.calls = 0
        monkeypatch.setenv("HARDWON_HOME", str(tmp_path / "home"))
        start = "subprocess.Popen"
        monkeypatch.setattr(start, lambda *_, **__: record_pending(self.options))
        monkeypatch.setattr("hardwon.apps.coding_agents.standby.start", lambda _: None)

    def send(self, name, **fields):
        common = {
            "session_id": self.session, "transcript_path": str(self.transcript), "cwd": "/project",
            "permission_mode": "default", "hook_event_name": name,
        }  # fmt: skip
        if self.agent == "cursor":
            common = {
                "conversation_id": self.session, "generation_id": "g-1", "hook_event_name": name,
                "workspace_roots": ["/project"], "cursor_version": "2.0.77",
            }  # fmt: skip
        return answer_event(read_event(self.agent, json.dumps({**common, **fields})), self.options)

    def call(self, tool, arguments, response=None, error=None):
        """Call a tool; returns the answers of both hooks."""
        self.calls += 1
        names = ("preToolUse", "postToolUse") if self.agent == "cursor" else ("PreToolUse", "PostToolUse")
        common = {"tool_name": tool, "tool_input": arguments, "tool_use_id": f"toolu_{self.calls}"}
        before = self.send(names[0], **common)
        if error is not None:
            return before, self.send(f"{names[1]}Failure", **common, error=error)
        field = "tool_output" if self.agent == "cursor" else "tool_response"
        return before, self.send(names[1], **common, **{field: response})

    def play(self, prompt):
        """Play a turn: the tests fail, and pass after an edit."""
        begun = self.send("beforeSubmitPrompt" if self.agent == "cursor" else "UserPromptSubmit", prompt=prompt)
        self.call("Bash", {"command": "make test"}, error="Exit code 2\n1 failed")
        self.call("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"}, {"filePath": "a.py"})
        self.call("Bash", {"command": "make test"}, {"stdout": "3 passed", "stderr": "", "interrupted": False})
        self.send("stop" if self.agent == "cursor" else "Stop", stop_hook_active=False, status="completed")
        return begun

    def episodes(self):
        with ExperienceLibrary.open(self.library) as library:
            return [library.episodes.get(row["id"]) for row in library.episodes.find()]


@pytest.fixture
def session(tmp_path, monkeypatch):
    return Session(tmp_path, monkeypatch)


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_a_turn_becomes_an_episode(tmp_path, monkeypatch, agent):
    session = Session(tmp_path, monkeypatch, agent)
    session.play("Fix the tests.")
    (episode,) = session.episodes()
    assert episode.task == "Fix the tests."
    assert [step.diagnosis.success for step in episode.steps] == [False, True, True]
    assert episode.steps[0].action == 'Bash(command="make test")'
    assert episode.steps[0].diagnosis.failure == "tool_error"
    assert "1 failed" not in repr(episode), "by default no word of a result is recorded"
    assert episode.success is True
    assert episode.writer == f"hook:{agent}"
    assert episode.meta["environment"] == agent
    assert episode.meta["cwd"] == "/project"


def test_equal_commands_are_one_action_whatever_is_said_about_them(session):
    """Claude Code describes every command, each time in other words; a description of anything else is kept."""
    session.send("UserPromptSubmit", prompt="Test it.")
    session.call("Bash", {"command": "make test", "description": "Run the tests", "timeout": 60_000}, {"stdout": "ok"})
    session.call("Bash", {"command": "make test", "description": "Run tests again"}, {"stdout": "ok"})
    session.call("Task", {"description": "Look for callers"}, {"content": "none"})
    session.send("Stop")
    (episode,) = session.episodes()
    assert [step.action for step in episode.steps] == [
        'Bash(command="make test")', 'Bash(command="make test")', 'Task(description="Look for callers")',
    ]  # fmt: skip


@pytest.mark.parametrize("response", [{"exit_code": 1, "output": "1 failed"}, {"is_error": True, "content": "no"}])
def test_a_response_that_reports_a_failure_is_one(session, response):
    """Codex has no hook for failures; the response of its shell has the exit code."""
    session.send("UserPromptSubmit", prompt="Fix it.")
    session.call("Bash", {"command": "make test"}, response)
    session.send("Stop")
    (episode,) = session.episodes()
    assert episode.success is False


def test_later_turns_begin_with_what_earlier_ones_found(session):
    assert session.play("Fix the tests.") == {}
    for n in range(2):
        session.play(f"Fix the tests of module {n}.")
    output = session.play("Fix the tests of module 7.")["hookSpecificOutput"]
    assert output["hookEventName"] == "UserPromptSubmit"
    assert output["additionalContext"].endswith(SOURCE)
    assert "make test" in output["additionalContext"]
    begun = session.send("SessionStart", source="startup")
    assert begun == {} or begun["hookSpecificOutput"]["hookEventName"] == "SessionStart"


FIXES = {
    "before": ([("npm test", False), ("npm ci", True), ("npm test", True)], 'First `Bash(command="npm ci")`, then'),
    "added": (
        [("pytest t", False), ("ls", True), ("DB=x.db pytest t", True)],
        'Use `Bash(command="DB=x.db pytest t")`.',
    ),
    "program": ([("npm test", False), ("pnpm test", True)], 'Use `Bash(command="pnpm test")`.'),
    "place": ([("pytest t", False), (".venv/bin/pytest t", True)], 'Use `Bash(command=".venv/bin/pytest t")`.'),
}


@pytest.mark.parametrize(("commands", "line"), FIXES.values(), ids=FIXES)
def test_what_made_a_command_work_in_three_sessions_is_named_as_it_can_be_run(tmp_path, monkeypatch, commands, line):
    """Before, nothing is said of commands whose words may not be shown."""
    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=0.0))
    hints = []
    for n, prompt in enumerate(["Mend the cart.", "Fix a price.", "Add a discount.", "Check the test.", "Look at it."]):
        session = Session(tmp_path, monkeypatch, session=f"s-{n}")
        begun = session.send("UserPromptSubmit", prompt=prompt)
        hints.append(begun["hookSpecificOutput"]["additionalContext"] if begun else "")
        for command, works in commands:
            outcome = {"response": {"stdout": "ok"}} if works else {"error": "Exit code 1\nnot found"}
            session.call("Bash", {"command": command}, **outcome)
        session.send("Stop")
    assert hints[:3] == ["", "", ""]
    assert all(hint.startswith(line) and "{command}" not in hint for hint in hints[3:]), hints
    assert "failed (tool error) in 4 of 4 episodes" in hints[4]


def test_cursor_gets_the_hint_after_the_first_call(tmp_path, monkeypatch):
    """Its hook of prompts takes no context."""
    session = Session(tmp_path, monkeypatch, "cursor")
    for n in range(3):
        session.play(f"Fix the tests of module {n}.")
    assert session.send("beforeSubmitPrompt", prompt="Fix the tests of module 7.") == {}
    _, after = session.call("Shell", {"command": "ls"}, json.dumps({"exitCode": 0, "stdout": "a.py"}))
    assert after["additional_context"].endswith(SOURCE)
    assert session.call("Shell", {"command": "pwd"}, json.dumps({"exitCode": 0, "stdout": "/"}))[1] == {}


def test_a_turn_of_cursor_in_the_form_that_it_documents(tmp_path, monkeypatch):
    """Each event with all of its documented fields; the output of a tool is JSON in a string."""
    session = Session(tmp_path, monkeypatch, "cursor")
    common: dict[str, Any] = {"model": "composer-1", "user_email": None, "transcript_path": None}
    tool = {**common, "cwd": "/project", "duration": 12}

    def call(number, command):
        arguments = {"command": command, "working_directory": "/project"}
        fields = {**tool, "tool_name": "Shell", "tool_input": arguments, "tool_use_id": f"call-{number}"}
        assert session.send("preToolUse", **fields, agent_message="Running it.") == {}
        return fields

    begun = session.send("sessionStart", **common, session_id="s-1", is_background_agent=False, composer_mode="agent")
    assert begun == {}
    session.send("beforeSubmitPrompt", **common, prompt="Fix it.", attachments=[{"type": "file", "file_path": "/a"}])
    failed = {"error_message": "Command timed out after 30s", "failure_type": "timeout", "is_interrupt": False}
    session.send("postToolUseFailure", **call(1, "npm test"), **failed)
    session.send("postToolUse", **call(2, "npm test"), tool_output='{"exitCode":1,"stdout":"1 failed"}')
    session.send("postToolUse", **call(3, "npm test"), tool_output='{"exitCode":0,"stdout":"All tests passed"}')
    session.send("stop", **common, status="completed", loop_count=0)
    session.send("sessionEnd", **common, session_id="s-1", reason="completed", duration_ms=45000, final_status="done")
    (episode,) = session.episodes()
    assert [step.diagnosis.success for step in episode.steps] == [False, False, True]
    assert episode.steps[0].action == 'Shell(command="npm test", working_directory="/project")'
    assert episode.success is True


@pytest.mark.parametrize(("agent", "stops"), [("claude-code", False), ("cursor", False), ("cursor", True)])
def test_a_person_who_stops_a_call_or_a_turn_leaves_the_outcome_open(tmp_path, monkeypatch, agent, stops):
    session = Session(tmp_path, monkeypatch, agent)
    session.send("beforeSubmitPrompt" if agent == "cursor" else "UserPromptSubmit", prompt="Fix it.")
    session.call("Bash", {"command": "ls"}, {"stdout": "a.py"})
    fields = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t"}
    if not stops:
        name = "postToolUseFailure" if agent == "cursor" else "PostToolUseFailure"
        session.send(name, **fields, error="stopped", error_message="stopped", is_interrupt=True)
    session.send("stop" if agent == "cursor" else "Stop", status="aborted" if stops else "completed", loop_count=0)
    (episode,) = session.episodes()
    assert [step.action for step in episode.steps] == ['Bash(command="ls")'], "a stopped call is no failure of the tool"
    assert episode.success is None


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_turn_whose_only_call_was_stopped_is_an_episode_with_an_open_outcome(tmp_path, monkeypatch, agent, says_so):
    session = Session(tmp_path, monkeypatch, agent)
    session.send("beforeSubmitPrompt" if agent == "cursor" else "UserPromptSubmit", prompt="Fix it.")
    fields = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t"}
    session.send("preToolUse" if agent == "cursor" else "PreToolUse", **fields)
    if says_so:
        name = "postToolUseFailure" if agent == "cursor" else "PostToolUseFailure"
        session.send(name, **fields, error="stopped", error_message="stopped", is_interrupt=True)
    session.send("stop" if agent == "cursor" else "Stop", status="completed", loop_count=0)
    (episode,) = session.episodes()
    assert (episode.task, episode.steps, episode.success) == ("Fix it.", (), None)


@pytest.mark.parametrize("prompt", ["Fix it.", "Fix it with password: hunter22"])
@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_a_turn_that_goes_on_after_a_stop_stays_one_episode(tmp_path, monkeypatch, agent, prompt):
    """Another hook refuses the stop, any number of times; the next request is another turn."""
    session = Session(tmp_path, monkeypatch, agent)
    stop = "stop" if agent == "cursor" else "Stop"
    begin = "beforeSubmitPrompt" if agent == "cursor" else "UserPromptSubmit"
    session.send(begin, prompt=prompt)
    for n, error in enumerate([None, "Exit code 2", None]):
        session.call("Bash", {"command": f"make {n}"}, {"stdout": "ok"}, error=error)
        session.call("Read", {"file_path": f"{n}.py"}, {"stdout": "ok"})
        session.send(stop, stop_hook_active=n > 0, status="completed")
        (episode,) = session.episodes()
        assert (len(episode.steps), episode.success) == (2 * n + 2, error is None)
    session.send(begin, prompt="Go on.")
    session.call("Bash", {"command": "ls"}, {"stdout": "a.py"})
    session.send(stop, status="completed")
    assert sorted(len(episode.steps) for episode in session.episodes()) == [1, 6]


def test_a_turn_that_goes_on_after_a_stop_and_is_cut_off_tells_no_outcome(session):
    session.play("Fix it.")
    session.call("Bash", {"command": "ls"}, {"stdout": "a.py"})
    session.send("SessionStart", source="startup")
    (episode,) = session.episodes()
    assert (len(episode.steps), episode.success) == (4, None)


@pytest.mark.parametrize(
    ("reason", "success"),
    [(None, True), ("end_turn", True), ("max_tokens", None), ("refusal", None), ("pause_turn", None)],
)
def test_a_last_answer_that_is_not_whole_is_no_success(session, reason, success):
    write_transcript(session, "Build it.", is_error=False)
    last = {"role": "assistant", "content": [{"type": "text", "text": "It is"}], "stop_reason": reason}
    other = {"role": "assistant", "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"}
    lines = [
        {"type": "assistant", "uuid": "a-2", "message": last},
        {"type": "user", "uuid": "u-3", "message": {"role": "user", "content": "Hello."}},
        {"type": "assistant", "uuid": "a-3", "message": other},
    ]
    with session.transcript.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    session.send("UserPromptSubmit", prompt="Build it.")
    session.call("Bash", {"command": "make"}, {"stdout": "done"})
    session.send("Stop")
    (episode,) = session.episodes()
    assert episode.success is success


@pytest.mark.parametrize("ends", ["prompt", "session", "restart", "idle"])
@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_a_turn_without_a_stop_is_recorded_and_tells_no_outcome(tmp_path, monkeypatch, agent, ends):
    """Its agent was killed, or closed in the middle of the turn, or a person went on with another request."""
    session = Session(tmp_path, monkeypatch, agent)
    names = {"prompt": "UserPromptSubmit", "session": "SessionEnd", "restart": "SessionStart", "idle": "SessionStart"}
    if agent == "cursor":
        names = {ends: "beforeSubmitPrompt" if ends == "prompt" else names[ends][0].lower() + names[ends][1:]}
    session.send("beforeSubmitPrompt" if agent == "cursor" else "UserPromptSubmit", prompt="Fix it.")
    session.call("Bash", {"command": "ls"}, {"stdout": "a.py"})
    if ends == "idle":
        file = Journal(str(session.library), session.session).path
        os.utime(file, (0, time.time() - 25 * 3600))
        session.session = "s-2"
    session.send(names[ends], prompt="Go on.", source="startup")
    (episode,) = session.episodes()
    assert (episode.task, len(episode.steps), episode.success) == ("Fix it.", 1, None)


def test_a_session_that_is_compacted_goes_on_with_its_turn(session):
    session.send("UserPromptSubmit", prompt="Fix it.")
    session.call("Bash", {"command": "ls"}, {"stdout": "a.py"})
    session.send("SessionStart", source="compact")
    session.call("Bash", {"command": "make"}, {"stdout": "built"})
    session.send("Stop")
    (episode,) = session.episodes()
    assert (len(episode.steps), episode.success) == (2, True)


@pytest.mark.parametrize(("host", "is_taken"), [("this", True), ("another", False)])
def test_a_turn_of_an_agent_that_was_killed_is_recorded_with_the_next_session(session, host, is_taken):
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    journal = Journal(str(session.library), "s-killed")
    caller = {"agent": ended, "host": os.uname().nodename if host == "this" else host}
    journal.append({"kind": "prompt", "text": "Fix it.", **caller})
    journal.append({"kind": "answer", "id": "t", "tool": "Bash", "arguments": {}, "result": "", "error": "", **caller})
    session.send("SessionStart", source="startup")
    assert [(episode.task, episode.success) for episode in session.episodes()] == [("Fix it.", None)] * is_taken


@pytest.mark.parametrize("events", [("Stop",), ("PostToolUse", "Stop"), ("PreToolUse", "PostToolUse", "SessionEnd")])
def test_a_session_that_reports_no_request_is_no_episode(session, events):
    """Its hooks were installed in the middle of a turn, or its journal is gone."""
    session.play("Fix the tests.")
    session.session = "s-stale"
    for name in events:
        session.send(name, tool_name="Bash", tool_input={"command": "ls"}, tool_use_id="t-9", tool_response="a.py")
    assert [episode.task for episode in session.episodes()] == ["Fix the tests."]


@pytest.mark.parametrize("given", ["", " ", "null", "{}", None, {}])
def test_a_call_without_arguments_is_one_however_it_is_written(session, given):
    session.send("UserPromptSubmit", prompt="Look.")
    session.call("Look", given, {"stdout": "ok"})
    session.send("Stop")
    assert [step.action for episode in session.episodes() for step in episode.steps] == ["Look()"]


@pytest.mark.parametrize("prompt", ["", " \n", None])
def test_a_request_without_a_word_is_no_episode(session, prompt):
    session.play(prompt)
    assert session.episodes() == []


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
@pytest.mark.parametrize("call_id", ["functions.exec_command:0", "toolu_000000000000000000000001"])
def test_sessions_whose_models_count_their_calls_are_all_recorded(tmp_path, monkeypatch, agent, call_id):
    """Kimi's ids are the name of the tool and a number, the same in every session."""
    for number in range(3):
        session = Session(tmp_path, monkeypatch, agent, f"s-{number}")
        session.send("UserPromptSubmit", prompt=f"Do {number}.")
        used = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": call_id}
        session.send("PostToolUse", **used, tool_response={"stdout": "ok"})
        session.send("Stop")
    assert sorted(episode.task for episode in session.episodes()) == ["Do 0.", "Do 1.", "Do 2."]


# ---- guardrails


def add_guard(session):
    with ExperienceLibrary.open(session.library) as library:
        library.add(GUARD)
    session.send("SessionStart", source="startup")
    session.send("UserPromptSubmit", prompt="Push it.")


def test_a_guardrail_warns_the_model(session):
    add_guard(session)
    output = session.send(
        "PreToolUse", tool_name="Bash", tool_input={"command": "git push --force"}, tool_use_id="t"
    )["hookSpecificOutput"]  # fmt: skip
    assert output["hookEventName"] == "PreToolUse"
    assert "permissionDecision" not in output  # the person's own settings decide
    assert "Experience warns of this call" in output["additionalContext"]
    assert session.send("PreToolUse", tool_name="Bash", tool_input={"command": "git status"}, tool_use_id="u") == {}


@pytest.mark.parametrize("agent", ["claude-code", "cursor"])
def test_a_guardrail_can_refuse(tmp_path, monkeypatch, agent):
    session = Session(tmp_path, monkeypatch, agent, options=("--guardrails", "block"))
    with ExperienceLibrary.open(session.library) as library:
        guard = library.add(GUARD).item_id
    names = {"claude-code": ("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop")}.get(
        agent, ("sessionStart", "beforeSubmitPrompt", "preToolUse", "stop")
    )
    session.send(names[0])
    session.send(names[1], prompt="Push it.")
    answer = session.send(names[2], tool_name="Bash", tool_input={"command": "git push --force"}, tool_use_id="t")
    if agent == "cursor":
        assert answer["permission"] == "deny"
        assert "experience forbids" in answer["agent_message"]
    else:
        assert answer["hookSpecificOutput"]["permissionDecision"] == "deny"
        assert "experience forbids" in answer["hookSpecificOutput"]["permissionDecisionReason"]
    if agent == "cursor":  # it reports a refusal as a failure of the tool as well
        session.send(
            "postToolUseFailure", tool_name="Bash", tool_input={"command": "git push --force"}, tool_use_id="t",
            cwd="/project", error_message="denied by a hook", failure_type="permission_denied", duration=3,
            is_interrupt=False,
        )  # fmt: skip
    session.send(names[3])
    (episode,) = session.episodes()
    (step,) = episode.steps
    assert step.diagnosis.failure is Failure.BLOCKED
    assert step.why.blocked == (guard,), "the page of the guardrail counts its refusals"
    assert "Not run" not in step.diagnosis.evidence, "the cause, without the text for the model"
    assert episode.success is False


def push(session):
    """Ask for a push, and return whether the hook let the agent run it; it works."""
    session.send("UserPromptSubmit", prompt="Push it.")
    before, _ = session.call("Bash", {"command": "git push --force"}, {"stdout": "pushed", "stderr": ""})
    session.send("Stop")
    return "permissionDecision" not in before.get("hookSpecificOutput", {})


def test_a_call_that_was_warned_of_is_evidence_about_the_guardrail(session):
    add_guard(session)
    assert push(session)
    (episode,) = session.episodes()
    with ExperienceLibrary.open(session.library) as library:
        (guard,) = library.items.find(["guardrail"])
    assert episode.steps[0].why.overridden == (guard.id,)


def test_a_trial_that_works_ends_the_refusals(tmp_path, monkeypatch):
    session = Session(tmp_path, monkeypatch, options=("--guardrails", "block"))
    add_guard(session)
    runs = [push(session) for _ in range(8)]
    trial = runs.index(True)
    assert trial > 1
    assert all(runs[trial:])


# ---- transcripts


def write_transcript(session, prompt, *, is_error=True):
    """The lines that Claude Code writes; the failed call is in no hook of its older versions."""

    def line(kind, uuid, **message):
        value = {"type": kind, "uuid": uuid, "sessionId": session.session, "message": {"role": kind, **message}}
        return json.dumps(value) + "\n"

    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "make"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "Exit code 2" * is_error,
        "is_error": is_error,
    }
    lines = [line("user", "u-1", content=prompt), line("assistant", "a-1", content=[use])]
    session.transcript.write_text("".join([*lines, line("user", "u-2", content=[result])]))


def test_a_failure_without_a_hook_is_read_from_the_transcript(session):
    write_transcript(session, "Build it.")
    session.send("UserPromptSubmit", prompt="Build it.")
    session.send("PreToolUse", tool_name="Bash", tool_input={"command": "make"}, tool_use_id="toolu_1")
    session.send("Stop")
    (episode,) = session.episodes()
    assert [step.diagnosis.success for step in episode.steps] == [False]


def test_an_exit_code_of_codex_is_read_from_its_rollout(tmp_path, monkeypatch):
    """Codex 0.169 calls the hook after a command with its output alone."""
    session = Session(tmp_path, monkeypatch, "codex")
    session.send("UserPromptSubmit", prompt="Build it.")
    lines = []
    for number, code in ((1, 2), (2, 0)):
        session.call("Bash", {"command": f"make {code}"}, "make: done\n")
        head = f"Chunk ID: 8cb1af\nWall time: 0.0 seconds\nProcess exited with code {code}\nOutput:\n"
        fields = {"type": "function_call_output", "call_id": f"toolu_{number}", "output": head + "make: done\n"}
        lines.append(json.dumps({"type": "response_item", "payload": fields}) + "\n")
    session.transcript.write_text("".join(lines))
    session.send("Stop")
    (episode,) = session.episodes()
    assert [(step.action, step.diagnosis.success) for step in episode.steps] == [
        ('Bash(command="make 2")', False), ('Bash(command="make 0")', True),
    ]  # fmt: skip


@pytest.mark.parametrize("call_id", ["toolu_01A2b3C4d5E6f7G8h9", "call_1"])
def test_a_command_is_recorded_and_imported_as_one_turn(session, call_id):
    command = "<command-message>review</command-message>\n<command-name>/review</command-name>"
    write_transcript(session, f"{command}\n<command-args>12</command-args>", is_error=False)
    session.transcript.write_text(session.transcript.read_text().replace("toolu_1", call_id))
    session.send("UserPromptSubmit", prompt="/review 12")
    used = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": call_id}
    session.send("PostToolUse", **used, tool_response={"stdout": "ok"})
    session.send("Stop")
    form, logged = reading.read(session.transcript)
    with ExperienceLibrary.open(session.library) as library:
        assert filing.write(library, logged, source=form) == 0
    assert [episode.task for episode in session.episodes()] == ["/review 12"]


def test_an_import_of_the_transcript_adds_nothing(session):
    test_a_failure_without_a_hook_is_read_from_the_transcript(session)
    form, logged = reading.read(session.transcript)
    with ExperienceLibrary.open(session.library) as library:
        assert filing.write(library, logged, source=form) == 0


@pytest.mark.parametrize("has_ids", [True, False])
def test_turns_with_equal_requests_that_wait_together_are_all_recorded(session, monkeypatch, has_ids):
    """A recorder may read the transcript when the next turn is already in it."""
    record = record_pending
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    lines = []
    for turn in range(3):
        session.send("UserPromptSubmit", prompt="continue")
        call = {"tool_name": "Bash", "tool_input": {"command": f"make {turn}"}}
        ref = {"tool_use_id": f"toolu_{turn}"} if has_ids else {}
        session.send("PreToolUse", **call, **ref)
        session.send("PostToolUse", **call, **ref, tool_response={"stdout": "built"})
        session.send("Stop")
        common = {"sessionId": "s-1", "isSidechain": False}
        used = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Bash", "input": call["tool_input"]}
        for role, content in (("user", "continue"), ("assistant", [used])):
            message = {"role": role, "content": content}
            lines.append({**common, "type": role, "uuid": f"{role}-{turn}", "message": message})
    session.transcript.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert record(session.options) == 3
    assert sorted(episode.steps[0].action for episode in session.episodes()) == [
        f'Bash(command="make {turn}")' for turn in range(3)
    ]


def test_a_turn_that_could_not_be_recorded_is_recorded_later(session, monkeypatch):
    broken = LibraryEpisodes.receive
    monkeypatch.setattr(LibraryEpisodes, "receive", lambda *_, **__: 1 / 0)
    session.options.trust = "untrusted"
    session.play("Fix the tests.")
    assert session.episodes() == []
    monkeypatch.setattr(LibraryEpisodes, "receive", broken)
    session.play("Fix the tests again.")
    assert sorted(episode.task for episode in session.episodes()) == ["Fix the tests again.", "Fix the tests."]


def test_a_turn_that_could_not_be_recorded_holds_back_those_after_it(session, monkeypatch):
    """Its later calls may stand in the file of the next turn, so the order of a session is kept."""
    record = record_pending
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    for turn in range(2):
        session.play(f"Fix the tests {turn}.")
    whole = LibraryEpisodes.receive
    refused: list[object] = []

    def refuse_one(library, *episodes, **options):
        if not refused:
            refused.append(episodes)
            raise ConfigError("the disk is full")
        return whole(library, *episodes, **options)

    monkeypatch.setattr(LibraryEpisodes, "receive", refuse_one)
    session.options.trust = "untrusted"
    assert (record(session.options), session.episodes()) == (0, [])
    assert record(session.options) == 2


def test_words_of_results_are_recorded_where_the_user_says_so(tmp_path, monkeypatch):
    session = Session(tmp_path, monkeypatch, "codex")
    session.options.trust = "trusted"
    session.play("Fix the tests.")
    (episode,) = session.episodes()
    assert "1 failed" in episode.steps[0].diagnosis.evidence


def test_sessions_side_by_side_stay_apart(tmp_path, monkeypatch):
    first = Session(tmp_path, monkeypatch, session="s-1")
    second = Session(tmp_path, monkeypatch, session="s-2")
    for session, prompt in ((first, "One."), (second, "Two.")):
        session.send("UserPromptSubmit", prompt=prompt)
    first.call("Read", {"file_path": "one"}, "1")
    second.call("Read", {"file_path": "two"}, "2")
    first.send("Stop")
    second.send("Stop")
    assert {episode.task: episode.steps[0].action for episode in first.episodes()} == {
        "One.": 'Read(file_path="one")',
        "Two.": 'Read(file_path="two")',
    }


# ---- the process


def run_hook(tmp_path, text, *options):
    environment = {**os.environ, "HARDWON_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "hardwon.apps.coding_agents.hook", "claude-code", *options]
    return warm.run(command, input=text, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"session_id": "s", "hook_event_name": "SessionStart"}'])
def test_whatever_fails_the_agent_goes_on(tmp_path, text):
    (tmp_path / "work.db").write_text("this is no library")
    done = run_hook(tmp_path, text, "--library", str(tmp_path / "work.db"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "home" / "hooks.log").read_text().count("\n") == 1


def test_an_unknown_option_does_not_stop_the_agent(tmp_path):
    done = run_hook(tmp_path, "{}", "--no-such-option")
    assert done.returncode == 0


def test_hooks_that_recall_load_nothing_that_they_do_not_need():
    """The agent waits for each of them: no library for terminals, no importers, and no tables of patterns."""
    code = (
        "import re, sys; compiled = []; compile = re._compiler.compile;"
        "re._compiler.compile = lambda *given: compiled.append(given) or compile(*given);"
        "import hardwon.apps.coding_agents.experience; print(len(compiled), *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, *names = done.stdout.split()
    heavy = {
        "typer",
        "rich",
        "pydantic",
        "langchain_core",
        "langgraph",
        "faiss",
        "asyncio",
        "numpy.ma",
        "hardwon.apps.importers",
    }
    assert not heavy & set(names)
    assert int(count) < 150


def test_a_call_without_a_guardrail_imports_only_the_standard_library(tmp_path):
    event = {"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}
    code = (
        "import sys; from hardwon.apps.coding_agents.hook import main; main(sys.argv[1:]);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    environment = {**os.environ, "HARDWON_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, "claude-code", "--library", "work.db"],
        input=json.dumps(event), capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    assert not {"numpy", "faiss", "typer", "pydantic", "langchain_core"} & set(done.stdout.split())


def test_a_turn_is_recorded_by_a_process_of_its_own(tmp_path):
    def send(name, **fields):
        event = json.dumps({"session_id": "s", "hook_event_name": name, "cwd": "/", **fields})
        done = run_hook(tmp_path, event, "--library", str(tmp_path / "work.db"))
        assert (done.returncode, done.stderr) == (0, "")

    call = {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "t-1"}
    send("UserPromptSubmit", prompt="Build it.")
    send("PreToolUse", **call)
    send("PostToolUse", **call, tool_response={"stdout": "built"})
    send("Stop")
    end = time.monotonic() + 200
    while not list((tmp_path / "home" / "hooks").glob("*/guards.json")):
        assert time.monotonic() < end
        time.sleep(0.1)
    with ExperienceLibrary.open(tmp_path / "work.db", read_only=True) as library:
        assert library.admin.stats()["episodes"] == 1


def test_a_session_cannot_choose_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDWON_HOME", str(tmp_path))
    journal = Journal("work.db", "../../../etc/passwd")
    assert journal.path.is_relative_to(tmp_path)
    journal.append({"kind": "prompt"})
    assert journal.path.stat().st_mode & 0o077 == 0


# ---- installation


@pytest.mark.parametrize("link", ["settings.json", "settings.json.before-hardwon", "settings.json.new"])
def test_hooks_are_not_written_through_a_link(tmp_path, link):
    """A project from elsewhere may have links that lead out of it."""
    outside, folder = tmp_path / "outside", tmp_path / ".claude"
    outside.write_text('{"model": "m"}')
    folder.mkdir()
    settings = folder / "settings.json"
    settings.write_text("{}")
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(outside)
    install_hooks("claude-code", settings, "true")
    assert outside.read_text() == '{"model": "m"}'
    assert "hooks" in json.loads(settings.read_text())


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_hooks_are_installed_beside_others_and_taken_out(tmp_path, monkeypatch, agent):
    monkeypatch.chdir(tmp_path)
    settings = find_settings(agent, project=True)
    settings.parent.mkdir(parents=True)
    event = "stop" if agent == "cursor" else "Stop"
    mine = {"model": "m", "hooks": {event: [{"command": "echo mine"}]}}
    settings.write_text(json.dumps(mine))
    for _ in range(2):  # a second installation replaces the first
        install_hooks(agent, settings, format_command(agent, ["--library", "/a b/work.db"]))
    value = json.loads(settings.read_text())
    assert value["model"] == "m"
    assert value["hooks"][event][0] == {"command": "echo mine"}
    assert len(value["hooks"][event]) == 2
    assert json.dumps(value).count("coding_agents.hook") == len(value["hooks"])
    assert uninstall_hooks(settings)
    assert json.loads(settings.read_text())["hooks"] == mine["hooks"]
    assert not uninstall_hooks(settings)
    backup = settings.with_name(f"{settings.name}.before-hardwon")
    assert json.loads(backup.read_text()) == mine, "a copy with our own hooks would restore nothing"


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_hooks_are_installed_without_an_option(tmp_path, monkeypatch, agent):
    """As the README says, in a home with nothing in it."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("HARDWON_LIBRARY", "HARDWON_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(app, ["hook", "install", agent])
    assert done.exit_code == 0, done.output
    settings = find_settings(agent, project=False)
    assert f"--library {tmp_path / '.hardwon/coding.db'}" in settings.read_text()
    assert uninstall_hooks(settings)
    assert "hooks" not in json.loads(settings.read_text())
    assert not settings.with_name(f"{settings.name}.before-hardwon").exists()


def test_a_session_begins_with_what_a_call_needs_first(session):
    """Not with the advice to prefer the call, which the same episodes justify as well."""
    for n in range(5):
        session.send("UserPromptSubmit", prompt=f"Fix the tests of module {n}.")
        session.call("Bash", {"command": "npm test"}, error="Exit code 1\nno modules")
        session.call("Bash", {"command": "npm ci"}, {"stdout": "added"})
        session.call("Bash", {"command": "npm test"}, {"stdout": "3 passed"})
        session.send("Stop", stop_hook_active=False)
    begun = session.send("SessionStart", source="startup")["hookSpecificOutput"]["additionalContext"]
    assert begun.startswith('First `Bash(command="npm ci")`, then `Bash(command="npm test")`.')
    assert "Prefer" not in begun


def test_settings_that_cannot_be_read_are_left_alone(tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text("{ not json")
    with pytest.raises(ConfigError, match="not JSON"):
        install_hooks("claude-code", settings, "true")
    assert settings.read_text() == "{ not json"


def test_the_plugin_has_the_hooks_of_an_installation(tmp_path):
    plugin = Path(__file__).parents[3] / "apps" / "plugins" / "claude-code"
    hooks = json.loads((plugin / "hooks" / "hooks.json").read_text())["hooks"]
    install_hooks("claude-code", tmp_path / "settings.json", "hardwon-hook claude-code")
    assert hooks == json.loads((tmp_path / "settings.json").read_text())["hooks"]
    manifest = json.loads((plugin / ".claude-plugin" / "plugin.json").read_text())
    market = json.loads((plugin.parent / ".claude-plugin" / "marketplace.json").read_text())
    assert market["plugins"][0]["name"] == manifest["name"] == "hardwon"
    assert "hardwon" in json.loads((plugin / ".mcp.json").read_text())["mcpServers"]


def test_a_turn_of_which_an_import_knows_more_stays_as_it_is(session):
    """A hook may miss calls, as those before it was installed."""
    write_transcript(session, "Build it.")
    form, logged = reading.read(session.transcript)
    (entry,) = logged
    with ExperienceLibrary.open(session.library) as library:
        twice = replace(entry, requests=((entry.task, entry.calls * 2),))
        (episode,) = filing.episodes(library, [twice], source=form)
        library.record(episode)
    session.send("UserPromptSubmit", prompt="Build it.")
    session.call("Bash", {"command": "make"}, {"stdout": "done"})
    session.send("Stop")
    (recorded,) = session.episodes()
    assert (recorded.id, len(recorded.steps)) == (episode.id, len(episode.steps))


def test_a_turn_that_was_imported_before_it_was_over_gets_its_other_calls(session):
    write_transcript(session, "Build it.")
    session.send("UserPromptSubmit", prompt="Build it.")
    session.send("PreToolUse", tool_name="Bash", tool_input={"command": "make"}, tool_use_id="toolu_1")
    form, logged = reading.read(session.transcript)
    with ExperienceLibrary.open(session.library) as library:
        assert filing.write(library, logged, source=form) == 1
        (row,) = library.episodes.find()
    session.calls = 1
    session.call("Edit", {"file_path": "a.py"}, {"filePath": "a.py"})
    session.send("Stop")
    (episode,) = session.episodes()
    assert (episode.id, len(episode.steps)) == (row["id"], 2)
