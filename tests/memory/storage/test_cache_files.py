"""Files beside a library: whatever happens to them, the library answers as without them."""

import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.retrieval.vector_index import TrainedIndex, VectorIndex
from hardwon.memory.storage.cache_files import SAVE_AFTER, Arrays, CacheFile, due
from hardwon.memory.storage.database import Store

ARRAYS: Arrays = {"numbers": np.arange(5, dtype=np.int64), "bytes": np.frombuffer(b"hardwon", dtype=np.uint8)}


def opened(path):
    """The library, for tests that look inside."""
    return ExperienceLibrary.open(path)


@pytest.fixture
def cache_file(library):
    """The files of a library's first namespace."""
    return CacheFile(library._file.store, 1)


def files(store):
    """Those of a store's first namespace, for tests that look inside."""
    return CacheFile(store, 1)


def plain(saved):
    """Arrays as lists."""
    return {name: array.tolist() for name, array in saved.arrays.items()}


def test_what_was_saved_is_loaded(cache_file):
    """The arrays, and the last row that they cover."""
    assert cache_file.save("a", "made", 7, 5, ARRAYS)
    loaded = cache_file.load("a", "made")
    assert plain(loaded) == {"numbers": [0, 1, 2, 3, 4], "bytes": list(b"hardwon")}
    assert (loaded.last, loaded.count) == (7, 5)
    assert cache_file.problem("a", "made") is None


def test_what_is_not_there_is_no_problem(cache_file, caplog):
    """It is made when it is needed."""
    assert cache_file.load("a", "made") is None
    assert cache_file.problem("a", "made") is None
    assert caplog.text == ""


def flip(path, at):
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def flip_late(path):
    """Change one bit among the arrays."""
    flip(path, 999)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.write_bytes(b""), "it is not an index file"),
        (lambda path: path.write_bytes(path.read_bytes()[:30]), "it is not an index file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "its checksum is wrong"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "its checksum is wrong"),
        (lambda path: flip(path, 0), "it is not an index file"),
        (lambda path: flip(path, 20), "its checksum is wrong"),
        (lambda path: flip(path, 45), "its checksum is wrong"),
        (lambda path: flip(path, 100), "its checksum is wrong"),
        (lambda path: flip(path, -1), "its checksum is wrong"),
    ],
)
def test_a_damaged_file_is_said_once_and_passed_over(cache_file, caplog, harm, said):
    """Truncated, grown, or with one bit flipped anywhere."""
    cache_file.save("a", "made", 7, 5, ARRAYS)
    harm(cache_file.path("a"))
    assert cache_file.problem("a", "made") == said
    assert cache_file.load("a", "made") is None
    assert cache_file.load("a", "made") is None
    assert caplog.text.count(said) == 1


def test_a_file_made_otherwise_is_passed_over(cache_file, caplog):
    """By another embedder, or by another version of what makes it."""
    cache_file.save("a", "by MiniLM", 7, 5, ARRAYS)
    assert cache_file.load("a", "by hashing") is None
    assert "it was built by by MiniLM, not by by hashing" in caplog.text


def test_a_file_of_another_format_is_passed_over(cache_file, caplog, monkeypatch):
    """A newer hardwon wrote it."""
    with monkeypatch.context() as newer:
        newer.setattr("hardwon.memory.storage.cache_files.FORMAT", 99)
        cache_file.save("a", "made", 7, 5, ARRAYS)
    assert cache_file.load("a", "made") is None
    assert "it has format 99, not 1" in caplog.text


def test_a_file_of_another_library_is_passed_over(tmp_path, cache_file, caplog):
    """Though it is whole and of the same making."""
    with opened(tmp_path / "other.db") as other:
        theirs = files(other._file.store)
        theirs.save("a", "made", 7, 5, ARRAYS)
        cache_file.folder.mkdir()
        shutil.copy(theirs.path("a"), cache_file.path("a"))
    assert cache_file.load("a", "made") is None
    assert "it belongs to another library" in caplog.text


def test_a_file_of_another_history_is_passed_over(path, library, cache_file, episode, caplog, tmp_path):
    """The library was replaced by an older copy of itself, which went another way."""
    library.record(episode())
    library._file.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cache_file._store.rows("SELECT 1")
    cache_file.save("x", "made", 0, 0, {})  # the library has its id from here on
    library._file.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "old.db")
    library.record(episode())
    cache_file.save("a", "made", 7, 5, ARRAYS)
    library.close()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old.db", path)
    with ExperienceLibrary.open(path) as again:
        older = CacheFile(again._file.store, 1)
        assert older.load("x", "made") is not None
        again.record(episode("another way"))
        assert older.load("a", "made") is None
    assert "the library's history differs" in caplog.text


def test_a_library_in_memory_has_no_files(tmp_path, monkeypatch, episode):
    """And says nothing of it."""
    monkeypatch.chdir(tmp_path)
    with ExperienceLibrary.open(":memory:") as library:
        library.record(episode())
        cache_file = files(library._file.store)
        assert not cache_file.save("a", "made", 7, 5, ARRAYS)
        assert cache_file.load("a", "made") is cache_file.problem("a", "made") is None
        cache_file.drop()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_has_no_files(path, library, caplog):
    """A file stands where the folder would be: no error, nothing said to people."""
    path.with_name(path.name + ".index").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert not CacheFile(library._file.store, 1).save("a", "made", 7, 5, ARRAYS)
    assert caplog.text == ""


