"""The inbox: what was recorded is durable at once, filed before anybody reads, and never lost or seen twice."""

import json
import logging
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from tests import warm
from tests.memory.older import downgrade

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, HardwonError, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.reasons import Reasons
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.database import Store
from hardwon.memory.upkeep.write_buffer import file_all, pack_episode, unpack_episode

SEE = State("You see drawer 3. It is closed.", {"holding": ["a map"]}, "hall", "find a spoon", "", ("told",))


def taken(action="open drawer 3", **changes):
    """A step, with all that a step may have."""
    judged = Diagnosis(False, Failure.NO_EFFECT, 0.25, True, False, {"location": "attic"}, "It is stuck.")
    return replace(Step(SEE, action, SEE, judged, 0.5, keys=("*", action), why=Reasons(value=0.1)), **changes)


def one(*steps, **changes):
    """An episode."""
    return replace(Trajectory("find a spoon", steps or (taken(),), True, 0.75, meta={"game": "kitchen"}), **changes)


def waiting(path):
    """How many episodes another connection sees in the inbox, and how many in the ledger."""
    with sqlite3.connect(path) as connection:
        tables = ("inbox", "trajectories")
        found = tuple(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    connection.close()
    return found


def test_recording_is_one_row(path, library):
    """Durable on return, and nothing derived yet."""
    library.record(one())
    assert waiting(path) == (1, 0)


@pytest.mark.parametrize(
    "read",
    [
        lambda library: library.recall(SEE),
        lambda library: library.search("drawer"),
        lambda library: library.episodes.summaries(),
        lambda library: library.items.find(),
        lambda library: library.admin.stats(),
        lambda library: library.evolve(),
        lambda library: library.add(Item("insight", "drawers jam")),
        lambda library: library._file.store.rows("SELECT 1"),
        lambda library: library.close(),
    ],
)
def test_what_waits_is_filed_before_anything_else(path, library, read):
    """Whatever is read or changed."""
    library.record(one())
    read(library)
    assert waiting(path) == (0, 1)


@pytest.mark.parametrize("read_only", [False, True])
def test_what_another_process_recorded_is_filed_by_the_reader(path, library, read_only):
    """Also by one that was opened to be read: it changes nothing of what is known."""
    assert library.episodes.count() == 0
    with ExperienceLibrary.open(path, read_only=read_only) as reader:
        assert reader.episodes.count() == 0
        library.record(one())
        assert reader.episodes.count() == 1
        assert reader.episodes.summaries()[0].n == 1
    assert waiting(path) == (0, 1)
    assert library.admin.verify() == []


def test_a_file_that_may_not_be_written_is_read_with_all_that_was_recorded(tmp_path, path, library):
    """systems.md §7.1: from a copy in memory; the file stays as it is."""
    library.record(one(id="left"))
    with sqlite3.connect(path) as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "left.db"),))
    left = tmp_path / "left.db"
    before = left.read_bytes()
    with ExperienceLibrary.open(left, read_only=True) as reader:
        left.chmod(0o444)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hardwon.memory.storage.database.os.access", lambda *_: False)
            assert reader.episodes.get("left").steps[0].action == "open drawer 3"
            assert reader.recall(SEE).steps
        assert reader.admin.verify() == []
        with pytest.raises(HardwonError):
            reader.record(one())
    assert left.read_bytes() == before


def test_a_killed_process_leaves_an_inbox_that_the_next_one_files(path):
    """Nothing that was acknowledged is lost."""
    code = (
        "import os, sys; from tests.memory.upkeep.test_write_buffer import *\n"
        "library = ExperienceLibrary.open(sys.argv[1])\n"
        "[library.record(one(id=str(n))) for n in range(3)]\n"
        "os._exit(1)"
    )
    warm.run([sys.executable, "-c", code, str(path)], check=False)
    assert waiting(path) == (3, 0)
    with ExperienceLibrary.open(path) as library:
        assert [row["id"] for row in library.episodes.find()] == ["2", "1", "0"]
        assert library.admin.verify() == []


