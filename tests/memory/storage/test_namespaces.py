"""Tests of text indexes that all namespaces share: a schema that does not grow, separate answers, older files."""

import sqlite3
from contextlib import closing

import pytest
from tests.memory.older import downgrade

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.storage import migrations

NAMES = ("default", "other", "third")


def count_objects(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def fill(library, episode, seen, **options):
    library.record_many([episode(see=f"{text} {number}.", **options) for number, text in enumerate(seen)])
    library.add(Item("insight", f"{seen[0]} is what matters"))


def ask(library, text):
    hits = library.search(text, 10, how="text") + library.search(text, 10)
    return [(hit.what.text if isinstance(hit.what, Item) else hit.what.pre.observation, hit.similarity) for hit in hits]


def open_all(path):
    return [ExperienceLibrary.open(path, namespace=name) for name in NAMES]


def test_a_namespace_adds_no_object_to_the_schema(path):
    """Every connection parses the schema when it opens the file."""
    ExperienceLibrary.open(path).close()
    before = count_objects(path)
    for number in range(20):
        ExperienceLibrary.open(path, namespace=f"tenant-{number}").close()
    assert count_objects(path) == before


def test_rows_of_other_namespaces_do_not_count(path, episode):
    """Neither as hits nor in how rare a word is or how long a text is."""
    seen = ["A kettle in the hall", "A door in the hall", "A kettle by the door of the long hall of the old house"]
    with ExperienceLibrary.open(path, namespace="other") as library:
        fill(library, episode, seen)
        alone = ask(library, "kettle door hall")
    for name in ("before", "later"):  # one that was there first, and one with higher row ids
        with ExperienceLibrary.open(path, namespace="default" if name == "before" else name) as busy:
            fill(busy, episode, ["A kettle"] * 30 + ["door " * 40] * 30)
    with ExperienceLibrary.open(path, namespace="other") as library:
        assert ask(library, "kettle door hall") == alone
        assert library.admin.verify() == []


@pytest.fixture
def old(path, episode):
    """A file of schema 17 with three namespaces, and their answers."""
    libraries = open_all(path)
    for number, library in enumerate(libraries):
        fill(library, episode, [f"A kettle of hall {number}", "A door", f"A lamp of {library.namespace}"])
        fill(library, episode, [f"A strange kettle {number}"], trust="untrusted", writer="client")
    answers = [ask(library, "kettle lamp") for library in libraries]
    for library in libraries:
        library.close()
    downgrade(path, 17)
    return answers


def test_an_older_file_gets_the_shared_indexes(path, old):
    before = count_objects(path)
    libraries = open_all(path)
    assert [ask(library, "kettle lamp") for library in libraries] == old
    for library in libraries:
        assert library.admin.verify() == []
        library.close()
    assert count_objects(path) < before
    for library in open_all(path):  # nothing is left to do
        library.close()


def test_a_process_that_dies_while_it_migrates_leaves_the_older_file(path, old, monkeypatch):
    before = count_objects(path)
    steps = migrations.MIGRATIONS

    def fail(connection):
        steps[17](connection)
        raise OSError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(migrations, "MIGRATIONS", (*steps[:17], fail))
        with pytest.raises(OSError, match="killed"):
            ExperienceLibrary.open(path)
    assert count_objects(path) == before
    libraries = open_all(path)
    assert [ask(library, "kettle lamp") for library in libraries] == old
    for library in libraries:
        library.close()


@pytest.mark.parametrize("what", ["namespace", "text"])
def test_what_is_forgotten_leaves_no_word_in_the_shared_index(path, episode, what):
    first, other, third = open_all(path)
    for library in (first, other, third):
        fill(library, episode, ["A kettle in the hall", "A door"])
    other.record(episode(see="The zyzzyva sleeps."))
    other.add(Item("insight", "the zyzzyva sleeps late"))
    before = ask(first, "kettle"), ask(third, "kettle")
    assert ask(other, "zyzzyva")
    other.admin.forget(namespace="other") if what == "namespace" else other.admin.forget(text="zyzzyva")
    assert (ask(first, "kettle"), ask(third, "kettle")) == before
    for library in (first, third):
        assert library.admin.verify() == []
    for library in (first, other, third):
        library.close()
    assert b"zyzzyva" not in path.read_bytes()
