"""Threads that write, search and evolve one library at once: no crash, no wrong row, nothing lost.

What is written is made of its id, by `writers.py`, so that a wrong answer is told from a right one.
"""

import importlib.util
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName

_spec: Any = importlib.util.spec_from_file_location("writers", Path(__file__).with_name("writers.py"))
writers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(writers)

PLACES, THINGS = ("attic", "barn", "cellar", "den", "hall"), ("apple", "bread", "carrot", "lamp")


class Crew:
    """Threads that each do one thing to a library until the time is over; what they did is counted."""

    def __init__(self, libraries, seconds):
        self.libraries, self.end = libraries, time.monotonic() + seconds
        self.counted: Counter[str] = Counter()
        self.written: list[str] = []
        self.errors: list[BaseException] = []

    def run(self):
        work = [self.record, self.record, self.add, self.change, self.recall, self.recall, self.search, self.evolve]
        threads = [threading.Thread(target=self.until_the_end, args=(n, what)) for n, what in enumerate(work)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def until_the_end(self, number, what):
        library = self.libraries[number % len(self.libraries)]
        draw, name = random.Random(number), what.__name__
        try:
            for turn in range(10**9):
                if time.monotonic() > self.end or self.errors:
                    break
                what(library, draw, f"{name}{number}-{turn}")
                self.counted[name] += 1
        except BaseException as error:
            self.errors.append(error)

    def record(self, library, draw, ref):
        self.written.append(library.record(writers.episode_of(ref)))

    def add(self, library, draw, ref):
        assert library.add(writers.item_of(ref)).item_id == ref
        self.written.append(ref)

    def change(self, library, draw, ref):
        """Update or retire an item, list, count, and look at a row."""
        items = [item for item in library.items.find(limit=50, sort="new") if item.writer != "rules"]
        if items:
            item = draw.choice(items)
            if draw.random() < 0.7:
                library.items.update(item.id, body=f"revision {item.version} of {item.id}")
            else:
                library.items.retire(item.id, "by chance")
            assert library.items.get(item.id).title == writers.item_of(item.id).title
            assert library.items.history(item.id)[0]["op"] == "added"
        for row in library.episodes.find(limit=2):
            assert writers.says(row["id"], library.episodes.get(row["id"]))

    def recall(self, library, draw, ref):
        self.counted["hits"] += writers.check_hits(library, draw.choice(PLACES), draw.choice(THINGS))

    def search(self, library, draw, ref):
        how = draw.choice(("hybrid", "dense", "text"))
        for hit in library.search(f"the {draw.choice(PLACES)} and the {draw.choice(THINGS)}", k=5, how=how):
            what = hit.what
            if hasattr(what, "title"):
                assert what.writer == "rules" or what.title == writers.item_of(what.id).title
            else:
                wanted = writers.episode_of(what.why.trajectory).steps[what.t]
                assert (what.pre, what.action) == (wanted.pre, wanted.action)
            self.counted["hits"] += 1

    def evolve(self, library, draw, ref):
        for one in library.evolve().admissions:
            assert one.item_id is None or library.items.get(one.item_id).writer == "rules"
        library.admin.index()


def crew(path, connections, seconds):
    """Eight threads over so many connections to one library; what they did, counted."""
    with ExitStack() as stack:
        libraries = [
            stack.enter_context(ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0])) for _ in range(connections)
        ]
        threads = Crew(libraries, seconds)
        threads.run()
    with writers.opened(path) as library:
        for ref in threads.written:
            try:
                assert writers.says(ref, library.episodes.get(ref))
            except UnknownName:
                assert library.items.get(ref).title == writers.item_of(ref).title
        assert library.admin.verify() == []
        held = len(library.episodes.find()) + sum(item.writer != "rules" for item in library.items.find(status=None))
    assert held == len(threads.written)
    assert set(threads.counted) >= {"record", "add", "change", "recall", "search", "evolve"}
    return {"connections": connections, "written": held, **threads.counted}


@pytest.fixture
def small(monkeypatch):
    """Trained indices and their files for tens of vectors."""
    monkeypatch.setattr("hardwon.memory.retrieval.vector_index.VectorIndex.LIMIT", 64)
    monkeypatch.setattr("hardwon.memory.storage.cache_files.SAVE_AFTER", 16)


@pytest.mark.parametrize("connections", [1, 8])
def test_threads_write_while_others_search_and_evolve(path, small, record_property, connections):
    """Eight threads, over one connection or one each: no crash, no wrong id, every write is there."""
    for name, value in crew(path, connections, 0.7).items():
        record_property(name, str(value))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("connections", [1, 8])
def test_threads_write_for_long(path, small, capsys, connections):
    """The same for half a minute each."""
    counted = crew(path, connections, 30.0)
    with capsys.disabled():
        print("\nthreads: " + ", ".join(f"{name} {value}" for name, value in counted.items()))


@pytest.mark.parametrize("change", ["retired", "reworded"])
def test_a_text_that_changes_while_it_is_embedded_gets_no_old_vector(path, change):
    """Another process retires or rewords the item between the reading of its words and the writing of its vector."""
    embedder = writers.EMBEDDERS[0]

    class Slow:
        name, fingerprint, dim = embedder.name, embedder.fingerprint, embedder.dim
        meanwhile: Any = None

        def embed(self, texts):
            if self.meanwhile:
                self.meanwhile()
            return embedder.embed(texts)

    slow = Slow()
    with ExperienceLibrary.open(path, embedder=slow) as library, writers.opened(path) as other:
        library.items.add_many([writers.item_of(f"i{number}") for number in range(3)])
        act = {
            "retired": lambda: other.items.retire("i1", "no"),
            "reworded": lambda: other.items.update("i1", body="zebras"),
        }
        slow.meanwhile = act[change]
        library.admin.index()
        slow.meanwhile = None
        assert library.admin.verify() == []
        assert [ref for (ref,) in library._file.store.rows("SELECT ref FROM vectors WHERE kind = 'items'")] == [1, 3]
        (hit, *_) = library.search(other.items.get("i1").text, how="dense")
        assert (hit.what.id == "i1", hit.similarity > 0.99) == ((change == "reworded"),) * 2
