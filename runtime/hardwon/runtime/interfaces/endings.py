"""Read how a run ended: it was completed, it failed, or it was not finished.

    read_ending([..., {"role": "assistant", "text": "Done.", ...}])                      # "completed"
    read_ending([..., {"role": "assistant", "text": "Do", "unfinished": "length", ...}]) # "unfinished"

This is the only rule: the doors and the importers call it, and `ToolEpisode.judge` makes the outcome of it. Only a
whole answer of the model completes a run. What says that more was to come is no success, whatever the calls did.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Ending = Literal["completed", "unfinished", "failed"]

_COMPLETED = frozenset([
    "stop", "end_turn", "stop_sequence", "completed", "complete", "done", "success", "succeeded", "finished", "ok",
    "eos", "eos_token", "end",
])  # fmt: skip
_FAILED = frozenset(["error", "failed", "failure", "errored", "fail"])
_UNFINISHED = frozenset([
    "length", "max_tokens", "max_output_tokens", "content_filter", "refusal", "pause_turn", "incomplete", "cancelled",
    "model_context_window_exceeded", "canceled", "queued", "in_progress", "running", "pending", "requires_action",
    "interrupted", "interrupt", "aborted", "abort", "expired", "timeout", "timed_out", "max_turns", "truncated",
    "tool_calls", "tool_use", "function_call", "unfinished",
])  # fmt: skip
_REASONS = ("finish_reason", "stop_reason", "done_reason", "finishreason", "stopreason", "native_finish_reason")
"""Fields with the reason for which a model stopped, of which only a few words mean that it was finished."""
_FLAGS = ("truncated", "interrupted", "aborted", "cancelled", "canceled", "incomplete", "__interrupt__")
_INTERRUPTS = re.compile(
    r"\A\W*(?:\w+\.)*"
    r"(?:GraphInterrupt|NodeInterrupt|CancelledError|KeyboardInterrupt|GeneratorExit|SystemExit)\b"
)
"""An error by which a framework stops a run that is to go on, or that somebody stopped."""
_LIMIT = re.compile(
    r"\A(?:Model call limits exceeded: |(?:'.{1,200}' tool|Tool) call limit reached: |Agent stopped due to |"
    r"Sorry, need more steps to process this request|This run ends here: |API Error\b|\[Request interrupted)",
)
"""Beginnings of answers that a framework writes in the place of the model when it ends a run."""


def read_word(word: Any, *, is_reason: bool = False) -> Ending | None:
    """Return what a word such as a status or a reason to stop says about a run; None if it says nothing."""
    if not isinstance(word, str) or not word.strip():
        return None
    plain = word.strip().rpartition(".")[2].lower().replace("-", "_").replace(" ", "_")
    plain = re.sub(r"\A(stop|end_turn)\1+\Z", r"\1", plain)  # LangChain joins the reasons of chunks
    if plain in _COMPLETED:
        return "completed"
    if plain in _FAILED:
        return "failed"
    return "unfinished" if is_reason or plain in _UNFINISHED else None


def read_error(error: Any) -> Ending | None:
    """Return how a run ended that has this error; an interrupt is a stop on the way."""
    if not error:
        return None
    words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return "unfinished" if _INTERRUPTS.match(words) else "failed"


def find_cut(record: Any) -> str:
    """Return why a model's message, a response, or a logged run is not whole; empty if it is, or does not say."""
    if not isinstance(record, Mapping):
        return ""
    for source in (record, record.get("response_metadata"), record.get("additional_kwargs"), record.get("metadata")):
        if not isinstance(source, Mapping):
            continue
        named = {str(name).lower(): value for name, value in source.items()}
        reasons = ((named.get(name), True) for name in _REASONS)
        for word, is_reason in (*reasons, (named.get("status"), False)):
            if read_word(word, is_reason=is_reason) in ("unfinished", "failed"):
                return str(word)
        details = named.get("incomplete_details") or named.get("refusal")
        flag = next((name for name in _FLAGS if named.get(name) not in (None, False, "", [], ())), "")
        if details or flag:
            return str(details or flag)
    return "interrupted" if read_error(record.get("error")) == "unfinished" else _find_cut_content(record)


def _find_cut_content(record: Mapping[str, Any]) -> str:
    """Return why the content of a message is no answer: a refusal, unreadable calls, or words of a framework."""
    if record.get("invalid_tool_calls"):
        return "invalid tool calls"
    content = record.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else ""
        if kind in ("refusal", "invalid_tool_call"):
            return str(kind)
        words = block.get("text") if isinstance(block, Mapping) else block
        if isinstance(words, str) and _LIMIT.match(words):
            return "stopped by a limit"
    return ""


def read_ending(messages: Sequence[Mapping[str, Any]]) -> Ending:
    """Return how a run ended, by its plain messages after the request; see `normalize_message`."""
    last: Mapping[str, Any] = messages[-1] if messages else {}
    if cut := last.get("unfinished"):
        return "failed" if read_word(cut) == "failed" else "unfinished"
    if last.get("role") == "tool":
        # Results of tools that a provider runs itself may stand before the words of the same message.
        source: Mapping[str, Any] = next((message for message in reversed(messages) if message["role"] != "tool"), {})
        return "completed" if source.get("has_answer") and not source.get("unfinished") else "unfinished"
    is_answer = last.get("role") == "assistant" and bool(str(last["text"]).strip()) and not last["calls"]
    return "completed" if is_answer else "unfinished"


def decide(ending: Ending, *, is_broken: bool) -> bool | None:
    """Return the outcome of a run that nobody graded: success, failure, or None if it is unknown."""
    if ending == "unfinished":
        return None
    return ending == "completed" and not is_broken
