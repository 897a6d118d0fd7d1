"""Read Claude Code transcripts: the lines of ~/.claude/projects/PROJECT/SESSION.jsonl.

Lines of type `user` and `assistant` contain a message in Anthropic's format; summaries, snapshots and progress lines
are skipped. A sidechain, the conversation of a subagent, is a separate conversation. Each user request is an episode,
identified by its first call, or by the id of its message if calls have no random ids.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hardwon.apps.shared.remarks import drop_remarks
from hardwon.runtime.integrations.tool_episode import iter_calls
from hardwon.runtime.interfaces.endings import read_ending

from .messages import plain_messages
from .spool import LoggedEpisode, Spool, refer_to_call

KINDS = (
    "user", "assistant", "system", "summary", "progress", "attachment", "file-history-snapshot", "queue-operation",
    "permission-mode", "custom-title", "ai-title", "agent-name", "last-prompt", "pr-link", "tag",
)  # fmt: skip
_MARKS = frozenset(["sessionId", "uuid", "leafUuid", "snapshot", "messageId"])
_NO_REQUEST = (
    "<command-name>", "<command-message>", "<local-command", "<bash-", "<system-reminder>", "<task-notification>",
    "[Request interrupted", "Caveat: The messages below were generated",
)  # fmt: skip
"""Prefixes of texts with the role `user` that are not requests of a person."""
_COMMAND = re.compile(
    r"\s*<command-message>[^<]*</command-message>\s*<command-name>(/[^<]*)</command-name>"
    r"(?:\s*<command-args>(.*)</command-args>)?\s*\Z",
    re.DOTALL,
)
"""A command of a person for the model. One that the program runs itself begins with its name."""


def is_line(value: Any) -> bool:
    """Return whether a value is a line of a transcript."""
    if not isinstance(value, Mapping) or "role" in value or not isinstance(value.get("type"), str):
        return False
    if value["type"] in ("user", "assistant"):
        return isinstance(value.get("message"), Mapping) and bool(_MARKS & set(value))
    return bool(_MARKS & set(value)) and ("sessionId" in value or value["type"] in KINDS)


def _drop_remarks(message: Mapping[str, Any]) -> Any:
    """Return the content of a message, with the same arguments of calls that the hook records."""
    content = message.get("content")
    if not isinstance(content, list):
        return content
    return [
        {**block, "input": drop_remarks(block["input"])}
        if isinstance(block, Mapping) and block.get("type") == "tool_use" and isinstance(block.get("input"), Mapping)
        else block
        for block in content
    ]


class Transcripts:
    """Reader of transcript lines, from one session or several.

    A line belongs to the request from which it descends, whatever session wrote it: a session that was resumed or
    forked writes the lines of before once more, under its own id.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._requests: dict[str, str] = {}
        """The request of every line, by the id of the line."""
        self._last: dict[str, str] = {}
        """The newest request of a session or a sidechain."""
        self.unanswered = 0

    def add(self, place: str, value: Any) -> None:
        """Add a line."""
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            raise ValueError("not a line of a transcript: it has no type")
        uuid, parent = value.get("uuid"), self._requests.get(str(value.get("parentUuid")))
        if isinstance(uuid, str) and uuid in self._requests:  # a resumed session repeats the earlier lines
            return
        lane = _find_lane(value)
        request = parent or self._last.get(lane) or f"{lane}\0"
        if value["type"] in ("user", "assistant"):
            request = self._add_message(place, value, lane, request)
        if isinstance(uuid, str):
            # Lines of every type, because a sidechain may start at any of them.
            self._requests[uuid] = request

    def _add_message(self, place: str, value: Mapping[str, Any], lane: str, request: str) -> str:
        """Add the messages of a line, and return the request to which the lines after it belong."""
        message = value.get("message")
        if not isinstance(message, Mapping):
            raise ValueError(f"a line of type {value['type']} without a message")
        # Text that the program inserted under the role `user`.
        hidden = bool(value.get("isMeta") or value.get("isCompactSummary") or value.get("isVisibleInTranscriptOnly"))
        ref = _find_ref(value) or f"{lane} {place}"
        for plain in plain_messages({"role": value["type"], **message, "content": _drop_remarks(message)}):
            if plain["role"] == "user":
                text = "" if hidden else read_request(plain["text"])
                if not text:
                    continue
                request, plain = ref, {**plain, "text": text}
                self._last[lane] = ref
            self._last.setdefault(lane, request)
            self._spool.put(request, place, [ref, lane, plain], at=value.get("timestamp"))
        return request

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode for each request that led to tool calls."""
        for request in self._spool.parts():
            lines = [line for _, line in self._spool.values(request)]
            task = next((message["text"] for _, _, message in lines if message["role"] == "user"), "")
            replies = [message for _, _, message in lines if message["role"] != "user"]
            calls = tuple(iter_calls(replies))
            all_calls = [call for message in replies for call in message["calls"]]
            self.unanswered += len(all_calls) - len(calls)
            if calls and task:  # without its request, a turn was cut at its beginning; another file has all of it
                ref = refer_to_call(all_calls[0]["id"]) or request
                older = request, *(f"{lane} {request}" for lane in dict.fromkeys(lane for _, lane, _ in lines))
                meta = {"trace": lines[0][1], **self._spool.find_start(request)}
                aliases = tuple(name for name in older if name != ref)
                yield LoggedEpisode(ref, ((task, calls),), meta=meta, aliases=aliases, ending=read_ending(replies))


def _find_ref(line: Mapping[str, Any]) -> str:
    """Return the id of a line; a fork may give its lines other ids, and name those that they were copied from."""
    origin = line.get("forkedFrom")
    uuid = (isinstance(origin, Mapping) and origin.get("messageUuid")) or line.get("uuid")
    return uuid if isinstance(uuid, str) else ""


def _find_lane(value: Mapping[str, Any]) -> str:
    """Return the session of a line, and the subagent in it."""
    session, agent = str(value.get("sessionId") or ""), value.get("agentId")
    return f"{session}/{agent or 'sidechain'}" if value.get("isSidechain") else session


def read_request(text: str) -> str:
    """Return the request of a person in a text with the role `user`, as the person wrote it; empty if it is none."""
    if command := _COMMAND.match(text):
        return " ".join(filter(None, (command[1], (command[2] or "").strip())))
    return "" if text.lstrip().startswith(_NO_REQUEST) or not text.strip() else text
