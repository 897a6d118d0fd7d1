"""The chat completions API: requests with `messages`, responses with `choices`.

A stream is assembled to the same form as a whole response, while its bytes go on to the client.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hardwon.apps.importers.messages import plain_messages
from hardwon.runtime.integrations.tool_episode import extract_text
from hardwon.runtime.integrations.tool_run import append_warning

from .conversations import ModelCall, ModelRequest
from .dialect import ReadOnce, UpstreamAnswer, explain_unreadable, find_request
from .events import format_event, is_end_mark, parse_event
from .json_text import load
from .streams.completion import CompletionBuilder, has_calls, iter_deltas, list_parts


class ChatCompletions:
    """The dialect of chat completions."""

    def __init__(self) -> None:
        self._read = ReadOnce(plain_messages)

    def prepare(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request as it is."""
        return dict(body)

    def is_conversation(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request has messages and asks for a single choice, which will be the next message."""
        messages = body.get("messages")
        is_list = isinstance(messages, list) and bool(messages) and all(isinstance(entry, dict) for entry in messages)
        return is_list and body.get("n") in (None, 1) and "functions" not in body

    def can_call(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request names tools."""
        return bool(body.get("tools") or body.get("functions"))

    def read_request(self, body: Mapping[str, Any]) -> ModelRequest:
        """Return the messages of a request."""
        return ModelRequest(self._read(body["messages"]), extract_text(body.get("model")))

    def add_experience(self, body: Mapping[str, Any], turn: ModelCall, place: str) -> dict[str, Any]:
        """Return the request with warnings below the answers of tools, and with the hint."""
        messages = [_add_warning(message, turn.warnings) for message in body["messages"]]
        if turn.hint and place == "message":
            messages.insert(find_request(messages), {"role": "user", "content": turn.hint})
        elif turn.hint:
            messages = _add_to_system(messages, turn.hint)
        return {**body, "messages": messages}

    def add_refusals(self, body: Mapping[str, Any], answer: UpstreamAnswer, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request that continues with the last response and answers to its calls."""
        message = answer.value["choices"][0]["message"]
        own = [call.get("id") for call in message.get("tool_calls") or ()]
        answers: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": name, "content": text} for name, text in zip(own, texts, strict=False)
        ]
        if message.get("function_call"):  # the API's old form
            answers.append({"role": "function", "name": message["function_call"]["name"], "content": texts[-1]})
        return {**body, "messages": [*body["messages"], dict(message), *answers]}

    def parse(self, data: bytes) -> UpstreamAnswer | None:
        """Return a completion with a message, or None if the body has another form."""
        try:
            return _read_completion(load(data))
        except ValueError:
            return None

    def end(self, answer: UpstreamAnswer, text: str) -> UpstreamAnswer:
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
        self._has_end = self._is_within = False

    def begin(self) -> None:
        """Begin with a response."""
        self._continues = self._continues is not None
        self._before += self._builder.text
        self._builder, self.held, self._has_end, self._is_within = CompletionBuilder(), [], False, False

    def add(self, event: bytes, chunk: Any, *, holds: bool) -> list[bytes]:
        """Add a chunk, and return the events to pass on now."""
        self._is_within = self._is_within and chunk is None
        self._builder.add(chunk)
        self._is_within = self._is_within or _is_plain(chunk)
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
        """Return whether the last chunk is a plain one, while an answer has no end, and no error came."""
        builder = self._builder
        is_unfinished = builder.has_choice and builder.finish_reason is None
        return self._is_within and is_unfinished and not (self._has_end or builder.has_error)

    def read_response(self) -> UpstreamAnswer | None:
        """Return the current response."""
        return _read_completion(self._builder.build())

    def read_answer(self) -> UpstreamAnswer | None:
        """Return the answer that the client sees."""
        return _read_completion(self._builder.build(before=self._before))

    def release(self) -> list[bytes]:
        """Return the events held; calls that clients may tell apart in another way get new numbers and no parts."""
        if not self._builder.is_ambiguous:
            return self.held
        calls: list[Any] = [{"index": at, **call} for at, call in enumerate(self._builder.calls)]
        released = []
        for event in self.held:
            chunk = parse_event(event)
            if has_calls(chunk) and any(delta.get("tool_calls") for delta in _iter_all_deltas(chunk)):
                event, calls = format_event(_replace_calls(chunk, calls)), []
            released.append(event)
        return released

    def end(self, text: str) -> list[bytes]:
        """Return the events that end the stream with a text in the place of the calls held."""
        self._builder.end(text)
        delta: dict[str, Any] = {} if self._continues else {"role": "assistant"}
        choice = {"index": 0, "delta": {**delta, "content": text}, "finish_reason": "stop"}
        value = self._builder.build()
        kept: dict[str, Any] = {name: value[name] for name in ("id", "model") if name in value}
        chunk = {"object": "chat.completion.chunk", "created": 0, **kept, "choices": [choice]}
        return [format_event(chunk), b"data: [DONE]\n\n"]


def _is_plain(chunk: Any) -> bool:
    """Return whether a chunk has parts of answers in a form that tells whether they end."""
    choices = list_parts(chunk.get("choices")) if isinstance(chunk, Mapping) else []
    return bool(choices) and all(
        isinstance(choice.get("delta"), Mapping) and isinstance(choice.get("finish_reason") or None, str | None)
        for choice in choices
    )


def drop_role(event: bytes, chunk: Any) -> bytes:
    """Return an event of a response that continues another one: clients join the deltas, and the role came already."""
    if not any("role" in delta for delta in _iter_all_deltas(chunk)):
        return event
    kept = [
        {**choice, "delta": {name: part for name, part in (choice.get("delta") or {}).items() if name != "role"}}
        for choice in chunk["choices"]
    ]
    return format_event({**chunk, "choices": kept})


def _iter_all_deltas(chunk: Any) -> Iterator[Mapping[str, Any]]:
    choices = list_parts(chunk.get("choices")) if isinstance(chunk, Mapping) else []
    return (delta for choice in choices for delta in iter_deltas(choice))


def _replace_calls(chunk: Mapping[str, Any], calls: list[Any]) -> dict[str, Any]:
    """Return a chunk with other calls, of which the first choice gets all."""
    choices: list[Any] = []
    for choice in chunk["choices"]:
        delta = {name: part for given in iter_deltas(choice) for name, part in given.items() if name != "tool_calls"}
        rest = {name: part for name, part in choice.items() if name != "message"}
        choices.append({**rest, "delta": delta if choices or not calls else {**delta, "tool_calls": calls}})
    return {**chunk, "choices": choices}


def _read_completion(value: Any) -> UpstreamAnswer | None:
    """Return a completion as an answer, or None if it has no message, or calls that do not stand in the message."""
    try:
        choice, *alternatives = list_parts(value["choices"])
        message = {"content": None, **choice["message"], "role": "assistant"}
        plain = tuple(plain_messages(message))
        plain_calls, calls = [call for part in plain for call in part["calls"]], list_parts(message.get("tool_calls"))
        if len(plain_calls) < len(calls) or any(has_calls({"choices": [other]}) for other in alternatives):
            return None
        for call, given in zip(plain_calls, calls, strict=False):
            arguments = {} if "custom" in given else (given.get("function") or given).get("arguments")
            call["unreadable"] = explain_unreadable(call["name"], arguments)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return UpstreamAnswer(value, plain, str(choice.get("finish_reason") or "stop"))


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
