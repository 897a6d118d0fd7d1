"""A request is known in whatever file it comes, and a file that grew updates the episodes that it has grown."""

import json
import sqlite3
import uuid
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from hardwon.apps import importers
from hardwon.apps.importers.comparison import episode_id
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError

# ---- makers: a log of some calls of one request, as a file of each format


def claude(n, *, session="s-1", finished=True, first=0, sidechain=False, request="u"):
    def line(ref, parent, role, content):
        fields = {"isSidechain": True, "agentId": "a"} if sidechain else {}
        message = {"role": role, "content": content}
        return {"type": role, "uuid": ref, "parentUuid": parent, "sessionId": session, "message": message, **fields}

    lines, parent = [line(f"{request}-ask", None, "user", "Fix the tests.")], f"{request}-ask"
    for at in range(n):
        call = {"type": "tool_use", "id": f"{request}-{at}", "name": "Bash", "input": {"command": f"make {at}"}}
        answer = {
            "type": "tool_result",
            "tool_use_id": f"{request}-{at}",
            "content": f"result {at}",
            "is_error": at == 1,
        }
        lines.append(line(f"{request}-c{at}", parent, "assistant", [call]))
        lines.append(line(f"{request}-r{at}", f"{request}-c{at}", "user", [answer]))
        parent = f"{request}-r{at}"
    done = [line(f"{request}-end", parent, "assistant", [{"type": "text", "text": "Done."}])] if finished else []
    return [*lines, *done]


def codex(n, *, session="s-1", finished=True):
    def line(kind, **payload):
        return {"timestamp": "2026-04-12T09:40:02Z", "type": kind, "payload": payload}

    lines = [line("session_meta", id=session), line("event_msg", type="user_message", message="Fix the tests.")]
    for at in range(n):
        ref, arguments = f"call_0123456789abcdef{at}", json.dumps({"command": ["make", str(at)]})
        lines.append(line("response_item", type="function_call", name="shell", arguments=arguments, call_id=ref))
        output = f"Exit code: {2 * (at == 1)}\nOutput:\nresult {at}"
        lines.append(line("response_item", type="function_call_output", call_id=ref, output=output))
    done = line("response_item", type="message", role="assistant", content=[{"type": "output_text", "text": "Done."}])
    return [*lines, done] if finished else lines


def openai(n, *, finished=True, **_):
    talk: list[Any] = [{"role": "user", "content": "Fix the tests."}]
    for at in range(n):
        function = {"name": "run", "arguments": json.dumps({"command": f"make {at}"})}
        talk.append({"role": "assistant", "tool_calls": [{"id": f"c-{at}", "function": function}]})
        text = f"Error: result {at}" if at == 1 else f"result {at}"
        talk.append({"role": "tool", "tool_call_id": f"c-{at}", "content": text})
    return [{"messages": [*talk, *([{"role": "assistant", "content": "Done."}] if finished else [])]}]


def langsmith(n, *, project="p-1", **_):
    root = {"id": "T-1", "trace_id": "T-1", "session_id": project, "run_type": "chain", "inputs": {"input": "Fix it."}}
    return [root] + [
        {
            "id": f"r-{at}", "trace_id": "T-1", "parent_run_id": "T-1", "run_type": "tool", "name": "run",
            "session_id": project, "start_time": f"2026-01-01T00:00:0{at}", "inputs": {"command": f"make {at}"},
            "outputs": {"output": f"result {at}"}, "error": "failed" if at == 1 else None,
        }
        for at in range(n)
    ]  # fmt: skip


def langfuse(n, *, project="p-1", **_):
    root = {"id": "o", "trace_id": "t-1", "type": "AGENT", "name": "a", "input": "Fix it.", "project_id": project}
    return [root] + [
        {
            "id": f"o-{at}", "trace_id": "t-1", "parent_observation_id": "o", "type": "TOOL", "name": "run",
            "start_time": f"2026-01-01T00:00:0{at}", "input": json.dumps({"command": f"make {at}"}),
            "output": f"result {at}", "level": "ERROR" if at == 1 else "DEFAULT",
        }
        for at in range(n)
    ]  # fmt: skip


def otel(n, *, prefix="", **_):
    def span(ref, parent, at, **attributes):
        context = {"trace_id": f"{prefix}5b8efff798038103d269b633813fc60c", "span_id": f"{prefix}{ref}"}
        start = f"2026-01-01T00:00:0{at}Z"
        return {"name": "x", "context": context, "parent_id": parent, "start_time": start, "attributes": attributes}

    def call(at):
        names = {"gen_ai.tool.name": "run", "gen_ai.tool.call.arguments": json.dumps({"command": f"make {at}"})}
        failed = {"error.type": "failed"} if at == 1 else {}
        return span(f"{at}", f"{prefix}a", at, **names, **failed, **{"gen_ai.tool.call.result": f"result {at}"})

    return [span("a", None, 0, **{"gen_ai.agent.name": "a"}), *map(call, range(n))]


