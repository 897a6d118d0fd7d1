"""`hardwon bench http`: the load is the same for server and library, and every call of it is one that works."""

from itertools import islice

import pytest
from fastapi.testclient import TestClient

from benchmarks.fixtures import build
from benchmarks.speed import http
from hardwon.apps.http.app import create_app


def test_load_is_the_same_for_the_same_seed():
    first, second = (list(islice(http.calls(3, ["in-1"]), 50)) for _ in range(2))
    assert first == second


def test_every_call_of_the_load_is_answered(path):
    library, *_ = build(path, 1000)
    with library:
        items = [item.id for item in library.items.find(limit=20)]
    with TestClient(create_app(path), base_url="http://127.0.0.1:8420") as client:
        asked = list(islice(http.calls(0, items), 120))
        answers = [client.request(method, where, json=body).status_code for method, where, body in asked]
    assert {where.split("/")[2] for _, where, _ in asked} == {"recall", "check", "items", "episodes", "evolve"}
    assert set(answers) == {200}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_of_a_short_measurement():
    rows = http.measure(1000, 1000, 2, 0.05, lambda words: None, seconds=1)
    assert [row["load"].split()[0].rstrip(",") for row in rows] == ["known", "new", "page", "mixed"]
    assert all(row["errors"] == 0 and row["requests"] for row in rows)
