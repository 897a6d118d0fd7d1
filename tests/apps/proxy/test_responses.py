"""The Responses API through the proxy, with OpenAI's own client: recall, guardrails, recording, streams."""

import json
from typing import Any

import httpx
import openai
import pytest
from starlette.responses import JSONResponse
from tests.apps.proxy.conftest import output_call, output_message, serving, wait_for
from tests.apps.proxy.test_proxy import forbid, open_episodes, refund_tool

from hardwon.apps.proxy.app import create_proxy
from hardwon.apps.proxy.library_access import LibraryAccess
from hardwon.memory import ExperienceLibrary, Failure, Item

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
    for name in ("refund", "find")
]


def respond(client, given, *, stream=False, **options):
    """Return a final response; the client's own stream joins the events."""
    if not stream:
        return client.responses.create(model="m", input=given, tools=TOOLS, **options)
    with client.responses.stream(model="m", input=given, tools=TOOLS, **options) as events:
        return events.get_final_response()


def run_agent(client, task, tool, *, stream=False, **options):
    """Play a minimal agent that repeats the whole conversation, and return its last response."""
    items = [{"role": "user", "content": task}]
    while True:
        response = respond(client, items, stream=stream, **options)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        outputs = answer_calls(response, tool)
        if not outputs:
            return response
        items += outputs


def answer_calls(response, tool):
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": tool(item.name, json.loads(item.arguments)),
        }
        for item in response.output
        if item.type == "function_call"
    ]


def refunding(body):
    """A model that asks for a wrong order first, then for the right one, and then answers."""
    given = body["input"] if isinstance(body["input"], list) else []
    answers = [item for item in given if item.get("type") == "function_call_output"]
    wrong = [output_message("Let me look."), output_call("refund", "c1", order="last")]
    return [wrong, [output_call("refund", "c2", order="A-1")], "Refunded."][len(answers)]


def reasoning(name, **fields):
    return {"type": "reasoning", "id": name, "summary": [], **fields}


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_is_recorded_step_by_step(proxied, upstream, library, stream):
    upstream.answer = refunding
    response = run_agent(proxied(), "Refund Ada's order.", refund_tool, stream=stream)
    assert response.output_text == "Refunded."
    (episode,) = wait_for(lambda: open_episodes(library))
    assert episode.task == "Refund Ada's order."
    assert [step.action for step in episode.steps] == ['refund(order="last")', 'refund(order="A-1")']
    assert [step.diagnosis.success for step in episode.steps] == [False, True]
    assert (episode.success, episode.writer, episode.meta["policy"]) == (True, "proxy", "m")


def add_advice(library):
    library.add(Item("strategy", "Look the order up with find before a refund.", "Use find.", "Refund an order."))


def test_a_string_as_input_stays_the_last_message(proxied, upstream, library):
    add_advice(library)
    respond(proxied(), "Refund an order.")
    (body,) = upstream.requests
    assert [item["role"] for item in body["input"]] == ["user", "user"]
    assert body["input"][1]["content"] == "Refund an order."
    assert "find" in body["input"][0]["content"]


def test_the_hint_can_stand_in_the_instructions(proxied, upstream, library):
    add_advice(library)
    respond(proxied(place="system"), "Refund an order.", instructions="You are kind.")
    (body,) = upstream.requests
    assert body["input"] == "Refund an order."
    assert body["instructions"].startswith("You are kind.\n\nstrategy: Look the order up")


def test_text_streams_event_by_event(proxied, upstream):
    """The first letter arrives while the server still holds the second one back."""
    upstream.answer = lambda body: "ab"
    upstream.gate.clear()
    letters = []
    for event in proxied(mode="block").responses.create(model="m", input="Hello", stream=True):
        if event.type == "response.output_text.delta":
            letters.append(event.delta)
            upstream.gate.set()
    assert letters == ["a", "b"]