def test_a_reader_writes_no_file(path, library):
    """A library opened to be read leaves its folder as it is; it may use what is there."""
    CacheFile(library._file.store, 1).save("a", "made", 7, 5, ARRAYS)
    store = Store(path, read_only=True)
    try:
        reader = files(store)
        assert not reader.save("b", "made", 7, 5, ARRAYS)
        assert plain(reader.load("a", "made"))["numbers"] == [0, 1, 2, 3, 4]
        flip(reader.path("a"), -1)
        assert reader.load("a", "made") is None
        assert reader.path("a").exists()
    finally:
        store.close()


def test_a_killed_writer_leaves_the_old_file(cache_file, monkeypatch):
    """What it had written is nobody's, and is swept up by a later one."""
    cache_file.save("a", "made", 7, 5, ARRAYS)

    def killed(descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            cache_file.save("a", "made", 8, 6, ARRAYS)
    assert cache_file.load("a", "made").last == 7
    left = cache_file.folder / ".new-left"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    cache_file.save("a", "made", 9, 7, ARRAYS)
    assert [path.name for path in cache_file.folder.iterdir()] == ["1-a"]


def test_many_writers_of_one_file_leave_one_whole(path, cache_file):
    """The last one wins; at no moment is the file torn."""
    cache_file.save("a", "made", 0, 1, {"numbers": np.full(5000, 0)})
    stores = [Store(path) for _ in range(4)]

    def write(number):
        for turn in range(5):
            value = 10 * number + turn
            CacheFile(stores[number], 1).save("a", "made", value, 1, {"numbers": np.full(5000, value)})

    def read():
        for _ in range(20):
            saved = cache_file.load("a", "made")
            assert set(saved.arrays["numbers"].tolist()) == {saved.last}

    with ThreadPoolExecutor() as pool:
        for work in [*(pool.submit(write, number) for number in range(4)), pool.submit(read)]:
            work.result()
    for store in stores:
        store.close()


def test_small_growth_is_not_worth_a_file():
    """Nor is a little more of much: it is read from the library at opening."""
    assert not due(SAVE_AFTER - 1, 0)
    assert due(SAVE_AFTER, 0)
    assert not due(SAVE_AFTER, 1_000_000)
    assert due(50_000, 1_000_000)


# -- the vector index -----------------------------------------------------------------------------


@pytest.fixture
def many(path, monkeypatch):
    """A library with so many items, for its index, that they are in a trained one; and their texts."""
    monkeypatch.setattr(VectorIndex, "LIMIT", 100)
    texts = [f"{'abcdefgh'[n % 8]}{n % 40} kettle of sort {n}" for n in range(150)]
    with opened(path) as library:
        library.items.add_many(Item("insight", text) for text in texts)
        library.admin.index()
        assert isinstance(library._file.search.index("items"), TrainedIndex)
    return texts


def found(path, text):
    """The title of the nearest item, by a library opened anew."""
    with opened(path) as library:
        return library.search(text, 1, how="dense")[0].what.title


def test_a_large_index_is_opened_from_its_file(path, many, monkeypatch):
    """Nothing is trained again."""
    monkeypatch.setattr(TrainedIndex, "__init__", None)
    assert found(path, many[7]) == many[7]


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9]), flip_late])
def test_a_large_index_is_rebuilt_when_its_file_is_lost_or_damaged(path, many, harm):
    """From the truth, and its file as well."""
    file = path.with_name(path.name + ".index") / "1-items"
    harm(file)
    assert found(path, many[7]) == many[7]
    with opened(path) as library:
        assert library._file.search._cache_file.load("items", library._file.search._index_identity()) is not None


def test_what_was_written_after_the_file_is_found(path, many):
    """The file is brought up to the truth when it is loaded."""
    with opened(path) as library:
        library.add(Item("insight", "a zebra grazes"))
    assert found(path, "a zebra grazes") == "a zebra grazes"


def test_what_was_retired_after_the_file_is_not_found(path, many):
    """However fresh the file looks."""
    with opened(path) as library:
        library.items.retire(library.search(many[7], 1, how="dense")[0].what.id, "wrong")
    with opened(path) as library:
        assert many[7] not in [hit.what.title for hit in library.search(many[7], 20, how="dense")]


def test_a_file_of_other_vectors_is_passed_over(path, many, caplog):
    """A vector was lost behind the library's back: it is made again, and the index with it."""
    with opened(path) as library:
        library._file.store.connection.execute("DELETE FROM vectors WHERE ref = 8")
    assert found(path, many[7]) == many[7]
    assert "does not match the vectors of the library" in caplog.text


def test_an_index_that_outgrew_its_training_is_trained_anew(path, many):
    """When it has doubled."""
    with opened(path) as library:
        before = library._file.search.index("items")
        library.items.add_many(Item("insight", f"zebra {n} of stripe {n}") for n in range(200))
        library._file.search._indices["items"] = before
        library._file.search._last["items"] = 150
        after = library._file.search.index("items")
        assert after is not before
        assert (before.trained, after.trained) == (150, 350)
        assert library.search("zebra 77 of stripe 77", 1, how="dense")[0].what.title == "zebra 77 of stripe 77"
