"""Tests of reads while another process, or another thread, holds the lock of a library."""

import threading
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from tests.memory.storage.locking import hold

from hardwon.memory import ExperienceLibrary, Failure, Item, State
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.parts.episodes import LibraryEpisodes
from hardwon.memory.privacy.deadlines import Interruptible, deadline, seconds_left
from hardwon.memory.storage import database
from hardwon.memory.storage.cache_files import read_library_id
from hardwon.memory.upkeep import jsonl
from hardwon.memory.upkeep.figures import list_changes, read_clusters
from hardwon.memory.upkeep.write_buffer import WriteBuffer

HERE = State("You see a copper kettle beside the stove.", task="find the spoon")


READS = {
    "recall": lambda library: library.recall(HERE),
    "recall by text": lambda library: library.recall("where is the kettle?"),
    "recall by task": lambda library: library.recall(HERE, level="task"),
    "estimates": lambda library: library.recall(HERE, actions={"open drawer": "", "go": ""}).estimates,
    "check": lambda library: library.check(HERE, "open drawer"),
    "enforce": lambda library: library.enforce(HERE, "burn the house"),
    "check_plan": lambda library: library.check(HERE, ["open drawer"]),
    "offered": lambda library: library.offered(HERE, ["insight", "warning"]),
    "look_ahead": lambda library: library.look_ahead(HERE, ["open drawer"]),
    "index": lambda library: type(library.episodes.index_demonstrations()),
    "search": lambda library: library.search("kettle"),
    "keys": lambda library: library.episodes.keys(HERE, "open drawer"),
    "items": lambda library: library.items.find(),
    "stats": lambda library: {**library.admin.stats(), "scans": 0, "vectors": 0, "size_bytes": 0},
    "trajectories": lambda library: library.episodes.find(),
    "episodes": lambda library: library.episodes.count(),
    "clusters": lambda library: library.admin.query(read_clusters),
    "changes": lambda library: library.admin.query(list_changes),
}


def fill(library, episode):
    library.record_many(
        [episode(see=f"You see {what} beside the stove.") for what in ("a copper kettle", "a pan", "a cup")]
    )
    library.record(episode("burn the house", see=HERE.observation, failure=Failure.NO_EFFECT, success=False))
    library.add(Item("insight", "A copper kettle stands beside the stove"))
    rule = Item("guardrail", "no fire", condition={"text": "kettle"}, forbids="burn the house", confidence=0.9)
    library.add(rule)


@pytest.mark.timeout(50)  # a writer waits for 60 s
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("copied", [True, False], ids=["small", "large"])
def test_no_read_waits_for_a_writer(path, episode, monkeypatch, read_only, copied):
    """Each read is the first one after opening: texts have no vectors, and an episode waits in the buffer."""
    waits = []
    transaction = database.Store.transaction

    def note(store, durable=True, wait_s=database.BUSY_TIMEOUT_S):
        if not store.writing and store.path == str(path):
            waits.append(wait_s)
        return transaction(store, durable, wait_s)

    if not copied:
        monkeypatch.setattr(database, "COPIED", 0)
    with ExperienceLibrary.open(path) as library:
        fill(library, episode)
    with ExperienceLibrary.open(path) as writer:
        writer.record(episode(see="You see a new lamp."))
        monkeypatch.setattr(database.Store, "transaction", note)
        with hold(path):
            for read in READS.values():
                library = ExperienceLibrary.open(path, read_only=read_only)
                read(library)
                library.close()
        assert waits
        assert max(waits) <= 0.1


@pytest.mark.timeout(50)
def test_a_missing_id_of_a_library_is_not_waited_for(path, library, monkeypatch):
    waits = []
    store, transaction = library._file.store, database.Store.transaction

    def note(store, wait_s=database.BUSY_TIMEOUT_S):
        waits.append(wait_s)
        return transaction(store, wait_s=0.0)

    store.connection.execute("DELETE FROM meta WHERE name = 'id'")
    monkeypatch.setattr(database.Store, "transaction", note)
    with hold(path):
        assert read_library_id(store) == ""
    assert waits == [0.0]


