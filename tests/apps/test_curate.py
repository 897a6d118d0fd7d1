import pytest

from tacit.memory import ExperienceLibrary


@pytest.fixture
def item(own):
    with ExperienceLibrary.open(own, read_only=True) as library:
        return library.items(["guardrail"])[0]


def test_edit_changes_the_fields_given(tacit_json, own, item):
    edited = tacit_json("memory", "edit", own, item.id, "--title", "never do that", "--score", "0.9")["item"]
    assert (edited["title"], edited["score"], edited["version"]) == ("never do that", 0.9, item.version + 1)


def test_edit_without_a_field_is_a_wrong_call(tacit, own, item):
    assert "nothing to change" in tacit("memory", "edit", own, item.id, expect=2).stderr


@pytest.mark.parametrize("condition", ["{", "[]", '{"sings": 1}'])
def test_edit_refuses_a_condition_that_cannot_be_checked(tacit, own, item, condition):
    tacit("memory", "edit", own, item.id, "--condition", condition, expect=2)


def test_retire_keeps_the_reason(tacit, own, item):
    tacit("memory", "retire", own, item.id, "--why", "it is wrong")
    assert "why: it is wrong" in tacit("memory", "history", own, item.id).stdout


def test_pin_and_release(tacit_json, own, item):
    assert tacit_json("memory", "pin", own, item.id)["item"]["pinned"]
    assert not tacit_json("memory", "pin", own, item.id, "--release")["item"]["pinned"]


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


def test_import_names_the_line_that_is_not_of_the_form(tacit, own, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "bad.jsonl, line 1" in tacit("memory", "import", own, tmp_path / "bad.jsonl", expect=2).stderr


def test_reembed_makes_the_embedder_the_librarys_own(tacit_json, own):
    assert tacit_json("memory", "reembed", own, "--embedder", "hashing:64")["embedder"] == "hashing:64"
    assert tacit_json("memory", "stats", own)["embedder"] == "hashing:64"


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
