"""Read OpenTelemetry spans with the semantic conventions for generative AI; a trace is an episode.

The input is OTLP JSON (`resourceSpans`), or a span per line, as the SDK exporters write it. A span with
`gen_ai.operation.name` `execute_tool`, or with `gen_ai.tool.name`, is a tool call. If no span has arguments or results,
the messages of the model's spans are read instead (`gen_ai.input.messages`, `gen_ai.output.messages`).
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.tool_episode import extract_text, normalize_call
from hardwon.runtime.interfaces.endings import Ending, read_error, read_word
from hardwon.runtime.interfaces.results import find_failure

from .conversations import LoggedOutcome, split_requests
from .messages import LoggedMessage
from .spool import NO_ROOT, LoggedEpisode, Spool, list_ended

OtelSpan = Mapping[str, Any]
_EVALUATION = "gen_ai.evaluation."
_PASS, _FAIL = ("pass", "passed", "success", "correct"), ("fail", "failed", "failure", "incorrect")
_AGENT = "invoke_agent"


def is_span(value: Any) -> bool:
    """Return whether a value is a span, or the spans of a resource."""
    if not isinstance(value, Mapping):
        return False
    if "resourceSpans" in value or "resource_spans" in value or "scopeSpans" in value:
        return True
    return (
        bool(_get_trace_id(value))
        and "attributes" in value
        and bool({"name", "startTimeUnixNano", "start_time"} & {*value})
    )


class Spans:
    """Reader of spans, in any order."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.spans = 0

    def add(self, place: str, value: Any) -> None:
        """Add a span, or the spans of resources."""
        if not is_span(value):
            raise ValueError("not a span: it has no trace id and attributes, and no resourceSpans")
        for span in _spans_in(value):
            read = _read_span(span)
            self.spans += 1
            # Spans of HTTP or databases have nothing to import; a root is kept for its name and its status.
            if any(name.startswith("gen_ai.") for name in read["attributes"]) or not read["parent"]:
                self._spool.put(read["trace"], place, read, ref=read["id"], at=read["start"])

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield an episode per trace with tool calls."""
        for trace in self._spool.parts():
            spans = [span for _, span in self._spool.values(trace)]
            tools = [span for span in spans if _is_tool(span)]
            requests = (
                [(_find_request(spans), list_ended(map(_build_call, tools)))] if any(map(_has_content, tools)) else []
            )
            if not requests:
                requests = _requests_of_messages(spans)
            if not requests and tools:  # the exporter did not capture content: names and errors only
                requests = [(_find_request(spans), list_ended(map(_build_call, tools)))]
            if requests:
                success, score = _find_outcome(spans) or (None, None)
                aliases = tuple({span["raw"] for span in spans} - {trace, ""})
                has_root = any(not span["parent"] for span in spans)
                meta = {"trace": trace, **self._spool.find_start(trace), **({} if has_root else NO_ROOT)}
                yield LoggedEpisode(trace, tuple(requests), success, score, meta, aliases, _find_ending(spans))


# ---- normalization of spans


def _spans_in(value: OtelSpan) -> Iterator[OtelSpan]:
    if "scopeSpans" in value or "scope_spans" in value:
        value = {"resourceSpans": [value]}
    resources = value.get("resourceSpans", value.get("resource_spans"))
    if resources is None:
        yield value
        return
    for resource in resources:
        for scope in resource.get("scopeSpans") or resource.get("scope_spans") or ():
            yield from scope.get("spans") or ()


def _get_trace_id(span: OtelSpan) -> str:
    context = span.get("context")
    inner = context if isinstance(context, Mapping) else span
    return _normalize_id(str(inner.get("traceId") or inner.get("trace_id") or ""))


def _normalize_id(text: str) -> str:
    """Return an id as exporters write it in OTLP: the SDK puts 0x before it, and protobuf's own JSON is base64."""
    if len(text) == 24 and text.endswith("=="):
        with suppress(ValueError):
            return base64.b64decode(text, validate=True).hex()
    return text.lower().removeprefix("0x")