@pytest.mark.timeout(50)
def test_only_the_first_of_several_reads_waits_briefly(path, episode, monkeypatch):
    """Read a large file, whose episodes cannot be filed in a copy."""
    waits = []
    file = WriteBuffer._file_waiting

    def note(buffer, wait_s):
        waits.append(wait_s)
        file(buffer, wait_s)

    monkeypatch.setattr(database, "COPIED", 0)
    monkeypatch.setattr(WriteBuffer, "_file_waiting", note)
    with ExperienceLibrary.open(path) as library:
        library.record(episode(see="You see a new lamp."))
        with hold(path):
            for _ in range(3):
                library.recall(HERE)
    assert waits[:3] == [0.1, 0.0, 0.0]


@pytest.mark.timeout(50)
def test_answers_are_the_same_while_the_library_is_locked(path, episode):
    with ExperienceLibrary.open(path) as library:
        fill(library, episode)
    with ExperienceLibrary.open(path) as library:
        before = {name: repr(read(library)) for name, read in READS.items()}
        library._file.store.connection.execute("DELETE FROM vectors")
    with ExperienceLibrary.open(path) as library, hold(path):
        assert {name: repr(read(library)) for name, read in READS.items()} == before


@pytest.mark.timeout(50)
def test_what_a_locked_read_computed_is_stored_later(path, episode, monkeypatch):
    """Vectors of a search, and episodes that could not be filed."""
    monkeypatch.setattr(database, "COPIED", 0)
    with ExperienceLibrary.open(path) as library:
        fill(library, episode)
        with hold(path):
            found = library.search("kettle", how="dense")
            assert found
            assert library._file.store.rows("SELECT count(*) FROM vectors") == [(0,)]
        assert library.episodes.count() == 4
        assert library.search("kettle", how="dense")
        library.record(episode(see="You see a new lamp."))
        assert library.recall("new lamp").steps
        ((vectors,),) = library._file.store.rows("SELECT count(*) FROM vectors")
        assert vectors >= len(found)
        assert library.admin.verify() == []


@pytest.mark.timeout(50)
def test_what_waits_is_recalled_once_the_lock_is_gone_although_nobody_wrote(path, episode, monkeypatch):
    monkeypatch.setattr(database, "COPIED", 0)
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as writer:
        fill(library, episode)
        library.recall("kettle")
        writer.record(episode(see="You see a new lamp."))
        with hold(path):
            assert "lamp" not in repr(library.recall("new lamp").steps)
        assert "lamp" in repr(library.recall("new lamp").steps)


@pytest.mark.timeout(50)
def test_a_deadline_ends_the_wait_for_another_thread(library, episode):
    """Such as one that evolves, imports, or waits for its turn to write."""
    is_held, may_end = threading.Event(), threading.Event()

    def work():
        with library._file.lock:
            is_held.set()
            may_end.wait(40)

    thread = threading.Thread(target=work)
    thread.start()
    is_held.wait(40)
    try:
        with deadline(0.01), pytest.raises(LibraryBusy, match="another thread"):
            library.recall(HERE)
    finally:
        may_end.set()
        thread.join()
    with deadline(20.0):
        library.recall(HERE)


@pytest.mark.timeout(50)
def test_a_deadline_ends_the_wait_of_a_write(path, library, episode):
    with hold(path), deadline(0.01), pytest.raises(LibraryBusy, match="locked"):
        library.record(episode())
    library.record(episode())


def test_the_shorter_of_two_deadlines_holds():
    assert seconds_left() is None
    with deadline(0.0), deadline(60.0):
        assert seconds_left() == 0.0
    assert seconds_left() is None


