"""Many at once: episodes in one transaction, what is kept beside a library at closing, embedding anew, tenants."""

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError, EmbedderMismatch
from hardwon.memory.library import reembed
from hardwon.memory.retrieval.search import KINDS
from hardwon.memory.retrieval.vector_index import TrainedIndex, VectorIndex


def opened(path, **options):
    """The library, for tests that look inside."""
    return ExperienceLibrary.open(path, **options)


@pytest.fixture
def eager(monkeypatch):
    """However small, what is derived is kept in files, and an index of more than 20 vectors is trained."""
    monkeypatch.setattr("hardwon.memory.values.saved_tables.due", lambda behind, covered: behind > 0)
    monkeypatch.setattr("hardwon.memory.retrieval.search.due", lambda behind, covered: behind > 0)
    monkeypatch.setattr("hardwon.memory.parts.file.SAVE_AFTER", 1)
    monkeypatch.setattr(VectorIndex, "LIMIT", 20)


@pytest.fixture
def kept(path, eager, episode):
    """A library with files beside it."""
    with opened(path) as library:
        library.record_many(episode(see=f"You see a kettle {n} and mirror {n}.") for n in range(10, 50))
        library.admin.index()
        assert isinstance(library._file.search.index("states"), TrainedIndex)
    assert sorted(file.name for file in files(path)) == ["1-states", "1-values"]
    return path


def found_again(library):
    """Whether one of its states is found by what it shows."""
    (hit,) = library.search("you see a kettle 17 and mirror 17", 1, how="dense")
    return hit.what.pre.observation == "You see a kettle 17 and mirror 17." and hit.similarity > 0.99


def files(path):
    """What is beside a library."""
    return list(path.with_name(path.name + ".index").glob("[!.]*"))


def dump(library):
    """Every row of what is recorded, without times and ids that are drawn."""
    tables = ("states", "steps", "attempts", "words", "usages")
    return {table: library._file.store.rows(f"SELECT * FROM {table}") for table in tables}


def test_many_episodes_at_once_are_as_one_by_one(tmp_path, episode):
    """The same rows, the same estimates."""
    episodes = [episode("open drawer", "wait", reward=n / 9, success=n % 3 != 0, id=f"e{n}") for n in range(9)]
    episodes.append(episode(success=None, id="excluded"))
    with opened(tmp_path / "one.db") as one, opened(tmp_path / "many.db") as many:
        assert [one.record(each) for each in episodes] == many.record_many(episodes)
        assert dump(one) == dump(many)
        assert one._file.caught_up().statistics.values.cells == many._file.caught_up().statistics.values.cells
        assert one.episodes.count() == many.episodes.count() == 9
        assert many.admin.verify() == []


def test_many_episodes_are_written_together_or_not_at_all(library, episode):
    """One that cannot be written takes the others of its call with it; nothing was to be read of them."""
    library.record(episode(id="taken"))

    def told():
        yield episode()
        assert library.episodes.count() == 1
        yield episode("another", "action", id="taken")

    with pytest.raises(ConfigError, match="another episode has the id"):
        library.record_many(told())
    assert library.episodes.count() == 1
    assert library._file.caught_up().statistics.values.cells["*"].n == 1


def test_many_episodes_may_be_repeated(library, episode):
    """A caller that does not know whether they were written calls again; one given twice is written once."""
    episodes = [episode(id="a"), episode(id="b"), episode(id="a")]
    assert library.record_many(episodes) == library.record_many(episodes) == ["a", "b", "a"]
    assert library.record_many([]) == []
    assert library.episodes.count() == 2


def test_scans_are_counted_in_public(library, episode):
    """A search adds some; a recall on a situation that was searched for adds none."""
    library.record(episode())
    before = library.admin.stats()["scans"]
    library.search("drawer", how="text")
    assert library.admin.stats()["scans"] > before


