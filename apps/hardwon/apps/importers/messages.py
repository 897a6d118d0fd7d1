"""Convert OpenAI chat messages, Anthropic messages and OpenAI Responses to plain messages.

The plain form is that of `hardwon.runtime.integrations.tool_episode`: role, text, calls, answers (the id of a call) and
error. A log line includes the model's answer, and a file may mix the three formats.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hardwon.runtime.integrations.tool_episode import extract_text, judge_answer, normalize_call, normalize_message
from hardwon.runtime.interfaces.endings import find_cut
from hardwon.runtime.interfaces.results import find_failure

LoggedMessage = dict[str, Any]

CONVERSATIONS = ("messages", "input", "traj", "trajectory", "conversation")
"""Keys under which a log line may have its messages."""
ANTHROPIC_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
RESPONSES_CALLS = ("function_call", "custom_tool_call", "mcp_call")
RESPONSES_ANSWERS = (
    "function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
    "apply_patch_call_output",
)  # fmt: skip
_OWN_TOOLS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "local_shell_call": ("local_shell", "action", ("command",)),
    "shell_call": ("shell", "action", ("commands",)),
    "apply_patch_call": ("apply_patch", "operation", ("type", "path", "diff")),
}
"""Types of calls of the API's own tools that the client runs: name, field with the arguments, and their names."""
_SILENT = ("reasoning", "item_reference", "mcp_list_tools", "web_search_call", "file_search_call", "compaction")
"""Types of Responses items without text of a person or a call of the user's tools."""


def conversation(value: Any) -> list[LoggedMessage]:
    """Return the messages of a log line, including the model's answer."""
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"it is {type(value).__name__}, not a conversation")
    # A proxy's log separates request and response; other logs have both in one object.
    request = _unwrap_body(value.get("request") or value)
    messages = next((request[name] for name in CONVERSATIONS if _is_conversation(request.get(name))), None)
    response = _unwrap_body(value.get("response") or value)
    answers = list(_find_answers(response))
    if messages is None and not answers:
        raise ValueError("there are no messages: give them under `messages`, or `input` and `output`")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    plain = [entry for message in (*(messages or ()), *answers) for entry in plain_messages(message)]
    if plain and (cut := find_cut(value) or find_cut(response)):
        plain[-1]["unfinished"] = cut
    return plain


def _unwrap_body(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    inner = value.get("body", value)
    return inner if isinstance(inner, Mapping) else value


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and bool(value))


