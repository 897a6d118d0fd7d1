import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError


@pytest.fixture
def full(library, episode):
    """A library with episodes of every outcome, and items of every fate."""
    odd = "naïve \u2028 \x85 \x0b text\r\nwith 'quotes', \"more\" and \\ \x00"
    made = episode("open drawer", "take spoon", see=odd, library=library, arm="retrieved", seed=7, meta={"n": [1, odd]})
    state = State(odd, {"has": ["a", odd], "n": 1.5, "b": True}, "here", "t", "told", ("note",))
    made = replace(made, steps=(*made.steps, Step(state, "wait", state, made.steps[0].diagnosis)))
    ref = library.record(made)
    library.record(episode(success=None))
    evidence = tuple(step.id for step in library.episodes.get(ref).steps)
    kept = str(library.add(Item("insight", odd, provenance=evidence, score=0.25)).item_id)
    steps = [replace(step, why={"recalled": [kept], "like": evidence[:2]}) for step in episode("a", "b").steps]
    library.record(replace(episode(), steps=tuple(steps), arm="retrieved"))
    library.add(Item("guardrail", "no", condition={"text": "closed"}, forbids="eat {1}", confidence=0.9))
    library.items.retire(library.add(Item("insight", "wrong")).item_id, "no")
    library.items.update(kept, pinned=True)
    return library


def told(trajectory):
    """An episode without the numbers of its steps, which are the file's own."""
    return replace(
        trajectory, steps=tuple(replace(step, id=None, why=step.why.updated(similar=())) for step in trajectory.steps)
    )


def evidence(library, item):
    """Where an item's evidence is: episode and step."""
    return [(step.why.trajectory, step.t) for step in library.episodes.steps(item.provenance)]


@pytest.fixture
def copy(tmp_path, full, episode):
    """Another library, with an episode of its own, that imported the full one."""
    lines = full.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        other.record(episode("something else"))
        assert other.admin.import_jsonl(tmp_path / "all.jsonl") == lines
        yield other


def test_episodes_come_over_exactly(full, copy):
    """Text of any kind, excluded episodes, arms, seeds, keys."""
    for row in full.episodes.find():
        assert told(copy.episodes.get(row["id"])) == told(full.episodes.get(row["id"]))


def test_items_come_over_exactly(full, copy):
    """Scores, pins, the retired ones."""
    for item in full.items.find(status=None):
        assert replace(copy.items.get(item.id), provenance=()) == replace(item, provenance=())


def test_evidence_comes_over(full, copy):
    """It points to the same steps, whatever their numbers are there."""
    item = next(item for item in full.items.find() if item.pinned)
    assert evidence(copy, copy.items.get(item.id)) == evidence(full, item)
    assert len(item.provenance) == 3


def test_what_was_imported_is_sound(full, copy):
    """And says the same of what it was taught."""
    assert copy.admin.verify() == []
    state = State("You see a wooden drawer. It is closed.", task="find the spoon")
    assert not copy.check(state, "eat drawer").allowed
    asked = {"open drawer": ""}
    assert copy.recall(state, k=0, actions=asked).estimates["open drawer"].n == 1
    assert full.recall(state, k=0, actions=asked).estimates["open drawer"].n == 1


def test_importing_twice_adds_nothing(tmp_path, full, copy):
    """Neither into another library nor into its own."""
    before = copy.admin.stats()
    assert copy.admin.import_jsonl(tmp_path / "all.jsonl") == full.admin.import_jsonl(tmp_path / "all.jsonl") == 0
    assert {**copy.admin.stats(), "size_bytes": 0} == {**before, "size_bytes": 0}


