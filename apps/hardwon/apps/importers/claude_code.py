"""Read Claude Code transcripts: the lines of ~/.claude/projects/PROJECT/SESSION.jsonl.

Lines of type `user` and `assistant` contain a message in Anthropic's format; summaries, snapshots and progress lines
are skipped. A sidechain, the conversation of a subagent, is a separate conversation. Each user request is an episode,
identified by its first call, or by the id of its message if calls have no random ids.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hardwon.apps.shared.remarks import drop_remarks, is_own_tool, read_request
from hardwon.runtime.integrations.tool_episode import iter_calls
from hardwon.runtime.interfaces.endings import read_ending

from .messages import LoggedMessage, plain_messages
from .spool import LoggedEpisode, Spool, refer_to_call

KINDS = (
    "user", "assistant", "system", "summary", "progress", "attachment", "file-history-snapshot", "queue-operation",
    "permission-mode", "custom-title", "ai-title", "agent-name", "last-prompt", "pr-link", "tag",
)  # fmt: skip
_MARKS = frozenset(["sessionId", "uuid", "leafUuid", "snapshot", "messageId"])


def is_line(value: Any) -> bool:
    """Return whether a value is a line of a transcript."""
    if not isinstance(value, Mapping) or "role" in value or not isinstance(value.get("type"), str):
        return False
    if value["type"] in ("user", "assistant"):
        return isinstance(value.get("message"), Mapping) and bool(_MARKS & set(value))
    return bool(_MARKS & set(value)) and ("sessionId" in value or value["type"] in KINDS)


def read_messages(line: Mapping[str, Any], foreign: set[str]) -> Iterator[LoggedMessage]:
    """Yield the messages of a line as the hooks report them; `foreign` collects the ids of calls of servers' tools.

    Calls are without remarks, and the text of a person without the pictures beside it. A result without a mark worked,
    unless it is a server's: the agent marks the failures of its own tools.
    """
    message = {"role": line["type"], **line["message"]}
    return plain_messages({**message, "content": _clean_content(message, foreign)})


def _clean_content(message: Mapping[str, Any], foreign: set[str]) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)]
    if message.get("role") == "user" and {block.get("type") for block in blocks} == {"text", "image"}:
        return [block for block in blocks if block["type"] == "text"]
    return [_clean_block(block, foreign) if isinstance(block, Mapping) else block for block in content]


def _clean_block(block: Mapping[str, Any], foreign: set[str]) -> Mapping[str, Any]:
    if block.get("type") == "tool_use":
        if not is_own_tool(str(block.get("name"))):
            foreign.add(str(block.get("id")))
        given = block.get("input")
        return {**block, "input": drop_remarks(given)} if isinstance(given, Mapping) else block
    if block.get("type") == "tool_result" and str(block.get("tool_use_id")) not in foreign:
        return {**block, "is_error": bool(block.get("is_error"))}
    return block


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
        self._foreign: set[str] = set()
        """Ids of the calls of servers' tools."""

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
        for plain in read_messages(value, self._foreign):
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
            if all_calls and task:  # without its request, a turn was cut at its beginning; another file has all of it
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