MAKERS: list[Any] = [claude, codex, openai, langsmith, langfuse, otel]


@pytest.fixture
def load(tmp_path, library):
    """Imports lines, and returns the numbers of new and updated episodes."""

    def load(*lines, trust="trusted", into=library):
        path = tmp_path / f"{uuid.uuid4().hex}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        known, logged = importers.read(path)
        updated: list[str] = []
        new = importers.write(into, logged, source=known, trust=trust, on_updated=updated.append)
        assert into.admin.verify() == []
        return new, len(updated)

    return load


@pytest.mark.parametrize("make", MAKERS)
def test_a_log_that_grew_updates_its_episode(load, library, make):
    assert load(*make(2, finished=False)) == (1, 0)
    (before,) = library.episodes.find()
    assert load(*make(4)) == (0, 1)
    (row,) = library.episodes.find()
    assert (row["id"], row["n_steps"], row["success"]) == (before["id"], 4, 1)
    assert load(*make(4)) == load(*make(2, finished=False)) == (0, 0)
    assert library.episodes.find() == [row]


@pytest.mark.parametrize("make", MAKERS)
def test_an_untrusted_file_changes_no_trusted_episode(load, library, make):
    load(*make(2, finished=False))
    assert load(*make(4), trust="untrusted") == (0, 0)
    assert [row["n_steps"] for row in library.episodes.find()] == [2]


@pytest.mark.parametrize("make", MAKERS)
def test_the_grade_of_a_person_stays(load, library, make):
    load(*make(2, finished=False))
    (row,) = library.episodes.find()
    library.grade(row["id"], success=False, why="it broke the build", grader="ada")
    load(*make(4))
    assert [(row["n_steps"], row["success"]) for row in library.episodes.find()] == [(4, 0)]


def copy_lines(lines, *, names_origin):
    """The lines in a session of their own with new ids, as Claude Code's SDK forks a session."""
    return [
        {**line, "uuid": f"new-{line['uuid']}", "parentUuid": line["parentUuid"] and f"new-{line['parentUuid']}",
         "sessionId": "s-2", **({"forkedFrom": {"messageUuid": line["uuid"]}} if names_origin else {})}
        for line in lines
    ]  # fmt: skip


LONG = "toolu_01A2b3C4d5E6f7"
OTHERS = {
    "fork": (claude(4), copy_lines(claude(4), names_origin=True)),
    "fork of a fork": (claude(4, request=LONG), copy_lines(claude(4, request=LONG), names_origin=False)),
    "session": (claude(4), claude(4, session="s-2")),
    "side chain": (claude(4), claude(4, session="s-2", sidechain=True)),
    "resumed codex": (codex(4), codex(4, session="s-2")),
    "project": (langsmith(4), langsmith(4, project="p-2")),
    "case of an id": (langsmith(4), json.loads(json.dumps(langsmith(4)).replace("T-1", "t-1"))),
    "one array": (langsmith(4), [langsmith(4)]),
    "batches": (otel(4), otel(4, prefix="0x")),
    "order": (langfuse(4), langfuse(4)[::-1]),
    "repeated rows": (langfuse(4), langfuse(4) * 2),
    "repeated runs": (langsmith(4), langsmith(4) * 2),
    "repeated spans": (otel(4), otel(4) * 2),
    "repeated lines": (claude(4), claude(4) + claude(4, session="s-2")),
}


@pytest.mark.parametrize(("first", "second"), OTHERS.values(), ids=OTHERS)
def test_a_known_request_is_known_in_every_file(load, library, first, second):
    assert load(*first) == (1, 0)
    assert load(*second) == (0, 0)
    assert [row["n_steps"] for row in library.episodes.find()] == [4]


@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_repeated_parts_of_a_trace_count_once(load, library, make):
    load(*make(2), *make(4))
    assert [row["n_steps"] for row in library.episodes.find()] == [4]


def test_a_resumed_session_adds_only_its_new_requests(load, library):
    load(*claude(3))
    again = claude(3, session="s-2") + [
        {**line, "parentUuid": line["parentUuid"] or "u-end"} for line in claude(2, session="s-2", request="v")
    ]
    assert load(*again) == (1, 0)
    assert sorted(row["n_steps"] for row in library.episodes.find()) == [2, 3]


def test_a_turn_that_goes_on_in_a_resumed_session_is_one_episode(load, library):
    load(*claude(2, finished=False), *claude(4, session="s-2"))
    assert [row["n_steps"] for row in library.episodes.find()] == [4]