def test_texts_without_vectors_are_not_all_embedded_before_a_deadline(library, episode, monkeypatch):
    """What is embedded is stored, so that the next calls go on from there."""
    library.record_many([episode(see=f"You see thing{number} and box{number}.") for number in range(80)])
    left = iter([None, 1.0, 1.0, 0.0])
    monkeypatch.setattr("hardwon.memory.retrieval.search.seconds_left", lambda: next(left, 0.0))
    next(left)
    with pytest.raises(LibraryBusy, match="hardwon memory search"):
        library.recall("box7")
    ((vectors,),) = library._file.store.rows("SELECT count(*) FROM vectors")
    assert 0 < vectors < 80


class RemoteEmbedder:
    """An embedder whose server does not answer until `may_answer` is set."""

    name, fingerprint, dim = "remote", "remote-1", 4

    def __init__(self):
        self.may_answer, self.calls = threading.Event(), 0
        self.may_answer.set()

    def embed(self, texts):
        self.calls += 1
        self.may_answer.wait(40)
        return np.full((len(texts), self.dim), 0.5, np.float32)


@pytest.mark.timeout(30)
def test_a_deadline_ends_the_wait_for_an_embedder(path, episode):
    """Later calls do not wait for it either, until it answers; without a deadline everything waits."""
    embedder = RemoteEmbedder()
    with ExperienceLibrary.open(path, embedder) as library:
        library.record(episode())
        library.recall("where is the kettle?")
        embedder.may_answer.clear()
        calls = embedder.calls
        for _ in range(3):
            with deadline(0.02), pytest.raises(LibraryBusy, match="the embedder remote"):
                library.recall("where is the spoon?")
        assert embedder.calls == calls + 1
        embedder.may_answer.set()
        late = library._file.search._calls._late
        assert late is not None
        late.result(20.0)
        assert library.recall("where is the spoon?").steps
        with deadline(20.0):
            assert library.recall("where is the cup?").steps


def test_an_error_of_an_embedder_is_not_a_late_answer(library):
    with deadline(20.0), pytest.raises(TimeoutError, match="the socket"):
        Interruptible("the embedder").call(lambda: (_ for _ in ()).throw(TimeoutError("the socket")))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("created", ["by itself", "by another"])
@pytest.mark.parametrize("limit", [lambda: deadline(0.02), nullcontext], ids=["deadline", "none"])
def test_a_new_namespace_does_not_wait_to_be_created(path, library, episode, created, limit):
    """It is empty until the first write creates it; a write that cannot is an error."""
    with hold(path):
        with limit():
            other = ExperienceLibrary.open(path, namespace="new")
        assert (other.episodes.count(), other.items.find(), list(other.recall(HERE).steps)) == (0, [], [])
        with deadline(0.02), pytest.raises(LibraryBusy, match="locked"):
            other.record(episode())
    if created == "by another":
        with ExperienceLibrary.open(path, namespace="new") as third:
            third.record(episode())
    other.record(episode())
    other.close()
    with ExperienceLibrary.open(path, namespace="new", read_only=True) as again:
        assert again.episodes.count() == 1 + (created == "by another")
    assert library.episodes.count() == 0


@pytest.mark.timeout(30)
def test_a_reader_of_a_forgotten_namespace_waits_for_nobody(path, library, episode):
    with ExperienceLibrary.open(path, namespace="new") as reader:
        reader.record(episode())
        library.admin.forget(namespace="new")
        with hold(path):
            assert reader.episodes.count() == 0
        reader.record(episode())
        assert reader.episodes.count() == 1


@pytest.mark.timeout(30)
def test_a_write_ends_at_the_deadline(path, library):
    with hold(path), deadline(0.01), pytest.raises(LibraryBusy, match="locked"):
        library.add(Item("insight", "A new one"))


@pytest.mark.timeout(50)
def test_closing_does_not_wait_for_a_writer(path, episode):
    """The steps of a run that is not over wait for the next opening."""
    library, (step, *_) = ExperienceLibrary.open(path), episode().steps
    library.episodes.open_run("run", lambda: episode()).add(step)
    with hold(path):
        library.close()
    assert list(path.parent.glob("*.runs/*.jsonl"))


