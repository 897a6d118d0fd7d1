from tacit.apps import bench_train


def test_train_rows(tacit_json, monkeypatch):
    """On two short streams: a row for every system, the raw pass being the unit."""
    for name, value in {"STREAMS": 2, "LENGTH": 40, "WARM": 0}.items():
        monkeypatch.setattr(bench_train, name, value)
    rows = tacit_json("bench", "train", "--rounds", "1")["rows"]
    assert rows[0]["system"] == "raw"
    assert rows[0]["to_raw"] == 1.0
    assert len(rows) == 4
    assert all(row["tokens_per_cpu_s"] > 0 and row["to_raw"] > 0 for row in rows)