def test_forks_of_one_request_do_not_mix(load, library):
    """Two sessions go on from the same line, at the same time."""
    one, other = claude(2, request="v"), claude(2, request="w", session="s-2")
    lines = [
        {**line, "parentUuid": line["parentUuid"] or "u-end"} for pair in zip(one, other, strict=True) for line in pair
    ]
    assert load(*claude(2), *lines) == (3, 0)
    assert [row["n_steps"] for row in library.episodes.find()] == [2, 2, 2]


def begin_anew(lines, session):
    """The lines after a session was compacted: the first has no parent in the file."""
    return [{**line, "sessionId": session, "parentUuid": line["parentUuid"] if n else None}
            for n, line in enumerate(lines)]  # fmt: skip


CUT = {
    "claude": (claude(4), begin_anew(claude(4)[3:], "s-2"), begin_anew(claude(2, request="v"), "s-2")),
    "codex": (codex(4), codex(4, session="s-2")[:1] + codex(4)[4:], codex(4)[1:2] + codex(7)[-7:-5]),
}


@pytest.mark.parametrize("has_whole_first", [True, False])
@pytest.mark.parametrize(("whole", "rest", "more"), CUT.values(), ids=CUT)
def test_calls_without_their_request_are_no_episode(load, library, whole, rest, more, has_whole_first):
    """A session that was compacted and resumed begins in the middle of a turn, which another file has."""
    if has_whole_first:
        load(*whole)
    with pytest.raises(ConfigError, match="no tool calls that follow a request"):
        load(*rest)
    assert load(*rest, *more) == (1, 0)
    load(*whole)
    assert len(library.episodes.find()) == 2
    assert all(row["task"] for row in library.episodes.find())


def test_a_command_of_a_person_is_a_request(load, library):
    """Of those that the program runs itself, nothing follows."""

    def ask(name, text, **fields):
        first, *lines = claude(1, request=name)
        return [{**first, "message": {"role": "user", "content": text}, **fields}, *lines]

    command = "<command-message>review</command-message>\n<command-name>/review</command-name>"
    local = "<command-name>/clear</command-name>\n<command-message>clear</command-message>"
    skill = "<command-message>the skill runs</command-message>\n<command-name>pdf</command-name>"
    lines = [*claude(1), *ask("v", f"{command}\n<command-args>12 now</command-args>"), *ask("w", command)]
    load(*lines, *ask("x", local, parentUuid="w-end"), *ask("y", skill, parentUuid="w-end"))
    found = sorted((row["task"], row["n_steps"]) for row in library.episodes.find())
    assert found == [("/review", 3), ("/review 12 now", 1), ("Fix the tests.", 1)]


def test_two_versions_that_an_earlier_version_kept_become_one(tmp_path, load, library):
    """Before, the id of a conversation that grew was another one."""
    for log in (openai(2, finished=False), openai(4)):
        (tmp_path / "log.jsonl").write_text(json.dumps(log[0]), encoding="utf-8")
        form, logged = importers.read(tmp_path / "log.jsonl")
        for entry in logged:
            (episode,) = importers.episodes(library, [entry], source=form)
            library.record(replace(episode, meta={"environment": form, "policy": "import"}))
    assert len(library.episodes.find()) == 2
    assert load(*openai(4)) == (0, 1)
    assert load(*openai(2, finished=False)) == load(*openai(4)) == (0, 0)
    (row,) = library.episodes.find()
    assert row["n_steps"] == 4


def test_the_ids_of_earlier_versions_are_known(load, library):
    load(*claude(4))
    (row,) = library.episodes.find()
    old = library.episodes.get(row["id"])
    with ExperienceLibrary.open(":memory:") as other:
        other.record(replace(old, id=episode_id("s-1 u-ask", "claude-code")))
        assert load(*claude(4), into=other) == (0, 0)


def test_conversations_that_begin_alike_are_two(load, library):
    def talk(*names):
        lines: list[Any] = [{"role": "user", "content": "Fix the tests."}]
        for n, name in enumerate(names):
            lines.append({"role": "assistant", "tool_calls": [{"id": f"{n}", "function": {"name": name}}]})
            lines.append({"role": "tool", "tool_call_id": f"{n}", "content": "ok"})
        return lines

    done = {"role": "assistant", "content": "Done."}
    load({"messages": talk("look")})
    assert load({"messages": [*talk("look", "take"), done]}) == (0, 1)
    assert load({"messages": [*talk("look", "drop"), done]}) == (1, 0)
    assert load({"messages": [*talk("look"), done]}) in ((0, 0), (1, 0))
    assert sorted(row["n_steps"] for row in library.episodes.find())[-2:] == [2, 2]


