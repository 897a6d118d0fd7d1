"""Late grades and items as files, on the command line."""

import pytest

from hardwon.memory import ExperienceLibrary, Item


@pytest.fixture
def filled(path, episode):
    """A library with one failed episode and one item."""
    with ExperienceLibrary.open(path) as library:
        library.record(episode("open drawer", id="e1", success=False, reward=0.0))
        library.add(Item("strategy", "Look below the table before you open drawers", "It is often there.", id="st-1"))
    return path


def test_an_episode_is_graded_and_shown(hardwon, hardwon_json, filled):
    said = hardwon("memory", "grade", filled, "e1", "--success", "--why", "it was found", "--by", "ann").stdout
    assert "e1 is now a success, before a failure; graded by ann." in said
    assert (
        "already"
        in hardwon("memory", "grade", filled, "e1", "--success", "--why", "it was found", "--by", "ann").stdout
    )
    corrected = hardwon_json("memory", "grade", filled, "e1", "--instead", "look below the table", "--step", "0")
    assert corrected["admission"]["status"] == "added"
    shown = hardwon_json("memory", "show", filled, "e1")["episode"]
    assert shown["grades"][0]["grader"] == "ann"
    assert "by ann" in hardwon("memory", "show", filled, "e1").stdout


def test_a_wrong_grade_is_one_line(hardwon, filled):
    assert "episode 'e9'" in hardwon("memory", "grade", filled, "e9", "--success", expect=2).stderr
    assert "says nothing" in hardwon("memory", "grade", filled, "e1", expect=2).stderr


def test_items_go_out_as_files_and_come_back(hardwon, hardwon_json, filled, tmp_path):
    folder = tmp_path / "lessons"
    assert "1 item in" in hardwon("memory", "checkout", filled, folder).stdout
    assert "Nothing has changed." in hardwon("memory", "commit", filled, folder).stdout
    file = folder / "strategy" / "st-1.md"
    file.write_text(file.read_text().replace("It is often there.", "It is there."))
    dry = hardwon_json("memory", "commit", filled, folder, "--dry-run")
    assert [change["what"] for change in dry["changes"]] == ["changed"]
    assert "changed" in hardwon("memory", "commit", filled, folder).stdout
    with ExperienceLibrary.open(filled) as library:
        assert library.items.get("st-1").body == "It is there."
        library.items.update("st-1", body="It is behind it.")
    file.write_text(file.read_text().replace("It is there.", "It is here."))
    assert "conflict" in hardwon("memory", "commit", filled, folder, expect=1).stdout
    file.write_text("---\nkind: strategy\ncolor: red\n---\n")
    assert "strategy/st-1.md:3: 'color'" in hardwon("memory", "commit", filled, folder, expect=2).stderr