def _read_span(span: OtelSpan) -> dict[str, Any]:
    if not isinstance(span, Mapping) or not _get_trace_id(span):
        raise ValueError("a span without a trace id")
    status = span.get("status") or {}
    context = span.get("context")
    context = context if isinstance(context, Mapping) else span
    code = str(status.get("code", status.get("status_code", ""))) if isinstance(status, Mapping) else str(status)
    events = [event for event in span.get("events") or () if isinstance(event, Mapping)]
    return {
        "trace": _get_trace_id(span),
        "raw": str(context.get("traceId") or context.get("trace_id") or ""),
        "id": _normalize_id(str(context.get("spanId") or context.get("span_id") or "")),
        "parent": str(span.get("parentSpanId") or span.get("parent_id") or span.get("parent_span_id") or ""),
        "name": str(span.get("name") or ""),
        "start": span.get("startTimeUnixNano") or span.get("start_time_unix_nano") or span.get("start_time"),
        # OTLP writes STATUS_CODE_ERROR as 2; other exporters write its name.
        "failed": code == "2" or code.upper().endswith("ERROR"),
        "why": extract_text(status.get("message") or status.get("description")) if isinstance(status, Mapping) else "",
        "attributes": _parse_attributes(span.get("attributes")),
        "events": [
            {"name": str(event.get("name")), "attributes": _parse_attributes(event.get("attributes"))}
            for event in events
        ],
    }


def _parse_attributes(value: Any) -> dict[str, Any]:
    """Return attributes as a dictionary, from OTLP's list of keys and typed values or from an object."""
    if isinstance(value, Mapping):
        return dict(value)
    return {
        str(pair["key"]): _unwrap_value(pair.get("value"))
        for pair in value or ()
        if isinstance(pair, Mapping) and "key" in pair
    }


def _unwrap_value(value: Any) -> Any:
    """Return the plain value of an OTLP AnyValue."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "intValue" | "int_value":
            return int(inner)  # OTLP writes 64-bit integers as text
        case "arrayValue" | "array_value":
            return [_unwrap_value(element) for element in (inner or {}).get("values") or ()]
        case "kvlistValue" | "kvlist_value":
            return {str(pair["key"]): _unwrap_value(pair.get("value")) for pair in (inner or {}).get("values") or ()}
    return inner if kind.lower().endswith("value") else value


# ---- calls


def _is_tool(span: OtelSpan) -> bool:
    attributes = span["attributes"]
    return attributes.get("gen_ai.operation.name") == "execute_tool" or (
        "gen_ai.tool.name" in attributes and attributes.get("gen_ai.operation.name") in (None, "")
    )


def _has_content(span: OtelSpan) -> bool:
    return any(f"gen_ai.tool.call.{name}" in span["attributes"] for name in ("arguments", "result"))


def _build_call(span: OtelSpan) -> Call:
    attributes = span["attributes"]
    name = attributes.get("gen_ai.tool.name") or span["name"].removeprefix("execute_tool").strip() or "tool"
    call = normalize_call({"name": name, "arguments": attributes.get("gen_ai.tool.call.arguments")})
    output = attributes.get("gen_ai.tool.call.result")
    result, error = extract_text(output), _format_error(span) or find_failure(output)
    return Call(call["name"], call["arguments"], result or (f"error: {error}" if error else ""), error)


def _format_error(span: OtelSpan) -> str:
    """Return the error of a span; empty if it did not fail."""
    raised: OtelSpan = next(
        (event["attributes"] for event in span["events"] if event["name"].endswith("exception")), {}
    )
    words = extract_text(raised.get("exception.message") or span["why"])
    kind = extract_text(span["attributes"].get("error.type") or raised.get("exception.type"))
    if not (span["failed"] or raised or "error.type" in span["attributes"]):
        return ""
    return ": ".join(filter(None, (kind, words))) or "error"


# ---- messages


def _requests_of_messages(spans: Sequence[OtelSpan]) -> list[tuple[str, tuple[Call, ...]]]:
    """Return the calls in the longest conversation of the model's spans."""
    # Every model call repeats the conversation so far.
    conversations = [_parse_messages(span) for span in spans]
    longest = max(conversations, key=len, default=[])
    return [episode.requests[0] for episode in split_requests(longest)]


