"""Recognize the format of a file and read its episodes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from hardwon.memory.errors import ConfigError

from .claude_code import Transcripts, is_line
from .codex import Rollouts, is_rollout
from .conversations import ConversationReader
from .langfuse import LangfuseReader, is_row
from .messages import CONVERSATIONS, form_of, is_messages
from .otel import Spans, is_span
from .runs import RunReader, describe_error
from .source import OnProgress, UnfinishedLine, open_seekable, read_values
from .spool import LoggedEpisode, Spool

Format = Literal["hardwon", "openai", "anthropic", "responses", "claude-code", "codex", "langsmith", "langfuse", "otel"]
FORMATS = ("auto", *get_args(Format))
_HARDWON = {"episode", "item", "usage", "change"}
_READERS: dict[str, type["LogReader"]] = {
    "openai": ConversationReader,
    "anthropic": ConversationReader,
    "responses": ConversationReader,
    "claude-code": Transcripts,
    "codex": Rollouts,
    "langsmith": RunReader,
    "langfuse": LangfuseReader,
    "otel": Spans,
}
_GROWING = ("claude-code", "codex")
"""Formats of logs that a running program extends. What is missing comes with the next import."""
_LOOKS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset(["conversations"]), "ShareGPT's conversations, whose tool calls have no common form"),
    (frozenset(["prompt", "completion"]), "pairs of prompt and completion, which have no tool calls"),
    (frozenset(["prompt", "chosen"]), "preference pairs, which have no tool calls"),
    (frozenset(["instruction", "output"]), "Alpaca's instructions, which have no tool calls"),
    (frozenset(["contents"]), "Gemini's contents; log the messages in OpenAI's form, or spans of OpenTelemetry"),
    (frozenset(["batches"]), "an export of batches; give the lines inside"),
    (frozenset(["resourceLogs"]), "OpenTelemetry's logs; give the traces (resourceSpans)"),
    (frozenset(["resourceMetrics"]), "OpenTelemetry's metrics; give the traces (resourceSpans)"),
    (frozenset(["mapping", "current_node"]), "ChatGPT's data export, which has no answers of tools"),
    (frozenset(["chat_messages"]), "claude.ai's data export, which has no answers of tools"),
)
"""Common files that cannot be imported, recognized by the keys of their first value."""


class LogReader(Protocol):
    """Protocol of a reader, which takes the values of a file and yields the episodes in them."""

    def __init__(self, spool: Spool) -> None: ...

    def add(self, place: str, value: Any) -> None:
        """Add a value."""
        ...

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield the episodes."""
        ...


def read(path: Path, wanted: str = "auto", *, on_progress: OnProgress | None = None) -> tuple[Format, Spool]:
    """Return the format of a file and the episodes in it.

    For an export of hardwon the episodes are empty; the library reads that file itself.
    """
    if wanted not in FORMATS:
        raise ConfigError(f"format is {wanted!r}; use one of {', '.join(FORMATS)}.")
    if wanted == "hardwon" or (wanted == "auto" and _is_export(path)):
        return "hardwon", Spool()
    spool = Spool()
    format_name, reader, values = "", None, 0
    try:
        for place, value in read_values(path, on_progress):
            values += 1
            if reader is None:
                format_name = _recognize(path, place, value) if wanted == "auto" else wanted
                reader = _READERS[format_name](spool)
            with _LocateErrors(path, place, value, format_name):
                reader.add(place, value)
    except UnfinishedLine:
        if format_name not in _GROWING:
            raise
    assert reader is not None  # `read_values` raises an error for an empty file
    if wanted == "auto" and isinstance(reader, ConversationReader):
        format_name = reader.form
    with _LocateErrors(path, "", None, format_name):
        # All episodes are built before the library is written, so an error late in the file changes nothing.
        for episode in reader.episodes():
            spool.keep(episode)
    if not len(spool):
        raise ConfigError(_explain_nothing(path, format_name, values))
    return cast(Format, format_name), spool


