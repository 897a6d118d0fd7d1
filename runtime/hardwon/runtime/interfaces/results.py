"""Read from the result of a tool whether the call failed, and the words that say how.

    find_failure('{"success": false, "error": "no such order"}')     # "no such order"
    find_failure("refunded")                                         # ""

This is the only rule: middleware, decorated functions, hooks, the proxy, importers and environments call it. The mark
of the format comes first, then the flags and codes of a structured result, then the beginning of a text. A result that
tells of failures, such as a log or a document about errors, is none.

The module needs nothing but the standard library: hooks import it before every tool call.
"""

import ast
import errno
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, cast

from .error_texts import reports_failure
from .tuning import TUNING

_WORKED = ("success", "successful", "succeeded", "issuccess", "issuccessful", "ok", "isok")
"""Flags that are true if the call worked; all names are in lower case and without underscores."""
_BROKE = ("iserror", "haserror", "haserrors", "error", "errors", "failed", "failure", "timedout")
"""Flags that are true if it did not."""
_EXIT_CODES = ("exitcode", "exitstatus", "returncode")
_SHORT_CODES = ("exit", "rc", "code", "status")
"""Exit codes beside the streams of a command."""
_STATUSES = ("status", "statuscode", "httpstatus", "httpstatuscode", "httpcode")
_ERRORS = (
    "error",
    "errors",
    "err",
    "fault",
    "exception",
    "errormessage",
    "errormessages",
    "errormsg",
    "errordescription",
    "errorcode",
    "errorlist",
    "odata.error",
    "errno",
    "errcode",
    "traceback",
)
"""Fields that are empty unless the call failed."""
_MESSAGES = ("errormessage", "errormsg", "errordescription", "message", "msg", "detail", "reason", "description")
_OUTPUTS = ("stderr", "output", "stdout", "content", "text", "result", "data", "response", "body", "title", "code")
_VERDICTS = ("status", "state", "result", "outcome", "type", "kind", "resultcode", "responsestatus", "code")
"""Fields whose word may be the verdict about the call."""
_BAD_WORDS = frozenset(["error", "failed", "failure", "fail", "errored", "exception", "unsuccessful"])
_GOOD_WORDS = frozenset(["ok", "success", "succeeded", "successful"])
_NO_ERROR = frozenset(["", "0", "none", "null", "nil", "no error", "no errors", "n/a", "ok", "success", "false"])
_CLASSES = ("type", "name", "code", "errortype")
"""Fields with the class of a serialized error, beside its message."""
_CANONICAL = (
    "CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED "
    "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS"
)
_ERROR_CODES = frozenset([*_CANONICAL.split(), *errno.errorcode.values(), "ENOTFOUND"])
"""Codes of gRPC and of operating systems, which stand for a class of errors."""
_WRAPPERS = (
    "result", "results", "data", "output", "response", "structuredcontent", "content", "body", "payload", "value",
    "status", "message", "msg", "text", "detail", "header", "meta", "responsemetadata",
)  # fmt: skip
"""Fields that may hold the result itself."""
_LABEL = re.compile(r"\s*(?:(?!\w*(?:error|exception|fail))[a-z][\w ]{0,20}: ?(?=[{\[])|```\w{0,10}\n)", re.IGNORECASE)
"""What may stand before a structured result: a label, or the fence of a block of code."""


def find_failure(result: Any, *, failed: bool | None = None) -> str:
    """Return how a call failed, by its result; empty if the call worked."""
    if failed is False:
        return ""
    judged = _judge(result, TUNING.result_depth)
    return judged or (_find_words(result, TUNING.result_depth) or "error" if failed else "")


def _judge(value: Any, depth: int) -> str | None:
    """Return how a call failed, an empty string if the value says that it worked, or None if it says neither."""
    if depth <= 0 or value is None or isinstance(value, bool | int | float | bytes):
        return None
    if isinstance(value, str):
        parsed = _parse(value)
        if parsed is not value:
            return _judge(parsed, depth - 1)
        is_failed = reports_failure(value)
        return None if is_failed is None else (value.strip() or "error") if is_failed else ""
    if isinstance(value, Mapping):
        return _judge_fields(value, depth)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list | tuple) and not hasattr(type(value), "_asdict"):
        return _judge_sequence(value, depth)
    judged = _judge_fields(_read_attributes(value, only_given=True), depth)
    # The default of a flag is no statement that the call worked.
    return judged if judged is not None else _judge_fields(_read_attributes(value), depth) or None