def test_a_process_that_only_records_leaves_files(path, eager, episode):
    """The next one opens quickly."""
    with opened(path) as library:
        library.record(episode())
    assert [file.name for file in files(path)] == ["1-values"]


def test_a_small_library_leaves_no_files(path, library, episode):
    """Reading it is as quick."""
    library.record(episode())
    library.admin.index()
    library.close()
    assert files(path) == []


def test_closing_twice_is_fine(path, eager, episode):
    """With files to write as well."""
    library = opened(path)
    library.record(episode())
    library.close()
    library.close()


@pytest.mark.parametrize(
    ("harm", "where", "what"),
    [
        (lambda path, db: flip(path, "1-values"), "saved values", "its checksum is wrong"),
        (lambda path, db: flip(path, "1-states"), "saved index of states", "its checksum is wrong"),
        (lambda path, db: db.execute("DELETE FROM vectors WHERE ref = 3"), "states vectors", "1 missing, 0 damaged"),
        (lambda path, db: db.execute("UPDATE vectors SET vector = x'00' WHERE ref = 3"), "states vectors", "1 damaged"),
    ],
)  # fmt: skip
def test_files_and_vectors_are_verified_and_repaired(kept, harm, where, what):
    """Each derived structure against the truth, by name."""
    with opened(kept) as library:
        assert library.admin.verify() == []
        harm(kept, library._file.store.connection)
        found = {problem.where: problem.what for problem in library.admin.verify()}
        assert what in found[where]
        repaired = {problem.where for problem in library.admin.repair()}
        assert where in repaired
        assert [problem.where for problem in library.admin.verify() if problem.where != "attempts"] == []
        assert found_again(library)


def flip(path, name):
    """Change the last bit of a file."""
    file = path.with_name(path.name + ".index") / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_reembedding_goes_on_after_a_kill(path, library, episode, monkeypatch):
    """What was embedded before it is not embedded again."""
    monkeypatch.setattr("hardwon.memory.retrieval.search._EMBED", 4)
    library.record_many(episode(see=f"You see box {n}.") for n in range(20))
    library.close()
    told = []

    def killed(done, of):
        told.append((done, of))
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reembed(path, "hashing:64", killed)
    assert told == [(4, 21), (8, 21)]
    told.clear()
    reembed(path, "hashing:64", lambda done, of: told.append((done, of)))
    assert told == [(12, 21), (16, 21), (20, 21), (21, 21)]
    with opened(path) as again:
        assert again.admin.embedder.name == "hashing:64"
        assert again.admin.verify() == []


def test_reembedding_covers_every_namespace(path, library):
    """Vectors of two embedders in one library could not be compared."""
    library.add(Item("insight", "kettles boil"))
    with opened(path, namespace="other") as other:
        other.add(Item("insight", "mirrors shine"))
    library.close()
    reembed(path, "hashing:64")
    with opened(path, namespace="other") as other:
        assert other._file.store.rows("SELECT count(*), max(length(vector)) FROM vectors") == [(2, 256)]


def test_files_of_the_old_embedder_go_with_its_vectors(kept, caplog):
    """And nothing is said of them."""
    reembed(kept, "hashing:64")
    with opened(kept) as library:
        assert found_again(library)
        assert library.admin.verify() == []
    with pytest.raises(EmbedderMismatch):
        opened(kept, embedder="hashing")
    assert caplog.text == ""


def test_a_small_tenant_beside_a_large_one_finds_its_own(kept):
    """Indices are a namespace's own: nothing is found and then filtered away."""
    with opened(kept, namespace="small") as small:
        small.items.add_many(Item("insight", f"You see a kettle {n} and mirror {n}.") for n in range(5))
        for how in ("hybrid", "dense", "text"):
            hits = small.search("You see a kettle 17 and mirror 17.", 5, how=how)
            assert len(hits) == 5
            assert all(isinstance(hit.what, Item) for hit in hits)
        assert [len(small._file.search.index(kind)) for kind in KINDS] == [0, 0, 5]