def test_a_repeated_call_is_known_before_it_is_filed(path, library):
    """By this process or another; and another episode under that id is refused."""
    library.record(one(id="a"))
    with ExperienceLibrary.open(path) as other:
        assert other.record(one(id="a")) == "a"
        with pytest.raises(ConfigError, match="another episode has the id 'a'"):
            other.record(one(taken(), taken(), id="a"))
    assert library.episodes.count() == 1


def rows(path, query):
    """What another connection reads."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_an_id_that_the_library_gave_is_known_again(path, library):
    """It is in no index: it tells its row."""
    told = library.record(one())
    assert library.record(one(id=told)) == told
    assert waiting(path) == (1, 0)


@pytest.mark.parametrize("ref", ["f" * 32, "7" * 32, "no number, but of the length....", "-1", "a" * 31])
def test_an_id_of_another_is_nobodys_row(path, library, ref):
    assert library.record(one(id=ref)) == library.record(one(id=ref)) == ref
    assert waiting(path) == (1, 0)


def test_what_waits_in_an_older_file_is_found_by_its_id(path, library):
    """Before schema 5 every id was in the index, also those that the library gave."""
    told = library.record(one())
    downgrade(path, 4)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE inbox SET id = 1")
    with ExperienceLibrary.open(path) as newer:
        assert newer.record(one(id=told)) == told
        assert newer.episodes.count() == 1


def test_rows_stand_in_the_order_of_recording_whatever_the_clock_says(path, library, monkeypatch):
    monkeypatch.setattr("hardwon.memory.upkeep.write_buffer.time.time_ns", iter([5, 3, 3]).__next__)
    ids = [library.record(one()) for _ in range(3)]
    assert rows(path, "SELECT id, ref FROM inbox ORDER BY id") == list(zip([5, 6, 7], ids, strict=True))


def test_no_number_comes_again_after_what_waited_was_filed(path, library, monkeypatch):
    """The clock was put back, and the row with the highest number is gone: its number is not given again."""
    monkeypatch.setattr("hardwon.memory.upkeep.write_buffer.time.time_ns", iter([5, 3]).__next__)
    library.record(one())
    assert library.episodes.count() == 1
    assert waiting(path) == (0, 1)
    library.record(one())
    assert rows(path, "SELECT id FROM inbox") == [(6,)]


def test_numbers_go_on_after_those_of_another_process(path, library, monkeypatch):
    """Whose clock is ahead: what is recorded later stands later all the same."""
    clock = "hardwon.memory.upkeep.write_buffer.time.time_ns"
    monkeypatch.setattr(clock, lambda: 9)
    first = library.record(one())
    monkeypatch.setattr(clock, lambda: 3)
    with ExperienceLibrary.open(path) as other:
        second = other.record(one())
        assert rows(path, "SELECT id, ref FROM inbox ORDER BY id") == [(9, first), (10, second)]


def test_a_signature_that_nobody_looked_at_is_computed_when_it_is_filed(path, library):
    unseen = State("drawer 3 is open")
    library.record(one(Step(unseen, "look", unseen, Diagnosis(success=True))))
    assert unseen.signature_if_known == ""
    assert library.episodes.count() == 1
    assert rows(path, "SELECT signature FROM states") == [(State("drawer 7 is open").signature,)]


def test_a_record_that_fails_while_it_files_keeps_what_waited(library, episode, monkeypatch):
    """File again what was filed in a transaction that was rolled back."""
    item = library.add(Item("insight", "Spoons lie in drawers")).item_id
    library.record(episode("open drawer", id="waits"))
    count = library._file.inbox.on_filed

    def stop(episodes):
        count(episodes)
        raise InterruptedError

    one = episode("open drawer", id="stops")
    named = replace(one, steps=tuple(replace(step, why={"recalled": [item]}) for step in one.steps))
    with monkeypatch.context() as patch:
        patch.setattr(library._file.inbox, "on_filed", stop)
        with pytest.raises(InterruptedError):
            library.record(named)
    assert [row["id"] for row in library.episodes.find()] == ["waits"]
    library.record(named)
    assert {row["id"] for row in library.episodes.find()} == {"waits", "stops"}
    assert library.recall(one.steps[0].pre).steps
    assert library.admin.verify() == []


def test_an_episode_that_names_items_is_filed_at_once(path, library):
    """Scores move with it, after all that came before."""
    item = library.add(Item("insight", "drawers jam")).item_id
    library.record(one(id="before"))
    library.record(one(taken(why={"recalled": [item]}), id="shown"))
    assert waiting(path) == (0, 2)
    assert [row["trajectory_id"] for row in library.items.usages(item)] == ["shown"]
    assert library.admin.verify() == []


def test_filed_from_memory_or_from_the_file_is_the_same(path, tmp_path):
    """Every row."""
    episodes = [one(id=f"e{number}", seed=number) for number in range(3)]
    with ExperienceLibrary.open(path) as here, ExperienceLibrary.open(tmp_path / "there.db") as there:
        here.record_many(episodes)
        there.record_many(episodes)
        there._file.inbox._recent.clear()
        for table in ("states", "steps", "attempts", "words", "keys"):
            assert here._file.store.rows(f"SELECT * FROM {table}") == there._file.store.rows(f"SELECT * FROM {table}")
        assert [here.episodes.get(row["id"]) for row in here.episodes.find()] == [
            there.episodes.get(row["id"]) for row in there.episodes.find()
        ]


def test_one_that_cannot_be_filed_holds_up_no_other(library, caplog):
    """It stays in the inbox with the reason, for `verify` and `repair`."""
    library.record_many([one(id="first"), one(id="torn"), one(id="last")])
    library._file.inbox._recent.clear()
    library._file.store.connection.execute("UPDATE inbox SET episode = '[1, 2' WHERE ref = 'torn'")
    seal(library._file.store.connection, "inbox", "ref = 'torn'", ())  # as another version wrote it
    with caplog.at_level(logging.ERROR):
        assert [row["id"] for row in library.episodes.find()] == ["last", "first"]
    (problem,) = library.admin.verify()
    assert problem.where == "inbox"
    assert "1 not stored: JSONDecodeError" in problem.what


def test_a_long_inbox_is_filed_by_its_writer(path, library, monkeypatch):
    """So that no reader has to file without end."""
    monkeypatch.setattr("hardwon.memory.upkeep.write_buffer.FILE_AFTER", len(pack_episode(one())) * 3.5)
    for _ in range(3):
        library.record(one())
    assert waiting(path) == (3, 0)
    library.record(one())
    assert waiting(path) == (0, 4)


@pytest.mark.parametrize("broken", [{"score": float("nan")}, {"score": 1e200}, {"seed": 2**64}])
def test_what_could_never_be_filed_is_refused(path, library, broken):
    """When it is recorded, not later."""
    with pytest.raises(HardwonError):
        library.record(one(**broken))
    assert waiting(path) == (0, 0)


texts = st.text(max_size=8)
facts = st.dictionaries(texts, texts | st.integers() | st.booleans() | st.lists(texts, max_size=2), max_size=2)
states = st.builds(State, texts, facts, texts, texts, texts, st.lists(texts, max_size=2).map(tuple))


@given(st.lists(st.tuples(states, texts, states, st.sampled_from(Failure), st.floats(-9, 9), facts), max_size=3), facts)
def test_an_episode_survives_packing(steps, meta):
    """Word for word; steps are numbered."""
    made = [
        Step(pre, action, post, Diagnosis(True, failure, 0.5, diff=some), reward, t, ("*",), some)
        for t, (pre, action, post, failure, reward, some) in enumerate(steps)
    ]
    episode = Trajectory("a task", tuple(made), None, 0.5, "control", 3, "lost", meta, "e")
    told = pack_episode(episode)
    assert json.loads(told)
    assert unpack_episode(told, "e") == episode


@pytest.mark.parametrize(
    ("writer", "trust"), [("", "untrusted"), ("ann", "trusted"), ("ann", "untrusted"), ("", "trusted")]
)
def test_who_wrote_an_episode_and_whether_it_is_trusted_survive_the_inbox(writer, trust):
    kept = unpack_episode(pack_episode(one(writer=writer, trust=trust)), "e")
    assert (kept.writer, kept.trust) == (writer, trust)


def test_buffered_episodes_of_every_namespace_are_stored(path, library):
    with ExperienceLibrary.open(path, namespace="other") as other:
        library.record(one())
        other.record(one())
        with closing(Store(path)) as store:
            file_all(store)
        assert waiting(path) == (0, 2)
