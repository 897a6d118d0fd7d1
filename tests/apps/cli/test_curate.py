import os
import re
import sqlite3
import threading
from contextlib import closing
from io import BytesIO
from types import SimpleNamespace

import pytest

from hardwon.apps import importers
from hardwon.apps.cli import curate
from hardwon.apps.shared.editing import check_changes, parse_fields
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError


@pytest.fixture
def item(own):
    with ExperienceLibrary.open(own, read_only=True) as library:
        return library.items.find(["guardrail"])[0]


def test_edit_changes_the_fields_given(hardwon_json, own, item):
    edited = hardwon_json("memory", "edit", own, item.id, "--title", "never do that", "--score", "0.9")["item"]
    assert (edited["title"], edited["score"], edited["version"]) == ("never do that", 0.9, item.version + 1)


def test_edit_without_a_field_is_a_wrong_call(hardwon, own, item):
    assert "nothing to change" in hardwon("memory", "edit", own, item.id, expect=2).stderr


def test_edit_takes_lists(hardwon_json, own):
    with ExperienceLibrary.open(own) as library:
        skill = library.add(
            Item("skill", "open the box, then eat", steps=("open box",), verify={"text": "eat"})
        ).item_id
    edited = hardwon_json("memory", "edit", own, skill, "--step", "open box", "--step", "eat apple", "--tag", "box")[
        "item"
    ]
    assert (edited["steps"], edited["tags"]) == (["open box", "eat apple"], ["box"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--condition", "{"), ("--condition", "[]"), ("--condition", '{"sings": 1}'), ("--verify", "3"),
        ("--score", "2"), ("--score", "nan"), ("--score", "high"), ("--ttl", "0"), ("--title", " "),
    ],
)  # fmt: skip
def test_edit_refuses_a_value_that_cannot_be_and_changes_nothing(hardwon, own, item, option, value):
    hardwon("memory", "edit", own, item.id, "--body", "new", option, value, expect=2)
    with ExperienceLibrary.open(own, read_only=True) as library:
        assert library.items.get(item.id) == item


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('{"granularity": "galaxy"}', "granularity is"),
        ('{"body": 3}', "body is 3"),
        ('{"steps": "open box"}', "steps is"),
        ('{"tags": ["a", 1]}', "tags is"),
        ('{"colour": "red"}', "'colour' of an item cannot be edited"),
        ('{"status": "active"}', "'status' of an item cannot be edited"),
        ("[1]", "write a JSON object"),
        ("{", "is not JSON"),
        pytest.param("[" * 200_000, "is not JSON", id="deep"),
        pytest.param('{"condition":' + '{"not":' * 900 + "{}" + "}" * 901, "condition", id="nested"),
    ],
)
def test_edit_names_the_field_that_is_wrong(item, fields, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_changes(item, parse_fields(fields, "the text"))


def test_retire_keeps_the_reason(hardwon, own, item):
    hardwon("memory", "retire", own, item.id, "--why", "it is wrong")
    assert "why: it is wrong" in hardwon("memory", "history", own, item.id).stdout


@pytest.mark.parametrize("command", [["retire"], ["release"]])
def test_a_reason_is_needed(hardwon, own, item, command):
    hardwon("memory", *command, own, item.id, expect=2)
    assert "give a short reason" in hardwon("memory", *command, own, item.id, "--why", " ", expect=2).stderr


def test_pin_and_unpin(hardwon_json, own, item):
    assert hardwon_json("memory", "pin", own, item.id)["item"]["pinned"]
    assert not hardwon_json("memory", "unpin", own, item.id)["item"]["pinned"]


def test_undo_says_what_it_takes_back(hardwon, hardwon_json, own, item):
    hardwon("memory", "edit", own, item.id, "--title", "never do that")
    hardwon("memory", "retire", own, item.id, "--why", "by mistake")
    assert "is restored (status: active), now version" in hardwon("memory", "undo", own, item.id).stdout
    assert hardwon_json("memory", "history", own, item.id)[-1]["op"] == "undone"
    assert "status: active" in hardwon("memory", "history", own, item.id).stdout
    assert hardwon_json("memory", "undo", own, item.id)["item"]["title"] == item.title
    for _ in range(item.version - 1):  # those of the rules
        hardwon("memory", "undo", own, item.id)
    assert "no earlier version" in hardwon("memory", "undo", own, item.id, expect=2).stderr


def test_release_lets_an_item_out_of_quarantine(hardwon_json, own):
    with ExperienceLibrary.open(own) as library:
        ref = library.add(Item("insight", "apples are in the box", source="client", trust="untrusted")).item_id
    released = hardwon_json("memory", "release", own, ref, "--why", "I looked")["item"]
    assert (released["status"], released["trust"]) == ("active", "trusted")


def test_release_of_what_does_not_wait_is_a_wrong_call(hardwon, own, item):
    assert "not quarantined" in hardwon("memory", "release", own, item.id, "--why", "x", expect=2).stderr


def test_evolve_reports_what_became_of_candidates(hardwon_json, hardwon, own):
    report = hardwon_json("memory", "evolve", own)
    assert report["candidates"] >= len(report["admissions"])
    assert "candidates:" in hardwon("memory", "evolve", own).stdout


def test_what_was_exported_is_imported_once(hardwon_json, own, tmp_path):
    exported = hardwon_json("memory", "export", own, tmp_path / "all.jsonl")["lines"]
    copy = tmp_path / "copy.db"
    assert hardwon_json("memory", "import", copy, tmp_path / "all.jsonl")["lines"] == exported
    assert hardwon_json("memory", "import", copy, tmp_path / "all.jsonl")["lines"] == 0
    assert hardwon_json("memory", "stats", copy)["episodes"] == 40


@pytest.mark.parametrize("is_pipe", [True, False])
def test_an_export_comes_through_a_pipe(hardwon, hardwon_json, own, tmp_path, monkeypatch, is_pipe):
    exported = hardwon_json("memory", "export", own, tmp_path / "all.jsonl")["lines"]
    text, source, pipe = (tmp_path / "all.jsonl").read_bytes(), "-", tmp_path / "pipe"
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    if is_pipe:
        source = str(pipe)
        os.mkfifo(pipe)
        writer.start()
    monkeypatch.setitem(importers.source.__dict__, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=BytesIO(text))))
    copy = tmp_path / "copy.db"
    assert hardwon_json("memory", "import", copy, source)["lines"] == exported
    if is_pipe:
        writer.join()
    # Embedded while it is imported; closing and the first recall would have to do it.
    with closing(sqlite3.connect(copy)) as connection:
        ((embedded,),) = connection.execute("SELECT count(*) FROM vectors WHERE kind = 'states'").fetchall()
    assert embedded