def _judge_sequence(values: list[Any] | tuple[Any, ...], depth: int) -> str | None:
    """Judge a tuple by its flag or its code, or the content before its artifact; content blocks by the first one."""
    if isinstance(values, tuple) and len(values) == 2:
        first, second = values
        if first is False and isinstance(second, str):
            return second or "error"
        if _is_bad_status(second):
            return f"HTTP {second}: {_find_words(first, depth)}"
        return _judge(second if first is None else first, depth - 1)
    if values and all(isinstance(part, str) for part in values):
        return _judge("\n".join(values), depth - 1)
    block = values[0] if values else None
    if values and all(isinstance(part, Mapping) and False in _read_flags(_rename(part)) for part in values):
        return _find_words(block, depth)  # a batch of which nothing worked
    if values and all(isinstance(part, Mapping) and _is_complaint(_rename(part)) for part in values):
        return _find_words(block, depth)
    named = block if isinstance(block, Mapping) else _read_attributes(block)
    return _judge(named["text"], depth - 1) if isinstance(named.get("text"), str) else None


def _is_complaint(named: Mapping[str, Any]) -> bool:
    """Return whether an object is a message with the code of an error, or with the place of a wrong value."""
    is_coded = {"errorcode", "message"} <= {*named} <= {"errorcode", "message", "fields", "statuscode", "detail"}
    place = named.get("loc", named.get("path"))
    is_placed = isinstance(place, list) and ({"msg", "type"} <= {*named} or {"message", "code"} <= {*named})
    return is_coded or is_placed


def _judge_fields(value: Mapping[Any, Any], depth: int) -> str | None:
    """Judge an object by its flags and codes, its errors, its verdict, and the result within it, in this order."""
    named = _rename(value)
    if "toolcallid" in named:  # a message of LangChain or OpenAI; the status "success" is a default
        return find_failure(named.get("content"), failed=True if named.get("status") == "error" else None)
    metadata = _rename(named["metadata"]) if isinstance(named.get("metadata"), Mapping) else {}
    flags = _read_flags(named)
    names = (*_EXIT_CODES, *_SHORT_CODES) if {"stdout", "stderr"} & {*named} else _EXIT_CODES
    codes = [code for name in names for of in (named, metadata) if (code := _read_int(of.get(name))) is not None]
    if flags or codes:
        return _describe(value, depth) if False in flags or any(codes) else ""
    if any(named.get(name) is True or str(named.get(name)).lower() == "true" for name in _BROKE) or any(
        _has_error(named[name], name) for name in _ERRORS if name in named
    ):
        return _describe(value, depth)
    status = _read_status(named)
    words = {str(named[name]).strip().lower() for name in _VERDICTS if isinstance(named.get(name), str)}
    is_raised = bool({"message", "stack", "stacktrace"} & {*named}) and any(
        map(_is_class_of_error, map(named.get, _CLASSES))
    )
    if _is_bad_status(status) or words & _BAD_WORDS or is_raised:
        return _describe(value, depth)
    # MCP's `isError: false` is a default of its libraries, so the content beside it decides.
    is_marked = named.get("iserror") is False and not isinstance(named.get("content"), list)
    if status is not None or words & _GOOD_WORDS or is_marked:
        return ""
    if named.get("stderr") and named.get("stdout") == "":
        return _judge(named["stderr"], depth - 1)
    if named.get("type") == "text":
        return _judge(named.get("text"), depth - 1)
    judged = (_judge(named.get(name), depth - 1) for name in _WRAPPERS if named.get(name) is not None)
    return next((verdict for verdict in judged if verdict is not None), None)


def _is_class_of_error(value: Any) -> bool:
    """Return whether a value is the name or the code of a class of errors, as a serialized error has it."""
    if not (isinstance(value, str) and value.isascii() and value.isidentifier()):
        return False
    return value.endswith(("Error", "Exception")) or value in _ERROR_CODES


def _read_flags(named: Mapping[str, Any]) -> list[bool]:
    return [flag for name in _WORKED if (flag := _read_flag(named.get(name))) is not None]


