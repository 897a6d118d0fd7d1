"""A shared library is opened while its server is down: a replica on this host is read, or the error says what to do."""

import logging
import time
from typing import Any

import pytest
from tests.memory.fleet.test_trouble import DRAWER, connect, own_server
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import EmbedderMismatch, LibraryUnreachable, NewerSchema, OtherReplica
from hardwon.memory.fleet import places
from hardwon.memory.fleet.library import FleetLibrary

__all__ = ["own_server"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hardwon"


def settle(library, count):
    """Wait until the follower has caught up by itself."""
    until = time.monotonic() + 30
    while library.episodes.count() < count and time.monotonic() < until:
        time.sleep(0.05)
    assert library.episodes.count() == count


@pytest.mark.parametrize("folder", [None, "replica"])
def test_the_replica_of_this_host_is_read_and_joins_again(own_server, tmp_path, cache, episode, caplog, folder):
    replica = None if folder is None else tmp_path / folder
    with connect(own_server.url(), replica) as library:
        library.record(episode("open drawer", id="e1"))
        library.add(Item("insight", "drawers stick", "Pull hard."))
        library.admin.sync()
    own_server.kill()
    with caplog.at_level(logging.WARNING, "hardwon.memory"), connect(own_server.url(), replica) as library:
        assert "Reading goes on from the replica" in caplog.text
        assert library.recall(DRAWER).steps
        assert library.episodes.get("e1")
        assert [item.title for item in library.items.find()] == ["drawers stick"]
        assert (library.admin.position, library.admin.stats()["episodes"]) == (2, 1)
        assert 0 <= library.admin.staleness_s < 600
        began = time.monotonic()
        for write in (
            lambda: library.record(episode("close drawer", id="e2")),
            lambda: library.add(Item("insight", "x", "y")),
            library.evolve,
            lambda: library.admin.forget(episode="e1"),
            library.admin.sync,
        ):
            with pytest.raises(LibraryUnreachable, match="Start the server"):
                write()
        assert time.monotonic() - began < 10
        own_server.start()
        with connect(own_server.url(), tmp_path / "other") as other:
            other.record(episode("kick drawer", id="e3"))
            settle(library, 2)
            library.record(episode("close drawer", id="e2"))
            other.admin.sync()
            assert library.admin.query(compute_digest) == other.admin.query(compute_digest)


def test_episodes_wait_in_the_outbox_and_arrive_once(own_server, tmp_path, cache, episode):
    connect(own_server.url(), None).close()
    own_server.kill()
    for number in range(2):  # the second process finds the episode of the first one
        with ExperienceLibrary.open(own_server.url(), outbox=True) as library:
            library.record(episode("open drawer", id="e1"))
            library.record(episode("open drawer", id=f"f{number}"))
            assert library.admin.stats()["outbox"] == 2 + number
            assert library.episodes.count() == 0
    own_server.start()
    with connect(own_server.url(), None) as library:
        settle(library, 3)


def test_without_a_replica_the_error_names_the_address_and_the_next_step(own_server, tmp_path, cache):
    url = own_server.url().replace("@", ":hunter2@")
    own_server.kill()
    choices: tuple[dict[str, Any], ...] = ({}, {"replica": tmp_path / "empty"}, {"namespace": "other"})
    for options in choices:
        with pytest.raises(LibraryUnreachable) as caught:
            ExperienceLibrary.open(url, **options)
        assert str(own_server.folder) in str(caught.value)
        assert "Start the server" in str(caught.value)
        assert "no replica" in str(caught.value)
        assert "hunter2" not in str(caught.value)
    assert not list(cache.rglob("*.db"))


def test_a_reader_opens_the_replica_and_a_password_is_not_noted(own_server, cache, episode):
    url = own_server.url().replace("@", ":hunter2@")
    with connect(url, None) as library:
        library.record(episode("open drawer", id="e1"))
        library.admin.sync()
    own_server.kill()
    with ExperienceLibrary.open(url, read_only=True) as library:
        assert library.episodes.get("e1")
    (note,) = cache.rglob(places.NOTE)
    assert "hunter2" not in note.read_text()
    assert note.stat().st_mode & 0o077 == 0


def test_a_replica_of_another_address_is_not_read_in_its_place(own_server, server, url, tmp_path, cache, episode):
    """Also in a folder that the caller names, and after the address was another database's."""
    with connect(url, tmp_path / "a") as library:
        library.record(episode("open drawer", id="e1"))
        library.admin.sync()
    own_server.kill()
    with pytest.raises(LibraryUnreachable, match="no replica"):
        connect(own_server.url(), tmp_path / "a")


def test_another_database_at_the_address_gets_nothing(own_server, tmp_path, cache, episode, caplog):
    """A server that comes back empty, or with other data: neither written to nor read, and the outbox is kept."""
    with connect(own_server.url(), None) as library:
        library.record(episode("open drawer", id="e1"))
        library.admin.sync()
    own_server.kill()
    with ExperienceLibrary.open(own_server.url(), outbox=True) as library:
        assert isinstance(library, FleetLibrary)
        library.record(episode("open drawer", id="e2"))
        own_server.remove_data()
        own_server.create()
        own_server.start()
        connect(own_server.url(), tmp_path / "new").close()
        with pytest.raises(OtherReplica, match="another database"):
            library.admin.sync()
        time.sleep(1.5)
        assert library.admin.stats()["outbox"] == 1
        assert library.episodes.get("e1")
    with connect(own_server.url(), None) as library:  # a folder of its own
        assert library.episodes.count() == 0
    own_server.kill()
    with connect(own_server.url(), None) as library:
        assert library.episodes.count() == 0


def test_a_server_that_comes_back_newer_is_not_written_to(own_server, cache, episode):
    with connect(own_server.url(), None) as library:
        library.record(episode("open drawer", id="e1"))
        library.admin.sync()
    own_server.kill()
    with connect(own_server.url(), None) as library:
        own_server.start()
        own_server.sql("UPDATE hardwon.meta SET value = '99' WHERE name = 'schema'")
        with pytest.raises(NewerSchema, match=r"schema 99.*Update"):
            library.record(episode("close drawer", id="e2"))
        assert library.episodes.get("e1")


def test_another_embedder_is_refused_offline_too(own_server, cache):
    class Other:
        name, dim, fingerprint = "other", 3, "other:1"

        def embed(self, texts):
            raise AssertionError

    connect(own_server.url(), None).close()
    own_server.kill()
    with pytest.raises(EmbedderMismatch):
        ExperienceLibrary.open(own_server.url(), Other())


def test_a_damaged_note_is_no_note(own_server, cache):
    connect(own_server.url(), None).close()
    (note,) = cache.rglob(places.NOTE)
    own_server.kill()
    for text in ("", "{", "[1, 2, 3]", '["a"]', "null"):
        note.write_text(text)
        with pytest.raises(LibraryUnreachable, match="no replica"):
            connect(own_server.url(), None)
