"""`hardwon bench memory` on small files in the documented forms of LoCoMo, LongMemEval and trajectories."""

import json
import math
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.memory import arms, bfcl_notes, conversations, measure
from benchmarks.memory.collection import Collection, Note, Query, match_texts
from benchmarks.peers import environments, processes
from benchmarks.retrieval import trajectories
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.retrieval.embedders import open_embedder

LOCOMO = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Ben",
            "session_2_date_time": "1:14 pm on 25 May, 2023",
            "session_2": [
                {"speaker": "Ada", "dia_id": "D2:1", "text": "I adopted a grey kitten from the shelter."},
                {"speaker": "Ben", "dia_id": "D2:2", "text": "Look!", "blip_caption": "a photo of a lighthouse"},
            ],
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "Hello Ben, how are you?"},
                {"speaker": "Ben", "dia_id": "D1:2", "text": "I started to learn the cello in Vienna."},
            ],
        },
        "qa": [
            {"question": "Which instrument does Ben learn in Vienna?", "evidence": ["D1:2"], "category": 4},
            {
                "question": "Who adopted a kitten, and who started the cello? ",  # as some of the published ones
                "evidence": ["D1:02; D2:1"],
                "category": 1,
            },
            {"question": "What lighthouse did Ben photograph?", "evidence": ["D2:2"], "category": 5},
            {"question": "What may they do next?", "evidence": [], "category": 3},
            {"question": "What was the plan?", "evidence": ["D", "D9:9"], "category": 2},
        ],
    }
]
LONGMEMEVAL = [
    {
        "question_id": name,
        "question_type": "single-session-user",
        "question": "Which bicycle did I buy?",
        "answer": "a red one",
        "question_date": "2023/05/30",
        "haystack_session_ids": ["s1", "s2"],
        "haystack_dates": ["2023/05/20", "2023/05/21"],
        "haystack_sessions": [
            [{"role": "user", "content": "Tell me about volcanoes."}, {"role": "assistant", "content": " "}],
            [
                {"role": "user", "content": "I bought a red bicycle today.", "has_answer": has_answer},
                {"role": "assistant", "content": "Enjoy the ride!"},
            ],
        ],
        "answer_session_ids": ["s2"],
    }
    for name, has_answer in (("q1", True), ("q2_abs", True), ("q3", False))
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """No model, and no BFCL unless a test asks for it."""

    def missing():
        raise MissingExtra("the package bfcl-eval is not installed. Run: pip install --no-deps bfcl-eval mpmath")

    monkeypatch.setattr(trajectories, "EMBEDDERS", {"hashing": "hashing"})
    monkeypatch.setattr(bfcl_notes, "read_questions", missing)
    monkeypatch.setattr(bfcl_notes, "read_solutions", missing)


@pytest.fixture
def folder(tmp_path):
    """The two downloads, and a folder of trajectories."""
    data = tmp_path / "data"
    (data / "homes").mkdir(parents=True)
    (data / "locomo10.json").write_text(json.dumps(LOCOMO), encoding="utf-8")
    (data / "longmemeval_s_cleaned.json").write_text(json.dumps(LONGMEMEVAL), encoding="utf-8")
    lines = []
    for task in range(4):
        lines.append({"id": f"e{task}", "task_id": task, "instruction": "Close the house."})
        for t, (seen, action) in enumerate((("The garden door is open.", "shut"), ("The lamp burns.", "switch_off"))):
            step = {"id": f"e{task}.{t}", "task_id": task, "reward": 1.0, "obs": seen, "action": action, "args": {}}
            lines.append(step)
    (data / "homes" / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return data


def run(folder, tmp_path, told, only="", **options):
    rows = measure.measure(folder, measure.parse_systems(only), tmp_path / "peers", told.append, **options)
    return {(row["set"], row["system"], row.get("kind", row.get("text"))): row for row in rows}


def test_locomo_references_name_turns(folder):
    """Sessions are in the order of their numbers; one reference can hold two turns; unknown turns do not count."""
    collection = conversations.read_locomo(folder / "locomo10.json")
    assert [note.text for note in collection.notes] == [
        "Ada: Hello Ben, how are you?",
        "Ben: I started to learn the cello in Vienna.",
        "Ada: I adopted a grey kitten from the shelter.",
        "Ben: Look! [shares a photo of a lighthouse]",
    ]
    assert [(query.kind, set(query.evidence)) for query in collection.queries] == [
        ("single-hop", {1}),
        ("multi-hop", {1, 2}),
        ("adversarial", {3}),
    ]
    assert collection.omitted == 2


def test_longmemeval_omits_abstentions(folder):
    collection = conversations.read_longmemeval(folder / "longmemeval_s_cleaned.json")
    assert [query.tenant for query in collection.queries] == ["q1"]
    assert collection.omitted == 2
    assert [note.text for note in collection.notes] == [
        "user: Tell me about volcanoes.",
        "user: I bought a red bicycle today.",
        "assistant: Enjoy the ride!",
    ]
    assert collection.queries[0].evidence == {1}


@pytest.mark.parametrize("content", ["{}", "[{}]", "not json", '[{"sample_id": 1, "conversation": 3, "qa": []}]'])
def test_malformed_file_names_its_address(tmp_path, content):
    path = tmp_path / "locomo10.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"locomo10\.json is not a list of conversations.*raw\.githubusercontent"):
        conversations.read_locomo(path)


def test_file_without_a_question_is_refused(tmp_path):
    path = tmp_path / "locomo10.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="no question with evidence"):
        conversations.read_locomo(path)


def test_every_data_set_is_measured(folder, tmp_path):
    told: list[str] = []
    rows = run(folder, tmp_path, told)
    for name in ("BM25", "dense", "hardwon"):
        assert rows["LoCoMo", name, "all"]["n"] == 3
        assert rows["LongMemEval-S", name, "all"]["n"] == 1
    for name in ("BM25", "hardwon"):
        assert rows["LoCoMo", name, "all"]["recall@5"] == 1.0
        assert rows["LongMemEval-S", name, "all"]["ndcg@10"] == 1.0
    assert rows["LoCoMo", "hardwon", "multi-hop"]["sessions@5"] == 1.0
    assert rows["homes", measure.RECALL, "state"]["agreement@5"] == 1.0
    assert rows["homes", "BM25", "task and situation"]["n"] == 4
    assert any(line.startswith("locomo: locomo10.json differs from the published version") for line in told)


def test_missing_things_are_skipped_with_the_line_that_gets_them(folder, tmp_path):
    """No peer is installed, and LoCoMo is not downloaded."""
    (folder / "locomo10.json").unlink()
    told: list[str] = []
    rows = run(folder, tmp_path, told)
    assert {name for _, name, _ in rows} == {"BM25", "dense", "hardwon", measure.RECALL}
    skipped = [line for line in told if "skipped" in line]
    assert any(line.startswith("locomo") and "raw.githubusercontent.com" in line for line in skipped)
    assert any("mem0" in line and "pip install mem0ai==" in line for line in skipped)
    assert any(line.startswith("LangMem") and "pip install langmem==" in line for line in skipped)
    assert any("pip install --no-deps bfcl-eval" in line for line in skipped)


def test_nothing_to_measure_is_an_error(hardwon, tmp_path):
    said = hardwon("bench", "memory", "--data", tmp_path, "--cache", tmp_path, expect=2).stderr
    assert "locomo10.json from https://" in said
    assert "is not a folder" in hardwon("bench", "memory", "--data", tmp_path / "gone", expect=2).stderr


def test_unknown_names_are_refused(folder, tmp_path):
    with pytest.raises(UnknownName, match="mem0"):
        measure.parse_systems("mem1")
    with pytest.raises(UnknownName, match="hashing"):
        measure.measure(folder, [], tmp_path, lambda _: None, embedder="hash")


def test_people_get_a_table_per_data_set(hardwon, folder, tmp_path):
    said = hardwon("bench", "memory", "--data", folder, "--cache", tmp_path, "--only", "BM25; hardwon").stdout
    assert "LoCoMo" in said
    assert "agreement@5" in said
    assert "LangMem" not in said


def test_first_takes_the_notes_of_the_first_queries_only(folder):
    collection = conversations.read_locomo(folder / "locomo10.json")
    other = [Note("other", "s", "A note of another tenant.")]
    moved = [
        Query(query.tenant, query.text, query.kind, frozenset(number + 1 for number in query.evidence))
        for query in collection.queries
    ]
    both = Collection("both", (*other, *collection.notes), tuple(moved)).take_first(1)
    assert both.notes == collection.notes
    assert both.queries[0].evidence == collection.queries[0].evidence


def test_repeated_text_stands_for_successive_notes():
    notes = [Note("t", "s", text) for text in ("Bye!", "Hello", "Bye!")]
    collection = Collection("c", tuple(notes), ())
    assert match_texts(collection, [0, 1, 2], ["Bye!", "Hello ", "Bye!", "Bye!", "unknown"]) == [0, 1, 2]


def test_figures_of_a_ranking():
    """Two of two turns of evidence, found at ranks 1 and 7; one of their two sessions is among the first five."""
    notes = [Note("t", f"s{number}", str(number)) for number in range(10)]
    query = Query("t", "?", "k", frozenset({0, 6}))
    recall_5, recall_10, ndcg, sessions, results = measure._rate(
        Collection("c", tuple(notes), (query,)), query, range(10)
    )
    assert (recall_5, recall_10, sessions, results) == (0.5, 1.0, 0.5, 10.0)
    assert ndcg == pytest.approx((1 + 1 / math.log2(8)) / (1 + 1 / math.log2(3)))


EXACT = """
import numpy as np

class Exact:
    def __init__(self, look_up):
        self.look_up, self.notes = look_up, {}

    def add_batch(self, tenant, texts):
        self.notes.setdefault(tenant, []).extend(texts)

    def search(self, tenant, text, k):
        vectors = np.stack([self.look_up.get_vector(note) for note in self.notes[tenant]])
        cosines = vectors @ self.look_up.get_vector(text)
        return [self.notes[tenant][at] for at in np.argsort(-cosines, kind="stable")[:k]]

    def close(self):
        pass

def open_memory(folder, look_up, variant):
    return Exact(look_up)
"""


def test_peer_ranks_the_same_texts_in_its_own_process(folder, tmp_path, monkeypatch):
    """An exact vector search stands for a peer."""
    scripts = tmp_path / "peers"
    shutil.copytree(processes.SCRIPTS, scripts)
    (scripts / "exact.py").write_text(EXACT, encoding="utf-8")
    monkeypatch.setattr(processes, "SCRIPTS", scripts)
    monkeypatch.setattr(arms, "PEERS", {"LangMem": arms.Peer("exact", "", "langmem")})
    monkeypatch.setattr(environments, "find_python", lambda name, cache: Path(sys.executable))
    collection = conversations.read_locomo(folder / "locomo10.json")
    embedder = open_embedder("hashing")
    peer = arms.list_peers(["LangMem"], tmp_path, lambda _: None)["LangMem"]
    assert [ranking[:2] for ranking in peer(collection, embedder)] == [
        ranking[:2] for ranking in arms.rank_by_meaning(collection, embedder)
    ]


def test_names_of_tenants_suit_every_peer(tmp_path):
    """A user of mem0 cannot have a space in its name."""
    collection = Collection("c", (Note("BFCL multi-turn", "s", "note"),), (Query("BFCL multi-turn", "note", "k"),))
    path = arms._write_data(tmp_path, collection, collection.list_texts(), open_embedder("hashing"))
    assert json.loads(path.read_text(encoding="utf-8")) == [["tenant0", [0], [0]]]


def test_peer_that_fails_is_reported_and_the_others_go_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "PEERS", {"LangMem": arms.Peer("no_such_script", "", "langmem")})
    monkeypatch.setattr(environments, "find_python", lambda name, cache: Path(sys.executable))
    rows = run(folder, tmp_path, [], only="LangMem; BM25")
    assert "no_such_script" in rows["LoCoMo", "LangMem", "all"]["error"]
    assert "error" not in rows["LoCoMo", "BM25", "all"]
    ((_, lines), *_) = measure.format_tables(list(rows.values()))
    assert len({tuple(line) for line in lines}) == 1


def test_quotations_are_found_in_bfcl(monkeypatch):
    """A quotation can leave out words, change its punctuation or join two turns."""
    notes = [
        Note("student", "a", "My roommate, Tony, plays chess; I prefer go."),
        Note("student", "a", "Rent – due on Friday – is 400 dollars."),
        Note("finance", "b", "My roommate, Tony, plays chess."),
    ]
    assert bfcl_notes._find_evidence(notes, "student", "...roommate, Tony... rent") == {0, 1}
    assert bfcl_notes._find_evidence(notes, "student", "Money: due on Friday") == {1}
    assert bfcl_notes._find_evidence(notes, "student", "nobody said this") == set()
    assert bfcl_notes._find_evidence(notes, "student", "") == set()
