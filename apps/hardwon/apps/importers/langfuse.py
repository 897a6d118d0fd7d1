"""Read Langfuse's exports; a trace is an episode.

Three documented files are read: rows of observations as the export to a blob storage or the table writes them
(snake_case or camelCase, one a line), pages of the observations API (`data`), and a trace that was downloaded as JSON
(the trace with its `observations` and `scores`). Observations of the type TOOL are the calls; without one, the messages
of the generations are read.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text, normalize_call, normalize_message
from hardwon.runtime.interfaces.endings import Ending, find_cut, read_ending, read_error
from hardwon.runtime.interfaces.results import find_failure

from .conversations import LoggedOutcome, split_requests
from .messages import LoggedMessage
from .runs import find_request, iter_messages
from .spool import NO_ROOT, LoggedEpisode, Spool, list_ended

ObservationRow = dict[str, Any]
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_TYPES = frozenset(
    ["SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"]
)
_SCORE_TYPES = frozenset(["NUMERIC", "BOOLEAN", "CATEGORICAL"])
_PASS, _FAIL = ("true", "pass", "passed", "success", "correct"), ("false", "fail", "failed", "failure", "incorrect")


def is_row(value: Any) -> bool:
    """Return whether a value is an observation, a score, or a trace with its observations."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("data"), list):  # a page of the API
        return bool(value["data"]) and is_row(value["data"][0])
    row = _with_plain_names(value)
    if isinstance(row.get("observations"), list):
        return "scores" in row or "timestamp" in row or isinstance(row.get("trace"), Mapping)
    if "trace_id" not in row or "run_type" in row:
        return False
    return row.get("type") in _TYPES or row.get("data_type") in _SCORE_TYPES


class LangfuseReader:
    """Reader of Langfuse's rows, in any order."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def add(self, place: str, value: Any) -> None:
        """Add a row, a page of rows, or a trace with its observations."""
        if isinstance(value, Mapping) and isinstance(value.get("data"), list):
            for row in value["data"]:
                self.add(place, row)
            return
        if not is_row(value):
            raise ValueError("not of Langfuse: it has no trace id with a type of observation, and no observations")
        row = _with_plain_names(value)
        if not isinstance(row.get("observations"), list):
            self._put(str(row["trace_id"]), place, row)
            return
        trace = _with_plain_names(row["trace"]) if isinstance(row.get("trace"), Mapping) else row
        name = str(trace.get("id") or "")
        root = {key: trace.get(key) for key in ("name", "input", "output")} | {"type": "TRACE"}
        self._spool.put(name, place, root, ref=f"trace {name}", at=trace.get("timestamp"))
        for part in (*row["observations"], *(row.get("scores") or ())):
            if isinstance(part, Mapping):  # the list may hold ids alone
                self._put(name, place, _with_plain_names(part))

    def _put(self, trace: str, place: str, row: ObservationRow) -> None:
        self._spool.put(
            trace, place, row, ref=str(row.get("id") or ""), at=row.get("start_time") or row.get("timestamp")
        )

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode per trace with tool calls."""
        for trace in self._spool.parts():
            rows = [row for _, row in self._spool.values(trace)]
            observations = [row for row in rows if row.get("type") in _TYPES]
            root = next((row for row in rows if row.get("type") == "TRACE"), None) or _find_root(observations)
            tools = [row for row in observations if row["type"] == "TOOL"]
            done = [row for row in tools if row.get("end_time", "") is not None or row.get("output") is not None]
            requests = [(_find_task(root, observations), list_ended(map(_build_call, done)))] if tools else []
            requests = requests or _requests_of_messages(observations)
            if requests:
                has_root = root.get("type") == "TRACE" or not root.get("parent_observation_id")
                root = root if has_root else {}
                success, score = _find_outcome(rows, root) or (None, None)
                is_open = bool(tools) and tools[-1] not in done
                ending = "unfinished" if is_open else _find_ending(root, observations)
                meta = {"trace": trace, **self._spool.find_start(trace), **({} if has_root else NO_ROOT)}
                yield LoggedEpisode(trace, tuple(requests), success, score, meta, ending=ending)


def _with_plain_names(row: Mapping[str, Any]) -> ObservationRow:
    """Return a row with names in snake_case, as the blob storage has them; the API writes camelCase."""
    return {_CAPITAL.sub("_", str(name)).lower(): value for name, value in row.items()}


