"""Transcripts of Claude Code: the lines of ~/.claude/projects/PROJECT/SESSION.jsonl.

Lines of type `user` and `assistant` have a message of Anthropic's form; summaries, snapshots and progress are passed
over. A sidechain, the conversation of a subagent, is a conversation of its own. Each request of a person is an
episode, told by the id of its message: a session that was resumed in another file adds only what is new.
"""

from collections.abc import Iterator, Mapping
from typing import Any

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
"""How words begin that stand under `user` and are not a person's request."""


def is_line(value: Any) -> bool:
    """Return whether a value is a line of a transcript."""
    if not isinstance(value, Mapping) or "role" in value or not isinstance(value.get("type"), str):
        return False
    if value["type"] in ("user", "assistant"):
        return isinstance(value.get("message"), Mapping) and bool(_MARKS & set(value))
    return bool(_MARKS & set(value)) and ("sessionId" in value or value["type"] in KINDS)


class Transcripts:
    """Reads lines of transcripts, of one session or several."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._parts: dict[str, str] = {}
        """The conversation of every line, by the line's id: a sidechain goes on from its parent."""
        self.unanswered = 0

    def add(self, place: str, value: Any) -> None:
        """Take in a line. Raises ValueError for what is none."""
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            raise ValueError("not a line of a transcript: it has no type")
        part, uuid = self._part(value), value.get("uuid")
        if isinstance(uuid, str):
            if uuid in self._parts:  # a resumed session repeats what was before
                return
            self._parts[uuid] = part
        if value["type"] not in ("user", "assistant"):
            return
        message = value.get("message")
        if not isinstance(message, Mapping):
            raise ValueError(f"a line of type {value['type']} without a message")
        told = bool(value.get("isMeta") or value.get("isCompactSummary") or value.get("isVisibleInTranscriptOnly"))
        messages = list(plain_messages({"role": value["type"], **message}))
        self._spool.put(part, place, [uuid or place, told, messages])

    def _part(self, value: Mapping[str, Any]) -> str:
        session = str(value.get("sessionId") or "")
        if not value.get("isSidechain"):
            return session
        agent = value.get("agentId")
        parent = self._parts.get(str(value.get("parentUuid")))
        if agent:
            return f"{session}/{agent}"
        return parent if parent and "/" in parent else f"{session}/{value.get('uuid')}"

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode for each request for which calls were made."""
        for part in self._spool.parts():
            ref, task, said = "", "", list[Message]()
            for _, (uuid, hidden, messages) in self._spool.values(part):
                for message in messages:
                    if message["role"] == "user":
                        if hidden or not _is_request(message["text"]):
                            continue
                        yield from self._told(part, ref, task, said)
                        ref, task, said = uuid, message["text"], []
                    else:
                        ref = ref or uuid
                        said.append(message)
            yield from self._told(part, ref, task, said)

    def _told(self, part: str, ref: str, task: str, said: list[Message]) -> Iterator[LoggedEpisode]:
        calls = tuple(iter_calls(said))
        self.unanswered += sum(len(message["calls"]) for message in said) - len(calls)
        if calls:
            yield LoggedEpisode(f"{part} {ref}", ((task, calls),), meta={"trace": part})


def _is_request(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith(_NO_REQUEST)
