"""The chat completions API: requests with `messages`, responses with `choices`.

A stream is assembled to the same form as a whole response, while its bytes go on to the client.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.apps.importers.messages import plain_messages
from hardwon.runtime.integrations.tool_run import append_warning

from .conversations import ModelCall, ModelRequest
from .dialect import Answer
from .events import format_event, is_end_mark


class ChatCompletions:
    """The dialect of chat completions."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        """Set these fields in every request."""
        self._extra = extra

    def prepare(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the fields that the user of the proxy sets."""
        return {**body, **self._extra}

    def is_conversation(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request has messages and asks for a single choice, which will be the next message."""
        messages = body.get("messages")
        is_list = isinstance(messages, list) and bool(messages) and all(isinstance(entry, dict) for entry in messages)
        return is_list and body.get("n") in (None, 1) and "functions" not in body

    def read_request(self, body: Mapping[str, Any]) -> ModelRequest:
        """Return the messages of a request."""
        messages = tuple(plain for message in body["messages"] for plain in plain_messages(message))
        return ModelRequest(messages, str(body.get("model") or ""))

    def add_experience(self, body: Mapping[str, Any], turn: ModelCall, place: str) -> dict[str, Any]:
        """Return the request with warnings below the answers of tools, and with the hint."""
        messages = [_add_warning(message, turn.warnings) for message in body["messages"]]
        if turn.hint and place == "message":
            messages.append({"role": "user", "content": turn.hint})
        elif turn.hint:
            messages = _add_to_system(messages, turn.hint)
        return {**body, "messages": messages}

    def add_refusals(self, body: Mapping[str, Any], answer: Answer, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request that continues with the last response and answers to its calls."""
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(answer.calls, texts, strict=True)
        ]
        return {**body, "messages": [*body["messages"], dict(_get_message(answer.value)), *answers]}

    def parse(self, data: bytes) -> Answer | None:
        """Return a completion with a message, or None if the body has another form."""
        try:
            return _read_completion(json.loads(data))
        except (ValueError, RecursionError):
            return None

    def end(self, answer: Answer, text: str) -> Answer:
        """Return the answer with a text in the place of its calls."""
        choice = {
            **answer.value["choices"][0],
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        ended = _read_completion({**answer.value, "choices": [choice]})
        assert ended is not None
        return ended

    def open_reader(self) -> "ChatReader":
        """Return a reader for the stream of one exchange."""
        return ChatReader()


class ChatReader:
    """Reads the chunks of a stream, and of the responses that continue it."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self._builder = CompletionBuilder()
        self._before = ""
        """Text that the client has of responses whose calls were refused."""
        self._continues: bool | None = None
        self._has_end = False

    def begin(self) -> None:
        """Begin with a response."""
        self._continues = self._continues is not None
        self._before += self._builder.text
        self._builder, self.held, self._has_end = CompletionBuilder(), [], False

    def add(self, event: bytes, chunk: Any, *, holds: bool) -> list[bytes]:
        """Add a chunk, and return the events to pass on now."""
        self._builder.add(chunk)
        self._has_end = self._has_end or is_end_mark(event)
        if self._continues:
            event = drop_role(event, chunk)
        if holds and (self.held or has_calls(chunk)):
            self.held.append(event)
            return []
        return [event]

    @property
    def is_over(self) -> bool:
        """Return whether the model has finished its answer."""
        return self._builder.has_choice and self._builder.finish_reason is not None

    @property
    def is_cut(self) -> bool:
        """Return whether the answer has begun, and neither its end nor an error came."""
        return self._builder.is_unfinished and not (self._has_end or self._builder.has_error)

    def read_response(self) -> Answer | None:
        """Return the current response."""
        return _read_completion(self._builder.build())

    def read_answer(self) -> Answer | None:
        """Return the answer that the client sees."""
        return _read_completion(self._builder.build(before=self._before))

    def end(self, text: str) -> list[bytes]:
        """Return the events that end the stream with a text in the place of the calls held."""
        self._builder.end(text)
        delta: dict[str, Any] = {} if self._continues else {"role": "assistant"}
        choice = {"index": 0, "delta": {**delta, "content": text}, "finish_reason": "stop"}
        value = self._builder.build()
        kept: dict[str, Any] = {name: value[name] for name in ("id", "model") if name in value}
        chunk = {"object": "chat.completion.chunk", "created": 0, **kept, "choices": [choice]}
        return [format_event(chunk), b"data: [DONE]\n\n"]


def _get_message(value: Mapping[str, Any]) -> Mapping[str, Any]:
    message: Mapping[str, Any] = value["choices"][0]["message"]
    return message


def _read_completion(value: Any) -> Answer | None:
    """Return a completion as an answer, or None if it has no message."""
    try:
        choice = value["choices"][0]
        plain = tuple(plain_messages({"content": None, **choice["message"], "role": "assistant"}))
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return Answer(value, plain, str(choice.get("finish_reason") or "stop"))


def _add_warning(message: Any, warnings: Mapping[str, str]) -> Any:
    warning = warnings.get(str(message.get("tool_call_id") or ""))
    return {**message, "content": append_warning(message.get("content"), warning)} if warning else message


def _add_to_system(messages: list[Any], hint: str) -> list[Any]:
    for at, message in enumerate(messages):
        if message.get("role") in ("system", "developer"):
            content = message.get("content")
            parts = [*content, {"type": "text", "text": hint}] if isinstance(content, list) else f"{content}\n\n{hint}"
            return [*messages[:at], {**message, "content": parts}, *messages[at + 1 :]]
    return [{"role": "system", "content": hint}, *messages]


class CompletionBuilder:
    """Assembles the chunks of a stream to a response with one choice."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: list[Any] = []
        self._token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.has_choice = False
        self._has_ended: dict[int, bool] = {}
        """Whether each choice that has begun has ended, by index; a request with `n` has several."""

    def add(self, chunk: Any) -> None:
        """Add a chunk; what is not a chunk of the first choice is ignored."""
        if not isinstance(chunk, Mapping):
            return
        for name in ("id", "model", "usage", "prompt_token_ids", "error"):
            if chunk.get(name) is not None:
                self._fields[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            at = choice.get("index", 0)
            self._has_ended[at] = self._has_ended.get(at, False) or bool(choice.get("finish_reason"))
            if at == 0:
                self.has_choice = True
                self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        for name in ("content", "refusal", "reasoning_content"):
            if isinstance(delta.get(name), str):
                self._message[name] = (self._message.get(name) or "") + delta[name]
        for at, part in enumerate(delta.get("tool_calls") or ()):
            self._add_call(part, at)
        self._logprobs += (choice.get("logprobs") or {}).get("content") or ()
        self._token_ids += choice.get("token_ids") or ()
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_call(self, part: Mapping[str, Any], at: int) -> None:
        call = self._calls.setdefault(int(part.get("index", at)), {"function": {"name": "", "arguments": ""}})
        function = part.get("function") or {}
        call["id"] = part.get("id") or call.get("id")
        call["type"] = part.get("type") or call.get("type") or "function"
        # Some servers repeat the whole name in every chunk; none splits it.
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments
        elif arguments is not None:
            call["function"]["arguments"] = arguments

    @property
    def is_unfinished(self) -> bool:
        """Return whether a choice has begun and not ended."""
        return not all(self._has_ended.values())

    @property
    def has_error(self) -> bool:
        """Return whether the server wrote an error into the stream."""
        return "error" in self._fields

    @property
    def text(self) -> str:
        """The text so far."""
        return self._message["content"] or ""

    def end(self, text: str) -> None:
        """Put a text in the place of the calls."""
        self._message["content"] = self.text + text
        self._calls, self.finish_reason = {}, "stop"

    def build(self, *, before: str = "") -> dict[str, Any]:
        """Return the response so far, in the form of one that was not streamed, with a text before its own."""
        message = dict(self._message)
        if before:
            message["content"] = before + self.text
        if self._calls:
            message["tool_calls"] = [self._calls[at] for at in sorted(self._calls)]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if self._token_ids:
            choice["token_ids"] = self._token_ids
        return {**self._fields, "choices": [choice]}


def has_calls(chunk: Any) -> bool:
    """Return whether a chunk has a part of a tool call, or ends a response that has one."""
    choices = chunk.get("choices") or () if isinstance(chunk, Mapping) else ()
    return any(
        (choice.get("delta") or {}).get("tool_calls") or choice.get("finish_reason") == "tool_calls"
        for choice in choices
    )


def drop_role(event: bytes, chunk: Any) -> bytes:
    """Return an event of a response that continues another one: clients join the deltas, and the role came already."""
    choices = chunk.get("choices") or () if isinstance(chunk, Mapping) else ()
    if not any("role" in (choice.get("delta") or {}) for choice in choices):
        return event
    kept = [
        {**choice, "delta": {name: part for name, part in (choice.get("delta") or {}).items() if name != "role"}}
        for choice in choices
    ]
    return format_event({**chunk, "choices": kept})
