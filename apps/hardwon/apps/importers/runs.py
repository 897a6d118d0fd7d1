"""Read LangSmith and LangChain runs; a trace is an episode.

The calls come from the messages of the root run, or, if it has none, from its tool runs in the order of their start.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text, normalize_message
from hardwon.runtime.interfaces.endings import Ending, find_cut, read_error, read_word
from hardwon.runtime.interfaces.results import find_failure

from .conversations import outcome_of, split_requests
from .messages import LoggedMessage
from .spool import NO_ROOT, LoggedEpisode, Spool, list_ended

LoggedRun = Mapping[str, Any]
_REQUESTS = ("input", "question", "task", "query", "prompt", "messages")
"""Names under which the inputs of a run have its request."""
_ROLES = ("human", "user", "ai", "assistant", "system", "developer", "tool", "function")


class RunReader:
    """Reader of exported runs, in any order, nested or flat."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def add(self, place: str, value: Any) -> None:
        """Add a run."""
        if not isinstance(value, Mapping) or "id" not in value or not ({"inputs", "outputs", "run_type"} & set(value)):
            raise ValueError("not a run: it has no id, inputs, outputs or run_type")
        for run in _flatten([value]):
            # Nested runs are stored separately; keeping them would store a run once per level.
            ancestors = run.get("parent_run_ids") or [None]  # LangSmith's newer API has these, and types in capitals
            plain = {
                "run_type": str(run.get("run_type") or "").lower(),
                "parent_run_id": run.get("parent_run_id") or ancestors[-1],
            }
            at = run.get("start_time") or str(run.get("dotted_order") or "").rpartition(".")[2].partition("Z")[0]
            self._spool.put(
                str(run.get("trace_id") or run["id"]).lower(), place, {**run, **plain, "child_runs": None},
                ref=str(run["id"]), at=at,
            )  # fmt: skip

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode per trace."""
        for trace in self._spool.parts():
            values = self._spool.values(trace)
            try:
                yield from _read_trace(trace, [run for _, run in values], self._spool.find_start(trace))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"{values[0][0]}: {describe_error(error)}") from error


def describe_error(error: Exception) -> str:
    """Return the message of an error, or its type and message if it is unexpected."""
    return str(error) if isinstance(error, ValueError) else f"not of the form ({error!r})"


def _flatten(runs: Iterable[LoggedRun]) -> Iterator[LoggedRun]:
    """Yield runs and the runs nested in them."""
    for run in runs:
        yield run
        trace = run.get("trace_id") or run["id"]
        yield from _flatten({"trace_id": trace, **child} for child in run.get("child_runs") or ())


def _read_trace(trace: str, runs: Sequence[LoggedRun], start: Mapping[str, str]) -> Iterator[LoggedEpisode]:
    roots = [run for run in runs if not run.get("parent_run_id")]
    root = (roots or runs)[0]
    tools = [run for run in runs if run.get("run_type") == "tool"]
    success, score = (outcome_of(root) if roots else None) or (None, None)
    meta = {"trace": trace, **start, **({} if roots else NO_ROOT)}
    logged, ending = list(split_requests(_find_messages(root))), find_run_ending(root if roots else {})
    if logged:  # the root repeats the messages of earlier traces
        ((task, calls),) = logged[-1].requests
        ending = ending if ending != "completed" else logged[-1].ending
        yield LoggedEpisode(trace, ((task, _mark_failed(calls, tools)),), success, score, meta, ending=ending)
    elif tools:
        is_open = [_is_open(run) and not run.get("outputs") and not run.get("error") for run in tools]
        calls = list_ended(_build_call(run) for run, waits in zip(tools, is_open, strict=True) if not waits)
        ending = "unfinished" if is_open[-1] and ending == "completed" else ending
        task = find_request(root.get("inputs"))
        yield LoggedEpisode(trace, ((task, calls),), success, score, meta, ending=ending)


def find_run_ending(run: LoggedRun) -> Ending:
    """Return how a run ended: one that has begun and has no end still waits, or was broken off."""
    if _is_open(run) or find_cut(run.get("outputs")) or find_cut({"status": run.get("status")}):
        is_failed = read_word(run.get("status")) == "failed" and read_error(run.get("error") or "error") == "failed"
        return "failed" if is_failed else "unfinished"
    return read_error(run.get("error")) or "completed"


def _is_open(run: LoggedRun) -> bool:
    return "end_time" in run and run["end_time"] is None and run.get("start_time") is not None


def _find_messages(run: LoggedRun) -> list[LoggedMessage]:
    for side in (run.get("outputs"), run.get("inputs")):
        messages = side.get("messages") if isinstance(side, Mapping) else None
        if isinstance(messages, list) and messages:
            return list(iter_messages(messages))
    return []


def iter_messages(value: Any) -> Iterator[LoggedMessage]:
    """Yield the messages in a value of any form of LangChain: objects, pairs of role and text, texts, lists of these.

    LangChain traces a batch: a list of conversations, of which only the first one is read.
    """
    if isinstance(value, str):
        yield normalize_message({"role": "user", "content": value})
    elif isinstance(value, list) and _is_pair(value):
        yield normalize_message({"role": value[0], "content": value[1]})
    elif isinstance(value, list):
        is_batch = bool(value) and isinstance(value[0], list) and not _is_pair(value[0])
        for inner in value[:1] if is_batch else value:
            yield from iter_messages(inner)
    else:
        yield normalize_message(value)


def _is_pair(value: list[Any]) -> bool:
    return len(value) == 2 and all(isinstance(part, str) for part in value) and value[0].lower() in _ROLES


def _mark_failed(calls: Iterable[Call], tools: Iterable[LoggedRun]) -> tuple[Call, ...]:
    """Return the calls, with an error for those whose run failed; the messages do not always show it."""
    failed = {(run["name"], json.dumps(_parse_arguments(run), sort_keys=True)) for run in tools if run.get("error")}
    marked = []
    for call in calls:
        if not call.error and (call.name, json.dumps(call.arguments, sort_keys=True)) in failed:
            call = replace(call, error=call.result or "error")
        marked.append(call)
    return tuple(marked)


def _build_call(run: LoggedRun) -> Call:
    error = str(run.get("error") or "")
    outputs = run.get("outputs") or {}
    output = outputs.get("output", outputs) if isinstance(outputs, Mapping) else outputs
    failure = error or find_failure(output)
    if isinstance(output, Mapping) and "content" in output:
        output = output["content"]
    result = f"error: {error}" if error else extract_text(output)
    return Call(str(run["name"]), _parse_arguments(run), result, failure)


def _parse_arguments(run: LoggedRun) -> dict[str, Any]:
    """Return the arguments of a tool run; LangChain writes them to `input` as a Python literal."""
    inputs = run.get("inputs") or {}
    if isinstance(inputs, Mapping) and set(inputs) == {"input"} and isinstance(inputs["input"], str):
        # `literal_eval` accepts only literals, so a log cannot run code.
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(inputs["input"])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, dict):
                return value
    return dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}


def find_request(inputs: Any) -> str:
    """Return the request in the inputs of a run: the named text, or the first message of a person, else all."""
    if isinstance(inputs, Mapping):
        values = (inputs[name] for name in _REQUESTS if inputs.get(name))
        if (value := next(values, None)) is not None:
            return find_request(value)
    if isinstance(inputs, list | Mapping):
        try:
            first = next(message["text"] for message in iter_messages(inputs) if message["role"] == "user")
            return str(first)
        except (ValueError, StopIteration):  # it has no messages
            pass
    return extract_text(inputs)