@pytest.mark.timeout(50)
def test_a_read_does_not_wait_for_an_import_of_another_thread(path, episode, monkeypatch, tmp_path):
    """It reads what was there before."""
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.record_many([episode(id=f"other {number}") for number in range(3)])
        other.admin.export_jsonl(tmp_path / "other.jsonl")
    is_begun, may_end = threading.Event(), threading.Event()
    read_lines = jsonl.Import.read_lines

    def import_slowly(*arguments):
        count = read_lines(*arguments)
        is_begun.set()
        may_end.wait(40)
        return count

    monkeypatch.setattr(jsonl.Import, "read_lines", import_slowly)
    with ExperienceLibrary.open(path) as library:
        fill(library, episode)
        thread = threading.Thread(target=library.admin.import_jsonl, args=(tmp_path / "other.jsonl",))
        thread.start()
        try:
            assert is_begun.wait(40)
            with deadline(5.0):
                for read in READS.values():
                    read(library)
                assert library.episodes.count() == 4
        finally:
            may_end.set()
            thread.join()
        assert library.episodes.count() == 7


@pytest.mark.timeout(50)
def test_a_read_does_not_wait_for_an_evolution_of_another_thread(path, episode, monkeypatch):
    """It reads what was there before, while the new episodes are loaded."""
    with ExperienceLibrary.open(path) as library:
        fill(library, episode)
    is_begun, may_end, load = threading.Event(), threading.Event(), LibraryEpisodes.get

    def load_slowly(library, ref):
        is_begun.set()
        may_end.wait(40)
        return load(library, ref)

    with ExperienceLibrary.open(path) as library:
        monkeypatch.setattr(LibraryEpisodes, "get", load_slowly)
        thread = threading.Thread(target=library.evolve)
        thread.start()
        try:
            assert is_begun.wait(40)
            with deadline(5.0):
                for read in READS.values():
                    read(library)
                library.admin.forget(episode=library.episodes.find()[0]["id"])
        finally:
            may_end.set()
            thread.join()
        library.evolve()
        assert library.admin.verify() == []


@pytest.mark.parametrize("client", [{}, {"writer": "bot"}, {"writer": "bot", "trust": "untrusted"}], ids=str)
def test_a_finished_run_takes_the_place_of_its_beginning(library, episode, client):
    """It was recorded when the run stopped; then the run went on, and ended while the library was locked."""
    whole = replace(episode(id="run"), **client)
    whole = replace(whole, steps=(*whole.steps, replace(whole.steps[0], t=len(whole.steps))))
    library.record(replace(whole, steps=whole.steps[:1], success=None, score=0.0, ending="abandoned"))
    run = library.episodes.open_run("run", lambda: whole)
    run.add(*whole.steps)
    assert run.finish(whole)
    library.evolve()
    recorded = library.episodes.get("run")
    assert (len(recorded.steps), recorded.success, library.episodes.count()) == (len(whole.steps), True, 1)
    assert (recorded.writer, recorded.trust) == (whole.writer, whole.trust)


def test_an_index_is_saved_only_with_vectors_that_the_library_has(path, episode, monkeypatch, caplog):
    """A file with vectors that could not be written would not match the library, and the next process rebuilt it."""
    monkeypatch.setattr("hardwon.memory.retrieval.vector_index.VectorIndex.LIMIT", 12)
    monkeypatch.setattr("hardwon.memory.storage.cache_files.SAVE_AFTER", 6)
    states = [episode(see=f"You see thing{number} and box{number}.") for number in range(120)]
    with ExperienceLibrary.open(path) as library:
        library.record_many(states[:40])
        library.search("box7")
    with ExperienceLibrary.open(path) as library:
        library.record_many(states[40:])
        library.admin.stats()  # files the episodes, so that only vectors are missing
    with hold(path, "IMMEDIATE"), ExperienceLibrary.open(path) as library:
        library.search("box7")
        assert library._file.search._unsaved["states"]
        library._file.search.save()
        with ExperienceLibrary.open(path, read_only=True) as other:
            other.search("box7")
    assert "does not match the vectors" not in caplog.text
