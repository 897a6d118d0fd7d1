"""A conversation of tool calls as the messages of a model that has a form of its own for tools.

    tools, messages = list_tools(conversation), build_messages(conversation)
    model.bind_tools(tools).invoke(messages)

The tools are listed once, by the chat template or by the provider. A call is an assistant's message with `tool_calls`,
and its result is a message of the role `tool`. What experience adds to a result follows as a message of the user. Text
is cleaned as in all messages: it closes no block and contains no token of a template.
"""

import json
from collections.abc import Mapping
from typing import Any

from . import prompts
from .calls import parse_call
from .conversation import ChatTurn, Conversation

ChatMessage = dict[str, Any]
"""A message in the form of OpenAI and transformers, with arguments as an object."""


def list_tools(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the tools of a conversation in OpenAI's form."""
    return [_describe_tool(name, schema) for name, schema in conversation.tools.items()]


def build_messages(conversation: Conversation) -> list[ChatMessage]:
    """Return the messages of a conversation that has tools, up to its open turn."""
    messages: list[ChatMessage] = [{"role": "system", "content": conversation.tool_system}]
    before: tuple[str, dict[str, Any]] | None = None
    for number, turn in enumerate(conversation.turns[conversation.omitted :]):
        messages += build_turn(turn, None if before is None else before[0], number)
        before = find_call(conversation, turn)
        if turn.answer is not None:
            messages.append(build_answer(turn, before, number))
    return messages


def build_turn(turn: ChatTurn, tool: str | None, number: int) -> list[ChatMessage]:
    """Return the messages of a turn before its answer."""
    if tool is None:
        return [{"role": "user", "content": prompts.join_parts(turn.seen, turn.advice)}]
    result = {"role": "tool", "tool_call_id": make_id(number), "name": tool, "content": turn.seen}
    return [result, *([{"role": "user", "content": turn.advice}] if turn.advice else [])]


def build_answer(turn: ChatTurn, call: tuple[str, dict[str, Any]] | None, number: int) -> ChatMessage:
    """Return the message of an answered turn: a call after its thought, or else its text."""
    text = (turn.answer or "") if turn.text is None else turn.text
    if call is None:
        return {"role": "assistant", "content": text}
    function = {"name": call[0], "arguments": call[1]}
    # a thought is one line before the call
    thought = "" if turn.text is None else turn.text.rpartition("\n")[0]
    calls = [{"id": make_id(number + 1), "type": "function", "function": function}]
    return {"role": "assistant", "content": thought, "tool_calls": calls}


def find_call(
    conversation: Conversation, turn: ChatTurn, action: str | None = None
) -> tuple[str, dict[str, Any]] | None:
    """Return the tool that an action calls, and its arguments by name; None if it is no call."""
    parsed = parse_call((turn.answer if action is None else action) or "") if turn.calls else None
    if parsed is None:
        return None
    name, positional, arguments = parsed
    names = list(conversation.tools.get(name, {}).get("properties", {}))
    return None if len(positional) > len(names) else (name, dict(zip(names, positional, strict=False)) | arguments)


def make_id(number: int) -> str:
    """Return the id of the call before turn `number`. Some templates take nine letters and digits only."""
    return f"call{number:05d}"


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as JSON on one line."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False).encode(errors="replace").decode()


def _describe_tool(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    # some schemas have the purpose of the tool beside its arguments
    parameters = {key: part for key, part in schema.items() if key not in ("title", "description")}
    described = {"name": name, "description": str(schema.get("description", "")), "parameters": parameters}
    cleaned: dict[str, Any] = _clean({"type": "function", "function": described})
    return cleaned


def _clean(value: Any) -> Any:
    """Return a JSON value whose texts contain no token of a template."""
    if isinstance(value, Mapping):
        return {_clean(key): _clean(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(part) for part in value]
    return prompts.clean(value, prompts.OBSERVATION) if isinstance(value, str) else value
