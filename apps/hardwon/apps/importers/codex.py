"""Read Codex rollouts: the lines of ~/.codex/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl.

A line has a `timestamp`, a `type` and a `payload`. Lines of type `response_item` hold the calls and their outputs in
OpenAI's Responses format; `event_msg` lines of type `user_message` hold the requests of the person. Rollouts without
such events have the requests among the items, beside instructions that the program inserted. Each request is an
episode.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hardwon.apps.shared.remarks import drop_remarks
from hardwon.runtime.integrations.tool_episode import iter_calls
from hardwon.runtime.interfaces.endings import read_ending
from hardwon.runtime.interfaces.results import find_failure

from .messages import LoggedMessage, plain_messages
from .spool import LoggedEpisode, Spool, refer_to_call, started_at

TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_STOPPED = "<turn_aborted>"
"""Beginning of what the program inserts when the person stops a turn; newer versions write an event as well."""
_INSERTED = ("<environment_context>", "<user_instructions>", "# AGENTS.md", "<INSTRUCTIONS>")
"""Beginnings of user messages that no person wrote."""
_HEAD = re.compile(r"Wall time: [^\n]{1,40}\n(?:Original token count: \d+\n)?Output:\n")
"""Lines above the output of a server's tool."""


def is_rollout(value: Any) -> bool:
    """Return whether a value is a line of a rollout."""
    return isinstance(value, Mapping) and value.get("type") in TYPES and isinstance(value.get("payload"), Mapping)


class Rollouts:
    """Reader of rollout lines, from one session or several."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._session = ""
        self._with_events: set[str] = set()
        """Sessions whose requests are events; their user messages repeat them."""

    def add(self, place: str, value: Any) -> None:
        """Add a line."""
        if not is_rollout(value):
            raise ValueError("not a line of a rollout: it has no payload")
        kind, payload, at = value["type"], value["payload"], value.get("timestamp")
        if kind == "session_meta":
            self._session = str(payload.get("id") or place)
        elif kind == "event_msg" and payload.get("type") == "user_message":
            self._with_events.add(self._session)
            request = _make_request(str(payload.get("message") or ""))
            self._spool.put(self._session, place, ["event", [request], at], at=at)
        elif kind == "event_msg" and payload.get("type") == "turn_aborted":
            self._spool.put(self._session, place, ["item", [_make_stop()], at], at=at)
        elif kind == "response_item" and payload.get("role") not in ("developer", "system"):
            messages = [_unwrap_output(message) for message in plain_messages(payload)]
            self._spool.put(self._session, place, ["item", messages, at], at=at)

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode for each request that led to tool calls."""
        for session in self._spool.parts():
            number, task, replies, start = 0, "", list[LoggedMessage](), None
            for _, (source, messages, at) in self._spool.values(session):
                for message in messages:
                    if message["role"] != "user":
                        replies.append(message)
                    elif message["text"].lstrip().startswith(_STOPPED):
                        replies.append(_make_stop())
                    elif self._is_request(session, source, message["text"]):
                        yield from self._build_episode(session, number, task, replies, start)
                        number, task, replies, start = number + 1, message["text"], [], at
            yield from self._build_episode(session, number, task, replies, start)

    def _is_request(self, session: str, source: str, text: str) -> bool:
        if session in self._with_events:
            return source == "event"
        return bool(text.strip()) and not text.lstrip().startswith(_INSERTED)

    def _build_episode(
        self, session: str, number: int, task: str, replies: list[LoggedMessage], start: Any
    ) -> Iterator[LoggedEpisode]:
        calls = tuple(replace(call, arguments=drop_remarks(call.arguments)) for call in iter_calls(replies))
        all_calls = [call for message in replies for call in message["calls"]]
        if all_calls and task.strip():  # without its request, a turn was cut at its beginning
            older = f"{session} {number}"
            ref = refer_to_call(all_calls[0]["id"]) or _refer_to_content(number, start, task, all_calls[0]) or older
            aliases = () if ref == older else (older,)
            meta = {"trace": session, **started_at(start)}
            yield LoggedEpisode(ref, ((task, calls),), meta=meta, aliases=aliases, ending=read_ending(replies))


def _refer_to_content(number: int, start: Any, task: str, call: Any) -> str:
    """Return the reference of a request without unique ids by its place, time, text and first call, if it has a time.

    A copy in another session has all of them.
    """
    text = json.dumps([number, start, task, call["name"], call["arguments"]], sort_keys=True)
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest() if start else ""


def _make_request(text: str) -> LoggedMessage:
    return {"role": "user", "text": text, "calls": [], "answers": None, "error": False}


def _make_stop() -> LoggedMessage:
    """Return a message that says that the turn was stopped; see `read_ending`."""
    return {**_make_request(""), "role": "assistant", "unfinished": "interrupted"}


def _unwrap_output(message: LoggedMessage) -> LoggedMessage:
    """Return an output as its tool wrote it.

    Older versions wrap that of a shell: {"output": "...", "metadata": {"exit_code": 0}}. Newer ones have lines above an
    output; without an exit code among them, it is a server's.
    """
    if message["role"] != "tool":
        return message
    if head := _HEAD.match(message["text"]):
        text = message["text"][head.end() :]
        return {**message, "text": text, "error": message["error"] or bool(find_failure(text))}
    try:
        value = json.loads(message["text"])
    except (ValueError, RecursionError):
        return message
    if isinstance(value, dict) and isinstance(value.get("output"), str):
        message = {**message, "text": value["output"]}
    return message