def test_the_time_that_is_left_is_said(hardwon, tmp_path, monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=iter(range(9)).__next__)
    monkeypatch.setattr("hardwon.apps.cli.curate.time", clock)
    advance = curate._print_tenths("writing")
    for done in (0, 5, 10):
        advance(done, 10)
    assert capsys.readouterr().err.split("\n")[:3] == [
        "writing 0/10", "writing 5/10, about 2 s left", "writing 10/10",
    ]  # fmt: skip


def test_what_is_imported_as_untrusted_waits_in_quarantine(hardwon, hardwon_json, own, tmp_path):
    hardwon("memory", "export", own, tmp_path / "all.jsonl")
    hardwon("memory", "import", tmp_path / "copy.db", tmp_path / "all.jsonl", "--trust", "untrusted")
    with ExperienceLibrary.open(own, read_only=True) as library:
        active = len(library.items.find())
    assert hardwon_json("memory", "ls", tmp_path / "copy.db")["total"] == 0
    assert hardwon_json("memory", "ls", tmp_path / "copy.db", "--status", "quarantined")["total"] == active


def test_import_names_the_line_that_is_not_of_the_form(hardwon, own, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "bad.jsonl, line 1" in hardwon("memory", "import", own, tmp_path / "bad.jsonl", expect=2).stderr


def test_import_of_endless_brackets_is_refused(hardwon, own, tmp_path):
    (tmp_path / "deep.jsonl").write_text("[" * 200_000)
    assert "line 1: not JSON" in hardwon("memory", "import", own, tmp_path / "deep.jsonl", expect=2).stderr


def test_reembed_makes_the_embedder_the_librarys_own(hardwon_json, own):
    assert hardwon_json("memory", "reembed", own, "--embedder", "hashing:64")["embedder"] == "hashing:64"
    assert hardwon_json("memory", "stats", own)["embedder"] == "hashing:64"


def test_reembed_tells_how_far_it_is_on_stderr(hardwon, own):
    shown = hardwon("memory", "reembed", own, "--embedder", "hashing:64")
    assert re.search(r"embedding (\d+)/\1\n$", shown.stderr)


def test_reembed_goes_on_where_it_was_stopped(hardwon, own, monkeypatch):
    """What was embedded before is not embedded again."""

    def stop(message):
        raise KeyboardInterrupt

    monkeypatch.setattr("hardwon.memory.retrieval.search._EMBED", 2)
    with monkeypatch.context() as stopped:
        stopped.setattr("hardwon.apps.cli.curate.tell", stop)
        hardwon("memory", "reembed", own, "--embedder", "hashing:64", expect=130)
    first = re.search(r"embedding (\d+)/", hardwon("memory", "reembed", own, "--embedder", "hashing:64").stderr)
    assert first
    assert int(first[1]) > 2
    assert "embedding" not in hardwon("memory", "reembed", own, "--embedder", "hashing:64").stderr


def test_an_unknown_embedder_changes_nothing(hardwon, hardwon_json, own):
    hardwon("memory", "reembed", own, "--embedder", "magic", expect=2)
    assert hardwon_json("memory", "stats", own)["embedder"] == "hashing"


@pytest.mark.parametrize("command", [["pin"], ["retire", "--why", "x"], ["edit", "--title", "x"]])
def test_a_writer_makes_no_library_and_no_namespace_by_mistake(hardwon, hardwon_json, own, tmp_path, command):
    name, *options = command
    hardwon("memory", name, tmp_path / "typo.db", "id", *options, expect=1)
    assert not (tmp_path / "typo.db").exists()
    hardwon("memory", name, own, "id", *options, "--namespace", "typo", expect=2)
    assert hardwon_json("memory", "stats", own)["namespaces"] == ["default"]


def test_forget_asks_counts_and_forgets(hardwon, hardwon_json, own):
    """Nothing happens without --yes; a dry run counts; after it the text is nowhere in the file."""
    with ExperienceLibrary.open(own) as library:
        episode = library.episodes.find(limit=1)[0]
        before = library.episodes.count()
    assert "--yes" in hardwon("memory", "forget", own, "--episode", episode["id"], expect=2).stderr
    counted = hardwon_json("memory", "forget", own, "--episode", episode["id"][:-2], "--dry-run")  # as `show` prints it
    assert counted["dry_run"]
    assert counted["counts"]["episodes"] == 1
    assert hardwon_json("memory", "ls", own, "--episodes")["total"] == before
    done = hardwon_json("memory", "forget", own, "--episode", episode["id"], "--yes")
    assert (done["erased"], done["counts"]) == (True, counted["counts"])
    assert hardwon_json("memory", "ls", own, "--episodes")["total"] == before - 1
    hardwon("memory", "verify", own)
    assert "No record in this library" in hardwon("memory", "forget", own, "--text", "no such words at all").stderr
    assert "is forgotten" not in hardwon("memory", "forget", own, "-n", "nonsense", "--yes", expect=2).stderr
    for wrong in ([], ["--text", "a", "--writer", "b"]):
        hardwon("memory", "forget", own, *wrong, "--yes", expect=2)
    assert "Forgotten. Receipt" in hardwon("memory", "forget", own, "-n", "default", "--yes").stdout
