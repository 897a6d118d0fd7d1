"""Outages: what an exception, a status code or an error's words say of a service, and what it does to guardrails."""

import json
import subprocess
import urllib.error
from dataclasses import replace
from email.message import Message

import pytest

from hardwon.memory import Failure, Item
from hardwon.memory.guardrails.outage import is_outage, mark_outages, tells_of_outage

OUTAGES = [
    "503 Service Unavailable",
    "HTTP 503",
    "HTTP/1.1 502 Bad Gateway",
    "error: HTTPStatusError: Server error '503 Service Unavailable' for url 'https://desk'",
    '{"error": {"code": 503, "message": "x"}}',
    "returned status code 500",
    "code=504",
    "Rate limit reached, please slow down",
    "You are sending too many requests",
    "API quota exceeded: wait 30 seconds and retry",
    "openai.RateLimitError: Error code: 429 - {...}",
    "ReadTimeout: ",
    "Request timed out after 30s",
    "search gave no answer within 30 s; it may have done its work all the same.",
    "[Errno 111] Connection refused",
    "ConnectionResetError(104, 'Connection reset by peer')",
    "Remote end closed connection without response",
    "Temporary failure in name resolution",
    "upstream connect error or disconnect/reset before headers",
    "The server is overloaded. Try again later.",
    "the service is busy, please come back in a moment",
    "UNAVAILABLE: failed to connect to all addresses",
    "The backend is down for maintenance",
    "The service is taking a nap, try later",
    "could not reach the payment server",
    "We'll be back soon!",
    "Something went wrong on our end.",
    "You have used up your calls for this minute",
    "You've hit your daily quota",
    "curl: (6) Could not resolve host: desk",
    "net::ERR_CONNECTION_REFUSED",
    "Error: socket hang up",
    "circuit breaker is open",
    "Please wait a few minutes before you do that again",
]
LASTING = [
    "permission denied",
    "Error invoking tool 'book' with kwargs {'code': 503, 'timeout': 'x'} with error:\n table: Input should be a "
    "valid integer\n Please fix the error and try again.",
    "403 Forbidden",
    "404 Not Found: no such file",
    "ValueError: timeout must be positive",
    "invalid argument: count is 503",
    "order 512 was already refunded",
    "room 503 does not exist",
    "table 4 is taken",
    "the door is locked",
    "You must unlock the door first; try again later",
    "AssertionError: test_timeout expected 3",
    "E   assert 500 == 200",
    "ModuleNotFoundError: No module named 'requests'",
    "make: *** [test] Error 1",
    "insufficient funds: balance is 500",
    "seat 12B is unavailable",
    "you cannot reach the shelf",
    "limit exceeded: at most 5 bags",
    "Your card limit is exceeded",
]


@pytest.mark.parametrize("words", OUTAGES)
def test_words_of_an_outage_are_known(words):
    assert tells_of_outage(words)


@pytest.mark.parametrize("words", [*LASTING, ""])
def test_what_was_wrong_with_the_call_is_no_outage(words):
    assert not tells_of_outage(words)


class Api(Exception):
    """As clients raise them: with the status, or with the response."""

    def __init__(self, words, **given):
        super().__init__(words)
        vars(self).update(given)


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (TimeoutError(), True),
        (ConnectionRefusedError("no"), True),
        (Api("nope", status_code=429), True),
        (Api("nope", status_code=503), True),
        (Api("nope", status_code=404), False),
        (Api("rate limit exceeded", status_code=403), True),  # as one well known service words it
        (Api("nope", response=type("R", (), {"status_code": 502})()), True),
        (urllib.error.HTTPError("http://x", 500, "no", Message(), None), True),
        (urllib.error.HTTPError("http://x", 401, "no", Message(), None), False),
        (type("ReadTimeout", (Exception,), {})("x"), True),
        (PermissionError("permission denied"), False),
        (ValueError("no such table 4"), False),
        (subprocess.CalledProcessError(1, "make"), False),
        (json.JSONDecodeError("x", "y", 0), False),
    ],
)
def test_exceptions_are_judged_by_type_status_and_words(error, outage):
    assert is_outage(error) is outage


def test_the_cause_of_an_exception_counts():
    wrapped = RuntimeError("the tool failed")
    wrapped.__cause__ = TimeoutError()
    assert is_outage(wrapped)


def failed(episode, library, words, failure=Failure.TOOL_ERROR, times=1, action="shake drawer"):
    """Episodes whose one call failed with these words."""
    made = []
    for _ in range(times):
        told = episode(action, reward=0.0, success=False, failure=failure, library=library)
        step = told.steps[0]
        made.append(replace(told, steps=(replace(step, diagnosis=replace(step.diagnosis, evidence=words)),)))
    return made


def test_recorded_outages_are_called_so_whoever_recorded_them(library, episode):
    """A client that says tool_error and 503: kept with the cause that the words tell; also when read again."""
    ref = library.record(failed(episode, library, "HTTP 503")[0])
    library.admin.index()
    assert library.episodes.get(ref).steps[0].diagnosis.failure is Failure.UNAVAILABLE
    assert library.admin.stats()["failures"] == {"unavailable": 1}


def test_other_failures_are_left_as_they_are(library, episode):
    told = failed(episode, library, "permission denied")[0]
    assert mark_outages(told) is told


def test_a_step_that_worked_is_no_outage_whatever_its_answer_says(library, episode):
    told = episode("read log", library=library)
    step = replace(told.steps[0], post=replace(told.steps[0].post, feedback="503 Service Unavailable at 12:00"))
    assert mark_outages(replace(told, steps=(step,))).steps[0].diagnosis.failure is Failure.NONE


@pytest.mark.parametrize("words", OUTAGES)
def test_an_outage_never_forbids_nor_warns(library, episode, words):
    """Twelve episodes of it: no guardrail, no warning."""
    library.record_many(failed(episode, library, words, times=12))
    library.evolve()
    assert library.items.find(["guardrail", "warning"]) == []


def test_a_lasting_refusal_still_becomes_a_guardrail(library, episode):
    """The untuned case: a permission that is not there tomorrow either."""
    library.record_many(failed(episode, library, "permission denied", times=6))
    library.evolve()
    assert not library.check(episode().steps[0].pre, "shake drawer").allowed


def test_an_outage_neither_feeds_nor_clears_a_guardrail(library, episode):
    """It says nothing of the call."""
    library.record_many(failed(episode, library, "permission denied", times=6))
    library.record_many(failed(episode, library, "HTTP 503", times=6))
    library.evolve()
    (guard,) = [item for item in library.items.find(["guardrail"]) if item.forbids == "shake drawer"]
    assert isinstance(guard, Item)
    assert guard.body == "Failed in 6 of 6 episodes here"
