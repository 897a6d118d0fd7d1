import pytest

from benchmarks.fixtures import CachedEmbedder, Rooms
from benchmarks.speed import loop, start, store
from hardwon.memory.retrieval.embedders import HashingEmbedder


def test_recall_rows(hardwon_json, monkeypatch):
    monkeypatch.setattr("benchmarks.speed.recall.TIMED_S", 0.0)
    rows = hardwon_json("bench", "recall", "--sizes", "100", "--queries", "10")["rows"]
    assert [row["path"] for row in rows] == ["cluster", "dense", "hybrid", "random"]
    figures = {"p50_ms", "p99_ms", "parts_p50_ms", "ratio", "agreement", "embedding_p50_ms"}
    assert all(set(row) == {"n", "path"} | figures for row in rows)
    assert [row["agreement"] for row in rows] == [None, 1.0, 1.0, 1.0]
    assert all(row["p50_ms"] > 0 and row["parts_p50_ms"] > 0 for row in rows)


def test_store_rows(hardwon_json, monkeypatch):
    measure = store.measure
    monkeypatch.setattr(store, "measure", lambda *given: measure(100, 100, given[-1]))
    monkeypatch.setattr(store, "SINGLES", 5)
    rows = hardwon_json("bench", "store", "--steps", "1000", "--large", "1000")["rows"]
    assert all(row["value"] > 0 and row["unit"] for row in rows)


def test_loop_rows(hardwon_json, monkeypatch):
    measure = loop.measure
    monkeypatch.setattr(loop, "measure", lambda *given: measure(20, *given[1:]))
    rows = hardwon_json("bench", "loop", "--steps", "100", "--episodes", "1")["rows"]
    assert {row["mode"] for row in rows} == {"fused", "stages", "learning"}
    assert all(row["cpu_ms_per_step"] > 0 for row in rows)


def test_start_rows(hardwon_json):
    rows = hardwon_json("bench", "start", "--repeats", "1")["rows"]
    assert [row["what"] for row in rows[:2]] == ["hardwon --help", "import hardwon.memory"]
    assert [row["what"] for row in rows[2:]] == [
        f"hook, {event}" for event in ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop")
    ]
    assert all(row["p50_ms"] > 0 and isinstance(row["heavy"], list) for row in rows)


def test_people_get_a_table_and_progress_on_stderr(hardwon, monkeypatch):
    def measure(repeats, tell):
        tell("starting ...")
        return [{"what": "a start", "p50_ms": 1.5, "heavy": ["torch", "faiss"]}]

    monkeypatch.setattr(start, "measure", measure)
    result = hardwon("bench", "start")
    assert result.stdout.split() == ["what", "p50_ms", "heavy", "a", "start", "1.5", "torch,", "faiss"]
    assert result.stderr == "starting ...\n"


@pytest.mark.parametrize("sizes", ["", "ten", "100,", "5"])
def test_sizes_that_cannot_be_measured_are_refused(hardwon, sizes):
    assert "--sizes" in hardwon("bench", "recall", "--sizes", sizes, expect=2).stderr


def test_rooms_are_the_same_for_the_same_seed():
    assert [Rooms(3).draw_state() for _ in range(3)] == [Rooms(3).draw_state() for _ in range(3)]


def test_situations_are_few_and_states_many():
    rooms = Rooms(0, situations=20)
    states = [rooms.draw_state() for _ in range(200)]
    assert len({state.signature for state in states}) <= 20
    assert len({state.observation for state in states}) > 190


def test_a_text_is_embedded_once():
    embedder = CachedEmbedder(HashingEmbedder(16))
    assert embedder.embed(["a box"]) is embedder.embed(["a box"])