def _read_flag(value: Any) -> bool | None:
    """Return a flag, which may be a number or a word; None if the value is none."""
    if value in (0, 1) and isinstance(value, int):  # bool is a subclass of int
        return bool(value)
    return (
        {"true": True, "yes": True, "false": False, "no": False}.get(value.lower()) if isinstance(value, str) else None
    )


def _read_int(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_status(named: Mapping[str, Any]) -> int | None:
    """Return the HTTP status of a result; a `code` is one only beside a message or an error."""
    names = (*_STATUSES, "code") if {"message", "msg", "detail", "error"} & {*named} else _STATUSES
    numbers = (_read_int(named.get(name)) for name in names)
    return next((number for number in numbers if number is not None and 200 <= number < 600), None)


def _is_bad_status(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600


def _has_error(value: Any, name: str) -> bool:
    """Return whether the value of a field for errors names one; the number of errors is a finding."""
    if isinstance(value, str):
        return value.strip().lower() not in _NO_ERROR
    if isinstance(value, int) and not isinstance(value, bool):
        return value != 0 and name in ("error", "errorcode", "errno", "errcode")
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, BaseException) or any(part is True or _has_error(part, "error") for part in parts)


def _describe(value: Mapping[Any, Any], depth: int) -> str:
    """Return the words of a failure, after its HTTP status, which tells an outage from a mistake."""
    words, status = _find_words(value, depth) or "error", _read_status(_rename(value))
    return f"HTTP {status}: {words}" if _is_bad_status(status) else words


def _find_words(value: Any, depth: int) -> str:
    """Return the words of a value that say most about a failure; else all of it as text."""
    value = _parse(value) if isinstance(value, str) else value
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, list | tuple):
        return extract_text(list(value)).strip()
    if not isinstance(value, Mapping | str | int | float | None):
        value = _read_attributes(value) or str(value)
    if not isinstance(value, Mapping) or depth <= 0:
        return extract_text(value).strip()
    named = _rename(value)

    def find_first(names: tuple[str, ...]) -> str:
        parts = (named[name] for name in names if named.get(name) not in (None, "", True, False, 0))
        return next(filter(None, (_find_words(part, depth - 1) for part in parts)), "")

    words = dict.fromkeys(filter(None, (find_first(_ERRORS), find_first(_MESSAGES))))
    return ": ".join(words) or find_first(_OUTPUTS) or extract_text(dict(value))


# ---- forms of results


def _parse(text: str) -> Any:
    """Return the object or list that a text holds as JSON or as a Python literal, else the text itself."""
    label = _LABEL.match(text)
    inner = text[label.end() :].rstrip().removesuffix("```") if label else text
    start = inner[:100].lstrip("\ufeff \t\r\n")[:1]
    if start not in ("{", "[", '"', "("):
        return text
    try:
        return json.loads(inner.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        if start not in ("{", "(") or len(inner) > TUNING.max_literal:
            return text
    try:
        return ast.literal_eval(inner.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _rename(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of an object with their names in lower case and without separators."""
    return {str(name).lower().replace("_", "").replace("-", ""): part for name, part in value.items()}


def _read_attributes(value: Any, *, only_given: bool = False) -> dict[str, Any]:
    """Return the public fields of an object, without calling anything of it.

    With `only_given`, a model of pydantic has the fields alone that were given to it.
    """
    if hasattr(type(value), "_asdict"):
        return dict(value._asdict())
    named = {field.name: getattr(value, field.name, None) for field in fields(value)} if is_dataclass(value) else {}
    with suppress(Exception):  # an object without fields, or one that answers for any name
        named |= vars(value)
    has_given = only_given and hasattr(type(value), "model_fields_set")
    given = cast(Any, value).model_fields_set if has_given else None
    kept = named if not isinstance(given, set) else {name: named[name] for name in named if name in given}
    return {name: part for name, part in kept.items() if not name.startswith("_")}


def extract_text(content: Any) -> str:
    """Return message content as text; blocks are joined, other values become JSON, lone surrogates are replaced."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_extract_block_text, content)))
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    return text.encode(errors="replace").decode()


def _extract_block_text(block: Any) -> str:
    if isinstance(block, Mapping):
        return extract_text(block["text"]) if isinstance(block.get("text"), str) else f"[{block.get('type', 'data')}]"
    return extract_text(block)
