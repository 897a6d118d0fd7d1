"""Conversations of calls as messages of a model that has a form of its own for tools."""

from typing import Any

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversations, PromptBuilder
from hardwon.runtime.llm.tool_messages import build_messages, list_tools

FIND: dict[str, Any] = {
    "type": "object",
    "title": "Find",
    "description": "Find tables.",
    "properties": {"city": {"type": "string"}, "seats": {"type": "integer"}},
}
TOOLS = {"find": FIND}
STATE = State("A guest.", task="Find a table.")
MANUAL = "find(city: string): Find tables."


def open_chat(log=None, **fields):
    context = Context(STATE, **{"tools": TOOLS, "manual": MANUAL, "thread": "t", **fields})
    return (log or Conversations()).advance(context)


def go_on(log, action, text=None, **fields):
    """Answer the open turn, and open the next one."""
    chat = log._open["t"]
    Conversations.answer(chat, action, text=text)
    post = State("A guest.\nTables: 4.", task="Find a table.")
    step = Step(STATE, action, post, Diagnosis(True))
    return log.advance(Context(post, tools=TOOLS, manual=MANUAL, thread="t", history=(step,), **fields))


def test_a_tool_has_its_purpose_beside_its_arguments():
    (tool,) = list_tools(open_chat())
    function = {
        "name": "find",
        "description": "Find tables.",
        "parameters": {"type": "object", "properties": FIND["properties"]},
    }
    assert tool == {"type": "function", "function": function}


@pytest.mark.parametrize("text", ["<|im_end|>", "</tool_call>", "[/INST]", "\x1b[31m"])
def test_a_tool_contains_no_token_of_a_template(text):
    """A server of tools describes them itself."""
    tools = {f"look{text}": {"description": text, "properties": {text: {"enum": [text, 1]}}}}
    assert text not in repr(list_tools(open_chat(tools=tools)))
    assert text.encode("unicode_escape").decode() not in repr(list_tools(open_chat(tools=tools)))


def test_the_messages_of_a_call_and_its_result():
    log = Conversations()
    open_chat(log)
    system, user, call, result = build_messages(go_on(log, "find('Rome', seats=2)"))
    assert (system["role"], user["role"]) == ("system", "user")
    assert "JSON" not in system["content"] + user["content"]
    function = {"name": "find", "arguments": {"city": "Rome", "seats": 2}}
    assert call["tool_calls"] == [{"id": result["tool_call_id"], "type": "function", "function": function}]
    assert (result["role"], result["name"]) == ("tool", "find")
    assert "Tables: 4." in result["content"]
    assert len(result["tool_call_id"]) == 9
    assert result["tool_call_id"].isalnum()


def test_a_hint_is_a_message_of_the_user_behind_the_result():
    log = Conversations()
    open_chat(log)
    *_, result, hint = build_messages(go_on(log, 'find(city="Rome")', guidance="take table 4"))
    assert (result["role"], hint["role"]) == ("tool", "user")
    assert "take table 4" in hint["content"]
    assert "take table 4" not in result["content"]


def test_a_thought_stands_before_its_call():
    log = Conversations()
    open_chat(log)
    chat = go_on(log, 'find(city="Rome")', 'Rome is near.\n{"name": "find", "arguments": {"city": "Rome"}}')
    call = build_messages(chat)[2]
    assert call["content"] == "Rome is near."
    assert call["tool_calls"]


@pytest.mark.parametrize(("action", "text"), [("", "no call"), ("find('Rome', 2, 3)", None)])
def test_an_answer_that_is_no_call_is_text_and_the_user_goes_on(action, text):
    log = Conversations()
    open_chat(log)
    *_, answer, user = build_messages(go_on(log, action, text))
    assert (answer["content"], user["role"]) == (text or action, "user")
    assert "tool_calls" not in answer


@pytest.mark.parametrize(("schema", "is_shown"), [(FIND, False), ({**FIND, "description": ""}, True)])
def test_instructions_that_list_the_tools_again_are_left_out(schema, is_shown):
    """Those of a tool without a purpose say more than its schema."""
    chat = open_chat(tools={"find": schema})
    assert (MANUAL in chat.tool_system) is is_shown
    assert MANUAL in chat.system


def test_a_recorded_answer_to_a_list_is_no_call():
    """Where another process played the beginning."""
    step = Step(STATE, "yes()", STATE, Diagnosis(True), admissible=("yes()", "no()"))
    answer, user = build_messages(open_chat(history=(step,)))[2:]
    assert (answer["content"], user["role"]) == ("yes()", "user")


def test_without_calls_there_is_no_form():
    assert not open_chat(tools={}).tools
    assert not open_chat(actions=("yes", "no")).tools


def test_a_fork_keeps_the_tools():
    log = Conversations()
    open_chat(log)
    go_on(log, 'find(city="Rome")')
    log.fork("t", "other", 1)
    assert log._open["other"].tools == TOOLS
    assert log._open["other"].tool_system == log._open["t"].tool_system


def test_the_rules_ask_for_a_thought_in_the_form_too():
    builder = PromptBuilder(speech=20)
    chat = builder.advance(None, Context(STATE, tools=TOOLS))
    assert "First think in one line" in chat.tool_system
