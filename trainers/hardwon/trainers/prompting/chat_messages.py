"""The messages of LangChain as token ids, with the tokens that `ChatFormat` has for the same episode.

    record = ChatRecord(ChatMessages(tokenizer))
    prompt = record.open(to_plain(messages), ())
    for message in list_readings(answer):
        record.keep(to_plain(messages), (), to_plain([*messages, message])[-1], (*prompt, *sampled))

Programs send an answer back as they read it: stripped, or the action in it alone. The model said it all the same, so
each of these readings stands for the ids that were sampled.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from hardwon.memory.errors import ConfigError
from hardwon.runtime.llm import prompts
from hardwon.runtime.llm.calls import parse_call
from hardwon.runtime.llm.speech import split_speech
from hardwon.runtime.llm.tool_messages import make_id
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.rendering import render_messages

from .chat_record import Message, Tool
from .template import ChatTemplate


class ChatMessages:
    """Renders plain messages with the chat template of a tokenizer, whole or behind an answer that was sampled."""

    def __init__(self, tokenizer: Any) -> None:
        """Probe the template. Every prompt is rendered whole if it cannot be appended to."""
        self._tokenizer = tokenizer
        self.template: ChatTemplate | None = None
        """The template, if messages can be appended to what it rendered."""
        try:
            self.template = ChatTemplate(tokenizer)
        except ConfigError:
            end = tokenizer.eos_token_id
        else:
            end = self.template.end
        self.end: int = -1 if end is None else int(end)
        """The token that ends an answer; -1 if there is none."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Return the tokens of whole messages, up to the next answer."""
        rendered = [_convert(message) for message in messages]
        if self.template is not None and [message["role"] for message in messages[:2]] == ["system", "user"]:
            rendered[:2] = self.template.begin(messages[0]["text"], messages[1]["text"])
        options: dict[str, Any] = {"tools": [*tools]} if tools else {}
        # as in training, a template's own thinking is closed
        options |= {"add_generation_prompt": True, "enable_thinking": False}
        return render_messages(self._tokenizer, rendered, **options)

    def resume(self, messages: Sequence[Message], at: int, tools: Sequence[Tool]) -> Ids | None:
        """Return the tokens from the end token of answer `at` to the next answer."""
        ids, answer, turn = [self.end], messages[at], list[Message]()
        try:
            for message in messages[at + 1 :]:
                if message["role"] != "assistant":
                    turn.append(message)
                    continue
                ids += (*self._resume(answer, turn), *self._encode(message), self.end)
                answer, turn = message, []
            return (*ids, *self._resume(answer, turn))
        except ConfigError:
            return None

    def _resume(self, answer: Message, turn: Sequence[Message]) -> Ids:
        """Return the tokens between the end token of an answer and the next answer."""
        roles = [message["role"] for message in turn]
        if self.template is not None and len(answer["calls"]) == 1 and roles in (["tool"], ["tool", "user"]):
            form = self.template.tools
            if form is not None:
                return form.resume([_convert(message) for message in turn])
        if self.template is None or answer["calls"] or roles != ["user"]:
            raise ConfigError(f"an answer is followed by {roles}; one message, or a result, can be appended.")
        return self.template.resume(turn[0]["text"])

    def _encode(self, answer: Message) -> Ids:
        """Return the tokens of an answer that was not sampled, without its end token."""
        form = None if self.template is None else self.template.tools
        if self.template is None or len(answer["calls"]) > 1 or (answer["calls"] and form is None):
            raise ConfigError(f"an answer with {len(answer['calls'])} calls cannot be appended; call one tool.")
        if form is None or not answer["calls"]:
            return self.template.encode(answer["text"])
        (call,) = answer["calls"]
        return form.encode(call["name"], call["arguments"])


def to_plain(messages: Sequence[BaseMessage], *, has_tools: bool = False) -> list[Message]:
    """Return messages in plain form, with calls numbered in order; programs number them in ways of their own."""
    plain, ids = list[Message](), dict[str | None, str]()
    number = 0
    for message in messages:
        role = {"system": "system", "tool": "tool" if has_tools else "user"}.get(message.type, "user")
        text = str(message.text)
        entry: dict[str, Any] = {"role": role, "text": text, "calls": [], "answers": None, "name": message.name}
        if isinstance(message, AIMessage):
            entry["role"] = "assistant"
            for call in message.tool_calls if has_tools else ():
                number += 1
                ids[call["id"]] = make_id(number)
                entry["calls"].append({"id": make_id(number), "name": call["name"], "arguments": call["args"]})
        elif isinstance(message, ToolMessage) and has_tools:
            entry["answers"] = ids.get(message.tool_call_id, message.tool_call_id)
        plain.append(entry)
    return plain


def list_readings(answer: AIMessage, *, has_tools: bool = False) -> Iterator[AIMessage]:
    """Yield the messages that stand for an answer in a later request: itself, and what `ChatPolicy` reads in it."""
    yield answer
    text = str(answer.text)
    if answer.tool_calls or not text.strip():
        return
    thought, choice = split_speech(text)
    call, action = prompts.find_call(text), prompts.free_action(choice)
    texts = [prompts.clean(text, len(text)), prompts.free_action(text), call]
    texts += [f"{thought}\n{act}" for act in (call, action) if thought and act]
    yield from (AIMessage(reading) for reading in dict.fromkeys(texts) if reading)
    parsed = parse_call(prompts.free_action(call) or "") if call and has_tools else None
    if parsed is not None:
        name, _, arguments = parsed
        yield AIMessage(thought, tool_calls=[{"name": name, "args": arguments, "id": ""}])


def _convert(message: Message) -> dict[str, Any]:
    """Return a plain message in the form of chat templates."""
    converted: dict[str, Any] = {"role": message["role"], "content": message["text"]}
    if message["role"] == "tool":
        converted |= {"tool_call_id": message["answers"], "name": message["name"]}
    if message["calls"]:
        converted["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
            for call in message["calls"]
        ]
    return converted
