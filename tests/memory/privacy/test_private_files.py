"""What belongs to one owner: files that others may not read, and a library that a forked process may not use."""

import multiprocessing
import os
import stat
import threading
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.memory.errors import HardwonError, LibraryError
from hardwon.memory.privacy import private_files
from hardwon.memory.storage.database import Store

FORK = multiprocessing.get_context("fork")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def in_a_fork(work):
    """What a forked process answers; a failure where it does not answer at all."""
    answers = FORK.Queue()

    def child():
        try:
            work()
            answers.put("it worked")
        except BaseException as error:
            answers.put(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0, "the forked process hangs or died"
    return answers.get(timeout=5)


@pytest.mark.parametrize(
    "use",
    [
        lambda library, episode: library.recall(State("You see a door.")),
        lambda library, episode: library.record(episode("open drawer")),
        lambda library, episode: library.add(Item("insight", "Keys hang by the door")),
        lambda library, episode: library.items.find(),
        lambda library, episode: library.admin.stats(),
        lambda library, episode: library.admin.verify(),
        lambda library, episode: library.evolve(),
    ],
)
def test_library_of_a_parent_is_refused_in_its_fork(library, episode, use):
    """As when a server loads the application before it forks its workers."""
    library.record(episode("open drawer"))
    answer = in_a_fork(lambda: use(library, episode))
    assert answer.startswith("LibraryError")
    assert "fork" in answer
    assert library.recall(State("You see a wooden drawer. It is closed.")) is not None
    assert library.admin.verify() == []


def test_fork_while_another_thread_works_does_not_hang(library, episode):
    """A lock that is held at that moment is never released in the child."""
    held, done = threading.Event(), threading.Event()

    def work():
        with library._file.store.transaction():
            held.set()
            done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    held.wait(30)
    answer = in_a_fork(lambda: library.admin.stats())
    done.set()
    thread.join()
    assert answer.startswith("LibraryError")


def test_closing_in_a_fork_leaves_the_parent_s_file_alone(library, path, episode):
    library.record(episode("open drawer"))
    assert in_a_fork(library.close) == "it worked"
    library.record(episode("open drawer", "take spoon"))
    assert library.admin.stats()["episodes"] == 2
    assert library.admin.verify() == []


def test_fork_may_open_the_file_itself(library, path, episode):
    def work():
        with ExperienceLibrary.open(path) as own:
            own.record(episode("open drawer"))

    assert in_a_fork(work) == "it worked"
    assert library.admin.stats()["episodes"] == 1


def test_store_of_a_parent_is_refused_too(path):
    store = Store(path)
    assert in_a_fork(lambda: store.rows("SELECT 1")).startswith("LibraryError")
    assert in_a_fork(store.freshness.data_version).startswith("LibraryError")
    assert issubclass(LibraryError, HardwonError)
    store.close()


# ---- files


@pytest.fixture(params=[0o022, 0o000])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_new_files_are_for_their_user_alone(umask, path, tmp_path, episode):
    """Whatever the umask: the library, its log, its index files, an export."""
    with ExperienceLibrary.open(path) as library:
        library.record_many([episode("open drawer", see=f"You see a drawer. It holds {n} spoons.") for n in range(30)])
        library.admin.index()
        library._file.steps_written = 10**9
        beside = [one for one in tmp_path.iterdir() if one.is_file()]
        assert {mode(one) for one in beside} == {0o600}
        assert len(beside) >= 3
        library.admin.export_jsonl(tmp_path / "out.jsonl")
    assert mode(tmp_path / "out.jsonl") == 0o600
    for one in tmp_path.rglob("*"):
        assert mode(one) == (0o700 if one.is_dir() else 0o600), one


def test_mode_that_a_library_has_is_kept(path):
    ExperienceLibrary.open(path).close()
    for wanted in (0o640, 0o400 | 0o200, 0o660):
        path.chmod(wanted)
        with ExperienceLibrary.open(path) as library:
            library.add(Item("insight", "Keys hang by the door"))
        assert mode(path) == wanted


def test_a_lock_gives_its_base_no_arguments(monkeypatch):
    """Python 3.15 refuses them."""

    class Base:
        def __new__(cls):
            return object.__new__(cls)

    monkeypatch.setattr("_thread.RLock", Base)
    spec = spec_from_file_location("hardwon.memory.privacy.again", private_files.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.OwnLock("library.db").is_mine()
