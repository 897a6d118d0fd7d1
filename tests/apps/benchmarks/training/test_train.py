"""`hardwon bench train`, on a small batch; TRL's process is scripted."""

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from benchmarks.harness.tables import Place
from benchmarks.peers.processes import ScriptDied
from benchmarks.training import gpu, train, work
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.models.tiny import TinyConfig


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"EPISODES": 2, "TURNS": 2, "SEEN": 3, "SAID": 2}.items():
        monkeypatch.setattr(work, name, value)
    monkeypatch.setattr(work, "SHAPE", TinyConfig(16, 1, 2, 1, 16))
    monkeypatch.setattr(work, "_measure_gflops", lambda *_: 1.0)
    monkeypatch.setattr(train, "WARM", 0)


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


def test_train_rows(hardwon_json):
    """A row for every system, the raw pass of each phase being the unit; without TRL, that is said."""
    found = hardwon_json("bench", "train", "--rounds", "1", "--no-trl")
    assert {row["system"]: row["to_raw"] for row in found["rows"]}["raw"] == 1.0
    assert {row["phase"] for row in found["rows"]} == {"generation", "training"}
    assert all(row["tokens_per_cpu_s"] > 0 and row["to_trl"] is None for row in found["rows"])
    assert [target["what"] for target in found["targets"]] == [train.TARGETS[1][0], train.TARGETS[3][0]]
    assert found["trl"] == "left out"


def test_a_pretrained_base_is_measured_in_its_own_shape(hardwon_json, monkeypatch, tmp_path):
    """Its folder is read, and its layers and vocabulary replace those of the small random model."""
    monkeypatch.setattr(work, "BASE_EPISODES", 3)
    work.Batch.draw().save(tmp_path)
    results = hardwon_json("bench", "train", "--rounds", "1", "--no-trl", "--base", str(tmp_path / "model"))
    assert "matrices of 3 rows, GFLOP/s" in results["floor"]
    monkeypatch.setattr(work, "VOCABULARY", 50)
    batch = work.Batch.draw(tmp_path / "model")
    assert (batch.model.config.vocab_size, batch.load(), len(batch.observed)) == (437, batch.model, 3)


def test_a_folder_without_a_model_is_refused_with_the_command_that_writes_one(tmp_path):
    with pytest.raises(ConfigError, match="hardwon model smollm2"):
        work.Batch.draw(tmp_path)


def test_beside_trl(monkeypatch, tmp_path):
    """Its seconds are compared with ours of the same rounds."""
    monkeypatch.setattr(train, "_open_trl", lambda *_: nullcontext(Scripted(2)))
    found = train.measure(2, tmp_path, print)
    rows = {(row["phase"], row["system"]): row for row in found["rows"]}
    assert rows["generation", "trl"]["tokens_per_cpu_s"] == 2 * 2 * 2
    assert rows["training", "trl"]["tokens_per_cpu_s"] == 2 * 2 * (3 + 2) / 2
    assert rows["generation", "ours"]["to_trl"] > 1
    assert len(found["targets"]) == 4


def test_a_trl_that_dies_is_left_out_with_its_last_words(monkeypatch, tmp_path):
    monkeypatch.setattr(train, "_open_trl", lambda *_: nullcontext(Scripted(1)))
    found = train.measure(2, tmp_path, print)
    assert found["trl"] == "grpo: out of memory"
    assert all(row["system"] != "trl" for row in found["rows"])


def test_tables_are_written_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench train: begin -->\nold\n<!-- bench train: end -->\nafter\n", encoding="utf-8")
    found = {"rows": [{"system": "raw", "tokens_per_cpu_s": 4000}], "targets": [{"what": "x"}], "floor": {"a": 1}}
    train.write(Place(page, "train"), found, "hardwon bench train")
    text = page.read_text(encoding="utf-8")
    assert "| raw | 4,000 |" in text
    assert "old" not in text
    assert (text[:6], text[-6:]) == ("before", "after\n")


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("langgraph", "langchain", "langchain_core", "faiss", "sqlite_utils"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
from benchmarks.training.gpu import TINY, measure
import json
print(json.dumps(measure(TINY, "cpu", 1, lambda line: None)))
"""


def test_the_gpu_bench_needs_torch_transformers_and_peft_alone():
    """All of it, engine and learner, on a tiny model on the CPU; what the library and the loop need is not there."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row["value"] for row in json.loads(done.stdout)}
    assert rows["trained tokens a second"] > 0
    assert rows["generated tokens a second"] > 0
    assert not any(what.startswith(("MFU", "memory")) for what in rows)


def test_floors_are_of_the_published_shape():
    """440M weights in the layers of Qwen3-0.6B, by its published shape; two operations each, and the head's."""
    load = gpu.Load()
    assert load.weights == 440_401_920
    assert load.forward_flops(0) == 2 * (440_401_920 + 1024 * 151_936)


def test_a_batch_that_memory_does_not_hold_is_cut_in_halves(monkeypatch):
    """And the figure says into how many tokens."""
    step = Learner.step

    def small(self, given):
        if self.settings.budget > 24:
            raise torch.OutOfMemoryError
        return step(self, given)

    monkeypatch.setattr(Learner, "step", small)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    tiny = gpu.TINY
    bench = gpu._Bench(tiny, "cpu", gpu.build(tiny, "cpu"), 1, print)
    assert bench.measure_training(None)["tokens of a micro-batch"] == 24


def test_without_a_gpu_that_is_said(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        gpu.measure(gpu.TINY, "cuda", 1, print)