# ---- conversations on the server


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
def test_a_conversation_on_the_server_is_one_run(proxied, upstream, library, kind):
    """The client sends the new items alone."""
    add_advice(library)
    steps = iter(
        [[output_call("refund", "c1", order="last")], [output_call("refund", "c2", order="A-1")], "Refunded.", "Bye."]
    )
    upstream.answer = lambda body: next(steps)
    client = proxied()
    options = {} if kind == "previous_response_id" else {"conversation": "conv_1"}
    response = respond(client, "Refund an order.", **options)
    for _ in range(2):
        options = {kind: response.id} if kind == "previous_response_id" else options
        response = respond(client, answer_calls(response, refund_tool), **options)
    assert response.output_text == "Refunded."
    (episode,) = wait_for(lambda: open_episodes(library))
    assert episode.task == "Refund an order."
    assert [step.diagnosis.success for step in episode.steps] == [False, True]
    assert [item["type"] for item in upstream.requests[1]["input"]] == ["function_call_output"]
    assert "find" in upstream.requests[1]["instructions"], "a hint in the input would stay in the conversation"


def test_a_conversation_that_began_elsewhere_passes_through(proxied, upstream, library, caplog):
    outputs = [{"type": "function_call_output", "call_id": "c9", "output": "refunded"}]
    assert respond(proxied(), outputs, previous_response_id="resp_old").output_text == "done"
    assert upstream.requests[0]["input"] == outputs
    assert "recall is skipped: ValueError: 'resp_old' names a conversation" in caplog.text


def test_a_client_that_lets_nothing_be_kept_costs_no_memory(proxied, upstream, library, caplog):
    upstream.answer = refunding
    client = proxied()
    first = respond(client, "Refund Ada's order.", store=False)
    respond(client, answer_calls(first, refund_tool), previous_response_id=first.id)
    assert "names a conversation whose beginning" in caplog.text


# ---- guardrails


def test_a_warning_stands_below_the_output_of_a_bad_call(proxied, upstream, library):
    forbid(library)
    upstream.answer = refunding
    run_agent(proxied(), "Refund Ada's order.", refund_tool)
    first, second, _ = upstream.requests
    assert "Experience warns of this call:" not in json.dumps(first)
    output = next(item for item in second["input"] if item.get("type") == "function_call_output")
    assert output["output"].startswith("error: no such order\n\nExperience warns of this call:")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_a_blocked_call_never_reaches_the_client(proxied, upstream, library, stream, store):
    """The client's own stream joins the text before the refusal with the response after it."""
    forbid(library)
    tried = []

    def tool(name, arguments):
        tried.append(arguments["order"])
        return "refunded"

    def answer(body):
        outputs = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
        if "refunded" in outputs:
            return "Refunded."
        right = [reasoning("rs_3"), output_call("refund", "c2", order="A-1")]
        wrong = output_call("refund", "c1", order="last")
        return right if outputs else [reasoning("rs_1"), output_message("I look."), reasoning("rs_2"), wrong]

    upstream.answer = answer
    client = proxied(mode="block")
    run_agent(client, "Refund Ada's order.", tool, stream=stream, store=store)
    assert tried == ["A-1"]
    second, third = (body["input"] for body in upstream.requests[1:3])
    assert second[-1]["output"].startswith("Not run: experience forbids")
    kept = [item["id"] for item in second if item.get("type") == "reasoning"]
    assert kept == (["rs_1", "rs_2"] if store else []), "a server that keeps nothing does not know them"
    # Reasoning whose call was refused must not come back: the API rejects it without the call.
    carried = ["rs_1", "msg_1"] if stream else []
    ids = [item.get("id") for item in third if item.get("role") != "user" and item["type"] != "function_call_output"]
    assert ids[: len(carried) + 2] == [*carried, "rs_3", "fc_c2"]
    (episode,) = wait_for(lambda: open_episodes(library))
    assert [step.diagnosis.failure for step in episode.steps] == [Failure.BLOCKED, Failure.NONE]


