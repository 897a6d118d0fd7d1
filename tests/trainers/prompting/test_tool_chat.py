"""An engine as a chat model with tools: a call in the template's own form, bound by the schemas."""

import asyncio

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from tests.trainers.folder_base import CHATML, HERMES, TOOL_MARKS, build_chat_model, build_chat_tokenizer
from tests.trainers.scripted_engine import Scripted

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime import ChatPolicy
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.prompting.chat_model import EngineChatModel

TOKENIZER = build_chat_tokenizer(HERMES, more=TOOL_MARKS)
TOOLS = {"find": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}}
CONTEXT = Context(State("A guest.", task="Find a table."), tools=TOOLS, thread="t")
CALL = '<tool_call>\n{"name": "find", "arguments": {"city": "Rome"}}\n</tool_call>'


def find(city: str) -> str:
    """Find tables."""
    return city


def test_a_bound_model_calls_a_tool_and_reads_its_result():
    """As any agent of LangChain asks it."""
    model = EngineChatModel(engine=LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), seed=0, max_tokens=600)
    answer = model.bind_tools([find]).invoke([HumanMessage("Where?")])
    (call,) = answer.tool_calls
    assert (call["name"], list(call["args"]), answer.content) == ("find", ["city"], "")
    engine = Scripted(TOKENIZER, "Rome.")
    model = EngineChatModel(engine=engine)
    result = ToolMessage("Rome", name="find", tool_call_id=call["id"])
    model.bind_tools([find], tool_choice="none").invoke([HumanMessage("Where?"), answer, result])
    assert "<tool_response>\nRome\n</tool_response>" in engine.read(0)
    assert '"description": "Find tables."' in engine.read(0)
    assert engine.requests[0].allowed is None


def test_tools_without_a_form_are_refused():
    model = EngineChatModel(engine=Scripted(build_chat_tokenizer(CHATML)))
    assert not model.has_tool_form
    with pytest.raises(ConfigError, match="no form of tools that a grammar can bind"):
        model.bind_tools([find]).invoke([HumanMessage("Where?")])


def test_a_policy_asks_for_a_call_in_the_models_own_form():
    engine = Scripted(TOKENIZER, CALL)
    decision = ChatPolicy(EngineChatModel(engine=engine)).decide(CONTEXT)
    assert decision.action == 'find(city="Rome")'
    assert "<tools>" in engine.read(0)
    assert "JSON" not in engine.read(0)
    assert engine.requests[0].allowed is not None


def test_a_policy_that_sends_a_report_writes_the_tools_as_text():
    """Its messages are not those of an episode."""
    engine = Scripted(TOKENIZER, '{"name": "find", "arguments": {"city": "Rome"}}')
    assert ChatPolicy(EngineChatModel(engine=engine), context="report").decide(CONTEXT).action == 'find(city="Rome")'
    assert "<tools>" not in engine.read(0)
    assert "one tool call as JSON" in engine.read(0)


def test_without_tools_a_result_is_text_of_the_user():
    engine = Scripted(TOKENIZER, "x")
    EngineChatModel(engine=engine).invoke([HumanMessage("Where?"), ToolMessage("Rome", tool_call_id="1")])
    assert "<|im_start|>user\nRome<|im_end|>" in engine.read(0)


def test_a_policy_whose_model_has_no_form_writes_the_tools_as_text():
    tokenizer = build_chat_tokenizer(CHATML)
    engine = Scripted(tokenizer, '{"name": "find", "arguments": {"city": "Rome"}}')
    assert ChatPolicy(EngineChatModel(engine=engine)).decide(CONTEXT).action == 'find(city="Rome")'
    assert "one tool call as JSON" in engine.read(0)


def test_a_call_that_was_cut_is_asked_for_again():
    engine = Scripted(TOKENIZER, CALL[:30] + "...", CALL)
    decision = asyncio.run(ChatPolicy(EngineChatModel(engine=engine)).adecide(CONTEXT))
    assert decision.action == 'find(city="Rome")'
    assert decision.why.extra["repaired"]
    assert "Your answer cannot be used" in engine.read(1)
    assert "JSON" not in engine.read(1)


def test_a_policy_that_thinks_answers_freely_with_the_tools_in_view():
    engine = Scripted(TOKENIZER, f"Rome is near.\n{CALL}")
    decision = ChatPolicy(EngineChatModel(engine=engine), speech="free").decide(CONTEXT)
    assert decision.action == 'find(city="Rome")'
    assert engine.requests[0].allowed is None
    assert "<tools>" in engine.read(0)


def test_listed_actions_bind_no_call():
    engine = Scripted(TOKENIZER, "2")
    listed = Context(State("A guest."), ("no", "yes"), tools=TOOLS)
    assert ChatPolicy(EngineChatModel(engine=engine)).decide(listed).action == "yes"
    assert engine.requests[0].allowed is None
    assert "1. no" in engine.read(0)
    assert "You are an agent" in engine.read(0)


def test_listed_actions_within_an_episode_of_calls_bind_no_call():
    engine = Scripted(TOKENIZER, CALL, "2")
    policy = ChatPolicy(EngineChatModel(engine=engine))
    action = policy.decide(CONTEXT).action
    step = Step(CONTEXT.state, action, State("Is 4 right?", task="Find a table."), Diagnosis(True))
    listed = Context(step.post, ("no", "yes"), tools=TOOLS, history=(step,), thread="t")
    assert policy.decide(listed).action == "yes"
    assert engine.requests[1].allowed is None
    assert "<tool_response>" in engine.read(1)
    assert "1. no" in engine.read(1)


def test_a_templates_own_thinking_is_closed_as_in_training():
    switch = "{% if enable_thinking is not defined or enable_thinking %}{{ 'Think aloud. ' }}{% endif %}"
    engine = Scripted(build_chat_tokenizer(CHATML + switch), "x")
    EngineChatModel(engine=engine).invoke([HumanMessage("Where?")])
    assert "Think aloud" not in engine.read(0)
