"""Runs of LangSmith and LangChain: a trace is an episode.

It is told by the messages of its root; where that has none, by the runs of its tools in the order in which they began.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text, normalize_message

from .conversations import outcome_of, split_requests
from .messages import Message
from .spool import LoggedEpisode, Spool

Run = Mapping[str, Any]


class Runs:
    """Reads exported runs, in any order, also inside each other."""

    unanswered = 0

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def add(self, place: str, value: Any) -> None:
        """Take in a run. Raises ValueError for what is none."""
        if not isinstance(value, Mapping) or "id" not in value or not ({"inputs", "outputs", "run_type"} & set(value)):
            raise ValueError("not a run: it has no id, inputs, outputs or run_type")
        for run in _flatten([value]):
            self._spool.put(str(run.get("trace_id") or run["id"]), place, {**run, "child_runs": None})

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode a trace. Raises ValueError, with the place, for a run that cannot be read."""
        for trace in self._spool.parts():
            values = self._spool.values(trace)
            try:
                yield from _read_trace(trace, [run for _, run in values])
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"{values[0][0]}: {describe_error(error)}") from error


def describe_error(error: Exception) -> str:
    """Return an error in words: its own where it was raised on purpose."""
    return str(error) if isinstance(error, ValueError) else f"not of the form ({error!r})"


def _flatten(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs, and those that are written inside them."""
    for run in runs:
        yield run
        trace = run.get("trace_id") or run["id"]
        yield from _flatten({"trace_id": trace, **child} for child in run.get("child_runs") or ())


def _read_trace(trace: str, runs: Sequence[Run]) -> Iterator[LoggedEpisode]:
    root = next((run for run in runs if not run.get("parent_run_id")), runs[0])
    tools = sorted(
        (run for run in runs if run.get("run_type") == "tool"),
        key=lambda run: str(run.get("dotted_order") or run.get("start_time") or ""),
    )
    success, score = outcome_of(root) or (None, None)
    meta = {"trace": trace}
    requests = [request for _, request in split_requests(_messages_of(root))]
    if requests:  # the messages before the last request are those of earlier traces
        task, calls = requests[-1]
        yield LoggedEpisode(trace, ((task, _mark_failed(calls, tools)),), success, score, meta)
    elif tools:
        calls = tuple(map(_tool_call, tools))
        yield LoggedEpisode(trace, ((_request_text(root.get("inputs")), calls),), success, score, meta)


def _messages_of(run: Run) -> list[Message]:
    for side in (run.get("outputs"), run.get("inputs")):
        messages = side.get("messages") if isinstance(side, Mapping) else None
        if isinstance(messages, list) and messages:
            inner = messages[0] if isinstance(messages[0], list) else messages
            return [normalize_message(message) for message in inner]
    return []


def _mark_failed(calls: Iterable[Call], tools: Iterable[Run]) -> tuple[Call, ...]:
    """Mark the calls whose run failed: a message does not always tell."""
    failed = {(run["name"], json.dumps(_arguments(run), sort_keys=True)) for run in tools if run.get("error")}
    marked = []
    for call in calls:
        if not call.error and (call.name, json.dumps(call.arguments, sort_keys=True)) in failed:
            call = replace(call, error=call.result or "error")
        marked.append(call)
    return tuple(marked)


def _tool_call(run: Run) -> Call:
    error = str(run.get("error") or "")
    outputs = run.get("outputs") or {}
    output = outputs.get("output", outputs) if isinstance(outputs, Mapping) else outputs
    if isinstance(output, Mapping) and "content" in output:
        output = output["content"]
    result = f"error: {error}" if error else extract_text(output)
    return Call(str(run["name"]), _arguments(run), result, error)


def _arguments(run: Run) -> dict[str, Any]:
    """What a tool was called with; LangChain writes a dictionary as Python does into `input`."""
    inputs = run.get("inputs") or {}
    if isinstance(inputs, Mapping) and set(inputs) == {"input"} and isinstance(inputs["input"], str):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(inputs["input"])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, dict):
                return value
    return dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}


def _request_text(inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        named = (inputs[name] for name in ("input", "question", "task", "query", "prompt") if name in inputs)
        return extract_text(next(named, inputs))
    return extract_text(inputs)
