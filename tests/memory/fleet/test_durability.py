"""A server that may lose what it acknowledged is reported when a library is opened."""

from tests.memory.fleet.server import PrivateServer
from tests.memory.fleet.test_trouble import connect

from hardwon.memory.errors import LibraryUnreachable
from hardwon.memory.fleet import session


def test_settings_that_lose_entries_are_named_once(server, url, tmp_path, caplog):
    """The server of the tests has `fsync = off`; the other setting may belong to a role or a database."""
    server.sql(f"ALTER DATABASE {url.partition('?')[0].rpartition('/')[2]} SET synchronous_commit = off")
    for _ in range(2):
        with connect(url, tmp_path) as library:
            risks = session.list_risks(library._log.read)
    assert [risk.partition(" ")[0] for risk in risks] == ["fsync", "synchronous_commit"]
    for risk in risks:
        assert caplog.text.count(risk) == 1
    assert library.path in caplog.text


def test_a_server_that_keeps_everything_is_not_mentioned(server, tmp_path, caplog):
    own = PrivateServer(server.binaries)
    own.options = ()
    try:
        own.create()
        own.start()
        with connect(own.url(), tmp_path) as library:
            assert session.list_risks(library._log.read) == ()
    finally:
        own.remove()
    assert " is off" not in caplog.text


def test_a_server_that_goes_away_is_no_reason_not_to_open(url, tmp_path, monkeypatch):
    def fail(read):
        raise LibraryUnreachable("gone")

    monkeypatch.setattr(session, "list_risks", fail)
    with connect(url, tmp_path) as library:
        assert library.position == 0
