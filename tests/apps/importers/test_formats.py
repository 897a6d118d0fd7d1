"""Logs of other programs: every documented format, its marks of failure and outcome, and files that are none."""

import json
import os
import threading
from typing import Any

import pytest

from hardwon.apps import importers
from hardwon.apps.importers import source
from hardwon.memory import ExperienceLibrary, Failure

ASK: Any = {"role": "user", "content": "Refund Ada's order."}


def imported(library, path, **settings):
    """The format of a file, and the episodes that it becomes."""
    known, logged = importers.read(path, **settings)
    importers.write(library, logged, source=known, trust="trusted")
    return known, [library.episodes.get(row["id"]) for row in reversed(library.episodes.find())]


def failures(episode):
    return [step.diagnosis.failure for step in episode.steps]


# ---- Anthropic's messages


def use(ref, name, **arguments):
    return {"type": "tool_use", "id": ref, "name": name, "input": arguments}


def result(ref, content, **fields):
    return {"type": "tool_result", "tool_use_id": ref, "content": content, **fields}


ANTHROPIC: Any = [
    ASK,
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "Let me look."}, use("toolu_1", "refund", order="last")],
    },
    {"role": "user", "content": [result("toolu_1", "no such order", is_error=True)]},
    {"role": "assistant", "content": [use("toolu_2", "refund", order="A-1"), use("toolu_3", "mail", to="Ada")]},
    {
        "role": "user",
        "content": [
            result("toolu_2", [{"type": "text", "text": "refunded"}]),
            result("toolu_3", "Error: mailbox is full", is_error=False),
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]


@pytest.mark.parametrize(
    "line",
    [
        ANTHROPIC,
        {"model": "claude", "system": "Be kind.", "max_tokens": 9, "messages": ANTHROPIC},
        {
            "request": {"messages": ANTHROPIC[:-1]},
            "response": {"id": "msg_1", "type": "message", "role": "assistant", "content": ANTHROPIC[-1]["content"]},
        },
    ],
    ids=["messages", "request", "request and response"],
)
def test_anthropic_s_messages_have_their_calls_and_failures(library, file, line):
    known, (episode,) = imported(library, file(line))
    assert (known, episode.task) == ("anthropic", "Refund Ada's order.")
    assert [step.action for step in episode.steps] == [
        'refund(order="last")', 'refund(order="A-1")', 'mail(to="Ada")',
    ]  # fmt: skip
    assert failures(episode) == [Failure.TOOL_ERROR, Failure.NONE, Failure.NONE]
    assert episode.steps[1].post.feedback == "refunded"


def test_words_after_results_are_the_next_request(library, file):
    talk = [
        *ANTHROPIC[:2],
        {"role": "user", "content": [result("toolu_1", "refunded"), {"type": "text", "text": "And Bob."}]},
    ]
    talk += [
        {"role": "assistant", "content": [use("toolu_9", "refund", order="B")]},
        {"role": "user", "content": [result("toolu_9", "ok")]},
    ]
    _, episodes = imported(library, file({"messages": talk}))
    assert [(one.task, len(one.steps)) for one in episodes] == [("Refund Ada's order.", 1), ("And Bob.", 1)]


# ---- OpenAI's Responses


def call(ref, name, **arguments):
    return {
        "type": "function_call",
        "id": f"fc_{ref}",
        "call_id": ref,
        "name": name,
        "arguments": json.dumps(arguments),
    }


def output(ref, text, **fields):
    return {"type": "function_call_output", "call_id": ref, "output": text, **fields}


RESPONSES = [
    ASK,
    {"type": "reasoning", "id": "rs_1", "summary": []},
    call("1", "refund", order="last"),
    output("1", json.dumps({"status": 404, "message": "no such order"})),
    call("2", "refund", order="A-1"),
    output("2", '{"status": 200}'),
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
]


@pytest.mark.parametrize(
    "lines",
    [
        [{"input": RESPONSES[:-1], "output": RESPONSES[-1:]}],
        [{"request": {"input": RESPONSES[:4]}, "response": {"object": "response", "output": RESPONSES[4:]}}],
        [RESPONSES],
        RESPONSES,
        [
            {"input": "Refund Ada's order.", "id": "resp_1", "object": "response", "output": RESPONSES[1:3]},
            {"input": RESPONSES[3:4], "previous_response_id": "resp_1", "id": "resp_2", "output": RESPONSES[4:5]},
            {"input": RESPONSES[5:6], "previous_response_id": "resp_2", "id": "resp_3", "output": RESPONSES[6:]},
        ],
    ],
    ids=["input and output", "request and response", "items", "a file that is one", "linked by previous_response_id"],
)  # fmt: skip
def test_responses_have_their_calls_and_status_codes(library, file, lines):
    known, (episode,) = imported(library, file(*lines))
    assert (known, episode.task) == ("responses", "Refund Ada's order.")
    assert [step.action for step in episode.steps] == ['refund(order="last")', 'refund(order="A-1")']
    assert failures(episode) == [Failure.TOOL_ERROR, Failure.NONE]


def test_calls_of_the_own_tools_of_the_api_are_steps(library, file):
    done, failed = ({"type": "exit", "exit_code": code} for code in (0, 2))
    streams = {"stdout": "", "stderr": "no rule"}
    items = [
        ASK,
        {"type": "shell_call", "call_id": "1", "action": {"commands": ["make"], "timeout_ms": None}},
        {"type": "shell_call_output", "call_id": "1", "output": [{**streams, "outcome": failed}]},
        {"type": "shell_call", "call_id": "2", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "2", "output": [{**streams, "outcome": done}]},
        {"type": "apply_patch_call", "call_id": "3", "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "call_id": "3", "status": "failed", "output": "no such file"},
        {"type": "local_shell_call", "call_id": "4", "action": {"type": "exec", "command": ["make"], "env": {}}},
        {"type": "local_shell_call_output", "id": "4", "output": '{"output": "", "metadata": {"exit_code": 1}}'},
    ]
    _, (episode,) = imported(library, file({"input": items, "output": []}))
    assert [(step.action, step.diagnosis.success) for step in episode.steps] == [
        ('shell(commands=["make"])', False),
        ('shell(commands=["ls"])', True),
        ('apply_patch(type="delete_file", path="a.py")', False),
        ('local_shell(command=["make"])', False),
    ]


# ---- Claude Code


def line(kind, uuid, content, **fields):
    message = {"role": kind, "content": content}
    return {"type": kind, "uuid": uuid, "sessionId": "s-1", "cwd": "/home/ada/shop", "message": message, **fields}


TRANSCRIPT = [
    {"type": "summary", "summary": "Fix the shop", "leafUuid": "u-9"},
    {"type": "file-history-snapshot", "messageId": "m-1", "snapshot": {}},
    line("user", "u-0", "<command-name>/clear</command-name>"),
    line("user", "u-1", "Fix the tests."),
    line("assistant", "a-1", [{"type": "thinking", "thinking": "..."}, use("t-1", "Bash", command="make test")]),
    line("user", "u-2", [result("t-1", "Exit code 2\n1 failed", is_error=True)], toolUseResult="Error: Exit code 2"),
    line("assistant", "a-2", [use("t-2", "Task", prompt="find it")]),
    line("user", "v-1", "find it", isSidechain=True, agentId="ag-1"),
    line("assistant", "v-2", [use("t-3", "Grep", pattern="total")], isSidechain=True, agentId="ag-1"),
    line("user", "v-3", [result("t-3", "shop.py:3")], isSidechain=True, agentId="ag-1"),
    line("user", "u-3", [result("t-2", [{"type": "text", "text": "shop.py"}])], toolUseResult={"content": []}),
    line("assistant", "a-3", [use("t-4", "Bash", command="make test")]),
    line("user", "u-4", [result("t-4", "2 passed")]),
    {"type": "system", "subtype": "stop_hook_summary", "uuid": "y-1", "sessionId": "s-1"},
    line("user", "u-5", "[Request interrupted by user]"),
    line("user", "u-6", "Now commit."),
    line("assistant", "a-4", [use("t-5", "Bash", command="git commit")]),
    line("user", "u-7", [result("t-5", "The user doesn't want to proceed", is_error=True)]),
]


def test_a_transcript_of_claude_code_is_an_episode_a_request(library, file):
    known, episodes = imported(library, file(*TRANSCRIPT))
    told = {one.task: one for one in episodes}
    assert (known, set(told)) == ("claude-code", {"Fix the tests.", "Now commit.", "find it"})
    fixed = told["Fix the tests."]
    assert [step.action.partition("(")[0] for step in fixed.steps] == ["Bash", "Task", "Bash"]
    assert failures(fixed) == [Failure.TOOL_ERROR, Failure.NONE, Failure.NONE]
    assert (fixed.success, told["Now commit."].success) == (None, None)  # a person stopped both
    assert (fixed.meta["trace"], told["find it"].meta["trace"]) == ("s-1", "s-1/ag-1")


def test_a_command_in_a_transcript_is_the_action_that_the_hook_records(library, file):
    remarked = {"command": "make test", "description": "Run the tests"}
    lines = [
        {"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "Test it."}},
        {"type": "assistant", "uuid": "a", "sessionId": "s",
         "message": {"role": "assistant", "content": [{"type": "text", "text": "Yes."}, use("t", "Bash", **remarked)]}},
        {"type": "user", "uuid": "r", "sessionId": "s", "message": {"role": "user", "content": [result("t", "ok")]}},
    ]  # fmt: skip
    _, (episode,) = imported(library, file(*lines))
    assert [step.action for step in episode.steps] == ['Bash(command="make test")']


def test_a_session_that_goes_on_adds_what_is_new(library, file):
    """A transcript is appended to, and a resumed one repeats what was before."""
    imported(library, file(*TRANSCRIPT[:13]))
    before = library.admin.stats()["episodes"]
    known, logged = importers.read(file(*TRANSCRIPT, *TRANSCRIPT))
    assert importers.write(library, logged, source=known) == 1
    assert library.admin.stats()["episodes"] == before + 1


def test_sidechains_of_older_transcripts_are_told_by_their_parents(library, file):
    side = [
        line("user", "v-1", "find it", isSidechain=True, parentUuid=None),
        line("assistant", "v-2", [use("t-3", "Grep", pattern="total")], isSidechain=True, parentUuid="v-1"),
        line("user", "v-3", [result("t-3", "shop.py:3")], isSidechain=True, parentUuid="v-2"),
    ]
    _, episodes = imported(library, file(*TRANSCRIPT[:5], *side, *TRANSCRIPT[5:7]))
    assert {one.task for one in episodes} == {"Fix the tests.", "find it"}


# ---- OpenTelemetry


def attributes(**values):
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [
        {"key": name.replace("__", "."), "value": {kinds[type(v)]: str(v) if isinstance(v, int) else v}}
        for name, v in values.items()
    ]


def span(ref, name, start, parent="", **fields):
    return {
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": ref, "parentSpanId": parent, "name": name,
        "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + 1), **fields,
    }  # fmt: skip


AGENT = span(
    "01", "invoke_agent support", 1,
    attributes=attributes(
        gen_ai__operation__name="invoke_agent",
        gen_ai__input__messages=json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Refund Ada."}]}]),
    ),
)  # fmt: skip
TOOLS = [
    span(
        "03", "execute_tool refund", 30, "01",
        attributes=attributes(
            gen_ai__operation__name="execute_tool", gen_ai__tool__name="refund",
            gen_ai__tool__call__arguments='{"order": "A-1"}', gen_ai__tool__call__result='{"ok": true}',
        ),
    ),
    span(
        "02", "execute_tool refund", 20, "01", status={"code": 2, "message": "no such order"},
        attributes=attributes(
            gen_ai__operation__name="execute_tool", gen_ai__tool__name="refund", error__type="LookupError",
            gen_ai__tool__call__arguments='{"order": "last"}',
        ),
    ),
]  # fmt: skip


def otlp(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


@pytest.mark.parametrize("document", [False, True])
def test_spans_of_tools_are_calls_in_the_order_of_time(library, file, document):
    path = file(document=otlp(*TOOLS, AGENT)) if document else file(otlp(*TOOLS), otlp(AGENT))
    known, (episode,) = imported(library, path)
    assert (known, episode.task, episode.success) == ("otel", "Refund Ada.", True)
    assert [step.action for step in episode.steps] == ['refund(order="last")', 'refund(order="A-1")']
    assert failures(episode) == [Failure.TOOL_ERROR, Failure.NONE]
    assert episode.steps[0].diagnosis.evidence == "LookupError: no such order"


def test_spans_of_the_sdk_and_an_evaluation_are_read(library, file):
    """As the console exporter writes them, with attributes as an object."""
    plain = {"context": {"trace_id": "0x1", "span_id": "0x3"}, "parent_id": "0x2", "start_time": "2026-01-01T00:00:02Z"}
    tool = {
        **plain, "name": "execute_tool refund", "status": {"status_code": "ERROR", "description": "no"},
        "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "refund",
                       "gen_ai.tool.call.arguments": {"order": "A-1"}, "gen_ai.tool.call.result": "?"},
    }  # fmt: skip
    scored = {"name": "gen_ai.evaluation.result", "attributes": {"gen_ai.evaluation.score.value": 0.25}}
    root = {
        "context": {"trace_id": "0x1", "span_id": "0x2"}, "parent_id": None, "start_time": "2026-01-01T00:00:01Z",
        "name": "invoke_agent support", "attributes": {"gen_ai.operation.name": "invoke_agent"}, "events": [scored],
    }  # fmt: skip
    _, (episode,) = imported(library, file(tool, root))
    assert (episode.success, episode.score, failures(episode)) == (False, 0.25, [Failure.TOOL_ERROR])


ARGUMENTS = '{"order": "A"}'


def test_without_spans_of_tools_the_messages_of_the_model_are_read(library, file):
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "Refund Ada."}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "1", "name": "refund", "arguments": {"order": "A"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "refunded"}]},
    ]
    chat = span("02", "chat gpt", 2, "01", attributes=attributes(gen_ai__input__messages=json.dumps(messages)))
    _, (episode,) = imported(library, file(otlp(AGENT, chat)))
    assert [step.action for step in episode.steps] == ['refund(order="A")']


