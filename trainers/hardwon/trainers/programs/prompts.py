"""The tokens of a program's messages: those that were sampled stay as they were, and only new messages are rendered.

    record = ChatRecord(ProgramPrompts(template))

If a template rewrites earlier messages (some drop thoughts), a prompt is rendered anew, and its row begins anew.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.prompting.chat_record import Message, Tool
from hardwon.trainers.prompting.template import ChatTemplate

_MARKS = ("Xylo", "Yonder")
"""Two answers without a token in common at their ends, to find where an answer ends."""
_THOUGHT = "Marigold"
_THOUGHT_END = "</think>"
_CALLS = (
    "You can call these tools:\n{tools}\n"
    'To call one, answer with its name and its arguments as JSON:\n<tool_call>\n{{"name": "NAME", "arguments": {{}}}}\n'
    "</tool_call>"
)


class ProgramPrompts:
    """Renders the messages of programs with a chat template; tools are text where the template ignores them."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.end = template.end
        self._shows_tools = template.shows_tools
        self._has_system = template.has_system

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Return the tokens of whole messages, up to the next answer."""
        return self._render(messages, tools)

    def resume(self, messages: Sequence[Message], at: int, tools: Sequence[Tool]) -> Ids | None:
        """Return the tokens from the end token of answer `at` to the next answer."""
        before, answer, after = messages[:at], messages[at], messages[at + 1 :]
        if not after:
            return None
        try:
            marked = [self._render([*before, {**answer, "text": mark, "calls": []}, *after], tools) for mark in _MARKS]
            earlier = [
                self._render([*before, {**answer, "text": mark, "calls": []}], tools, answer=False) for mark in _MARKS
            ]
            if _THOUGHT_END in answer["text"]:
                thought = {**answer, "text": f"<think>\n{_THOUGHT}\n{_THOUGHT_END}\n\n{_MARKS[0]}", "calls": []}
                if _THOUGHT not in self.template.tokenizer.decode(self._render([*before, thought, *after], tools)):
                    return None
        except ConfigError:
            return None
        same = _count_same_end(*marked)
        first = len(marked[0]) - same
        if not same or marked[0][first] != self.end:
            return None
        # the messages before the answer must not depend on those after it
        return marked[0][first:] if earlier[0][:first] == marked[0][:first] else None

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text of sampled tokens, without control tokens."""
        text: str = self.template.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text.encode(errors="replace").decode()

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, answer: bool = True) -> Ids:
        rendered = [self._convert(message) for message in messages]
        if tools and not self._shows_tools:
            listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
            rendered = _add_to_system(rendered, _CALLS.format(tools=listed))
        if not self._has_system:
            rendered = _move_system(rendered)
        return self.template.render_chat(rendered, tools=tools if self._shows_tools else (), answer=answer)

    def _convert(self, message: Message) -> dict[str, Any]:
        role, text, calls = message["role"], message["text"], message["calls"]
        if role == "tool" and not self._shows_tools:
            return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
        if role == "tool":
            return {"role": "tool", "content": text, "tool_call_id": message["answers"]}
        if calls and not self._shows_tools:
            return {"role": role, "content": "\n".join(part for part in (text, *map(_format_call, calls)) if part)}
        if calls:
            functions = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
            listed = [
                {"id": call["id"], "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
            return {"role": role, "content": text, "tool_calls": listed}
        return {"role": role, "content": text}


def _format_call(call: Mapping[str, Any]) -> str:
    content = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"


def _add_to_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _move_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the system text in the first message of the user."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if texts and rest and rest[0]["role"] == "user":
        return [{"role": "user", "content": "\n\n".join([*texts, rest[0]["content"]])}, *rest[1:]]
    return [{"role": "user", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _count_same_end(first: Ids, other: Ids) -> int:
    same, most = 0, min(len(first), len(other))
    while same < most and first[-same - 1] == other[-same - 1]:
        same += 1
    return same