def _find_root(observations: Sequence[ObservationRow]) -> ObservationRow:
    ids = {row.get("id") for row in observations}
    tops = [row for row in observations if row.get("parent_observation_id") not in ids]
    return (tops or [*observations, {}])[0]


def _parse(value: Any) -> Any:
    """Return an input or output; exports write objects as JSON text."""
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _find_task(root: ObservationRow, observations: Sequence[ObservationRow]) -> str:
    """Return the first text of a person in the trace, else its input or its name."""
    for row in (root, *observations):
        texts = [message["text"] for message in _parse_messages(row) if message["role"] == "user" and message["text"]]
        if texts:
            return str(texts[0])
    words = find_request(_parse(root.get("input"))) if root.get("input") not in (None, "") else ""
    return words or str(root.get("trace_name") or root.get("name") or "")


def _build_call(row: ObservationRow) -> Call:
    given = _parse(row.get("input"))
    if isinstance(given, Mapping) and "args" in given and {*given} <= {"args", "name", "id", "type"}:
        given = _parse(given["args"])  # LangChain's handler wraps the arguments into the call
    arguments = given if isinstance(given, Mapping) else {} if given in (None, "") else {"input": given}
    call = normalize_call({"name": str(row.get("name") or "tool"), "arguments": dict(arguments)})
    output = _parse(row.get("output"))
    error = find_failure(output)
    if isinstance(output, Mapping) and "content" in output:  # a message of the tool
        output = output["content"]
    result = extract_text(output)
    if str(row.get("level") or "").upper() == "ERROR":
        error = str(row.get("status_message") or "") or result or "error"
    return Call(call["name"], call["arguments"], result or (f"error: {error}" if error else ""), error)


def _parse_messages(row: ObservationRow) -> list[LoggedMessage]:
    """Return the messages in the input and the output of a row; empty if they are of another form."""
    messages: list[LoggedMessage] = []
    for side in ("input", "output"):
        value = _parse(row.get(side))
        value = value.get("messages", value) if isinstance(value, Mapping) else value
        listed = value if isinstance(value, list) else [value]
        if any(isinstance(inner, Mapping | list) for inner in listed):  # a plain text may be an answer
            with suppress(ValueError):  # they are no messages
                messages += list(iter_messages(listed))
    return messages


def _requests_of_messages(observations: Sequence[ObservationRow]) -> list[tuple[str, tuple[Call, ...]]]:
    """Return the calls in the longest conversation of the generations, each of which repeats the one before."""
    longest = max(map(_parse_messages, observations), key=len, default=[])
    return [episode.requests[0] for episode in split_requests(longest)]


def _find_outcome(rows: Sequence[ObservationRow], root: ObservationRow) -> LoggedOutcome | None:
    """Return the score of the trace, a person's before an evaluator's; without one, a failed root is a failure."""
    scores = [row for row in rows if row.get("type") not in _TYPES and "data_type" in row]
    scores.sort(key=lambda row: (row.get("source") != "ANNOTATION", bool(row.get("observation_id"))))
    for row in scores:
        words = str(row.get("string_value") or "").lower()
        if words in (*_PASS, *_FAIL):
            return (won := words in _PASS), float(won)
        value = row.get("value")
        if isinstance(value, int | float) and row.get("data_type") in ("NUMERIC", "BOOLEAN"):
            score = min(1.0, max(0.0, float(value)))
            return score >= 1.0, score
    return (False, 0.0) if _read_level(root) == "failed" else None


def _read_level(row: ObservationRow) -> Ending | None:
    """Return how an observation ended by its level; LangChain's handler reports an interrupt as an error, too."""
    return read_error(row.get("status_message") or "error") if str(row.get("level") or "").upper() == "ERROR" else None


def _find_ending(root: ObservationRow, observations: Sequence[ObservationRow]) -> Ending:
    """Return how a trace ended: by its root, or by the last answer of its model."""
    if ("end_time" in root and root["end_time"] is None) or find_cut(_parse(root.get("output"))):
        return "unfinished"
    last = next((row for row in reversed(observations) if row["type"] == "GENERATION"), {})
    output = _parse(last.get("output"))
    if isinstance(output, Mapping) and {"content", "role"} & {*output}:
        answer = normalize_message({"role": "assistant", **output})
        return _read_level(root) or read_ending([answer])
    return _read_level(root) or ("unfinished" if find_cut(output) else "completed")
