"""Episodes out of other programs' files: OpenAI's chat messages, and LangSmith's and LangChain's runs.

A file is read to its end before anything is written. Each request of a person and the calls made for it are
one episode, in the form of a tool environment, and its id is told by what it holds: the same file twice adds
nothing. Files of `hardwon memory export` are read by the library itself; here they are only recognised.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.tool_episode import ToolEpisode, calls_of, plain_message, text_of

Format = Literal["hardwon", "openai", "langsmith"]
FORMATS = ("auto", "hardwon", "openai", "langsmith")

Message = dict[str, Any]
Record = tuple[int, Any]
"""A value of a file, and the line on which it begins."""

_HARDWON = {"episode", "item", "usage", "change"}
_ERROR = re.compile(r"\s*(?:error\b|exception\b|traceback \(most recent call last\)|\w+(?:error|exception):)", re.I)
"""How the answer of a tool begins that says of itself that it failed, where the log has no other mark."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request and what was done for it."""

    id: str
    task: str
    calls: tuple[Call, ...]
    success: bool | None = None
    """None where the file does not say; then an error that was left as it was is a failure."""
    score: float | None = None


# ---- reading a file


def read(path: Path, wanted: str = "auto") -> tuple[Format, list[Told]]:
    """The format of a file, and the episodes in it; none of a file of our own, which the library reads.

    Raises: ConfigError for a format that does not exist, a file that cannot be read, and naming the line of what
    is not of the format.
    """
    if wanted not in FORMATS:
        raise ConfigError(f"format is {wanted!r}; use one of {', '.join(FORMATS)}.")
    if wanted == "hardwon" or (wanted == "auto" and _is_ours(path)):
        return "hardwon", []
    records = _records(path)
    known = _recognised(path, records) if wanted == "auto" else wanted
    told = _of_messages(path, records) if known == "openai" else _of_runs(path, records)
    return ("openai" if known == "openai" else "langsmith"), list({one.id: one for one in told}.values())


def _is_ours(path: Path) -> bool:
    """By its first line alone: an export may be large."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            first = json.loads(next(file, ""))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and len(first) == 1 and set(first) <= _HARDWON


def _records(path: Path) -> list[Record]:
    """Every value of a file: one a line, or all of them in one JSON array or document."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Give a text file of JSON.") from error
    records: list[Record] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            if not records and (whole := _whole(text)) is not None:
                return whole
            raise ConfigError(f"{path}, line {number}: not JSON ({error}).") from error
    if len(records) == 1 and isinstance(records[0][1], list) and not _is_message(records[0][1][:1]):
        return [(records[0][0], value) for value in records[0][1]]
    if not records:
        raise ConfigError(f"{path} is empty.")
    return records


def _whole(text: str) -> list[Record] | None:
    """The values of a document that goes over several lines."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [(1, value) for value in (document if isinstance(document, list) else [document])]


def _is_message(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Mapping) and ("role" in value or "content" in value) for value in values)


def _recognised(path: Path, records: Sequence[Record]) -> str:
    number, first = records[0]
    if isinstance(first, list):
        return "openai"
    names = set(first) if isinstance(first, Mapping) else set()
    if "run_type" in names or ("inputs" in names and "outputs" in names):
        return "langsmith"
    if names & {"messages", "request", "choices"} or _is_message([first]):
        return "openai"
    raise ConfigError(
        f"{path}, line {number}: of no format that is known. Say which with --format {' or '.join(FORMATS[1:])}."
    )


def _each(path: Path, records: Iterable[Record], read_one: Callable[[Any], Any]) -> Iterator[Any]:
    for number, value in records:
        try:
            yield read_one(value)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: {_words(error)}.") from error


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"not of the form ({error!r})"


# ---- messages


def _of_messages(path: Path, records: Sequence[Record]) -> Iterator[Told]:
    if _is_message([value for _, value in records]):  # a file that is one conversation
        records = [(records[0][0], [value for _, value in records])]
    logs = list(_each(path, records, _conversation))
    for messages, outcome in _without_beginnings(logs):
        yield from _requests(messages, outcome)


def _conversation(value: Any) -> tuple[list[Message], Mapping[str, Any]]:
    """The messages of a log's line, its answer among them, and what else the line says."""
    if isinstance(value, list):
        value = {"messages": value}
    request = value.get("request") or value
    request = request.get("body", request)
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise ValueError("there are no messages")
    answer = value.get("response") or value
    answer = answer.get("body", answer)
    choices = answer.get("choices") or []
    return [_failed(plain_message(one)) for one in (*messages, *(choice["message"] for choice in choices[:1]))], value


