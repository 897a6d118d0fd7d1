"""Vectors of a shared library: computed once in the fleet, and without waiting for a server that is down."""

import zlib

from tests.memory.fleet.test_trouble import own_server

from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log
from hardwon.memory.fleet.vectors import share

__all__ = ["own_server"]


class Counting:
    """An embedder that costs something."""

    name, fingerprint, dim = "counting", "counting-1", 32

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts):
        import numpy as np

        self.texts += texts
        rows = np.zeros((len(texts), 32), dtype=np.float32)
        for row, text in enumerate(texts):
            rows[row, zlib.crc32(text.encode()) % 32] = 1
        return rows


def test_vectors_are_computed_once_in_the_fleet(url, tmp_path, episode):
    first, second = Counting(), Counting()
    with ExperienceLibrary.open(url, first, replica=tmp_path / "a") as one:
        one.record_many([episode("open drawer", id=f"e{n}") for n in range(10)])
        one.admin.index()
    with ExperienceLibrary.open(url, second, replica=tmp_path / "b") as two:
        two.admin.index()
        assert len(first.texts) == 2
        assert second.texts == []
        two.admin.forget(episode="e3")
        assert isinstance(two, FleetLibrary)
        assert two._file.log.read("SELECT count(*) FROM hardwon.vectors") == [(0,)]


def test_batches_do_not_wait_for_a_server_that_is_down(own_server, monkeypatch):
    """An attempt to connect over a network takes five seconds; one for each batch would stop a replica."""
    import psycopg

    log, attempts = Log(own_server.url(), "default"), list[str]()
    embedder = share(Counting(), log)
    embedder.embed(["a", "b"])
    own_server.kill()
    connect_to = psycopg.connect

    def count(*arguments, **options):
        attempts.append("connect")
        return connect_to(*arguments, **options)

    monkeypatch.setattr(psycopg, "connect", count)
    for number in range(5):
        assert embedder.embed([f"c{number}", f"d{number}"]).shape == (2, 32)
    assert len(attempts) <= 1
    own_server.start()
    log.assign()  # as the follower does
    other = Counting()
    share(other, log).embed(["a", "b", "c0"])
    assert other.texts == ["c0"]
    log.close()
