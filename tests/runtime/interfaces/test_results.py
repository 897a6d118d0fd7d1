"""The one rule about results: which say that the call failed, and in which words."""

import json
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from pydantic import BaseModel
from tests.runtime.interfaces.result_cases import FAILED, WORKED

from hardwon.runtime.interfaces.error_texts import reports_failure
from hardwon.runtime.interfaces.results import find_failure


@pytest.mark.parametrize("text", FAILED)
def test_a_failure_is_read_from_words_flags_and_codes(text):
    assert find_failure(text)


@pytest.mark.parametrize("text", WORKED)
def test_a_result_that_only_tells_of_failures_is_none(text):
    assert find_failure(text) == ""


@pytest.mark.parametrize(
    "text", [text for text in (*FAILED, *WORKED) if text[:1] in ("{", "[") and text != "{not json"]
)
def test_a_parsed_result_says_the_same_as_its_text(text):
    try:
        value = json.loads(text)
    except ValueError:
        value = {"success": False, "error": "no"}
    assert bool(find_failure(value)) is (text in FAILED)
    assert bool(find_failure([{"type": "text", "text": text}])) is (text in FAILED)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("Error: not verified", "Error: not verified"),
        ("410 Gone: use v2", "410 Gone: use v2"),
        ("element is not clickable: a banner", "element is not clickable: a banner"),
        ('Error from server (NotFound): deployments.apps "a" not found',) * 2,
        ('{"success": false, "error": "not verified"}', "not verified"),
        ('{"error": "not_found", "message": "no order A-1"}', "not_found: no order A-1"),
        ('{"error": {"code": 5, "message": "no order"}}', "no order"),
        ('{"status": 503, "message": "busy"}', "HTTP 503: busy"),
        ('{"output": "1 failed", "metadata": {"exit_code": 2}}', "1 failed"),
        ('{"result": {"ok": false, "reason": "closed"}}', "closed"),
        ('{"success": false}', '{"success": false}'),
    ],
)
def test_the_words_of_a_failure_are_those_that_say_most(result, words):
    assert find_failure(result) == words


def test_the_mark_of_the_format_outranks_the_result():
    assert find_failure("Error: old news", failed=False) == ""
    assert find_failure("no money", failed=True) == "no money"
    assert find_failure("", failed=True) == "error"
    assert find_failure({"success": True}, failed=True)


class Refund(BaseModel):
    success: bool = True
    error: str | None = None


@dataclass
class Booking:
    ok: bool
    message: str = ""


@dataclass(slots=True)
class Slotted:
    ok: bool


Pair = namedtuple("Pair", "success reason")


def make_silent():
    """Return an object of which nothing may be read or called."""

    def refuse(self, name):
        raise RuntimeError(name)

    return type("Silent", (), {"__getattr__": refuse, "__slots__": ()})()


@pytest.mark.parametrize(
    ("result", "is_failed"),
    [
        (Refund(success=False), True),
        (Refund(error="no"), True),
        (Refund(), False),
        (Booking(False, "no"), True),
        (Booking(True, "Error: x"), False),
        (Slotted(False), True),
        (Pair(False, "no"), True),
        (Pair(True, "Error: x"), False),
        (SimpleNamespace(status_code=404, text="no"), True),
        (SimpleNamespace(status_code=200, text="Error: x"), False),
        (subprocess.CompletedProcess(["x"], 1, "", "no"), True),
        (subprocess.CompletedProcess(["x"], 0, "Error: x", ""), False),
        (ValueError("no"), True),
        (("Error: no", {"raw": 1}), True),
        (("found", {"error": "raw"}), False),
        ((False, "not verified"), True),
        ((True, "Error: x"), False),
        (("no such order", 404), True),
        ((None, "Error: no"), True),
        (ToolMessage("Error: no", tool_call_id="1"), True),
        (ToolMessage("Error: no", tool_call_id="1").model_dump(), True),
        (ToolMessage("no", tool_call_id="1", status="error").model_dump(), True),
        (False, False),
        (None, False),
        (404, False),
        (["ERROR: a", "INFO: b"], False),
        (make_silent, False),
    ],
)
def test_objects_that_a_function_returns_are_read_by_their_fields(result, is_failed):
    assert bool(find_failure(result() if result is make_silent else result)) is is_failed


def test_a_damaged_or_deep_result_is_no_error_of_the_rule():
    for text in ("[" * 100_000, '{"a":' * 100_000, "{'a':" * 3000, '"' * 9, "\ud800", "{" + "9" * 5000 + "}"):
        assert find_failure(text) == ""
    value: Any = {"error": "no"}
    for _ in range(50):
        value = {"result": value}
    assert find_failure(value) == ""


@pytest.mark.parametrize("part", ["a", " ", "\n", "error ", "- ", "1 ", "error=", "exit code: 1 ", "a.", "A\n"])
def test_the_time_grows_at_most_with_the_length(part):
    def measure(size):
        text = (part * size)[:size]
        started = time.perf_counter()
        for _ in range(3):
            reports_failure(text)
        return time.perf_counter() - started

    assert measure(1_000_000) < 8 * measure(250_000) + 0.05


def test_the_rule_needs_only_the_standard_library():
    code = (
        "import sys; before = {*sys.modules}; import hardwon.runtime.interfaces.results;"
        "print(*sorted({name.partition('.')[0] for name in {*sys.modules} - before} - sys.stdlib_module_names))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["hardwon"]