def test_exporting_counts_its_lines(tmp_path, full):
    """Each is JSON of its own, ended by a line feed; nothing is left beside the file."""
    count = full.admin.export_jsonl(tmp_path / "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_bytes().split(b"\n")
    assert [next(iter(json.loads(line))) for line in lines[:-1]] == (
        ["episode"] * 3 + ["item"] * 3 + ["usage"] * 2 + ["change"] * (count - 8)
    )
    assert not (tmp_path / "all.jsonl.partial").exists()


def exported(library, path):
    """The bytes of an export."""
    library.admin.export_jsonl(path)
    return path.read_bytes()


def test_a_library_round_trips_exactly(tmp_path, full):
    """systems.md §7.1: exported, imported into a new library, and exported again: the same bytes."""
    told = exported(full, tmp_path / "a.jsonl")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        assert other.admin.import_jsonl(tmp_path / "a.jsonl") == told.count(b"\n")
        assert exported(other, tmp_path / "b.jsonl") == told
        assert other.admin.verify() == []


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
title = text.filter(str.strip)
number = st.floats(-1e9, 1e9)
share = st.floats(0, 1)
fact = text | st.integers(-99, 99) | number | st.booleans() | st.lists(text, max_size=2)
state = st.builds(
    State, text, st.dictionaries(text, fact, max_size=2), text, text, text, st.lists(text, max_size=2).map(tuple)
)
diagnosis = st.builds(
    Diagnosis,
    st.booleans(),
    st.sampled_from(Failure),
    share,
    st.booleans(),
    st.booleans(),
    st.dictionaries(text, fact, max_size=2),
    text,
)
why = st.fixed_dictionaries({}, optional={"recalled": st.just(["in-0"]), "like": st.just([1]), "n": number})
step = st.builds(Step, state, text, state, diagnosis, number, keys=st.lists(text, max_size=2).map(tuple), why=why)
trajectory = st.builds(
    Trajectory,
    text,
    st.lists(step, max_size=3).map(tuple),
    st.sampled_from([True, False, None]),
    share,
    st.sampled_from(["control", "retrieved"]),
    st.integers(0, 2**40),
    text,
    st.dictionaries(text, fact, max_size=2),
)
item = st.builds(
    Item,
    st.sampled_from(["strategy", "insight", "warning"]),
    title,
    text,
    text,
    text,
    signatures=st.lists(text, max_size=2).map(tuple),
    locations=st.lists(text, max_size=2).map(tuple),
    tags=st.lists(text, max_size=2).map(tuple),
    provenance=st.lists(st.integers(1, 4), max_size=2).map(tuple),
    score=share,
    confidence=share,
    pinned=st.booleans(),
    ttl=st.none() | st.integers(1, 9),
    writer=text,
)


@given(st.lists(trajectory, max_size=3), st.lists(item, max_size=3), st.lists(trajectory, max_size=2), st.booleans())
def test_any_library_round_trips_exactly(tmp_path_factory, before, items, after, retire):
    """systems.md §7.1: whatever was recorded, added, shown and retired; what is derived comes out sound."""
    folder = tmp_path_factory.mktemp("round")
    with ExperienceLibrary.open(":memory:") as library, ExperienceLibrary.open(":memory:") as copy:
        for episode in before:
            library.record(episode)
        added = [library.add(replace(one, id=f"in-{n}")).item_id for n, one in enumerate(items)]
        for episode in after:
            library.record(episode)
        known = [one.id for one in library.items.find() if one.id in added]
        if retire and known:
            library.items.retire(known[0], "no")
        told = exported(library, folder / "a.jsonl")
        copy.admin.import_jsonl(folder / "a.jsonl")
        assert exported(copy, folder / "b.jsonl") == told
        assert copy.admin.verify() == library.admin.verify() == []


def test_the_history_of_an_item_comes_over(full, copy):
    """Every change with its time; importing is no change."""
    for item in full.items.find(status=None):
        assert [(one["at"], one["op"]) for one in copy.items.history(item.id)] == [
            (one["at"], one["op"]) for one in full.items.history(item.id)
        ]


def test_usages_come_over_once(full, copy):
    """They are told by their lines, not made again from the steps; scores are as they were."""
    (used,) = [item for item in full.items.find() if full.items.usages(item.id)]
    assert copy.items.usages(used.id) == full.items.usages(used.id)
    assert copy.items.get(used.id).score == full.items.get(used.id).score


def test_steps_that_steps_remember_come_over(full, copy):
    """What a policy went by points to the same steps."""
    where = "json_extract(why, '$.like') IS NOT NULL"
    ((like,),) = copy._file.store.rows(f"SELECT DISTINCT json_extract(why, '$.like') FROM steps WHERE {where}")
    ((there,),) = full._file.store.rows(f"SELECT DISTINCT json_extract(why, '$.like') FROM steps WHERE {where}")
    assert [step.action for step in copy.episodes.steps(json.loads(like))] == [
        step.action for step in full.episodes.steps(json.loads(there))
    ]


def test_an_item_keeps_its_age(tmp_path, library, episode):
    """As many episodes without use as in the library it comes from, however many there are here."""
    library.add(Item("insight", "old"))
    for _ in range(3):
        library.record(episode())
    library.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        for _ in range(10):
            other.record(episode())
        other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert other._file.store.rows("SELECT fresh FROM items") == [(10,)]


def test_an_untrusted_file_is_quarantined(tmp_path, full):
    """systems.md §7.2: its items are neither recalled nor enforced until they are released; they change no score."""
    full.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        other.admin.import_jsonl(tmp_path / "all.jsonl", trust="untrusted")
        assert other.items.find() == []
        arrived = other.items.find(status="quarantined")
        assert {(item.source, item.trust, item.pinned) for item in arrived} == {("import", "untrusted", False)}
        here = State("You see a wooden drawer. It is closed.")
        assert not other.recall(here, actions={"eat drawer": ""}).guardrails
        assert other.check(here, "eat drawer").allowed
        assert other._file.store.rows("SELECT * FROM usages") == []
        (guardrail,) = [item for item in arrived if item.kind == "guardrail"]
        other.items.release(guardrail.id, "looked at")
        assert not other.check(here, "eat drawer").allowed


def test_a_file_of_an_older_version_is_imported(tmp_path, full):
    """Episodes and items alone, without times: usages are made of the steps, as when they were recorded."""
    full.admin.export_jsonl(tmp_path / "all.jsonl")
    old = []
    for line in (tmp_path / "all.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        ((kind, value),) = json.loads(line).items()
        for name in (
            "recorded_at",
            "created_at",
            "updated_at",
            "uses",
            "fresh",
            "locations",
            "tags",
            "source",
            "trust",
        ):
            value.pop(name, None)
        if kind in ("episode", "item"):
            old.append(json.dumps({kind: value}))
    (tmp_path / "old.jsonl").write_text("\n".join(old) + "\n", encoding="utf-8")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        assert other.admin.import_jsonl(tmp_path / "old.jsonl") == 6
        assert other.admin.verify() == []
        (used,) = [item for item in full.items.find() if full.items.usages(item.id)]
        assert len(other.items.usages(used.id)) == len(full.items.usages(used.id))


def test_an_empty_library_exports_nothing(tmp_path, library):
    """An empty file, which may be imported."""
    assert library.admin.export_jsonl(tmp_path / "all.jsonl") == 0
    assert library.admin.import_jsonl(tmp_path / "all.jsonl") == 0


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"item": {"kind": "insight"}}',
        '{"hint": {}}',
        '{"episode": {}, "item": {}}',
        '{"change": {}}',
        '{"usage": {}}',
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
    full.admin.export_jsonl(tmp_path / "all.jsonl")
    good = (tmp_path / "all.jsonl").read_bytes()
    (tmp_path / "all.jsonl").write_bytes(good + line.encode() + b"\n")
    with ExperienceLibrary.open(tmp_path / "copy.db") as other:
        with pytest.raises(
            ConfigError, match=rf"line {good.count(bytes([10])) + 1}: not an episode or item of hardwon"
        ):
            other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert other.episodes.find() == []
        assert other.items.find(status=None) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path, library):
    """Missing, a folder, or no text."""
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", ".", "noise"):
        with pytest.raises(ConfigError, match=r"cannot be read .* Use a file that `hardwon memory export` wrote"):
            library.admin.import_jsonl(tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path, library):
    """No part of it is left."""
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        library.admin.export_jsonl(tmp_path / "nowhere" / "all.jsonl")