def _failed(message: Message) -> Message:
    """OpenAI's messages have no mark for an error: the words of the answer are all there is."""
    if message["role"] != "tool" or message["error"]:
        return message
    return {**message, "error": _is_error(message["text"])}


def _is_error(text: str) -> bool:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and (bool(value.get("error")) or value.get("status") == "error")
    return _ERROR.match(text) is not None


def _without_beginnings(logs: Sequence[tuple[list[Message], Mapping[str, Any]]]) -> Iterator[Any]:
    """Of calls to a model that each repeat the conversation so far, the last ones."""
    digests = [list(_digests(messages)) for messages, _ in logs]
    begun = {digest for known in digests for digest in known[:-1]}
    for known, log in zip(digests, logs, strict=True):
        if known and known[-1] not in begun:
            yield log


def _digests(messages: Iterable[Message]) -> Iterator[str]:
    """For every beginning of a conversation, what tells it from others."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        kept = [message["role"], message["text"], [[call["name"], call["arguments"]] for call in message["calls"]]]
        digest.update(json.dumps(kept, sort_keys=True).encode())
        yield digest.hexdigest()


def _requests(messages: list[Message], outcome: Mapping[str, Any]) -> Iterator[Told]:
    """Every request of a person for which calls were made; the outcome that a line tells is the last one's."""
    starts = [n for n, message in enumerate(messages) if message["role"] == "user"] or [-1]
    digests = list(_digests(messages))
    found = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        calls = tuple(calls_of(messages[start + 1 : end]))
        task = messages[start]["text"] if start >= 0 else ""
        if calls:
            found.append(Told(digests[end - 1], task, calls))
    for one in found[:-1]:
        yield one
    for one in found[-1:]:
        yield _judged(one, outcome)


def _judged(told: Told, value: Mapping[str, Any]) -> Told:
    """With the outcome that a record has, under one of the usual names."""
    for source in (value, value.get("metadata"), value.get("extra"), value.get("feedback_stats")):
        if not isinstance(source, Mapping):
            continue
        for name in ("score", "reward", "success", "correctness"):
            known = source.get(name)
            known = known.get("avg") if isinstance(known, Mapping) else known
            if isinstance(known, int | float):
                score = min(1.0, max(0.0, float(known)))
                return replace(told, success=score >= 1.0, score=score)
    return replace(told, success=False) if value.get("error") else told


# ---- runs


def _of_runs(path: Path, records: Sequence[Record]) -> Iterator[Told]:
    """A trace is told by the messages of its root; where that has none, by the runs of its tools."""
    runs = list(_each(path, records, _run))
    by_trace: dict[str, list[Mapping[str, Any]]] = {}
    for run in _flat(runs):
        by_trace.setdefault(str(run.get("trace_id") or run["id"]), []).append(run)
    lines = {str(value.get("trace_id") or value["id"]): number for number, value in records}
    for trace, members in by_trace.items():
        yield from _each(path, [(lines.get(trace, 1), (trace, members))], lambda given: _trace(*given))