# ---- the outcome of a conversation


def conversation(number, rewards_of, requests=2):
    """A log's line: several requests, one reward."""
    talk = []
    for n in range(requests):
        talk += [
            {"role": "user", "content": f"Request {n} of person {number}."},
            {"role": "assistant", "tool_calls": [{"id": f"{n}", "function": {"name": f"tool{n}", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": f"{n}", "content": "ok"},
        ]
    return {"messages": talk, "reward": rewards_of}


def test_a_conversation_s_outcome_is_that_of_all_its_requests(library, file):
    """The success rate after import is the file's, and an action's value is the mean reward of where it was called."""
    rewards = [1.0, 0.0, 0.0, 0.0]
    lines = [conversation(n, reward, requests=1 + n) for n, reward in enumerate(rewards)]
    _, episodes = imported(library, file(*lines))
    assert [episode.success for episode in episodes] == [reward == 1.0 for reward in rewards]
    returns: dict[str, list[float]] = {}
    for episode in episodes:
        for step in episode.steps:
            returns.setdefault(step.action, []).append(step.return_to_go)
    assert returns == {
        "tool0()": [1.0, 0.0, 0.0, 0.0], "tool1()": [0.0, 0.0, 0.0], "tool2()": [0.0, 0.0], "tool3()": [0.0],
    }  # fmt: skip


def test_runs_of_a_task_with_the_same_messages_are_episodes_of_their_own(library, file):
    """A run of a task has an outcome or a number of its own; a line that is repeated is no other run."""
    lines = [conversation(0, reward) | {"trial": trial} for trial, reward in enumerate([1.0, 0.0, 0.0, 0.0])]
    path = file(*lines, lines[-1])
    _, episodes = imported(library, path)
    assert [episode.score for episode in episodes] == [1.0, 0.0, 0.0, 0.0]
    assert imported(library, path)[1] == episodes
    other = [conversation(1, reward) for reward in (1.0, 0.0, 1.0)]
    _, episodes = imported(library, file(*other))
    assert sorted(episode.score for episode in episodes if "person 1" in episode.task) == [0.0, 1.0]


def test_a_call_long_before_a_good_end_is_worth_it_in_full(library, file):
    _, (episode,) = imported(library, file(conversation(0, 1.0, requests=5)))
    assert [step.return_to_go for step in episode.steps] == [1.0] * 5


def test_each_request_has_the_states_that_an_agent_sees(library, file):
    """What is learnt of the second request of a graded conversation serves where it is the first."""
    _, (graded,) = imported(library, file(conversation(0, 1.0)))
    with ExperienceLibrary.open(":memory:") as other:
        first, *rest = conversation(0, 1.0)["messages"]
        done = {"role": "assistant", "content": "Done."}
        talk = [first, *(part for one in rest for part in ([done, one] if one["role"] == "user" else [one])), done]
        _, alone = imported(other, file({"messages": talk}))
    assert [step.pre.observation for step in graded.steps] == [one.steps[0].pre.observation for one in alone]
    assert graded.steps[1].keys == alone[1].steps[0].keys


# ---- files that are none of these


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([{"conversations": [{"from": "human", "value": "x"}]}], "looks like ShareGPT"),
        ([{"prompt": "x", "completion": "y"}], "pairs of prompt and completion"),
        ([{"resourceLogs": []}], "give the traces"),
        ([{"contents": [{"role": "user", "parts": [{"text": "x"}]}]}], "looks like Gemini's contents"),
        (
            [{"messages": [ASK, {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "x"}}]}]}],
            "looks like messages of Bedrock's Converse API",
        ),
        ([{"colour": "red", "size": 3}], "its keys are colour, size"),
        ([7], "it is int, not an object"),
        ([{"messages": [ASK, {"role": "assistant", "content": "Done."}]}], "it has no tool calls"),
        ([otlp(span("1", "GET /", 1, attributes=[]))], "no span is a tool call"),
        ([TRANSCRIPT[0]], "looks like claude-code (1 value), but it has no tool calls"),
        ([{"messages": ANTHROPIC}, otlp(AGENT)], "line 2: there are no messages"),
        ([{"messages": ANTHROPIC}, otlp(AGENT)], "it looks like otel, but a file must have one format"),
        ([otlp(AGENT), {"messages": ANTHROPIC}], "line 2: not a span"),
        ([{"id": "1", "run_type": "tool", "name": "x"}, TRANSCRIPT[4]], "it looks like claude-code"),
        ([{"messages": [], "score": 10**400}], "line 1: not of the form"),
    ],
)
def test_the_message_says_what_a_file_looks_like_and_what_is_missing(hardwon, path, file, values, words):
    shown = " ".join(hardwon("memory", "import", path, file(*values), expect=2).stderr.split())
    assert words in shown
    assert not path.exists()