@pytest.mark.parametrize("form", ["line", "calls to a model"])
def test_runs_with_equal_messages_are_told_apart_by_the_ids_of_their_calls(load, library, form):
    """An agent that fails five times alike has failed five times; a log that repeats a run has it once."""

    def run(n):
        talk = json.loads(json.dumps(openai(2)[0]).replace("c-", f"call_0123456789abcdef{n}"))["messages"]
        return [{"messages": talk}] if form == "line" else [{"messages": talk[:at]} for at in (3, 5, len(talk))]

    runs = [line for n in range(5) for line in run(n)]
    assert load(*runs, *run(3)) == (5, 0)
    assert load(*runs) == load(*run(0)) == (0, 0)
    assert [row["n_steps"] for row in library.episodes.find()] == [2] * 5


def test_an_outcome_that_comes_later_counts(load, library):
    load(*openai(3))
    assert load({**openai(3)[0], "reward": 0.0}) == (0, 1)
    assert load(*openai(3)) == (0, 0)
    assert [(row["n_steps"], row["success"]) for row in library.episodes.find()] == [(3, 0)]
    root, *calls = langsmith(3)
    load(root, *calls)
    graded = {**root, "feedback_stats": {"correctness": {"avg": 0.0}}}
    assert load(graded, *calls) == (0, 1)
    assert load(graded, *calls) == load(root, *calls) == (0, 0)
    assert library.episodes.find()[0]["success"] == 0


def test_a_run_that_was_pending_counts_when_it_is_over(load, library):
    root, *calls = langsmith(1)
    pending = {**calls[0], "outputs": None, "error": None}
    load(root, pending)
    assert load(root, {**pending, "error": "no such target"}) == (0, 1)
    (row,) = library.episodes.find()
    assert not library.episodes.get(row["id"]).steps[0].diagnosis.success
    assert load(root, {**pending, "error": "no such target"}) == (0, 0)


def test_requests_that_get_one_outcome_become_one_episode(load, library):
    first, second = openai(2)[0]["messages"], openai(3)[0]["messages"]
    second = [{**second[0], "content": "Now the lint."}, *second[1:]]
    load({"messages": [*first, *second]})
    assert len(library.episodes.find()) == 2
    assert load({"messages": [*first, *second], "reward": 1.0}) == (0, 1)
    assert [row["n_steps"] for row in library.episodes.find()] == [5]


@pytest.mark.parametrize("is_recorded_before", [False, True])
def test_the_requests_of_a_graded_conversation_are_known(load, library, is_recorded_before):
    """They come again without an outcome, alone or with requests that are new."""

    def ask(text, n):
        (line,) = openai(n)
        return [{**line["messages"][0], "content": text}, *line["messages"][1:]]

    graded = [*ask("Fix the tests.", 2), *ask("Now the lint.", 3), *ask("Now the docs.", 1)]
    if is_recorded_before:
        load({"messages": graded[: len(ask("", 2))]})
    load({"messages": graded, "reward": 0.5})
    assert load({"messages": graded}) == (0, 0)
    grown = [*graded, *ask("Now the build.", 4)]
    assert load({"messages": grown}) == (1, 0)
    assert load({"messages": grown}) == (0, 0)
    other = [*ask("Fix the tests.", 2), *ask("Now the types.", 3)]
    assert load({"messages": other}) == (1, 0)
    assert sorted((row["n_steps"], row["score"]) for row in library.episodes.find()) == [(3, 1.0), (4, 1.0), (6, 0.5)]


def test_an_import_embeds_what_it_writes(tmp_path):
    """Closing and the first recall would have to do it, without a word."""
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(openai(4)[0]), encoding="utf-8")
    form, logged = importers.read(path)
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        importers.write(library, logged, source=form, trust="trusted")
        with closing(sqlite3.connect(tmp_path / "library.db")) as connection:
            ((embedded,),) = connection.execute("SELECT count(*) FROM vectors WHERE kind = 'states'").fetchall()
    assert embedded >= 4


@pytest.mark.parametrize("make", [claude, codex], ids=lambda make: make.__name__)
def test_a_line_that_is_being_written_comes_with_the_next_import(tmp_path, library, make):
    whole = "\n".join(map(json.dumps, make(3)))
    path = tmp_path / "log.jsonl"
    for end in (whole[: whole.rindex("result 2") + 4], whole):
        path.write_text(end, encoding="utf-8")
        known, logged = importers.read(path)
        importers.write(library, logged, source=known, trust="trusted")
    (row,) = library.episodes.find()
    assert row["n_steps"] == 3
    assert row["success"] == 1