def _run(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or "id" not in value or not ({"inputs", "outputs", "run_type"} & set(value)):
        raise ValueError("not a run: it has no id, inputs, outputs or run_type")
    return value


def _flat(runs: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Runs, and those that are written inside them."""
    for run in runs:
        yield run
        trace = run.get("trace_id") or run["id"]
        yield from _flat({"trace_id": trace, **child} for child in run.get("child_runs") or ())


def _trace(trace: str, runs: Sequence[Mapping[str, Any]]) -> Told:
    root = next((run for run in runs if not run.get("parent_run_id")), runs[0])
    tools = sorted(
        (run for run in runs if run.get("run_type") == "tool"),
        key=lambda run: str(run.get("dotted_order") or run.get("start_time") or ""),
    )
    told = list(_requests(_messages_of(root), {}))
    if told:
        last = told[-1]
        return _judged(replace(last, id=trace, calls=_with_errors(last.calls, tools)), root)
    calls = tuple(map(_tool_call, tools))
    return _judged(Told(trace, _asked(root.get("inputs")), calls), root)


def _messages_of(run: Mapping[str, Any]) -> list[Message]:
    for side in (run.get("outputs"), run.get("inputs")):
        messages = side.get("messages") if isinstance(side, Mapping) else None
        if isinstance(messages, list) and messages:
            inner = messages[0] if isinstance(messages[0], list) else messages
            return [plain_message(message) for message in inner]
    return []


def _with_errors(calls: Iterable[Call], tools: Iterable[Mapping[str, Any]]) -> tuple[Call, ...]:
    """The calls, those marked as failed whose run failed: a message does not always tell."""
    failed = {(run["name"], json.dumps(_arguments(run), sort_keys=True)) for run in tools if run.get("error")}
    marked = []
    for call in calls:
        if not call.error and (call.name, json.dumps(call.arguments, sort_keys=True)) in failed:
            call = replace(call, error=call.result or "error")
        marked.append(call)
    return tuple(marked)


def _tool_call(run: Mapping[str, Any]) -> Call:
    error = str(run.get("error") or "")
    outputs = run.get("outputs") or {}
    output = outputs.get("output", outputs) if isinstance(outputs, Mapping) else outputs
    if isinstance(output, Mapping) and "content" in output:
        output = output["content"]
    result = f"error: {error}" if error else text_of(output)
    return Call(str(run["name"]), _arguments(run), result, error)


def _arguments(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool was called with; LangChain writes a dictionary as Python does into `input`."""
    inputs = run.get("inputs") or {}
    if isinstance(inputs, Mapping) and set(inputs) == {"input"} and isinstance(inputs["input"], str):
        for parse in (json.loads, _python):
            try:
                value = parse(inputs["input"])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, dict):
                return value
    return dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}


def _python(text: str) -> Any:
    return ast.literal_eval(text)


def _asked(inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        named = (inputs[name] for name in ("input", "question", "task", "query", "prompt") if name in inputs)
        return text_of(next(named, inputs))
    return text_of(inputs)


# ---- into a library


def episodes(
    library: ExperienceLibrary, told: Iterable[Told], *, source: str, trusted: bool = True
) -> Iterator[Trajectory]:
    """What was told as episodes of this library: judged by its rules, filed under its keys.

    An untrusted file's are kept and excluded: nothing is learnt of them.
    """
    for one in told:
        if not one.calls:
            continue
        episode = ToolEpisode(library, one.task)
        episode.replay(one.calls)
        success: bool | None = not episode.broken if one.success is None else one.success
        if not trusted:
            success = None
        ending = "success" if success else "done"
        meta = {"environment": source, "policy": "import"}
        yield episode.trajectory(success, one.score, arm="import", ending=ending, meta=meta, id=one.id)


def write(library: ExperienceLibrary, told: Sequence[Told], *, source: str, trusted: bool = True) -> int:
    """Record what is not there yet, in one transaction; returns how many episodes were new."""
    new = [one for one in told if one.calls and not _is_known(library.trajectory, one.id)]
    library.record_many(episodes(library, new, source=source, trusted=trusted))
    return len(new)


def count(library: ExperienceLibrary, path: Path, known: Format, told: Sequence[Told]) -> dict[str, int]:
    """What is in a file and how much of it a library has not yet; nothing is written.

    Raises: ConfigError naming the line of what could not be imported.
    """
    if known != "hardwon":
        kept = [one for one in told if one.calls]
        new = sum(not _is_known(library.trajectory, one.id) for one in kept)
        return {"episodes": len(kept), "new": new, "steps": sum(len(one.calls) for one in kept)}
    with ExperienceLibrary.open(":memory:") as trial:
        trial.import_jsonl(path)
        told_of = [row["id"] for row in trial.trajectories()]
        items = [item.id for item in trial.items(status=None)]
        steps = trial.stats()["steps"]
    new = sum(not _is_known(library.trajectory, ref) for ref in told_of)
    new_items = sum(not _is_known(library.get, ref) for ref in items)
    return {"episodes": len(told_of), "new": new, "steps": steps, "items": len(items), "new_items": new_items}


def _is_known(get: Callable[[str], Trajectory | Item], ref: str) -> bool:
    try:
        return get(ref).id == ref
    except UnknownName:
        return False
