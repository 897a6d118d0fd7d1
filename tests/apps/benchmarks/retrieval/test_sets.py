import json

import pytest

from benchmarks.retrieval import sets, trajectories
from hardwon.memory.errors import ConfigError, UnknownName


@pytest.fixture
def folder(tmp_path):
    """One set of six tasks: a lost key is found and sent, an open door shut; the names differ."""
    lines = []
    for task in range(6):
        name = ("Anna", "Boris", "Clara", "David", "Emily", "Frank")[task]
        seen: tuple[tuple[str, str], ...]
        if task % 2:
            seen = ((f"{name} stands before an open garden door of the old house.", "shut"),)
        else:
            seen = (
                (f"{name} lost the golden key of the cellar somewhere.", "search"),
                ("It lies under a mat.", "send"),
            )
        lines.append({"id": f"e{task}.t0", "task_id": task, "instruction": f"{name} wants to be home soon."})
        lines += [
            {"id": f"e{task}.t0.{t}", "task_id": task, "reward": 1.0, "obs": see, "action": do, "args": "{}"}
            for t, (see, do) in enumerate(seen)
        ]
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes" / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return tmp_path


@pytest.fixture
def hashing_only(monkeypatch):
    """No model in the tests."""
    monkeypatch.setattr(trajectories, "EMBEDDERS", {"hashing": "hashing"})


def measured(folder, **options):
    """The rows, by part and method."""
    return {(row["part"], row["method"]): row for row in sets.measure(folder, lambda _: None, **options)}


def test_every_way_is_measured_in_every_part(folder, hashing_only):
    rows = measured(folder)
    for part in ("known", "new", "task"):
        assert {(part, "BM25"), (part, "dense, hashing"), (part, "ours, hashing")} <= set(rows)
    assert ("question", "BM25, without stems") in rows
    assert ("question", "ours, hashing, recall") in rows
    assert {row["set"] for row in rows.values()} == {"homes"}


def test_only_the_second_half_is_asked_about(folder, hashing_only):
    """Tasks 3 to 5 have four steps, of which one was seen before in the same words."""
    rows = measured(folder)
    assert (rows["known", "BM25"]["n"], rows["new", "BM25"]["n"]) == (1, 3)
    assert rows["known", "ours, hashing"]["figure"] == 1.0
    assert measured(folder, tuning=True)["task", "BM25"]["n"] == 3


def test_words_of_a_question_are_found_by_their_stems(folder, hashing_only):
    rows = measured(folder)
    assert rows["question", "ours, hashing, recall"]["figure"] == 1.0
    assert rows["question", "BM25"]["figure"] > rows["question", "BM25, without stems"]["figure"]


def test_ingredients_are_switched_off_one_at_a_time(folder, hashing_only):
    methods = {method for _, method in measured(folder, ablate=True)}
    left_out = ("the task", "the action before", "the vote", "filling", "words", "more than four words")
    assert {f"ours, hashing, without {what}" for what in left_out} <= methods


def test_for_people_an_interval_is_words(folder, hashing_only):
    assert " to " in sets.format_rows(sets.measure(folder, lambda _: None))[0]["figure"]


def test_a_folder_without_sets_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="name a folder of sets"):
        sets.measure(tmp_path, lambda _: None)


def test_an_unknown_embedder_is_refused(folder):
    with pytest.raises(UnknownName, match="nonsense"):
        sets.measure(folder, lambda _: None, only="nonsense")


def test_a_question_about_a_redacted_observation_counts_as_found(folder, hashing_only):
    """A library keeps no e-mail address, so its observation differs from the recorded one."""
    steps = folder / "homes" / "steps.jsonl"
    steps.write_text(steps.read_text(encoding="utf-8").replace("of the cellar", "of anna@example.com and cellar"))
    assert measured(folder)["question", "ours, hashing, recall"]["figure"] == 1.0


def test_a_model_that_is_not_installed_is_skipped_with_a_word(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    said: list[str] = []
    rows = sets.measure(folder, said.append)
    assert not any("MiniLM" in row["method"] for row in rows)
    assert any("MiniLM is left out" in line for line in said)


def test_the_command_prints_json_or_a_table(hardwon, hardwon_json, folder, hashing_only, monkeypatch):
    rows = hardwon_json("bench", "retrieval", "--data", str(folder))["rows"]
    assert {"set", "part", "method", "figure", "ci95", "filled", "n"} == set(rows[0])
    monkeypatch.setenv("HARDWON_DATA", str(folder))
    assert "ours, hashing" in hardwon("bench", "retrieval").stdout
