"""Read the hook input of coding agents as events, and write answers in the form that each agent documents.

This module and what it imports need nothing but the standard library: it runs before every tool call.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hardwon.apps.shared.remarks import drop_remarks, is_own_tool, read_request

EventKind = Literal["session", "prompt", "before", "after", "failed", "stop", "other"]

AGENTS = ("claude-code", "codex", "cursor")
KINDS: Mapping[str, EventKind] = {
    # Claude Code and Codex
    "SessionStart": "session",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "before",
    "PostToolUse": "after",
    "PostToolUseFailure": "failed",
    "Stop": "stop",
    "SubagentStop": "stop",
    "SessionEnd": "stop",
    # Cursor
    "sessionStart": "session",
    "beforeSubmitPrompt": "prompt",
    "preToolUse": "before",
    "postToolUse": "after",
    "postToolUseFailure": "failed",
    "stop": "stop",
    "sessionEnd": "stop",
}
_MOST_CHARS = 20_000
"""Characters of a result that are kept; an episode keeps fewer."""
_TEXTS = ("content", "result", "stderr")
"""Texts in the results of Claude Code's own tools: a file's, a page's, a program's. Their failures are events."""


class HookEvent(NamedTuple):
    """One call of a hook. It is no dataclass, because importing those takes a fifth of a hook's time."""

    kind: EventKind
    name: str
    """The agent's own name of the event."""
    session: str
    """The agent's own name of the session; a subagent has one of its own."""
    agent: str
    cwd: str = ""
    prompt: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    result: str = ""
    error: str = ""
    call_id: str = ""
    transcript: str = ""
    is_interrupt: bool = False
    """A person stopped the call or the turn, which shows neither a success nor a failure."""
    is_new_session: bool = False
    """The agent was started, so no turn of this session runs; Claude Code also reports a session that it compacts."""
    is_subagent: bool = False
    """The event is a subagent's, whose request no hook reports; its transcript has it."""


def read_event(agent: str, text: str) -> HookEvent:
    """Return the event that a hook received."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"the hook input is {type(value).__name__}, not an object")
    session = value.get("session_id") or value.get("conversation_id")
    if not session:
        raise ValueError("the hook input has no session_id or conversation_id")
    name = str(value.get("hook_event_name") or "")
    part, prompt = str(value.get("agent_id") or ""), str(value.get("prompt") or "")
    kind = KINDS.get(name, "other")
    if kind == "prompt" and prompt.strip() and not read_request(prompt):
        kind = "other"  # what the agent reports to itself is no request
    roots = value.get("workspace_roots") or [""]
    response = value.get("tool_response", value.get("tool_output"))
    result, error = _read_result(kind, value, response, agent)
    return HookEvent(
        kind, name, f"{session}/{part}" if part else str(session), agent, str(value.get("cwd") or roots[0]), prompt,
        str(value.get("tool_name") or ""), _read_arguments(value.get("tool_input")), result, error,
        str(value.get("tool_use_id") or ""), _find_transcript(value, part),
        value.get("is_interrupt") is True or (isinstance(response, dict) and response.get("interrupted") is True)
        or (kind == "stop" and _is_cut(name, value)),
        kind == "session" and value.get("source") != "compact", bool(part),
    )  # fmt: skip


def _find_transcript(value: Mapping[str, Any], part: str) -> str:
    """Return the path of the transcript; that of a subagent is in a folder beside the one of its session."""
    path = str(value.get("transcript_path") or "")
    own = f"{path.removesuffix('.jsonl')}/subagents/agent-{part}.jsonl" if part and path else path
    return str(value.get("agent_transcript_path") or own)


def _is_cut(name: str, value: Mapping[str, Any]) -> bool:
    """Return whether a turn ended before its time; at the end of a session, one that had a stop is recorded already."""
    return value.get("status") in ("aborted", "error") or name.lower() == "sessionend"


def _read_arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError:
            return {"input": value}
    return drop_remarks(value) if isinstance(value, dict) else {} if value is None else {"input": value}


def _read_result(kind: EventKind, value: Mapping[str, Any], response: Any, agent: str) -> tuple[str, str]:
    """Return the result and the error of a tool; the error is empty if the call worked."""
    if kind == "failed":
        error = str(value.get("error") or value.get("error_message") or "the tool failed")[:_MOST_CHARS]
        return error, error
    if kind != "after":
        return "", ""
    # Imported here, because the hooks before a call have no result to read and must not wait for the patterns.
    from hardwon.runtime.interfaces.results import find_failure

    judged = response
    if agent == "claude-code" and isinstance(response, dict) and is_own_tool(str(value.get("tool_name"))):
        judged = {name: part for name, part in response.items() if name not in _TEXTS}
    error = find_failure(response, failed=True)[:_MOST_CHARS] if find_failure(judged) else ""
    if isinstance(response, str):
        try:
            parsed = json.loads(response)
        except ValueError:
            parsed = None
        response = parsed if isinstance(parsed, dict) else response
    return _read_text(response)[:_MOST_CHARS], error


def _read_text(response: Any) -> str:
    """Return the text of a tool's response: the output of a command, the text of blocks, or the response as JSON."""
    if response is None:
        return ""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        streams = [str(response[name]) for name in ("stdout", "output", "stderr", "error") if response.get(name)]
        if streams:
            return "\n".join(streams)
        response = response.get("content", response)
    if isinstance(response, list) and all(isinstance(block, dict) and "text" in block for block in response):
        return "\n".join(str(block["text"]) for block in response)
    return json.dumps(response, ensure_ascii=False, default=str)


# ---- answers


def add_context(event: HookEvent, text: str) -> dict[str, Any]:
    """Return the answer that shows a text to the model; empty if the agent takes none at this event."""
    if not text:
        return {}
    if event.agent == "cursor":
        # Cursor reads context only from these events; `journal` keeps the text until then.
        return {"additional_context": text} if event.kind in ("session", "after") else {}
    return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": text}}


def takes_context(event: HookEvent) -> bool:
    """Return whether the agent shows the model a text that a hook returns at this event."""
    return bool(add_context(event, "text"))


def deny(event: HookEvent, reason: str) -> dict[str, Any]:
    """Return the answer that refuses a tool call with a reason."""
    if event.agent == "cursor":
        return {"permission": "deny", "agent_message": reason, "user_message": reason}
    return {
        "hookSpecificOutput": {
            "hookEventName": event.name,
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }
