"""`tacit bench train`, on a small batch; TRL's process is scripted."""

from contextlib import nullcontext

import pytest

from tacit.apps import bench_train, bench_train_work
from tacit.apps.peers.processes import ScriptDied
from tacit.trainers.tiny import TinyConfig


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"EPISODES": 2, "TURNS": 2, "SEEN": 3, "SAID": 2}.items():
        monkeypatch.setattr(bench_train_work, name, value)
    monkeypatch.setattr(bench_train_work, "SHAPE", TinyConfig(16, 1, 2, 1, 16))
    monkeypatch.setattr(bench_train_work, "_gflops", lambda rows: 1.0)
    monkeypatch.setattr(bench_train, "WARM", 0)


class Scripted:
    """A TRL that takes a second to generate and two to train, and may die."""

    def __init__(self, rounds):
        self.left = rounds

    def go(self):
        self.left -= 1

    def until(self, name):
        if self.left < 0 or (name == "ready" and not self.left):
            raise ScriptDied("grpo: out of memory")
        return [1.0, 2.0]


def test_train_rows(tacit_json):
    """A row for every system, the raw pass of each phase being the unit; without TRL, that is said."""
    found = tacit_json("bench", "train", "--rounds", "1", "--no-trl")
    assert {row["system"]: row["to_raw"] for row in found["rows"]}["raw"] == 1.0
    assert {row["phase"] for row in found["rows"]} == {"generation", "training"}
    assert all(row["tokens_per_cpu_s"] > 0 and row["to_trl"] is None for row in found["rows"])
    assert [target["what"] for target in found["targets"]] == [bench_train.TARGETS[1][0], bench_train.TARGETS[3][0]]
    assert found["trl"] == "left out"


def test_beside_trl(monkeypatch, tmp_path):
    """Its seconds are compared with ours of the same rounds."""
    monkeypatch.setattr(bench_train, "_trl", lambda *_: nullcontext(Scripted(2)))
    found = bench_train.measure(2, tmp_path, print)
    rows = {(row["phase"], row["system"]): row for row in found["rows"]}
    assert rows["generation", "trl"]["tokens_per_cpu_s"] == 2 * 2 * 2
    assert rows["training", "trl"]["tokens_per_cpu_s"] == 2 * 2 * (3 + 2) / 2
    assert rows["generation", "ours"]["to_trl"] > 1
    assert len(found["targets"]) == 4


def test_a_trl_that_dies_is_left_out_with_its_last_words(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_train, "_trl", lambda *_: nullcontext(Scripted(1)))
    found = bench_train.measure(2, tmp_path, print)
    assert found["trl"] == "grpo: out of memory"
    assert all(row["system"] != "trl" for row in found["rows"])


def test_tables_are_written_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench_train.BEGIN}\nold\n{bench_train.END}\nafter\n", encoding="utf-8")
    found = {"rows": [{"system": "raw", "tokens_per_cpu_s": 4000}], "targets": [{"what": "x"}], "floor": {"a": 1}}
    bench_train.write(page, found, "tacit bench train")
    text = page.read_text(encoding="utf-8")
    assert "| raw | 4,000 |" in text
    assert "old" not in text
    assert (text[:6], text[-6:]) == ("before", "after\n")