def _parse_messages(span: OtelSpan) -> list[LoggedMessage]:
    attributes = span["attributes"]
    sides = [_as_list(attributes.get(f"gen_ai.{side}.messages")) for side in ("input", "output")]
    return [
        plain for message in (*sides[0], *sides[1]) if isinstance(message, Mapping) for plain in _convert_parts(message)
    ]


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def _convert_parts(message: OtelSpan) -> Iterator[LoggedMessage]:
    """Yield the plain messages of a message with a role and parts."""
    parts = [part for part in _as_list(message.get("parts")) if isinstance(part, Mapping)]
    role = str(message.get("role") or "user")
    words = "\n".join(extract_text(part.get("content")) for part in parts if part.get("type") == "text")
    words = words or extract_text(message.get("content"))
    calls = [normalize_call(part) for part in parts if part.get("type") == "tool_call"]
    for part in parts:
        if part.get("type") == "tool_call_response":
            output = part.get("response", part.get("result"))
            error = bool(find_failure(output))
            yield {"role": "tool", "text": extract_text(output), "calls": [], "answers": part.get("id"), "error": error}
    if words or calls:
        yield {"role": role, "text": words, "calls": calls, "answers": None, "error": False}


def _find_request(spans: Sequence[OtelSpan]) -> str:
    """Return the first text of a person, else the name of the root span."""
    for span in spans:
        words = [message["text"] for message in _parse_messages(span) if message["role"] == "user" and message["text"]]
        events = [event["attributes"] for event in span["events"] if event["name"] == "gen_ai.user.message"]
        words += [extract_text(event.get("content")) for event in events]
        words += [extract_text(span["attributes"].get("gen_ai.prompt.0.content"))]
        if first := next(filter(None, words), ""):
            return first
    root = next((span for span in spans if not span["parent"]), spans[0])
    return extract_text(root["attributes"].get("gen_ai.agent.description") or root["name"])


def _find_outcome(spans: Sequence[OtelSpan]) -> LoggedOutcome | None:
    """Return the evaluation if there is one; else a failed agent span counts as a failure."""
    sources = [
        event["attributes"] for span in spans for event in span["events"] if event["name"].startswith(_EVALUATION)
    ]
    for source in (*sources, *(span["attributes"] for span in spans)):
        value, label = (source.get(f"{_EVALUATION}score.{name}") for name in ("value", "label"))
        if isinstance(value, int | float):
            score = min(1.0, max(0.0, float(value)))
            return score >= 1.0, score
        if str(label).lower() in (*_PASS, *_FAIL):
            return (won := str(label).lower() in _PASS), float(won)
    agents = [span for span in spans if span["attributes"].get("gen_ai.operation.name") == _AGENT or not span["parent"]]
    return (False, 0.0) if any(read_error(_format_error(span)) == "failed" for span in agents) else None


def _find_ending(spans: Sequence[OtelSpan]) -> Ending:
    """Return how a trace ended: by an error of its agent, or by the reason for which its model stopped last."""
    if any(read_error(_format_error(span)) for span in spans if not span["parent"]):
        return "unfinished"
    reasons = [reason for span in spans if (reason := span["attributes"].get("gen_ai.response.finish_reasons"))]
    last = _as_list(reasons[-1]) if reasons else []
    return read_word(last[0], is_reason=True) or "completed" if last else "completed"
