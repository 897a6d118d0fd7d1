"""The policy as a server of the OpenAI API: exact tokens, tool calls, streams, and keys that end with their episode."""

import asyncio
import json
from typing import Any

import openai
import pytest
import torch
from tests.trainers.folder_base import CHATML, build_chat_model, build_chat_tokenizer
from tests.trainers.scripted_engine import Scripted

from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.programs.gateway import Gateway
from hardwon.trainers.programs.prompts import ProgramPrompts
from hardwon.trainers.programs.run import ProgramRun, build_rollout
from hardwon.trainers.prompting.template import ChatTemplate

TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "find", "parameters": {"type": "object", "properties": {"at": {"enum": ["x", "y"]}}}},
    }
]
REWRITES = CHATML.replace("message['content'] +", "message['content'].split('</think>')[-1] +")
"""A template that drops thoughts of earlier answers."""


def serve(engine, tokenizer, scenario, **options):
    """Run `scenario(client, run)` with an OpenAI client of one episode, and return the episode."""
    run: Any = None

    async def play():
        nonlocal run
        prompts = ProgramPrompts(ChatTemplate(tokenizer))
        gateway = Gateway(engine, prompts, max_tokens=16, context=options.pop("context", None))
        run = ProgramRun(Spec("train", 0), "hw-1", gateway.open_record(), **options)
        async with gateway.serve():
            gateway.open(run)
            async with openai.AsyncOpenAI(api_key="hw-1", base_url=gateway.url, max_retries=0) as client:
                await scenario(client, run, gateway)

    asyncio.run(play())
    return run


def say(text):
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def tokenizer():
    torch.set_num_threads(1)
    return build_chat_tokenizer()


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_an_episode_is_one_row_of_sampled_tokens(tokenizer, temperature):
    """Sampled ids of a model that has learned nothing are seldom those of their text; the limit cuts each answer."""
    engine = LocalEngine(build_chat_model(tokenizer), tokenizer)

    async def talk(client, run, gateway):
        messages: list[Any] = [say("go east")]
        for n in range(4):
            answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=5 + n)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), say("take coin")]

    run = serve(engine, tokenizer, talk, temperature=temperature)
    rollout = build_rollout(run.spec, run.calls, 1.0, measure="success")
    (sequence,) = pack_samples(rollout.rows, {run.spec.session: [1.0] * 4})
    trained = [token for token, is_sampled in zip(sequence.tokens, sequence.mask, strict=True) if is_sampled]
    assert trained == [token for call in run.calls for token in call.tokens]
    cold = LocalEngine(build_chat_model(tokenizer), tokenizer)
    (again,) = asyncio.run(cold.logprobs([sequence], "policy"))
    if temperature == 1.0:
        assert again == pytest.approx(list(sequence.logprobs), abs=1e-4)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_reach_the_client_and_continue_the_row(tokenizer, stream):
    call = '<tool_call>\n{"name":"find","arguments":{"at":"x"}}\n</tool_call>'
    engine = Scripted(tokenizer, call, "the end")

    async def talk(client, run, gateway):
        messages: list[Any] = [say("find it")]
        if stream:
            async with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (
                (await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)).choices[0].message
            )
        (made,) = message.tool_calls
        assert (made.function.name, json.loads(made.function.arguments)) == ("find", {"at": "x"})
        result = {"role": "tool", "tool_call_id": made.id, "content": "it is there"}
        messages += [message.model_dump(exclude_none=True), result]
        last = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        assert last.choices[0].message.content == "the end"

    run = serve(engine, tokenizer, talk)
    first, second = run.calls
    assert second.prompt[: len(first.prompt) + len(first.tokens)] == first.prompt + first.tokens
    assert "it is there" in tokenizer.decode(second.prompt)
    assert '"find"' in tokenizer.decode(first.prompt), "the tools are in the prompt"


def test_a_demanded_call_is_bound_by_the_schema(tokenizer):
    engine = LocalEngine(build_chat_model(tokenizer), tokenizer)

    async def talk(client, run, gateway):
        answer = await client.chat.completions.create(
            model="m", messages=[say("find it")], tools=TOOLS, tool_choice="required", max_tokens=200
        )
        (made,) = answer.choices[0].message.tool_calls
        assert json.loads(made.function.arguments).get("at") in ("x", "y", None)

    run = serve(engine, tokenizer, talk)
    assert any(allowed is not None for allowed in run.calls[0].allowed)


def test_a_template_that_rewrites_history_begins_a_new_row():
    tokenizer = build_chat_tokenizer(REWRITES)
    engine = Scripted(tokenizer, "<think>the chest</think>go east", "take coin")

    async def talk(client, run, gateway):
        answer = await client.chat.completions.create(model="m", messages=[say("go")])
        messages: Any = [say("go"), answer.choices[0].message.model_dump(exclude_none=True), say("on")]
        await client.chat.completions.create(model="m", messages=messages)

    run = serve(engine, tokenizer, talk)
    rollout = build_rollout(run.spec, run.calls, 1.0, measure="success")
    assert len(pack_samples(rollout.rows, {run.spec.session: [1.0] * 2})) == 2
    assert "the chest" not in tokenizer.decode(run.calls[1].prompt)


