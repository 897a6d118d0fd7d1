"""Read Claude Code transcripts: the lines of ~/.claude/projects/PROJECT/SESSION.jsonl.

Lines of type `user` and `assistant` contain a message in Anthropic's format; summaries, snapshots and progress lines
are skipped. A sidechain, the conversation of a subagent, is a separate conversation. Each user request is an episode,
identified by the id of its message, so a session that was resumed in another file adds only its new part.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hardwon.apps.shared.remarks import drop_remarks
from hardwon.runtime.integrations.tool_episode import iter_calls

from .messages import Message, plain_messages
from .spool import LoggedEpisode, Spool

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
    """Reader of transcript lines, from one session or several."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._parts: dict[str, str] = {}
        """The conversation of every line, by the id of the line; a sidechain belongs to that of its parent."""
        self.unanswered = 0

    def add(self, place: str, value: Any) -> None:
        """Add a line.

        Raises:
            ValueError: The value is not a line of a transcript.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            raise ValueError("not a line of a transcript: it has no type")
        part, uuid = self._find_conversation(value), value.get("uuid")
        if isinstance(uuid, str):
            if uuid in self._parts:  # a resumed session repeats the earlier lines
                return
            # Lines of every type, because a sidechain may start at any of them.
            self._parts[uuid] = part
        if value["type"] not in ("user", "assistant"):
            return
        message = value.get("message")
        if not isinstance(message, Mapping):
            raise ValueError(f"a line of type {value['type']} without a message")
        # Text that the program inserted under the role `user`.
        hidden = bool(value.get("isMeta") or value.get("isCompactSummary") or value.get("isVisibleInTranscriptOnly"))
        messages = list(plain_messages({"role": value["type"], **message, "content": _drop_remarks(message)}))
        self._spool.put(part, place, [uuid or place, hidden, messages], at=value.get("timestamp"))

    def _find_conversation(self, value: Mapping[str, Any]) -> str:
        session = str(value.get("sessionId") or "")
        if not value.get("isSidechain"):
            return session
        agent = value.get("agentId")
        parent = self._parts.get(str(value.get("parentUuid")))
        if agent:
            return f"{session}/{agent}"
        return parent if parent and "/" in parent else f"{session}/{value.get('uuid')}"

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode for each request that led to tool calls."""
        for part in self._spool.parts():
            ref, task, replies = "", "", list[Message]()
            for _, (uuid, hidden, messages) in self._spool.values(part):
                for message in messages:
                    if message["role"] == "user":
                        if hidden or not _is_request(message["text"]):
                            continue
                        yield from self._build_episode(part, ref, task, replies)
                        ref, task, replies = uuid, message["text"], []
                    else:
                        ref = ref or uuid
                        replies.append(message)
            yield from self._build_episode(part, ref, task, replies)

    def _build_episode(self, part: str, ref: str, task: str, replies: list[Message]) -> Iterator[LoggedEpisode]:
        calls = tuple(iter_calls(replies))
        self.unanswered += sum(len(message["calls"]) for message in replies) - len(calls)
        if calls:
            yield LoggedEpisode(f"{part} {ref}", ((task, calls),), meta={"trace": part})


def _is_request(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith(_NO_REQUEST)
