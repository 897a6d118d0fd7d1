"""What the benchmark of the middleware prints."""


def test_middleware_rows(hardwon_json):
    rows = hardwon_json("bench", "middleware", "--steps", "100", "--episodes", "2", "--calls", "4")["rows"]
    assert {row["calls"] for row in rows} == {4}
    assert [row["what"] for row in rows] == [
        "a bare agent's call",
        "added, known situations",
        "its own work, known situations",
        "its own work, known situations, CPU",
        "added, new situations",
        "its own work, new situations",
        "its own work, new situations, CPU",
        "the end of a run",
    ]
    assert all(row["p99_ms"] >= row["p50_ms"] for row in rows)
    assert all(row["p50_ms"] > 0 for row in rows if not row["what"].startswith("added"))  # a difference of noisy times
