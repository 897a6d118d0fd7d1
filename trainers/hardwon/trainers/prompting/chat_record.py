"""The token ids of conversations that a model answered, so that a request that continues one continues its ids.

    record = ChatRecord(prompts)
    prompt = record.open(messages, tools)             # token ids
    record.keep(messages, tools, answer, [*prompt, *sampled])

A request to a chat model repeats the whole conversation as text. If it continues an answer that was sampled here, its
prompt is the tokens up to that answer, the answer as it was sampled, and the rendered messages after it. Otherwise, as
after a changed message, everything is rendered. Use a record from one thread, or one event loop.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hardwon.trainers.algorithms.samples import Ids

Message = Mapping[str, Any]
"""A message in the plain form of `hardwon.runtime.integrations.tool_episode.normalize_message`."""
Tool = Mapping[str, Any]
"""A tool in OpenAI's form."""


class ChatPrompts(Protocol):
    """Renders messages with a chat template."""

    end: int
    """The token that ends an answer."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Return the tokens of whole messages, up to the next answer."""
        ...

    def resume(self, messages: Sequence[Message], at: int, tools: Sequence[Tool]) -> Ids | None:
        """Return the tokens from the end token of answer `at` to the next answer; None if only `render` has them."""
        ...


class ChatRecord:
    """The token ids of conversations, by their messages. See the module's docstring."""

    def __init__(self, prompts: ChatPrompts, *, most: int = 4_000_000) -> None:
        """Create an empty record."""
        self._prompts, self._most = prompts, most
        self._read: OrderedDict[bytes, Ids] = OrderedDict()
        """The tokens up to and including an answer, by the digest of the messages up to it."""
        self.size = 0
        """Number of tokens that are kept."""

    def open(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Return the prompt of a request."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at]["role"] != "assistant":
                continue
            key = _digest(messages[: at + 1], tools)
            if (read := self._read.get(key)) is not None:
                self._read.move_to_end(key)
                more = self._prompts.resume(messages, at, tools)
                if more is None:
                    break
                # an answer that the limit cut has no end token; the next prompt gets it, so it is not trained on
                return (*read, *(more[1:] if read[-1] == self._prompts.end else more))
        return self._prompts.render(messages, tools)

    def keep(self, messages: Sequence[Message], tools: Sequence[Tool], answer: Message, tokens: Ids) -> None:
        """Keep the tokens of a conversation up to and including a sampled answer."""
        key = _digest([*messages, answer], tools)
        self.size += len(tokens) - len(self._read.pop(key, ()))
        self._read[key] = tokens
        while self.size > self._most:
            self.size -= len(self._read.popitem(last=False)[1])


def _digest(messages: Sequence[Message], tools: Sequence[Tool]) -> bytes:
    """Return the digest of a conversation; the ids of calls distinguish conversations with equal words."""
    kept = [
        [
            message["role"],
            # programs strip what a model said
            message["text"].strip() if message["role"] == "assistant" else message["text"],
            [[call["id"], call["name"], call["arguments"]] for call in message["calls"]],
            message["answers"],
        ]
        for message in messages
    ]
    content = json.dumps([kept, list(tools)], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).digest()