def test_an_export_that_fails_leaves_the_old_file(tmp_path, full, monkeypatch):
    """It is written beside and moved into place."""
    (tmp_path / "all.jsonl").write_text('{"episode": "precious"}')
    monkeypatch.setattr("hardwon.memory.upkeep.jsonl.dumps", lambda line: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        full.admin.export_jsonl(tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_text() == '{"episode": "precious"}'
    assert not (tmp_path / "all.jsonl.partial").exists()


@pytest.mark.parametrize("at", ["2026-01-01T12:00:00+02:00", "2026-01-01 10:00:00.5", 1_767_261_600, "1767261600000"])
def test_times_of_other_programs_are_stored_in_one_form(tmp_path, library, at):
    """Lists and figures compare them."""
    episode = {"id": "e-1", "task": "t", "success": True, "steps": [], "recorded_at": at}
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps({"episode": episode}) + "\n", encoding="utf-8")
    library.admin.import_jsonl(path)
    assert library.episodes.find()[0]["recorded_at"] == "2026-01-01T10:00:00+00:00"


@pytest.mark.parametrize("after", [True, False])
def test_an_episode_that_was_graded_later_gets_its_outcome(tmp_path, episode, after):
    with ExperienceLibrary.open(tmp_path / "a.db") as library, ExperienceLibrary.open(tmp_path / "b.db") as other:
        ref = library.record(replace(episode(), success=None, score=0.0))
        library.admin.export_jsonl(tmp_path / "before.jsonl")
        other.admin.import_jsonl(tmp_path / "before.jsonl")
        library.grade(ref, success=after, why="seen", grader="ada")
        library.admin.export_jsonl(tmp_path / "after.jsonl")
        assert other.admin.import_jsonl(tmp_path / "after.jsonl") == 2
        assert other.episodes.get(ref).success is after
        assert [grade.grader for grade in other.episodes.grades(ref)] == ["ada"]
        assert other.admin.verify() == []
        assert (
            other.admin.import_jsonl(tmp_path / "after.jsonl")
            == other.admin.import_jsonl(tmp_path / "before.jsonl")
            == 0
        )
        assert other.episodes.get(ref).success is after


def test_an_episode_that_grew_is_updated(tmp_path, episode):
    whole = replace(episode(), steps=episode().steps[:1] * 2)
    with ExperienceLibrary.open(tmp_path / "a.db") as library, ExperienceLibrary.open(tmp_path / "b.db") as other:
        library.record(replace(whole, id="e-1"))
        library.admin.export_jsonl(tmp_path / "whole.jsonl")
        other.record(replace(whole, id="e-1", steps=whole.steps[:1]))
        assert other.admin.import_jsonl(tmp_path / "whole.jsonl") == 1
        assert [step.action for step in other.episodes.get("e-1").steps] == [step.action for step in whole.steps]
        assert other.admin.verify() == []
        assert other.admin.import_jsonl(tmp_path / "whole.jsonl", trust="untrusted") == 0
