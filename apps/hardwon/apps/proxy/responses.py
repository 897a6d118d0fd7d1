"""The Responses API: requests with `input` items, responses with `output` items, and named stream events.

The server can keep a conversation. A request then names `previous_response_id` or `conversation`, and has new items
only. A hint in the input would stay in such a conversation, so it goes into the instructions of this request.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.apps.importers.messages import RESPONSES_ANSWERS, LoggedMessage, plain_messages
from hardwon.runtime.integrations.tool_episode import extract_text
from hardwon.runtime.integrations.tool_run import append_warning

from .conversations import ModelCall, ModelRequest
from .dialect import ReadOnce, UpstreamAnswer, as_id, explain_unreadable, find_request
from .json_text import load
from .streams.response_reader import Aliases, ResponseReader
from .streams.stream_items import is_client_call, list_items


class Responses:
    """The dialect of the Responses API."""

    def __init__(self) -> None:
        self._aliases = Aliases()
        self._read = ReadOnce(_read_item)

    def prepare(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the server's own id of the response that it continues."""
        if not body.get("previous_response_id"):
            return dict(body)
        return {**body, "previous_response_id": self._aliases.resolve(body["previous_response_id"])}

    def is_conversation(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request has input, and its response comes with this call.

        A request for a compaction gets no experience: it summarizes the conversation.
        """
        given = body.get("input")
        if body.get("background") or not given:
            return False
        if not isinstance(given, list):
            return isinstance(given, str)
        return all(isinstance(item, dict) and item.get("type") != "compaction_trigger" for item in given)

    def can_call(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request names tools, or may continue one that does, and asks for more than a summary."""
        given = body.get("input")
        last = given[-1] if isinstance(given, list) and given else None
        is_summary = isinstance(last, Mapping) and last.get("type") == "compaction_trigger"
        return bool(body.get("tools") or body.get("prompt")) and not is_summary

    def read_request(self, body: Mapping[str, Any]) -> ModelRequest:
        """Return the messages of a request."""
        kept_as = body.get("previous_response_id") or _read_conversation(body)
        return ModelRequest(
            self._read(_list_input(body)),
            extract_text(body.get("model")),
            str(kept_as or ""),
            # The API keeps responses by default.
            body.get("store") is not False or bool(_read_conversation(body)),
        )

    def add_experience(self, body: Mapping[str, Any], turn: ModelCall, place: str) -> dict[str, Any]:
        """Return the request with warnings below the answers of tools, and with the hint."""
        changed = dict(body)
        if turn.warnings:
            changed["input"] = [_add_warning(item, turn.warnings) for item in _list_input(body)]
        is_continued = body.get("previous_response_id") or _read_conversation(body)
        if turn.hint and place == "message" and not is_continued:
            items = _list_input(changed)
            items.insert(find_request(items), {"type": "message", "role": "user", "content": turn.hint})
            changed["input"] = items
        elif turn.hint:
            instructions = body.get("instructions")
            changed["instructions"] = f"{instructions}\n\n{turn.hint}" if instructions else turn.hint
        return changed

    def add_refusals(self, body: Mapping[str, Any], answer: UpstreamAnswer, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request that continues with the last response and answers to its calls."""
        waiting = [(call["id"], text) for call, text in zip(answer.calls, texts, strict=True)]
        output = answer.value["output"]
        refusals = [
            _refuse(item, waiting.pop(0)[1]) for item in output if waiting and _get_call_id(item) == waiting[0][0]
        ]
        if _read_conversation(body):  # the response is in the conversation already
            return {**body, "input": refusals}
        kept = [item for item in output if body.get("store") is not False or _is_self_contained(item)]
        return {**body, "input": [*_list_input(body), *kept, *refusals]}

    def parse(self, data: bytes) -> UpstreamAnswer | None:
        """Return a response that has come to its end, or None if the body is something else."""
        try:
            return read_response(load(data))
        except ValueError:
            return None

    def end(self, answer: UpstreamAnswer, text: str) -> UpstreamAnswer:
        """Return the answer with a text in the place of its calls."""
        calls = {call["id"] for call in answer.calls}
        kept = [item for item in answer.value["output"] if _get_call_id(item) not in calls]
        ended = read_response({**answer.value, "status": "completed", "output": [*kept, make_message(text)]})
        assert ended is not None
        return ended

    def open_reader(self) -> ResponseReader:
        """Return a reader for the stream of one exchange."""
        return ResponseReader(read_response, make_message, self._aliases)


def _read_item(item: Any) -> list[LoggedMessage]:
    """Return an item as plain messages; none if nobody is its author."""
    if "role" not in item and not _is_exchange_with_tool(item):
        return []
    plain = list(plain_messages(item))
    if is_client_call(item):
        arguments = item.get("arguments") if item["type"] == "function_call" else {}
        for call in plain[0]["calls"]:
            call["unreadable"] = explain_unreadable(call["name"], arguments)
    return plain


def _is_exchange_with_tool(item: Mapping[str, Any]) -> bool:
    kind = str(item.get("type"))
    return kind in RESPONSES_ANSWERS or kind.endswith("_call")


def read_response(value: Any) -> UpstreamAnswer | None:
    """Return a response as an answer, or None if it failed, is still in progress, or has another form."""
    try:
        messages = tuple(plain for item in list_items(value["output"]) for plain in _read_item(item))
        status, name, conversation = value["status"], value["id"], _read_conversation(value)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    if status not in ("completed", "incomplete"):
        return None
    details = value.get("incomplete_details")
    why = (details.get("reason") if isinstance(details, Mapping) else "") or "incomplete"
    kept_as = tuple(str(entry) for entry in (name, conversation) if entry)
    return UpstreamAnswer(value, messages, "stop" if status == "completed" else str(why), kept_as)


def make_message(text: str) -> dict[str, Any]:
    """Return an output item with a text."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message", "id": "msg_hardwon", "role": "assistant", "status": "completed", "content": [part],
    }  # fmt: skip


def _list_input(body: Mapping[str, Any]) -> list[Any]:
    given = body["input"]
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else list(given)


def _read_conversation(value: Mapping[str, Any]) -> str:
    """Return the id of the conversation that the server keeps, or an empty string."""
    conversation = value.get("conversation")
    return str(conversation.get("id") or "") if isinstance(conversation, Mapping) else str(conversation or "")


def _get_call_id(item: Mapping[str, Any]) -> str | None:
    call_id = (item.get("call_id") or item.get("id")) if str(item.get("type")).endswith("_call") else None
    return as_id(call_id)


def _is_self_contained(item: Mapping[str, Any]) -> bool:
    """Return whether a server that keeps nothing accepts an item; it knows reasoning only with its content."""
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _refuse(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the output of a call that did not run."""
    kind, call_id = f"{item['type']}_output", _get_call_id(item)
    if kind == "shell_call_output":
        part = {"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}
        return {"type": kind, "call_id": call_id, "output": [part]}
    if kind == "apply_patch_call_output":
        return {"type": kind, "call_id": call_id, "status": "failed", "output": text}
    name = "id" if kind == "local_shell_call_output" else "call_id"
    return {"type": kind, name: call_id, "output": text}


def _add_warning(item: Any, warnings: Mapping[str, str]) -> Any:
    warning = warnings.get(str(item.get("call_id") or item.get("id") or ""))
    if not warning or item.get("type") not in RESPONSES_ANSWERS:
        return item
    output = item.get("output")
    if item["type"] == "shell_call_output":
        *before, last = output or [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        return {**item, "output": [*before, {**last, "stdout": append_warning(last.get("stdout") or "", warning)}]}
    if isinstance(output, list):
        return {**item, "output": [*output, {"type": "input_text", "text": f"\n\n{warning}"}]}
    return {**item, "output": append_warning(output, warning)}
