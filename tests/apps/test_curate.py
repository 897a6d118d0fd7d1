import re
import sys
from pathlib import Path

import pytest

from tacit.memory import ExperienceLibrary, Item


@pytest.fixture
def item(own):
    with ExperienceLibrary.open(own, read_only=True) as library:
        return library.items(["guardrail"])[0]


def test_edit_changes_the_fields_given(tacit_json, own, item):
    edited = tacit_json("memory", "edit", own, item.id, "--title", "never do that", "--score", "0.9")["item"]
    assert (edited["title"], edited["score"], edited["version"]) == ("never do that", 0.9, item.version + 1)


def test_edit_without_a_field_is_a_wrong_call(tacit, own, item):
    assert "nothing to change" in tacit("memory", "edit", own, item.id, expect=2).stderr


def test_edit_takes_lists(tacit_json, own):
    with ExperienceLibrary.open(own) as library:
        skill = library.add(
            Item("skill", "open the box, then eat", steps=("open box",), verify={"text": "eat"})
        ).item_id
    edited = tacit_json("memory", "edit", own, skill, "--step", "open box", "--step", "eat apple", "--tag", "box")[
        "item"
    ]
    assert (edited["steps"], edited["tags"]) == (["open box", "eat apple"], ["box"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--condition", "{"), ("--condition", "[]"), ("--condition", '{"sings": 1}'), ("--verify", "3"),
        ("--score", "2"), ("--score", "nan"), ("--score", "high"), ("--ttl", "0"), ("--title", " "),
        ("--from", "not-there.json"),
    ],
)  # fmt: skip
def test_edit_refuses_a_value_that_cannot_be_and_changes_nothing(tacit, own, item, option, value):
    tacit("memory", "edit", own, item.id, "--body", "new", option, value, expect=2)
    with ExperienceLibrary.open(own, read_only=True) as library:
        assert library.get(item.id) == item


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
def test_edit_names_the_field_that_is_wrong(tacit, own, item, tmp_path, fields, said):
    (tmp_path / "fields.json").write_text(fields)
    assert said in tacit("memory", "edit", own, item.id, "--from", tmp_path / "fields.json", expect=2).stderr


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Makes the editor a program that replaces one text by another in the file it is given."""

    def use(old, new, code=0):
        script = tmp_path / "editor.py"
        script.write_text(
            "import pathlib, sys\np = pathlib.Path(sys.argv[1])\n"
            f"p.write_text(p.read_text().replace({old!r}, {new!r}))\nsys.exit({code})"
        )
        monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.delenv("VISUAL", raising=False)

    return use


def test_an_item_is_edited_in_an_editor(tacit_json, own, item, editor):
    editor(item.title, "never do that")
    edited = tacit_json("memory", "edit", own, item.id, "--editor")["item"]
    assert (edited["title"], edited["version"]) == ("never do that", item.version + 1)


def test_a_file_that_was_left_as_it_was_changes_nothing(tacit, own, item, editor):
    editor("no such text", "")
    assert "left as it was" in tacit("memory", "edit", own, item.id, "--editor").stdout


def test_what_was_written_in_an_editor_is_kept_when_it_cannot_be_used(tacit, tacit_json, own, item, editor):
    """And the message names the option that takes it, mended, again."""
    editor('"score": ', '"score": 1')
    kept = re.search(r"--from (\S+\.json)", tacit("memory", "edit", own, item.id, "--editor", expect=2).stderr)
    assert kept
    mended = Path(kept[1])
    mended.write_text(mended.read_text().replace('"score": 1', '"score": '))
    assert tacit_json("memory", "edit", own, item.id, "--from", mended)["item"]["score"] == item.score


@pytest.mark.parametrize(("program", "said"), [("no-such-editor", "cannot be started"), ("false", "ended with code 1")])
def test_an_editor_that_fails_is_named(tacit, own, item, editor, monkeypatch, program, said):
    editor("", "")
    monkeypatch.setenv("EDITOR", program)
    message = tacit("memory", "edit", own, item.id, "--editor", expect=2).stderr
    assert program in message
    assert said in message


def test_retire_keeps_the_reason(tacit, own, item):
    tacit("memory", "retire", own, item.id, "--why", "it is wrong")
    assert "why: it is wrong" in tacit("memory", "history", own, item.id).stdout


@pytest.mark.parametrize("command", [["retire"], ["release"]])
def test_a_reason_is_needed(tacit, own, item, command):
    tacit("memory", *command, own, item.id, expect=2)
    assert "give a reason" in tacit("memory", *command, own, item.id, "--why", " ", expect=2).stderr


def test_pin_and_unpin(tacit_json, own, item):
    assert tacit_json("memory", "pin", own, item.id)["item"]["pinned"]
    assert not tacit_json("memory", "unpin", own, item.id)["item"]["pinned"]


def test_undo_takes_back_the_last_change(tacit, tacit_json, own, item):
    tacit("memory", "edit", own, item.id, "--title", "never do that")
    assert tacit_json("memory", "undo", own, item.id)["item"]["title"] == item.title
    assert "no earlier version" in tacit("memory", "undo", own, item.id, expect=2).stderr


def test_undo_brings_back_what_was_retired(tacit, tacit_json, own, item):
    tacit("memory", "retire", own, item.id, "--why", "by mistake")
    assert tacit_json("memory", "undo", own, item.id)["item"]["status"] == "active"


def test_release_lets_an_item_out_of_quarantine(tacit_json, own):
    with ExperienceLibrary.open(own) as library:
        ref = library.add(Item("insight", "apples are in the box", source="client", trust="untrusted")).item_id
    released = tacit_json("memory", "release", own, ref, "--why", "I looked")["item"]
    assert (released["status"], released["trust"]) == ("active", "trusted")


def test_release_of_what_does_not_wait_is_a_wrong_call(tacit, own, item):
    assert "not quarantined" in tacit("memory", "release", own, item.id, "--why", "x", expect=2).stderr


def test_evolve_reports_what_became_of_candidates(tacit_json, tacit, own):
    report = tacit_json("memory", "evolve", own)
    assert report["candidates"] >= len(report["admissions"])
    assert "candidates:" in tacit("memory", "evolve", own).stdout


def test_what_was_exported_is_imported_once(tacit_json, own, tmp_path):
    exported = tacit_json("memory", "export", own, tmp_path / "all.jsonl")["lines"]
    copy = tmp_path / "copy.db"
    assert tacit_json("memory", "import", copy, tmp_path / "all.jsonl")["lines"] == exported
    assert tacit_json("memory", "import", copy, tmp_path / "all.jsonl")["lines"] == 0
    assert tacit_json("memory", "stats", copy)["episodes"] == 40


def test_what_is_imported_as_untrusted_waits_in_quarantine(tacit, tacit_json, own, tmp_path):
    tacit("memory", "export", own, tmp_path / "all.jsonl")
    tacit("memory", "import", tmp_path / "copy.db", tmp_path / "all.jsonl", "--untrusted")
    with ExperienceLibrary.open(own, read_only=True) as library:
        active = len(library.items())
    assert tacit_json("memory", "ls", tmp_path / "copy.db")["total"] == 0
    assert tacit_json("memory", "quarantine", tmp_path / "copy.db")["total"] == active


def test_import_names_the_line_that_is_not_of_the_form(tacit, own, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "bad.jsonl, line 1" in tacit("memory", "import", own, tmp_path / "bad.jsonl", expect=2).stderr


def test_import_of_endless_brackets_is_refused(tacit, own, tmp_path):
    (tmp_path / "deep.jsonl").write_text("[" * 200_000)
    assert "line 1: not JSON" in tacit("memory", "import", own, tmp_path / "deep.jsonl", expect=2).stderr


def test_reembed_makes_the_embedder_the_librarys_own(tacit_json, own):
    assert tacit_json("memory", "reembed", own, "--embedder", "hashing:64")["embedder"] == "hashing:64"
    assert tacit_json("memory", "stats", own)["embedder"] == "hashing:64"


def test_reembed_tells_how_far_it_is_on_stderr(tacit, own):
    shown = tacit("memory", "reembed", own, "--embedder", "hashing:64")
    assert re.search(r"embedding (\d+)/\1\n$", shown.stderr)


def test_reembed_goes_on_where_it_was_stopped(tacit, own, monkeypatch):
    """What was embedded before is not embedded again."""

    def stop(message):
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.memory.search._EMBED", 2)
    with monkeypatch.context() as stopped:
        stopped.setattr("tacit.apps.curate.tell", stop)
        tacit("memory", "reembed", own, "--embedder", "hashing:64", expect=130)
    first = re.search(r"embedding (\d+)/", tacit("memory", "reembed", own, "--embedder", "hashing:64").stderr)
    assert first
    assert int(first[1]) > 2
    assert "embedding" not in tacit("memory", "reembed", own, "--embedder", "hashing:64").stderr


def test_an_unknown_embedder_changes_nothing(tacit, tacit_json, own):
    tacit("memory", "reembed", own, "--embedder", "magic", expect=2)
    assert tacit_json("memory", "stats", own)["embedder"] == "hashing"


@pytest.mark.parametrize("command", [["pin"], ["retire", "--why", "x"], ["edit", "--title", "x"]])
def test_a_writer_makes_no_library_and_no_namespace_by_mistake(tacit, tacit_json, own, tmp_path, command):
    name, *options = command
    tacit("memory", name, tmp_path / "typo.db", "id", *options, expect=1)
    assert not (tmp_path / "typo.db").exists()
    tacit("memory", name, own, "id", *options, "--namespace", "typo", expect=2)
    assert tacit_json("memory", "stats", own)["namespaces"] == ["default"]