class _LocateErrors:
    """Context manager that converts errors of a reader to a ConfigError with the file and the place."""

    def __init__(self, path: Path, place: str, value: Any, format_name: str) -> None:
        self._where, self._value, self._format = f"{path}, {place}" if place else str(path), value, format_name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigError) or not isinstance(
            error, ValueError | LookupError | TypeError | AttributeError | OverflowError | RecursionError
        ):
            return
        other = _guess_format(self._value)
        is_mixed = other and _READERS[other] != _READERS[self._format]
        hint = f"; it looks like {other}, but a file must have one format" if is_mixed else ""
        raise ConfigError(f"{self._where}: {describe_error(error)}{hint}.") from error


def _is_export(path: Path) -> bool:
    """Return whether a file is an export of a library, judged by its first line."""
    try:
        if not path.is_file():
            return False
        with open_seekable(path) as file:
            first = json.loads(file.readline(2**26))  # a limit, because other files can be one huge line
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and len(first) == 1 and set(first) <= _HARDWON


def _guess_format(value: Any) -> str:
    """Return the format of a value; empty if it is unknown."""
    if isinstance(value, list):
        return form_of(value) if is_messages(value) else ""
    if not isinstance(value, Mapping):
        return ""
    names = set(value)
    # Most specific format first: spans and runs can have `messages` or `output`, too.
    if is_span(value):
        return "otel"
    if is_rollout(value):
        return "codex"
    if is_line(value):
        return "claude-code"
    if is_row(value):
        return "langfuse"
    if "run_type" in names or ("inputs" in names and "outputs" in names):
        return "langsmith"
    if "output" in names and isinstance(value.get("output"), list):
        return "responses"
    has_messages = any(isinstance(value.get(name), list) for name in CONVERSATIONS)
    if has_messages or names & {"messages", "request", "choices"} or is_messages([value]):
        return form_of(value)
    return ""


def _is_bedrock(value: Any) -> bool:
    """Return whether a value has messages of Bedrock's Converse API, whose blocks have no type."""
    messages = value.get("messages") if isinstance(value, Mapping) else None
    blocks = [
        block
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, Mapping)
    ]
    return any("toolUse" in block or "toolResult" in block for block in blocks)


def _recognize(path: Path, place: str, value: Any) -> str:
    if _is_bedrock(value):
        raise ConfigError(
            f"{path}, {place}: it looks like messages of Bedrock's Converse API (toolUse, toolResult). Log them in "
            "OpenAI's or Anthropic's form, or spans of OpenTelemetry; docs/importing.md has an example of each."
        )
    if format_name := _guess_format(value):
        return format_name
    names = set(value) if isinstance(value, Mapping) else set()
    looks = next((words for marks, words in _LOOKS if marks <= names), "")
    if looks:
        what = f"it looks like {looks}"
    elif names:
        what = f"unknown format: its keys are {', '.join(sorted(map(str, names))[:8])}"
    else:
        what = f"unknown format: it is {type(value).__name__}, not an object"
    raise ConfigError(
        f"{path}, {place}: {what}. Give a file in one of these formats, or name it with --format: "
        f"{', '.join(FORMATS[1:])}; docs/importing.md has an example of each."
    )


def _explain_nothing(path: Path, format_name: str, values: int) -> str:
    """Return the reason why a file of a known format has nothing to import."""
    head = (
        f"{path} has nothing to import: it looks like {format_name} ({values} {'value' if values == 1 else 'values'})"
    )
    if format_name == "otel":
        return (
            f"{head}, but no span is a tool call (gen_ai.operation.name = execute_tool, gen_ai.tool.name). "
            "Instrument the tools, or capture gen_ai.input.messages."
        )
    return f"{head}, but it has no tool calls that follow a request. An episode is a request and the calls made for it."
