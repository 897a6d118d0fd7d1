"""The form in which a chat template writes tools, calls and results, found by rendering examples.

    form = ToolForm.find(render, tokenizer, head, end)   # None if it has none that a grammar can bind
    form.call                                            # how a call is written
    form.resume(messages)                                # the tokens between a call and the next answer

A call must be one JSON object with the name and the arguments, between texts and control tokens, so that a grammar can
bind it. All else, such as arguments in XML, is left to programs. Nothing may be rewritten when a conversation grows.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Ids

from .grammar import CallForm
from .rendering import encode_text

Messages = Sequence[Mapping[str, Any]]
RenderTemplate = Callable[..., Ids]
"""Renders messages up to the next answer, or without one (`answer=False`), with further variables of the template."""

ARGUMENT_WORD, RESULT = "Obsidian", "Porphyry"
"""Words of the example call and its result, which no template contains."""
_NAME, _ARGUMENT, _ADVICE = "quartzite", f'{ARGUMENT_WORD} "<é>"', "Feldspar"
_ARGUMENTS = {"at": _ARGUMENT}
_ID = "zircon123"
TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
_FUNCTION = {"name": _NAME, "arguments": _ARGUMENTS}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _ID, "type": "function", "function": _FUNCTION}],
}
ANSWERED = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": RESULT}
_ADVISED = {"role": "user", "content": _ADVICE}


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The form of calls, and how a conversation goes on behind one."""

    call: CallForm
    tokenizer: Any
    render: RenderTemplate
    head: Messages
    """Messages before the call of a rendering, of which nothing is kept."""
    prefix: Ids
    """The tokens of these messages and a call, up to and including its end."""

    @classmethod
    def find(cls, render: RenderTemplate, tokenizer: Any, head: Messages, end: int) -> "ToolForm | None":
        """Return the form of a template; None if it has none, or one that cannot be bound or grows by rewriting."""
        try:
            if render(head, tools=[TOOL]) == render(head):
                return None
            call, prefix = _find_call(render, tokenizer, head, end)
            form = cls(call, tokenizer, render, head, prefix)
            plain, advised = (
                str(tokenizer.decode(form.resume(messages))) for messages in ([ANSWERED], [ANSWERED, _ADVISED])
            )
        except Exception:  # a template is a program: it may raise anything for what it does not expect
            return None
        # the name and the id of the call are those of an example
        is_general = _NAME not in advised and _ID not in advised
        is_whole = RESULT in plain and _ADVICE in advised
        return form if is_general and is_whole else None

    def encode(self, name: str, arguments: Mapping[str, Any]) -> Ids:
        """Return the tokens of a call without its end token. Control tokens in its texts are plain text."""
        parts = self.call.write(name, arguments)
        encoded = ((part,) if isinstance(part, int) else encode_text(self.tokenizer, part) for part in parts)
        return tuple(token for tokens in encoded for token in tokens)

    def resume(self, messages: Messages) -> Ids:
        """Return the tokens between the end token of a call and the next answer."""
        answers = [
            {**message, "tool_call_id": _ID, "name": _NAME} if message["role"] == "tool" else message
            for message in messages
        ]
        ids = self.render([*self.head, CALL, *answers], tools=[TOOL])
        if ids[: len(self.prefix)] != self.prefix:
            raise ConfigError("the chat template rewrites a call when its result follows; use another base.")
        return ids[len(self.prefix) :]


def _find_call(render: RenderTemplate, tokenizer: Any, head: Messages, end: int) -> tuple[CallForm, Ids]:
    """Return the form of a call, and the tokens of a conversation up to and including one."""
    pair = [render([*head, {"role": "assistant", "content": text}], answer=False, tools=[TOOL]) for text in "xy"]
    start = next(n for n, (token, other) in enumerate(zip(*pair, strict=False)) if token != other)
    answer = render([*head, CALL], answer=False, tools=[TOOL])
    body = answer[start : answer.index(end, start)]
    if answer[:start] != pair[0][:start] or _ID in tokenizer.decode(body):
        raise ValueError("an answer with a call begins differently, or has its id.")
    form = _read_form(list(_cut(tokenizer, body)))
    # an answer may begin differently where other messages follow it, as without an empty thought
    longer = list(render([*head, CALL, ANSWERED], tools=[TOOL]))
    at = -1
    for _ in range(render(head, answer=False, tools=[TOOL]).count(end) + 1):
        at = longer.index(end, at + 1)
    return form, tuple(longer[: at + 1])


def _cut(tokenizer: Any, ids: Ids) -> Iterator[str | int]:
    """Yield the control tokens of a text, and the texts between them."""
    text: list[int] = []
    for token in ids:
        if token in tokenizer.added_tokens_decoder:
            if text:
                yield str(tokenizer.decode(text))
                text = []
            yield token
        else:
            text.append(token)
    if text:
        yield str(tokenizer.decode(text))


def _read_form(parts: Sequence[str | int]) -> CallForm:
    """Return the form of the example call, of which the parts are given."""
    for number, part in enumerate(parts):
        if isinstance(part, str) and "{" in part:
            start = part.index("{")
            value, length = json.JSONDecoder().raw_decode(part[start:])
            end = start + length
            before, after = part[:start], part[end:]
            first, last = list(value)
            if list(value.values()) != [_NAME, _ARGUMENTS] or json.dumps(value, ensure_ascii=False) != part[start:end]:
                break
            return CallForm(
                (*parts[:number], *filter(None, [before])), (*filter(None, [after]), *parts[number + 1 :]), first, last
            )
    raise ValueError("the call is not one JSON object.")
