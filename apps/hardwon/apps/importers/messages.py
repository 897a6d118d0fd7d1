"""Conversations of OpenAI's chat messages, Anthropic's messages and OpenAI's Responses as plain messages.

The plain form is that of `hardwon.runtime.integrations.tool_episode`: role, text, calls, answers (the id of a call),
error. A line of a log is read with its answer, and a file may mix the three forms.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hardwon.runtime.integrations.tool_episode import extract_text, normalize_call, normalize_message

Message = dict[str, Any]

CONVERSATIONS = ("messages", "input", "traj", "trajectory", "conversation")
"""Where a log's line has its messages."""
ANTHROPIC_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
RESPONSES_CALLS = ("function_call", "custom_tool_call", "mcp_call")
RESPONSES_ANSWERS = ("function_call_output", "custom_tool_call_output")
_SILENT = ("reasoning", "item_reference", "mcp_list_tools", "web_search_call", "file_search_call", "compaction")
"""Items of Responses that hold neither words of a person nor a call of a tool of the user."""
_ERROR = re.compile(
    r"\s*(?:<tool_use_error>|error\b|exception\b|traceback \(most recent call last\)|\w+(?:error|exception):"
    r"|http(?: error)? [45]\d\d\b)",
    re.IGNORECASE,
)
"""How the answer of a tool begins that says that it failed, where the log has no mark for it."""
_FAILED = ("error", "failed", "failure", "incomplete")


def conversation(value: Any) -> list[Message]:
    """Return the messages of a line of a log, its answer among them.

    Raises:
        ValueError: There are no messages, or one of them has no form that is known.
    """
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"it is {type(value).__name__}, not a conversation")
    request = _body(value.get("request") or value)
    known = next((request[name] for name in CONVERSATIONS if _is_conversation(request.get(name))), None)
    answers = list(_answers(_body(value.get("response") or value)))
    if known is None and not answers:
        raise ValueError("there are no messages: give them under `messages`, or `input` and `output`")
    if isinstance(known, str):
        known = [{"role": "user", "content": known}]
    return [message for one in (*(known or ()), *answers) for message in plain_messages(one)]


def _body(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    inner = value.get("body", value)
    return inner if isinstance(inner, Mapping) else value


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and bool(value))


def _answers(answer: Mapping[str, Any]) -> Iterator[Any]:
    """What a model answered: a choice, items of output, or a message."""
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        yield choices[0]["message"]
    if isinstance(answer.get("output"), list):
        yield from answer["output"]
    if answer.get("role") == "assistant" and "content" in answer:
        yield answer


def plain_messages(message: Any) -> Iterator[Message]:
    """Yield a message in the plain form; one with several results of tools is several."""
    if isinstance(message, Mapping) and (item := _response_item(message)) is not None:
        yield from item
    elif isinstance(message, Mapping) and _has_blocks(message):
        yield from _from_blocks(message)
    else:
        yield _marked(normalize_message(message))


def _marked(message: Message) -> Message:
    """OpenAI's messages have no mark for an error: the words of the answer are all there is."""
    if message["role"] != "tool" or message["error"]:
        return message
    return {**message, "error": is_error(message["text"])}


def is_error(text: str) -> bool:
    """Return whether the words of a tool's answer say that it failed."""
    if not text.lstrip().startswith("{"):
        return _ERROR.match(text) is not None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _is_failed(value)


def _is_failed(value: Mapping[str, Any]) -> bool:
    if value.get("error") or value.get("is_error") is True or value.get("isError") is True:
        return True
    status = value.get("status", value.get("status_code"))
    if isinstance(status, int) and not isinstance(status, bool):
        return 400 <= status < 600
    return value.get("success") is False or (isinstance(status, str) and status.lower() in _FAILED)


# ---- OpenAI's Responses


def _response_item(item: Mapping[str, Any]) -> list[Message] | None:
    """The messages of an item; None where it is a plain message."""
    kind = item.get("type")
    if kind in RESPONSES_CALLS:
        call = {"id": item.get("call_id") or item.get("id"), "name": item.get("name")}
        arguments = item.get("arguments", item.get("input"))
        made = _message("assistant", calls=[normalize_call({**call, "arguments": arguments})])
        if kind != "mcp_call":  # the server's answer is in the call
            return [made]
        why = extract_text(item.get("error")) if item.get("error") else ""
        text = why or extract_text(item.get("output"))
        return [made, _message("tool", text, answers=call["id"], error=bool(why) or is_error(text))]
    if kind in RESPONSES_ANSWERS:
        text = extract_text(item.get("output"))
        failed = item.get("status") == "incomplete" or is_error(text)
        return [_message("tool", text, answers=item.get("call_id"), error=failed)]
    if kind in _SILENT or (isinstance(kind, str) and kind.endswith("_call") and "role" not in item):
        return []
    return None


# ---- blocks of Anthropic's messages


def _has_blocks(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, Mapping) and (block.get("type") in ANTHROPIC_CALLS or _is_result(block)) for block in content
    )


def _is_result(block: Mapping[str, Any]) -> bool:
    return str(block.get("type")).endswith("tool_result") and "tool_use_id" in block


def _from_blocks(message: Mapping[str, Any]) -> Iterator[Message]:
    """Results first: they answer what was said before. Words after them are the person's."""
    role = str(message.get("role"))
    if role not in ("user", "assistant", "tool"):
        raise ValueError(f"a message with the role {role!r} has calls of tools; user and assistant are known")
    blocks = [block for block in message["content"] if isinstance(block, Mapping)]
    calls = [normalize_call(block) for block in blocks if block.get("type") in ANTHROPIC_CALLS]
    words = [block for block in blocks if block.get("type") == "text"]
    results = [block for block in blocks if _is_result(block)]
    own = [_message("assistant" if calls else role, extract_text(words), calls=calls)] if calls or words else []
    answers = [_result(block) for block in results]
    yield from (*own, *answers) if calls else (*answers, *own)


def _result(block: Mapping[str, Any]) -> Message:
    text = extract_text(block.get("content"))
    marked = block.get("is_error")
    return _message(
        "tool", text, answers=block["tool_use_id"], error=is_error(text) if marked is None else bool(marked)
    )


def _message(
    role: str, text: str = "", *, calls: Sequence[Message] = (), answers: Any = None, error: bool = False
) -> Message:
    return {"role": role, "text": text, "calls": list(calls), "answers": answers, "error": error}


# ---- what a conversation is told by


def is_messages(values: Iterable[Any]) -> bool:
    """Return whether all values may be messages, or items of Responses."""
    return all(
        isinstance(value, Mapping)
        and ("role" in value or ("content" in value and "type" in value) or _response_item(value) is not None)
        for value in values
    )


def form_of(value: Any) -> str:
    """Return the name of the form of a conversation: anthropic, responses or openai."""
    request = _body(value.get("request") or value) if isinstance(value, Mapping) else {"messages": value}
    answer = _body(value.get("response") or value) if isinstance(value, Mapping) else {}
    if "input" in request or isinstance(answer.get("output"), list) or answer.get("object") == "response":
        return "responses"
    messages: list[Any] = next((request[name] for name in CONVERSATIONS if isinstance(request.get(name), list)), [])
    for message in [*messages, answer]:
        if not isinstance(message, Mapping):
            continue
        if _response_item(message) is not None:
            return "responses"
        if _has_blocks(message) or (message.get("type") == "message" and isinstance(message.get("content"), list)):
            return "anthropic"
    return "openai"
