"""A training run starts from what a shared library holds."""

from tests.memory.fleet.conftest import server, url

from hardwon.memory import ExperienceLibrary
from hardwon.trainers.checkpoint import copy_start

__all__ = ["server", "url"]


def test_a_run_starts_from_a_copy_of_a_shared_library(url, tmp_path, monkeypatch, episode):
    """The copy is a library of its own: what the run records stays in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ExperienceLibrary.open(url) as shared:
        shared.record(episode("open drawer"))
        digest = shared.digest()
    copy_start(url, tmp_path / "copy.db")
    with ExperienceLibrary.open(tmp_path / "copy.db") as copy:
        assert copy.digest() == digest
        copy.record(episode("close drawer"))
        assert copy.episodes == 2
    with ExperienceLibrary.open(url) as shared:
        assert shared.episodes == 1


def test_a_file_is_copied_as_before(tmp_path, episode):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        library.record(episode("open drawer"))
        copy_start(str(tmp_path / "library.db"), tmp_path / "copy.db")
        with ExperienceLibrary.open(tmp_path / "copy.db") as copy:
            assert copy.episodes == 1
