"""Logs of conversations: which requests a person made, which calls were made for each, and how it ended.

A conversation with an outcome is one episode, and the outcome belongs to all of its requests. Without one, each
request is an episode of its own.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hardwon.runtime.integrations.tool_episode import iter_calls

from .messages import Message, conversation, form_of, is_messages, plain_messages
from .spool import LoggedEpisode, Request, Spool

Outcome = tuple[bool, float]
"""Success, and a score in [0, 1]."""
_OUTCOMES = ("score", "reward", "success", "correctness")
_WHOLE = "conversation"
"""The part of a file that is one conversation, a message a line."""


class Conversations:
    """Reads lines of logs, each a conversation, or a file that is one."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._single: bool | None = None
        self._numbers: dict[str, int] = {}
        """Of Responses: the row of each, by its id."""
        self._after: dict[int, str] = {}
        """Of Responses: the id of the one before."""
        self.form = "openai"
        """The form of the messages: the first in which a call or an answer stands."""
        self.unanswered = 0
        """Calls without an answer: why a conversation may have nothing to tell."""

    def add(self, place: str, value: Any) -> None:
        """Take in a value of the file. Raises ValueError for what is no conversation, or no message of the one."""
        if self._single is None:
            self._single = isinstance(value, Mapping) and is_messages([value]) and "messages" not in value
        if self.form == "openai":
            self.form = form_of([value] if self._single else value)
        if self._single:
            self._spool.put(_WHOLE, place, list(plain_messages(value)))
            return
        messages = conversation(value)
        digests = list(digest_beginnings(messages))
        self._spool.begin(digests[:-1])
        number = self._spool.put(place, place, [messages, outcome_of(value)])
        if isinstance(value, Mapping):
            self._link(number, value)

    def _link(self, number: int, value: Mapping[str, Any]) -> None:
        """Remember which response goes on from which."""
        request, answer = (value.get(name) or value for name in ("request", "response"))
        if not isinstance(request, Mapping) or not isinstance(answer, Mapping):
            return
        if isinstance(answer.get("id"), str):
            self._numbers[answer["id"]] = number
        before = request.get("previous_response_id") or answer.get("previous_response_id")
        if isinstance(before, str):
            self._after[number] = before

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield the episodes; of calls to a model that each repeat the conversation so far, those of the last."""
        if self._single:
            yield from self._told([m for _, some in self._spool.values(_WHOLE) for m in some], None)
            return
        continued = set(self._after.values())
        ended = {number for ref, number in self._numbers.items() if ref in continued}
        for number, part in enumerate(self._spool.parts(), 1):
            if number in ended:
                continue
            messages, outcome = self._read(part)
            messages = [*self._earlier(number), *messages]
            known = list(digest_beginnings(messages))
            if known and not self._spool.went_on(known[-1]):
                yield from self._told(messages, None if outcome is None else (outcome[0], outcome[1]))

    def _read(self, part: str) -> tuple[list[Message], Any]:
        ((_, (messages, outcome)),) = self._spool.values(part)
        return messages, outcome

    def _earlier(self, number: int) -> list[Message]:
        """The messages of the responses that one goes on from."""
        chain: list[int] = []
        while (before := self._numbers.get(self._after.get(number, ""))) and before not in chain and before != number:
            chain.append(number := before)
        parts = list(self._spool.parts()) if chain else []
        return [message for at in reversed(chain) for message in self._read(parts[at - 1])[0]]

    def _told(self, messages: list[Message], outcome: Outcome | None) -> Iterator[LoggedEpisode]:
        made = sum(len(message["calls"]) for message in messages)
        found = list(split_requests(messages))
        self.unanswered += made - sum(len(calls) for _, (_, calls) in found)
        yield from log_episodes(found, outcome)


def log_episodes(found: Sequence[tuple[str, Request]], outcome: Outcome | None) -> Iterator[LoggedEpisode]:
    """Yield one episode of all requests where there is an outcome, else one of each request."""
    if outcome is None:
        for ref, request in found:
            yield LoggedEpisode(ref, (request,))
    elif found:
        yield LoggedEpisode(found[-1][0], tuple(request for _, request in found), *outcome)


def split_requests(messages: Sequence[Message]) -> Iterator[tuple[str, Request]]:
    """Yield every request of a person for which calls were made and answered, with a digest of all up to its end."""
    starts = [n for n, message in enumerate(messages) if message["role"] == "user"] or [-1]
    digests = list(digest_beginnings(messages))
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        calls = tuple(iter_calls(messages[start + 1 : end]))
        if calls:
            yield digests[end - 1].hex(), (messages[start]["text"] if start >= 0 else "", calls)


def digest_beginnings(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield, for every beginning of a conversation, what tells it from others."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        kept = [message["role"], message["text"], [[call["name"], call["arguments"]] for call in message["calls"]]]
        digest.update(json.dumps(kept, sort_keys=True).encode())
        yield digest.digest()


def outcome_of(value: Any) -> Outcome | None:
    """Return the outcome that a record has under one of the usual names; an error is a failure."""
    if not isinstance(value, Mapping):
        return None
    for source in (value, value.get("metadata"), value.get("extra"), value.get("feedback_stats")):
        if not isinstance(source, Mapping):
            continue
        for name in _OUTCOMES:
            known = source.get(name)
            known = known.get("avg") if isinstance(known, Mapping) else known
            if isinstance(known, int | float):
                score = min(1.0, max(0.0, float(known)))
                return score >= 1.0, score
    return (False, 0.0) if value.get("error") else None
