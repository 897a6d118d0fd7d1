"""Outages as databases, brokers, clouds and shells word them, and what only looks like one."""

import time
from dataclasses import replace

import pytest

from hardwon.memory import Failure
from hardwon.memory.guardrails.outage import tells_of_outage

OUTAGES = [
    "The booking system is unavailable right now. Please check back in a bit.",
    "Our servers are experiencing high demand. Please hold on.",
    "gRPC error 14: unavailable",
    "rpc error: code = Unavailable desc = transport is closing",
    "dial tcp: lookup api.example.com: no such host",
    "curl: (52) Empty reply from server",
    "EOFError: unexpected EOF while reading from socket",
    "fetch failed: UND_ERR_SOCKET other side closed",
    "TypeError: fetch failed",
    "ESOCKETTIMEDOUT",
    "ProvisionedThroughputExceededException",
    "An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate.",
    "FATAL: the database system is starting up",
    "FATAL: sorry, too many clients already",
    "FATAL: remaining connection slots are reserved",
    "ERROR: could not serialize access due to concurrent update",
    "Lost connection to MySQL server during query",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "READONLY You can't write against a read only replica.",
    "NotLeaderForPartitionError",
    "Request rate is too high",
    "Service degraded, some requests may fail",
    "System maintenance in progress",
    "ssl.SSLEOFError: EOF occurred in violation of protocol",
    "httpx.ReadError",
    "Connection closed before message completed",
    "connection pool exhausted",
    "psycopg.OperationalError: connection failed",
    "model_overloaded",
    '{"type": "error", "error": {"type": "overloaded_error"}}',
    '{"error": "request_timeout"}',
    "status_code: 503",
    "The flight search backend returned a 503.",
    "5xx from upstream",
    "the operation took too long",
    "Tool execution exceeded 30s",
    "Gateway unresponsive",
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 123",
    "the server is currently unable to handle the request",
    "etcdserver: leader changed",
    "circuit_breaking_exception",
    "java.net.UnknownHostException: api",
    "no available workers, request queued too long",
    "Model bert-base is currently loading",
    "You have hit your limit, it resets at 3pm",
    "The flight index is not available at the moment",
    "Palvelu ei ole käytettävissä",
    "サーバーが混み合っています",
    "Služba je dočasně nedostupná",
    "Dịch vụ hiện không khả dụng",
]
LASTING = [
    "error: unrecognized arguments: --timeout",
    "Timeout must be a positive integer",
    "1 failed, 500 passed in 2.1s",
    "FAILED test_jobs.py::test_request_timeout - AssertionError",
    "FAILED test_net.py::test_rate_limit",
    "bash: -c: line 1: unexpected EOF while looking for matching `\"'",
    "SyntaxError: unexpected EOF while parsing",
    "connection failed: password authentication failed for user bob",
    "server: the operation failed: the date is in the past",
    "sqlite3.OperationalError: no such table: orders",
    "Error: ENOENT: no such file or directory",
    "The refund exceeds the limit of 500",
    "failed to fetch order 12: it was cancelled",
    "truck has insufficient capacity for 30 crates",
    "The room is taken",
]


@pytest.mark.parametrize("words", OUTAGES)
def test_forms_of_an_outage_are_known(words):
    assert tells_of_outage(words)


@pytest.mark.parametrize("words", LASTING)
def test_what_looks_like_an_outage_is_none(words):
    assert not tells_of_outage(words)


def test_forms_of_an_outage_forbid_nothing(library, episode):
    """Each of them in six episodes: neither a guardrail nor a warning is made."""
    for words in OUTAGES:
        told = episode("shake drawer", reward=0.0, success=False, failure=Failure.TOOL_ERROR, library=library)
        step = told.steps[0]
        broken = replace(step, diagnosis=replace(step.diagnosis, evidence=words))
        library.record_many([replace(told, id=f"{words[:20]}-{n}", steps=(broken,)) for n in range(6)])
    library.evolve()
    assert library.items.find(["guardrail", "warning"]) == []
    assert library.admin.stats()["failures"] == {"unavailable": 6 * len(OUTAGES)}


@pytest.mark.parametrize("part", ["a_", "error ", "lookup ", "request exceeded ", "server is ", "code = ", "Timeout "])
def test_long_errors_are_read_quickly(part):
    """An error of 100,000 characters, made of beginnings of patterns."""
    began = time.process_time()
    tells_of_outage(part * (100_000 // len(part)))
    assert time.process_time() - began < 0.5