def test_a_joined_stream_is_continued_under_the_id_that_the_client_has(proxied, upstream, library):
    """The server keeps the answer under the id of its last response; the client rejects a stream of two ids."""
    forbid(library)
    steps = iter([[output_call("refund", "c1", order="last")], [output_call("refund", "c2", order="A-1")], "Refunded."])
    upstream.answer = lambda body: next(steps)
    client = proxied(mode="block")
    first = respond(client, "Refund Ada's order.", stream=True)
    assert first.id == "resp_1"
    respond(client, answer_calls(first, refund_tool), stream=True, previous_response_id=first.id)
    assert upstream.requests[2]["previous_response_id"] == "resp_2"
    (episode,) = wait_for(lambda: open_episodes(library))
    assert [step.diagnosis.failure for step in episode.steps] == [Failure.BLOCKED, Failure.NONE]


def test_events_of_a_joined_stream_are_numbered_in_order(proxied, upstream, library):
    forbid(library)
    upstream.answer = lambda body: (
        [output_message("I look."), output_call("refund", "c1", order="last")]
        if len(upstream.requests) == 1
        else "It cannot be done."
    )
    events = list(proxied(mode="block").responses.create(model="m", input="Refund Ada's order.", stream=True))
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events].count("response.created") == 1
    indexes = {event.item_id: event.output_index for event in events if event.type == "response.output_text.delta"}
    done = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert (indexes, done) == ({"msg_1": 1}, [0, 1])
    assert [item.type for item in events[-1].response.output] == ["message", "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_insists_is_ended(proxied, upstream, library, stream):
    forbid(library)
    item = next(item.id for item in library.items.find() if item.kind == "guardrail")
    library.items.update(item, pinned=True)
    upstream.answer = lambda body: [output_call("refund", f"c{len(upstream.requests)}", order="last")]
    response = respond(proxied(mode="block"), "Refund Ada's order.", stream=stream)
    assert response.output_text.startswith("This run ends here:")
    assert [item.type for item in response.output] == ["message"]
    assert response.status == "completed"


def test_calls_of_a_conversation_on_the_server_are_refused_without_a_repetition(proxied, upstream, library):
    forbid(library)
    steps = iter([[output_call("refund", "c1", order="last")], "It cannot be done."])
    upstream.answer = lambda body: next(steps)
    respond(proxied(mode="block"), "Refund Ada's order.", conversation="conv_1")
    assert [item["type"] for item in upstream.requests[1]["input"]] == ["function_call_output"]


OWN_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "custom_tool_call": ('refund(order="last")', {"name": "refund", "input": '{"order": "last"}'}),
    "shell_call": ('shell(commands=["rm -rf /"])', {"action": {"commands": ["rm -rf /"]}}),
    "apply_patch_call": (
        'apply_patch(type="delete_file", path="a.py")', {"operation": {"type": "delete_file", "path": "a.py"}}
    ),
    "local_shell_call": (
        'local_shell(command=["rm", "a.py"])', {"action": {"type": "exec", "command": ["rm", "a.py"], "env": {}}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(OWN_CALLS))
def test_calls_of_other_tools_are_refused_in_their_own_form(proxied, upstream, library, kind):
    action, fields = OWN_CALLS[kind]
    library.add(
        Item(
            "guardrail", "Never do this", "It is always wrong.", "Always", forbids=action,
            condition={"text": "Request"}, confidence=0.9,
        )
    )  # fmt: skip
    item = {"type": kind, "id": "x_1", "call_id": "c1", "status": "completed", **fields}
    upstream.answer = lambda body: [item] if len(upstream.requests) == 1 else "It cannot be done."
    respond(proxied(mode="block"), "Do it.")
    call, refusal = upstream.requests[1]["input"][-2:]
    assert call == item
    assert refusal["type"] == f"{kind}_output"
    assert "Not run: experience forbids" in json.dumps(refusal)


# ---- tools that the server runs, failures, everything else


def test_tools_that_the_server_runs_are_steps(proxied, upstream, library):
    call = {"type": "mcp_call", "id": "mcp_1", "name": "find", "server_label": "shop", "arguments": '{"name": "Ada"}'}
    upstream.answer = lambda body: [{**call, "output": "A-1", "error": None}, output_message("It is A-1.")]
    respond(proxied(), "Find Ada's order.")
    (episode,) = wait_for(lambda: open_episodes(library))
    assert [step.action for step in episode.steps] == ['find(name="Ada")']
    assert episode.success


def test_a_response_that_was_cut_tells_no_outcome(proxied, upstream, library):
    client = proxied()
    upstream.answer = lambda body: (
        [output_call("refund", "c1", order="A-1")] if isinstance(body["input"], str) else "Ref"
    )
    first = respond(client, "Refund Ada's order.")
    upstream.extra = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    respond(client, answer_calls(first, refund_tool), previous_response_id=first.id)
    (episode,) = wait_for(lambda: open_episodes(library))
    assert (episode.success, episode.ending) == (None, "max_output_tokens")


def test_a_repeated_request_adds_no_step_twice(proxied, upstream, library):
    client = proxied()
    upstream.answer = refunding
    first = respond(client, "Refund Ada's order.")
    outputs = answer_calls(first, refund_tool)
    upstream.answer = lambda body: JSONResponse({"error": {"message": "overloaded"}}, 503)
    with pytest.raises(openai.InternalServerError, match="overloaded"):
        respond(client, outputs, previous_response_id=first.id)
    upstream.answer = lambda body: "Sorry."
    respond(client, outputs, previous_response_id=first.id)
    (episode,) = wait_for(lambda: open_episodes(library))
    assert [step.diagnosis.success for step in episode.steps] == [False]


@pytest.mark.parametrize("options", [{"background": True}, {"input": [{"type": "compaction_trigger"}]}])
def test_requests_without_an_answer_of_their_own_pass_through(proxied, upstream, library, options):
    add_advice(library)
    body = {"model": "m", "input": "Refund an order.", **options}
    client = proxied()
    response = httpx.post(f"{client.base_url}responses", json=body)
    assert upstream.requests == [body]
    assert "x-hardwon-episode" not in response.headers


def test_a_failed_command_of_codex_is_a_failed_step(proxied, upstream, library):
    """Codex reports an exit code above the output."""
    items = [output_call("exec_command", "c1", cmd="make"), {"type": "function_call_output", "call_id": "c1"}]
    head = "Chunk ID: e11920\nWall time: 0.4 seconds\nProcess exited with code {}\nOriginal token count: 15\nOutput:\n"
    for code in (2, 0):
        items[1] |= {"output": head.format(code) + "make: done"}
        respond(proxied(), [{"role": "user", "content": f"Build it, {code}."}, *items])
    episodes = wait_for(lambda: len(found := open_episodes(library)) == 2 and found)
    assert {e.task: e.steps[0].diagnosis.success for e in episodes} == {"Build it, 2.": False, "Build it, 0.": True}


@pytest.mark.parametrize("sockets", ["none", "auto"])
def test_a_websocket_is_refused_so_that_the_client_goes_on_over_http(tmp_path, sockets):
    """Codex tries a WebSocket first, five times with growing pauses unless the status is 426."""
    app = create_proxy(LibraryAccess(lambda: ExperienceLibrary.open(tmp_path / "work.db")), "http://127.0.0.1:9/v1")
    upgrade = {
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    with serving(app, ws=sockets) as address:
        assert httpx.get(f"{address}/v1/responses", headers=upgrade).status_code == 426


def test_a_compressed_request_passes_through_with_its_encoding(proxied, upstream):
    import gzip

    client = proxied()
    data = gzip.compress(json.dumps({"model": "m", "input": "Hello"}).encode())
    httpx.post(f"{client.base_url}responses", content=data, headers={"content-encoding": "gzip"})
    assert upstream.headers[-1]["content-encoding"] == "gzip"
