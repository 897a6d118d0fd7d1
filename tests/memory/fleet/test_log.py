"""The log in PostgreSQL: durable, in one order without gaps, and with errors that name the next step."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from hardwon.memory.errors import (
    ConfigError,
    EmbedderMismatch,
    KeyTaken,
    LeaseLost,
    LibraryError,
    LibraryForbidden,
    LibraryUnreachable,
    NewerSchema,
    NotALibrary,
    ServerTooOld,
    UnknownName,
)
from hardwon.memory.fleet import log as logs, session
from hardwon.memory.fleet.entries import pack
from hardwon.memory.fleet.log import Log, grant
from hardwon.memory.fleet.schema import SCHEMA_VERSION


@pytest.fixture
def log(url):
    log = Log(url, "default")
    yield log
    log.close()


def rows(*names):
    return [(name, pack([name])) for name in names]


def test_entries_come_back_in_order(log):
    ids = log.append("bank", rows("a", "b"))
    ids += log.append("bank", rows("c"))
    assert log.fetch(0) == []
    assert log.assign() == 3
    entries = log.fetch(0)
    assert [(entry.position, entry.key, entry.kind, entry.log_id) for entry in entries] == [
        (1, "a", "bank", ids[0]), (2, "b", "bank", ids[1]), (3, "c", "bank", ids[2])
    ]  # fmt: skip
    assert [entry.key for entry in log.fetch(2)] == ["c"]
    assert entries[0].at.endswith("+00:00")
    query = "SELECT pos, log_id FROM hardwon.positions WHERE namespace = %(namespace)s ORDER BY pos"
    assert log.read(query) == list(enumerate(ids, 1))


def test_an_append_is_one_commit(log):
    """The trigger and the order cost no second transaction."""
    log.append("bank", rows("warm"))
    ((before,),) = log._writer.run("SELECT pg_current_xact_id()::text::bigint")
    for number in range(20):
        log.append("bank", rows(f"a{number}", f"b{number}"))
    ((after,),) = log._writer.run("SELECT pg_current_xact_id()::text::bigint")
    assert after - before <= 20 + 1 + 2  # 2: the server may vacuum meanwhile
    ((together,),) = log._writer.run(
        "SELECT bool_and(log.xmin = waiting.xmin) FROM hardwon.log JOIN hardwon.waiting ON log_id = id"
    )
    assert together


def test_positions_cost_nothing_for_entries_of_another_namespace(log, url):
    """Also when most entries waited there while the server took its statistics."""
    other, scans = Log(url, "other"), "SELECT pg_stat_get_xact_numscans('hardwon.waiting'::regclass)"
    log._reader.run(f"INSERT INTO hardwon.waiting SELECT {other.number}, -n FROM generate_series(1, 20000) n")
    log._reader.run("ANALYZE hardwon.waiting")
    query = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%(at)s, 'bank', 1, %(key)s, '')"
    with log._reader.transaction():
        before = log._reader.run(scans)
        for number in range(20):
            log._reader.run(query, {"at": log.number, "key": f"k{number}"})
            assert log.assign() == number + 1
        assert log._reader.run(scans) == before
    other.close()


def test_an_append_is_idempotent_by_its_key(log):
    """A client that lost the connection in the middle of a commit asks again."""
    first = log.append("bank", rows("a", "b"))
    assert log.append("bank", rows("b", "a")) == first[::-1]
    assert log.append("bank", rows("a", "x", "x"))[0] == first[0]
    assert log.assign() == 3
    assert log.append("bank", rows("a")) == first[:1]


def test_another_payload_under_a_key_is_refused(log):
    log.append("bank", rows("a"))
    with pytest.raises(KeyTaken, match="other content under the bank id 'a'"):
        log.append("bank", [("a", pack(["b"]))])


def test_a_key_that_exists_does_not_end_a_transaction(log):
    """An error would undo what the transaction wrote before."""
    first = log.append("bank", rows("a"))
    with log.change() as term:
        written = log.append("items", rows("i"), term=term)
        assert log.append("bank", rows("a")) == first
    assert log.append("items", rows("i"), term=term) == written
    assert log.assign() == 2


def test_a_late_commit_gets_a_late_position(url, log):
    """A reader that remembers numbers of a sequence skips rows that were committed late."""
    import psycopg

    insert = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%s, 'bank', 1, 'bank:late', %s)"
    with psycopg.connect(url) as slow:
        slow.execute(insert, (log.number, pack(["late"])))
        log.append("bank", rows("a", "b"))
        assert log.assign() == 2
        slow.commit()
    assert log.assign() == 3
    assert [entry.key for entry in log.fetch(0)] == ["a", "b", "late"]


def test_many_callers_give_each_entry_one_position(url):
    """Every client may sequence; positions stay dense over a digit boundary."""
    count, writers = 260, 5

    def work(who):
        with closing(Log(url, "default")) as log:
            for number in range(count):
                log.append("bank", rows(f"{who}-{number}"))
                if number % 3 == 0:
                    log.assign()

    reader, entries = Log(url, "default"), list[Any]()
    with ThreadPoolExecutor(writers) as pool:
        writing = [pool.submit(work, who) for who in range(writers)]
        while not all(each.done() for each in writing):
            reader.assign()
            entries += reader.fetch(len(entries), 50)
    for each in writing:
        each.result()
    reader.assign()
    while more := reader.fetch(len(entries), 400):
        entries += more
    reader.close()
    assert [entry.position for entry in entries] == list(range(1, count * writers + 1))
    assert len({entry.key for entry in entries}) == count * writers


def test_namespaces_have_orders_of_their_own(url, log):
    other = Log(url, "other")
    log.append("bank", rows("a", "b"))
    other.append("bank", rows("a"))
    assert (log.assign(), other.assign()) == (2, 1)
    assert [entry.key for entry in other.fetch(0)] == ["a"]
    other.close()


# -- the lease ------------------------------------------------------------------------------------


def test_items_need_the_term_of_the_lease(log):
    term = log.take_lease("a")
    assert log.append("items", rows("i"), term=term)
    for stale in (term - 1, term + 1):
        with pytest.raises(LeaseLost, match=f"term {stale} of namespace"):
            log.append("items", rows(f"j{stale}"), term=stale)
    with pytest.raises(LibraryError, match="kind 'items' with term NULL is refused"):
        log.append("items", rows("k"))
    with pytest.raises(LibraryError, match="kind 'thing' with term NULL is refused"):
        log.append("thing", rows("k"))
    assert log.assign() == 1


def test_one_holder_at_a_time(url, log):
    term = log.take_lease("a")
    assert log.take_lease("b") is None
    assert log.take_lease("a") == term
    log.give_lease("b")
    assert log.take_lease("b") is None
    log.give_lease("a")
    assert log.take_lease("b") == term + 1
    assert log.read_status().leader == "b"


def test_an_expired_lease_is_taken_over_and_its_term_is_refused(log, monkeypatch):
    """A stopped process that wakes up finds that its term is over."""
    monkeypatch.setattr(logs, "LEASE_S", 0.2)
    term = log.take_lease("stopped")
    threading.Event().wait(0.3)
    assert log.take_lease("other") == term + 1
    with pytest.raises(LeaseLost):
        log.append("items", rows("late"), term=term)


def test_a_change_that_takes_too_long_is_ended_by_the_server(url, log, monkeypatch):
    """A stopped process must not keep others from changing items."""
    monkeypatch.setattr(logs, "LEASE_S", 1.0)

    def change_slowly():
        with log.change() as term:
            threading.Event().wait(2.0)
            log.append("items", rows("late"), term=term)

    with pytest.raises(LeaseLost, match="took too long"):
        change_slowly()
    with log.change() as term:
        log.append("items", rows("next"), term=term)
    log.assign()
    assert [entry.key for entry in log.fetch(0)] == ["next"]


# -- trouble --------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer(tmp_path):
    with pytest.raises(LibraryUnreachable, match=r"does not answer.*Start the server") as caught:
        Log(f"postgresql://u:hunter2@/db?host={tmp_path}", "default")
    assert isinstance(caught.value, ConnectionError)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@[/db", "postgresql://u:hunter2@h:port/db"])
def test_an_address_that_cannot_be_read(url):
    with pytest.raises((ConfigError, LibraryUnreachable)) as caught:
        Log(url, "default")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_database_that_is_not_there(server):
    with pytest.raises(NotALibrary, match="createdb"):
        Log(server.url("nowhere"), "default")


def test_a_user_that_is_not_there(server):
    with pytest.raises(LibraryForbidden, match="user and the password"):
        Log(server.url(user="nobody_at_all"), "default")


def test_a_server_that_is_too_old(url, monkeypatch):
    monkeypatch.setattr(session, "MIN_SERVER", 990000)
    with pytest.raises(ServerTooOld, match=r"needs 99 or newer\. Update the server"):
        Log(url, "default")


def test_a_schema_that_is_newer(url, log):
    log._writer.run("UPDATE hardwon.meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(NewerSchema, match=rf"has schema 99.*supports up to {SCHEMA_VERSION}\b.*pip install"):
        Log(url, "default")


def test_a_reader_installs_nothing(url):
    with pytest.raises(NotALibrary, match="may create the schema"):
        Log(url, "default", create=False)
    Log(url, "default").close()
    with pytest.raises(UnknownName, match="unknown namespace 'nowhere'"):
        Log(url, "nowhere", create=False)


def test_another_embedder_is_refused(log):
    log.agree_on_embedder("hash", "f1")
    log.agree_on_embedder("hash", "f1")
    with pytest.raises(EmbedderMismatch, match="created with the embedder 'hash'"):
        log.agree_on_embedder("other", "f2")


def test_many_processes_may_install_at_once(url):
    """The first start of a fleet is the start of all its processes."""
    with ThreadPoolExecutor(6) as pool:
        for log in pool.map(Log, [url] * 6, ["default"] * 6):
            log.close()


# -- roles ----------------------------------------------------------------------------------------


@pytest.fixture
def roles(server):
    for role in ("tenant_a", "tenant_b", "reader_a"):
        server.sql(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")


def test_a_tenant_sees_and_writes_one_namespace(server, url, roles):
    """Asked with psycopg directly: the database refuses, whatever the client is."""
    import psycopg

    a, b = Log(url, "a"), Log(url, "b")
    b.append("bank", rows("secret"))
    b.assign()
    database = url.split("@/")[1].partition("?")[0]
    grant(url, "tenant_a", "a", write=True)
    grant(url, "tenant_b", "b", write=True)
    tenant = Log(server.url(database, "tenant_a"), "a")
    tenant.append("bank", rows("own"))
    assert tenant.assign() == 1
    assert [entry.key for entry in tenant.fetch(0)] == ["own"]
    assert tenant.append("items", rows("i"), term=tenant.take_lease("t"))
    with pytest.raises(UnknownName):
        Log(server.url(database, "tenant_a"), "b")
    insert = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%s, 'bank', 1, 'k', '')"
    with psycopg.connect(server.url(database, "tenant_a"), autocommit=True) as connection:
        run = connection.execute
        for table in ("log", "positions", "leases", "waiting"):
            seen = run(f"SELECT DISTINCT namespace FROM hardwon.{table}").fetchall()
            assert set(seen) <= {(a.number,)}
        assert run("SELECT name FROM hardwon.namespaces").fetchall() == [("a",)]
        for statement in (
            "INSERT INTO hardwon.positions VALUES (1, 99, 1)",
            "INSERT INTO hardwon.log(namespace, kind, format, key, payload, at) VALUES (1, 'bank', 1, 'k', '', now())",
            "UPDATE hardwon.log SET payload = ''",
            "DELETE FROM hardwon.log",
            "UPDATE hardwon.leases SET holder = 'me'",
            "INSERT INTO hardwon.members VALUES ('tenant_a', 2, true)",
            f"SELECT hardwon.assign_positions({b.number})",
            f"SELECT hardwon.take_lease({b.number}, 'me', 10)",
            f"SELECT hardwon.lock_items({b.number})",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                run(statement)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(insert, (b.number,))
    for one in (a, b, tenant):
        one.close()


def test_names_of_a_tenant_replace_none_of_the_schema(server, url, roles):
    """Functions with the rights of the owner must not see operators and tables that a caller puts in front of them."""
    import psycopg

    a, b = Log(url, "a"), Log(url, "b")
    grant(url, "tenant_a", "a", write=True)
    database = url.split("@/")[1].partition("?")[0]
    server.sql(
        """CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO tenant_a;
        CREATE FUNCTION trap.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
        CREATE OPERATOR trap.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.never);
        CREATE TABLE trap.waiting (namespace integer, log_id bigint);
        CREATE TABLE trap.members AS SELECT 'tenant_a'::name AS role, 2 AS namespace, true AS writes, true AS manages;
        GRANT ALL ON ALL TABLES IN SCHEMA trap TO tenant_a""",
        database,
    )
    with psycopg.connect(server.url(database, "tenant_a"), autocommit=True) as connection:
        connection.execute("SET search_path = trap, pg_catalog")
        insert = "INSERT INTO hardwon.log(namespace, kind, format, key, payload) VALUES (%s, %s, 1, %s, '')"
        for namespace, kind in ((a.number, "forget"), (b.number, "episode")):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(insert, (namespace, kind, "k"))
        connection.execute(insert, (a.number, "episode", "k"))
    assert (a.assign(), b.assign()) == (1, 0)
    for each in (a, b):
        each.close()


def test_a_reading_role_cannot_write(server, url, roles):
    Log(url, "a").close()
    database = url.split("@/")[1].partition("?")[0]
    grant(url, "reader_a", "a", write=False)
    reader = Log(server.url(database, "reader_a"), "a", create=False)
    assert reader.assign() == 0
    with pytest.raises(LibraryForbidden, match=r"permission denied.*hardwon memory grant ADDRESS ROLE --write"):
        reader.append("bank", rows("x"))
    with pytest.raises(LibraryForbidden):
        reader.take_lease("me")
    reader.close()


def test_a_tenant_of_an_older_schema_learns_who_updates_it(server, url, roles):
    owner = Log(url, "a")
    database = url.split("@/")[1].partition("?")[0]
    grant(url, "tenant_a", "a", write=True)
    owner._writer.run("UPDATE hardwon.meta SET value = '3' WHERE name = 'schema'")
    for create, error in ((True, LibraryForbidden), (False, NotALibrary)):
        with pytest.raises(error, match=rf"has schema 3, .* needs {SCHEMA_VERSION}\. Open it once with the role that"):
            Log(server.url(database, "tenant_a"), "a", create=create)
    owner.close()


def test_nobody_grants_but_the_owner(server, url, roles):
    Log(url, "a").close()
    database = url.split("@/")[1].partition("?")[0]
    grant(url, "tenant_a", "a", write=True)
    with pytest.raises(LibraryForbidden):
        grant(server.url(database, "tenant_a"), "tenant_b", "a", write=True)