def test_a_file_that_was_cut_off_says_so_and_writes_nothing(hardwon, path, file):
    whole = json.dumps({"messages": ANTHROPIC})
    for text, words in (
        (f"{whole}\n{whole[:-9]}", "line 2: not JSON (the file ends in the middle of it"),
        (json.dumps([{"messages": ANTHROPIC}] * 3, indent=1)[:-60], "after 2 values: not JSON"),
    ):
        assert words in " ".join(hardwon("memory", "import", path, file(text=text), expect=2).stderr.split())
        assert not path.exists()


@pytest.mark.parametrize(
    "content", [b"\x00\xff\xfe{", b"PK\x03\x04garbage", b"\xef\xbb\xbf", b'{"messages": "\xff"}\n{}\n', b"[" * 9999]
)
def test_garbage_is_refused_in_our_words(hardwon, path, tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    shown = hardwon("memory", "import", path, tmp_path / "x", expect=2).stderr
    assert shown.startswith("error: ")
    assert "Traceback" not in shown


def test_a_byte_order_mark_is_no_reason_to_refuse(library, tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": ANTHROPIC}).encode())
    assert len(imported(library, tmp_path / "x")[1]) == 1


def test_a_line_longer_than_is_held_is_refused_by_its_number(hardwon, path, file, monkeypatch):
    monkeypatch.setattr(source, "MAX_VALUE", 4000)
    huge = {"messages": [{"role": "user", "content": "x" * 5000}]}
    shown = " ".join(hardwon("memory", "import", path, file({"messages": ANTHROPIC}, huge), expect=2).stderr.split())
    assert "line 2: longer than" in shown


def test_a_document_in_one_line_longer_than_is_held_is_read_value_by_value(library, file, monkeypatch):
    monkeypatch.setattr(source, "MAX_VALUE", 2000)
    lines = [{"messages": [{"role": "user", "content": f"{n}"}, *ANTHROPIC[1:]]} for n in range(5)]
    assert len(imported(library, file(text=json.dumps(lines)))[1]) == 5
    spans = [otlp(*TOOLS, AGENT)["resourceSpans"][0]] * 3
    assert importers.read(file(text=json.dumps({"resourceSpans": spans})))[0] == "otel"


def test_a_large_file_is_not_held_in_memory(library, tmp_path):
    """15 MB of conversations take a few MB."""
    import tracemalloc

    path, filler = tmp_path / "large.jsonl", "x" * 10_000
    with path.open("w") as out:
        for n in range(1500):
            talk = [{"role": "user", "content": f"{n} {filler}"}, {"role": "assistant", "content": "No."}]
            out.write(json.dumps({"messages": talk}) + "\n")
        out.write(json.dumps({"messages": ANTHROPIC}) + "\n")
    tracemalloc.start()
    _, logged = importers.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(logged), peak < 8 * 2**20) == (1, True)


def test_a_pipe_is_read(library, tmp_path):
    """As of a shell: `hardwon memory import LIBRARY <(zcat log.gz)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps({"messages": ANTHROPIC}),))
    writer.start()
    assert len(imported(library, pipe)[1]) == 1
    writer.join()


# ---- an adversary's file


def test_a_file_takes_no_id_of_another_episode(library, file, episode):
    """A trace with the id of an episode that is there, or will be, changes nothing of it."""
    own = library.record(episode())
    run = {"id": own, "trace_id": own, "run_type": "chain", "inputs": {}, "outputs": {"messages": ANTHROPIC_AS_OPENAI}}
    _, logged = importers.read(file(run))
    assert importers.write(library, logged, source="langsmith") == 1
    assert library.episodes.get(own).task != "Refund Ada's order."
    (other,) = [row["id"] for row in library.episodes.find() if row["id"] != own]
    assert other.startswith("im-")


ANTHROPIC_AS_OPENAI = [
    ASK,
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "refund", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "refunded"},
]


@pytest.mark.parametrize("bad", ["../../etc/passwd", "a\0b", "\ud800", "'; DROP TABLE items; --", "x" * 10_000])
def test_odd_names_and_ids_are_only_text(library, file, bad):
    talk: Any = [
        {"role": "user", "content": bad},
        {"role": "assistant", "content": [use(bad, bad, **{bad: bad})]},
        {"role": "user", "content": [result(bad, bad)]},
    ]
    lines: Any = [
        line("user", bad, bad, sessionId=bad),
        line("assistant", f"{bad}1", talk[1]["content"], sessionId=bad),
    ]
    lines += [line("user", f"{bad}2", talk[2]["content"], sessionId=bad)]
    for values in ([{"messages": talk}], lines):
        imported(library, file(*values))
    assert library.admin.stats()["episodes"] == 2
    assert library.admin.verify() == []


def test_a_request_of_very_many_calls_is_cut(library, file, monkeypatch):
    for module in (importers.filing, importers.comparison):
        monkeypatch.setattr(module, "MAX_CALLS", 100)
    talk, last = [ASK], 150
    for n in range(last + 1):
        talk += [
            {"role": "assistant", "content": [use(f"{n}", "look", at=f"{n}")]},
            {"role": "user", "content": [result(f"{n}", "ok")]},
        ]
    _, (episode,) = imported(library, file({"messages": talk}))
    assert (len(episode.steps), episode.steps[-1].action) == (100, 'look(at="150")')


# ---- again, and interrupted


@pytest.mark.parametrize("lines", [[{"messages": ANTHROPIC}], [RESPONSES], TRANSCRIPT, [otlp(*TOOLS, AGENT)]])
def test_every_format_imported_twice_adds_nothing(hardwon_json, path, file, lines):
    first = hardwon_json("memory", "import", path, file(*lines))
    assert first["new"] == first["episodes"] > 0
    again = hardwon_json("memory", "import", path, file(*lines))
    assert (again["new"], again["episodes"]) == (0, first["episodes"])


def test_an_import_that_was_interrupted_goes_on(library, file, monkeypatch):
    """What was written stays, and the same command writes the rest."""
    monkeypatch.setattr(importers.filing, "BATCH", 2)
    lines = [{"messages": [{"role": "user", "content": f"{n}"}, *ANTHROPIC[1:]]} for n in range(5)]
    known, logged = importers.read(file(*lines))

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        importers.write(library, logged, source=known, on_progress=stop)
    assert library.admin.stats()["episodes"] == 4
    assert importers.write(library, logged, source=known) == 1


def test_reading_tells_how_far_it_is(file):
    seen = []
    path = file(*[{"messages": ANTHROPIC}] * 3)
    importers.read(path, on_progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
