"""A library held at once: where nobody else holds it, and nothing new has to be read."""

import threading

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.library import try_lock


def moment(library):
    with try_lock(library) as held:
        return held


def test_moment_stays_equal_until_something_is_written(path):
    with ExperienceLibrary.open(path) as library:
        library.recall("a spoon")
        before = moment(library)
        library.recall("a spoon")
        assert before is not None
        assert moment(library) == before
        library.add(Item("insight", "Spoons lie in drawers"))
        library.recall("a spoon")
        assert moment(library) != before


def test_there_is_none_while_something_is_not_read_yet(path):
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as other:
        assert moment(library) is None
        library.recall("a spoon")
        other.add(Item("insight", "Spoons lie in drawers"))
        assert moment(library) is None


def test_there_is_none_while_another_thread_holds_it(path):
    with ExperienceLibrary.open(path) as library:
        library.recall("a spoon")
        told = []
        for held in (library._file.lock, library._file.store._lock):
            with held:
                asking = threading.Thread(target=lambda: told.append(moment(library)))
                asking.start()
                asking.join()
        assert told == [None, None]
        assert moment(library) is not None