def test_a_changed_history_begins_a_new_row(tokenizer):
    """A program that summarizes or edits earlier answers sends another conversation."""
    engine = Scripted(tokenizer, "go east", "take coin")

    async def talk(client, run, gateway):
        await client.chat.completions.create(model="m", messages=[say("go")])
        messages: Any = [say("go"), {"role": "assistant", "content": "go west"}, say("on")]
        await client.chat.completions.create(model="m", messages=messages)

    run = serve(engine, tokenizer, talk)
    assert "go west" in tokenizer.decode(run.calls[1].prompt)
    assert "go east" not in tokenizer.decode(run.calls[1].prompt)


def test_text_never_becomes_a_control_token(tokenizer):
    engine = Scripted(tokenizer, "go")

    async def talk(client, run, gateway):
        await client.chat.completions.create(model="m", messages=[say("a <|im_end|> b")])

    run = serve(engine, tokenizer, talk)
    end = tokenizer.eos_token_id
    assert run.calls[0].prompt.count(end) == ChatTemplate(tokenizer).render_chat([say("a b")]).count(end)


def test_a_stop_word_cuts_the_row_where_it_ends(tokenizer):
    engine = Scripted(tokenizer, "go east STOP go west")

    async def talk(client, run, gateway):
        answer = await client.chat.completions.create(model="m", messages=[say("go")], stop=["STOP"])
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("go east ", "stop")

    run = serve(engine, tokenizer, talk)
    assert tokenizer.decode(run.calls[0].tokens).rstrip() == "go east STOP"


def test_requests_that_belong_to_no_open_episode_are_refused(tokenizer):
    engine = Scripted(tokenizer, "go")

    async def talk(client, run, gateway):
        await gateway.close(run)
        with pytest.raises(openai.APIStatusError, match="has ended") as error:
            await client.chat.completions.create(model="m", messages=[say("go")])
        assert error.value.status_code == 410
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="hw-2").chat.completions.create(model="m", messages=[say("go")])
        with pytest.raises(openai.APIStatusError):
            await client.post("/outcome", body={"outcome": 1}, cast_to=object)

    run = serve(engine, tokenizer, talk)
    assert (run.calls, run.reported) == ([], None)


def test_an_answer_that_comes_after_the_end_is_not_kept(tokenizer):
    class Slow(Scripted):
        async def generate(self, request):
            run.is_open = False
            return await super().generate(request)

    run: Any = None

    async def talk(client, opened, gateway):
        nonlocal run
        run = opened
        with pytest.raises(openai.APIStatusError, match="has ended"):
            await client.chat.completions.create(model="m", messages=[say("go")])

    assert serve(Slow(tokenizer, "go"), tokenizer, talk).calls == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 2}, "one answer"),
        ({"messages": []}, "no list of messages"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "role 'poet'"),
        ({"max_tokens": -1}, "above 0"),
        ({"tools": [{"type": "web_search"}]}, "no list of functions"),
        ({"extra_headers": {"x-hardwon-outcome": "nan"}}, "give a number"),
        ({"messages": [say("go east " * 200)]}, "the model reads 64"),
    ],
)
def test_odd_requests_are_errors_of_the_api(tokenizer, options, words):
    async def talk(client, run, gateway):
        with pytest.raises(openai.BadRequestError, match=words):
            await client.chat.completions.create(**{"model": "m", "messages": [say("go")], **options})

    assert serve(Scripted(tokenizer, "go"), tokenizer, talk, context=64).calls == []


def test_a_header_grades(tokenizer):
    async def talk(client, run, gateway):
        await client.chat.completions.create(
            model="m", messages=[say("go")], extra_headers={"x-hardwon-outcome": "0.5"}
        )

    assert serve(Scripted(tokenizer, "go"), tokenizer, talk).reported == 0.5


def test_an_answer_whose_client_is_gone_is_no_decision_of_the_episode(tokenizer):
    """The client gave up and asks again; only the second answer is trained."""

    class Slow(Scripted):
        async def generate(self, request):
            if not self.requests:
                await asyncio.sleep(0.5)
            return await super().generate(request)

    async def talk(client, run, gateway):
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="m", messages=[say("go east")], timeout=0.2)
        answer = await client.chat.completions.create(model="m", messages=[say("go east")])
        assert answer.choices[0].message.content == "second"

    run = serve(Slow(tokenizer, "first", "second"), tokenizer, talk)
    assert [call.answer["text"] for call in run.calls] == ["second"]


def test_an_episode_that_has_ended_is_not_kept_in_memory(tokenizer):
    async def talk(client, run, gateway):
        await client.chat.completions.create(model="m", messages=[say("go east")])
        await gateway.close(run)
        assert run.calls
        assert gateway._runs == {}

    serve(Scripted(tokenizer, "first"), tokenizer, talk)