def _find_answers(answer: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the answers of a model: a choice, output items, or a message."""
    choices = answer.get("choices")
    if isinstance(choices, list) and choices:
        yield {"finish_reason": choices[0].get("finish_reason"), **choices[0]["message"]}
    if isinstance(answer.get("output"), list):
        yield from answer["output"]
    if answer.get("role") == "assistant" and "content" in answer:
        yield answer


def plain_messages(message: Any) -> Iterator[LoggedMessage]:
    """Yield a message in the plain form; a message with several tool results becomes several."""
    if isinstance(message, Mapping) and (item := _convert_item(message)) is not None:
        yield from item
    elif isinstance(message, Mapping) and _has_blocks(message):
        yield from _convert_blocks(message)
    else:
        yield normalize_message(message)


# ---- OpenAI's Responses


def _convert_item(item: Mapping[str, Any]) -> list[LoggedMessage] | None:
    """Return the messages of a Responses item, or None if the value is a plain message."""
    kind = item.get("type")
    if tool := _OWN_TOOLS.get(str(kind)):
        name, place, names = tool
        given = item.get(place) or {}
        call = {"id": _find_call_id(item), "name": name}
        arguments = {field: given[field] for field in names if given.get(field) is not None}
        return [_message("assistant", calls=[normalize_call({**call, "arguments": arguments})])]
    if kind in RESPONSES_CALLS:
        call = {"id": _find_call_id(item), "name": item.get("name")}
        arguments = item.get("arguments", item.get("input"))
        call_message = _message("assistant", calls=[normalize_call({**call, "arguments": arguments})])
        if kind != "mcp_call":  # an mcp_call includes the answer of the server
            return [call_message]
        why, output = item.get("error"), item.get("output")
        failed, text = bool(find_failure(output, failed=True if why else None)), extract_text(why or output)
        return [call_message, _message("tool", text, answers=call["id"], error=failed)]
    if kind in RESPONSES_ANSWERS:
        text, failed = _read_output(item.get("output"))
        failed = failed or item.get("status") in ("incomplete", "failed")
        return [_message("tool", text, answers=_find_call_id(item), error=failed)]
    if kind in _SILENT or (isinstance(kind, str) and kind.endswith("_call") and "role" not in item):
        return []
    return None


def _find_call_id(item: Mapping[str, Any]) -> Any:
    """Return the id of the call of an item; None if it has none."""
    # The id of other outputs is their own.
    has_own_id = item.get("type") in RESPONSES_ANSWERS and item.get("type") != "local_shell_call_output"
    return item.get("call_id") if has_own_id or "call_id" in item else item.get("id")


def _read_output(output: Any) -> tuple[str, bool]:
    """Return the text of an output and whether it reports a failure; that of a shell has a part for each command."""
    parts = output if isinstance(output, list) else []
    if not parts or not all(isinstance(part, Mapping) and "outcome" in part for part in parts):
        text = extract_text(output)
        return text, bool(judge_answer(output))
    text = "\n".join(str(part[name]) for part in parts for name in ("stdout", "stderr") if part.get(name))
    return text, any((part["outcome"] or {}).get("exit_code") != 0 for part in parts)


# ---- blocks of Anthropic's messages


def _has_blocks(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, Mapping) and (block.get("type") in ANTHROPIC_CALLS or _is_result(block)) for block in content
    )


def _is_result(block: Mapping[str, Any]) -> bool:
    return str(block.get("type")).endswith("tool_result")


def _convert_blocks(message: Mapping[str, Any]) -> Iterator[LoggedMessage]:
    """Yield the messages of a message with blocks.

    Results come first, because they answer earlier calls; text after them is the person's.
    """
    role = str(message.get("role"))
    if role not in ("user", "assistant", "tool"):
        raise ValueError(f"a message with the role {role!r} has tool calls; use user or assistant")
    blocks = [block for block in message["content"] if isinstance(block, Mapping)]
    calls = [normalize_call(block) for block in blocks if block.get("type") in ANTHROPIC_CALLS]
    words = [block for block in blocks if block.get("type") == "text"]
    results = [block for block in blocks if _is_result(block)]
    own = [_message("assistant" if calls else role, extract_text(words), calls=calls)] if calls or words else []
    if calls:  # a provider's own tools: the words after the last result are the answer
        own[0] |= {"unfinished": find_cut(message), "has_answer": bool(results) and blocks[-1].get("type") == "text"}
    answers = [_convert_result(block) for block in results]
    # With calls of its own, a message may also hold their results (server tools), so the calls come first.
    yield from (*own, *answers) if calls else (*answers, *own)


def _convert_result(block: Mapping[str, Any]) -> LoggedMessage:
    content, failed = block.get("content"), block.get("is_error")
    error = find_failure(content, failed=None if failed is None else bool(failed))
    return _message("tool", extract_text(content), answers=block.get("tool_use_id"), error=bool(error))


def _message(
    role: str, text: str = "", *, calls: Sequence[LoggedMessage] = (), answers: Any = None, error: bool = False
) -> LoggedMessage:
    return {"role": role, "text": text, "calls": list(calls), "answers": answers, "error": error}


# ---- recognition


def is_messages(values: Iterable[Any]) -> bool:
    """Return whether all values may be messages or Responses items."""
    return all(
        isinstance(value, Mapping)
        and ("role" in value or ("content" in value and "type" in value) or _convert_item(value) is not None)
        for value in values
    )


def form_of(value: Any) -> str:
    """Return the format of a conversation: anthropic, responses or openai."""
    request = _unwrap_body(value.get("request") or value) if isinstance(value, Mapping) else {"messages": value}
    answer = _unwrap_body(value.get("response") or value) if isinstance(value, Mapping) else {}
    if "input" in request or isinstance(answer.get("output"), list) or answer.get("object") == "response":
        return "responses"
    messages: list[Any] = next((request[name] for name in CONVERSATIONS if isinstance(request.get(name), list)), [])
    for message in [*messages, answer]:
        if not isinstance(message, Mapping):
            continue
        if _convert_item(message) is not None:
            return "responses"
        if _has_blocks(message) or (message.get("type") == "message" and isinstance(message.get("content"), list)):
            return "anthropic"
    return "openai"
