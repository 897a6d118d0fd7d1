import json
from dataclasses import replace

import pytest

from tacit.memory import ExperienceLibrary, Item, State, Step
from tacit.memory.errors import ConfigError


@pytest.fixture
def full(library, episode):
    """A library with episodes of every outcome, and items of every fate."""
    odd = "naïve \u2028 \x85 \x0b text\r\nwith 'quotes', \"more\" and \\ \x00"
    made = episode("open drawer", "take spoon", see=odd, library=library, arm="retrieved", seed=7, meta={"n": [1, odd]})
    state = State(odd, {"has": ["a", odd], "n": 1.5, "b": True}, "here", "t", "told", ("note",))
    made = replace(made, steps=(*made.steps, Step(state, "wait", state, made.steps[0].diagnosis)))
    ref = library.record(made)
    library.record(episode(success=False))
    library.record(episode(success=None))
    evidence = tuple(step.id for step in library.trajectory(ref).steps)
    kept = library.add(Item("insight", odd, provenance=evidence, score=0.25)).item_id
    library.add(Item("guardrail", "no", condition={"text": "closed"}, forbids="eat {1}", confidence=0.9))
    library.retire(library.add(Item("insight", "wrong")).item_id, "no")
    library.pin(kept)
    return library


def told(trajectory):
    """An episode without the numbers of its steps, which are the file's own."""
    return replace(trajectory, steps=tuple(replace(step, id=None) for step in trajectory.steps))


def evidence(library, item):
    """Where an item's evidence is: episode and step."""
    return [(step.why["trajectory"], step.t) for step in library.steps(item.provenance)]


@pytest.fixture
def copy(tmp_path, full, episode):
    """Another library, with an episode of its own, that imported the full one."""
    full.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        other.record(episode("something else"))
        assert other.import_jsonl(tmp_path / "all.jsonl") == 6
        yield other


def test_episodes_come_over_exactly(full, copy):
    """Text of any kind, excluded episodes, arms, seeds, keys."""
    for row in full.trajectories():
        assert told(copy.trajectory(row["id"])) == told(full.trajectory(row["id"]))


def test_items_come_over_exactly(full, copy):
    """Scores, pins, the retired ones."""
    for item in full.items(status=None):
        assert replace(copy.get(item.id), provenance=()) == replace(item, provenance=())


def test_evidence_comes_over(full, copy):
    """It points to the same steps, whatever their numbers are there."""
    item = next(item for item in full.items() if item.pinned)
    assert evidence(copy, copy.get(item.id)) == evidence(full, item)
    assert len(item.provenance) == 3


def test_what_was_imported_is_sound(full, copy):
    """And says the same of what it was taught."""
    assert copy.verify() == []
    state = State("You see a wooden drawer. It is closed.", task="find the spoon")
    assert not copy.check(state, "eat drawer").allowed
    assert copy._caught_up().values.cells["open drawer"].n == full._caught_up().values.cells["open drawer"].n


def test_importing_twice_adds_nothing(tmp_path, full, copy):
    """Neither into another library nor into its own."""
    before = copy.stats()
    assert copy.import_jsonl(tmp_path / "all.jsonl") == full.import_jsonl(tmp_path / "all.jsonl") == 0
    assert {**copy.stats(), "size_bytes": 0} == {**before, "size_bytes": 0}


def test_exporting_counts_its_lines(tmp_path, full):
    """Each is JSON of its own, ended by a line feed; nothing is left beside the file."""
    assert full.export_jsonl(tmp_path / "all.jsonl") == 6
    lines = (tmp_path / "all.jsonl").read_bytes().split(b"\n")
    assert [next(iter(json.loads(line))) for line in lines[:-1]] == ["episode"] * 3 + ["item"] * 3
    assert not (tmp_path / "all.jsonl.partial").exists()


def test_an_empty_library_exports_nothing(tmp_path, library):
    """An empty file, which may be imported."""
    assert library.export_jsonl(tmp_path / "all.jsonl") == 0
    assert library.import_jsonl(tmp_path / "all.jsonl") == 0


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"item": {"kind": "insight"}}',
        '{"item": {"kind": "hint", "title": "x", "provenance": []}}',
        '{"item": {"kind": "insight", "title": "x", "provenance": [], "unheard": 1}}',
        '{"item": {"kind": "warning", "title": "x", "provenance": [], "condition": {}, "forbids": "eat"}}',
        '{"episode": {"task": "x", "steps": [], "success": true}}',
        '{"episode": {"task": "x", "steps": [], "success": true, "id": ""}}',
        '{"episode": {"steps": [], "success": true, "id": "a"}}',
        '{"episode": {"task": "x", "steps": [{"action": "wait"}], "success": true, "id": "a"}}',
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(tmp_path, full, line):
    """The line's number and what is wrong with it; all or nothing."""
    full.export_jsonl(tmp_path / "all.jsonl")
    good = (tmp_path / "all.jsonl").read_bytes()
    (tmp_path / "all.jsonl").write_bytes(good + line.encode() + b"\n")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        with pytest.raises(ConfigError, match="line 7: not an episode or item of tacit"):
            other.import_jsonl(tmp_path / "all.jsonl")
        assert other.trajectories() == []
        assert other.items(status=None) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path, library):
    """Missing, a folder, or no text."""
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", ".", "noise"):
        with pytest.raises(ConfigError, match=r"cannot be read .* Give a file that `tacit memory export` wrote"):
            library.import_jsonl(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path, library):
    """No part of it is left."""
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        library.export_jsonl(tmp_path / "nowhere" / "all.jsonl")


def test_an_export_that_fails_leaves_the_old_file(tmp_path, full, monkeypatch):
    """It is written beside and moved into place."""
    (tmp_path / "all.jsonl").write_text("precious")
    monkeypatch.setattr("tacit.memory.transfer.dumps", lambda line: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        full.export_jsonl(tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_text() == "precious"
    assert not (tmp_path / "all.jsonl.partial").exists()
