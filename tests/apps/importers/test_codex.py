"""Import of Codex rollouts: requests, calls, and exit codes."""

import json

import pytest

from hardwon.apps.importers import filing, reading
from hardwon.memory import ExperienceLibrary


def line(kind, **payload):
    return json.dumps({"timestamp": "2026-04-12T09:40:02.337Z", "type": kind, "payload": payload})


def message(role, text):
    return line("response_item", type="message", role=role, content=[{"type": "input_text", "text": text}])


def shell(call_id, command, output):
    arguments = json.dumps({"command": ["bash", "-lc", command]})
    return [
        line("response_item", type="function_call", name="shell", arguments=arguments, call_id=call_id),
        line("response_item", type="function_call_output", call_id=call_id, output=output),
    ]


FAILED = json.dumps({"output": "1 failed", "metadata": {"exit_code": 2, "duration_seconds": 0.1}})
PASSED = "Exit code: 0\nWall time: 0.3 seconds\nOutput:\n3 passed"


def write_rollout(path, *, events):
    requests = ["Fix the tests.", "Now the lint."]
    lines = [line("session_meta", id="s-1", cwd="/p"), message("user", "<environment_context>x</environment_context>")]
    lines += [message("developer", "Be careful.")]
    for n, request in enumerate(requests):
        lines += [line("event_msg", type="user_message", message=request)] if events else []
        lines += [message("user", request), line("response_item", type="reasoning", summary=[])]
        lines += shell(f"a{n}", "make test", FAILED) + shell(f"b{n}", "make fix", PASSED)
        lines += [line("event_msg", type="token_count"), message("assistant", "Done.")]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("events", [True, False])
def test_each_request_becomes_an_episode(tmp_path, events):
    form, logged = reading.read(write_rollout(tmp_path / "rollout.jsonl", events=events))
    assert form == "codex"
    with ExperienceLibrary.open(tmp_path / "work.db") as library:
        assert filing.write(library, logged, source=form, trust="trusted") == 2
        assert filing.write(library, logged, source=form, trust="trusted") == 0
        episodes = [library.episodes.get(row["id"]) for row in library.episodes.find()]
    assert sorted(episode.task for episode in episodes) == ["Fix the tests.", "Now the lint."]
    for episode in episodes:
        assert [step.diagnosis.success for step in episode.steps] == [False, True]
        assert episode.steps[0].diagnosis.evidence == "1 failed"
        assert episode.meta["trace"] == "s-1"


STOPS = {
    "event": line("event_msg", type="turn_aborted", reason="interrupted"),
    "text": message("user", "<turn_aborted>\nThe user interrupted the previous turn on purpose.\n</turn_aborted>"),
}


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("stop", STOPS)
def test_a_turn_that_a_person_stopped_is_no_success(library, tmp_path, events, stop):
    path = write_rollout(tmp_path / "rollout.jsonl", events=events)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, STOPS[stop]]) + "\n")
    form, logged = reading.read(path)
    filing.write(library, logged, source=form, trust="trusted")
    outcomes = {row["task"]: row["success"] for row in library.episodes.find()}
    assert outcomes == {"Fix the tests.": True, "Now the lint.": None}


def import_calls(library, folder, name, calls):
    """Import one turn with these pairs of arguments and output, and return its steps."""
    lines = [line("session_meta", id="s-1"), line("event_msg", type="user_message", message="Look.")]
    for n, (arguments, output) in enumerate(calls):
        call = {"name": name, "arguments": json.dumps(arguments), "call_id": f"c-{n}"}
        lines.append(line("response_item", type="function_call", **call))
        lines.append(line("response_item", type="function_call_output", call_id=f"c-{n}", output=output))
    path = folder / "rollout.jsonl"
    path.write_text("\n".join([*lines, message("assistant", "Done.")]))
    form, logged = reading.read(path)
    filing.write(library, logged, source=form, trust="trusted")
    (row,) = library.episodes.find()
    return library.episodes.get(row["id"]).steps


def test_the_output_of_a_server_is_judged_without_the_lines_above_it(library, tmp_path):
    answers = ["Error: no such ticket", "Ticket 5"]
    calls = [({"id": n}, f"Wall time: 0.2 seconds\nOutput:\n{answer}") for n, answer in enumerate(answers)]
    steps = import_calls(library, tmp_path, "mcp__desk__get", calls)
    assert [step.diagnosis.success for step in steps] == [False, True]
    assert [step.post.feedback for step in steps] == answers


def test_equal_commands_are_one_action_whatever_limits_they_have(library, tmp_path):
    limits = [{"cmd": "make", "yield_time_ms": n, "max_output_tokens": 900 + n} for n in range(2)]
    steps = import_calls(
        library, tmp_path, "exec", [(each, "Process exited with code 0\nOutput:\n") for each in limits]
    )
    assert {step.action for step in steps} == {'exec(cmd="make")'}
