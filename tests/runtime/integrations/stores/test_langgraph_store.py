"""The store beside LangGraph's own in memory, operation by operation; then what that has not: time and tenants.

Each case runs with a library file and with a shared library, of which only the address differs.
"""

import asyncio
import itertools
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypedDict

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from tests.memory.fleet.conftest import server, url

from hardwon.memory import ExperienceLibrary, stored_values
from hardwon.memory.errors import ConfigError, LibraryBusy, LibraryReadOnly, LibraryUnwritable
from hardwon.memory.fleet.library import FleetLibrary
from hardwon.memory.fleet.log import Log
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.storage import clock as clock_module
from hardwon.runtime import HardwonStore
from hardwon.runtime.integrations import langgraph_store

__all__ = ["server", "url"]
FILE_ONLY = pytest.mark.parametrize("path", ["file"], indirect=True)
LABELS = st.sampled_from(["acme", "acme-corp", "acme corp", "a", "users", "ada", "ü", "*x"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PREFIXES = st.lists(LABELS, max_size=2).map(tuple)
PATTERNS = st.lists(st.one_of(LABELS, st.just("*")), min_size=1, max_size=2).map(tuple)
KEYS = st.sampled_from(["one", "two", "three", "a.b", "", "zero\x00byte"])
WORDS = st.sampled_from(["green tea", "black tea with milk", "a bus to Rome", "the train to Rome", "", "two words"])
SCALARS = st.one_of(WORDS, st.integers(-5, 5), st.booleans(), st.none(), st.floats(-2, 2))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": WORDS,
        "n": st.integers(-5, 5),
        "tags": st.lists(st.sampled_from(["warm", "cold drink", "by the window"]), max_size=3, unique=True),
        "deep": st.fixed_dictionaries({"text": st.sampled_from(["a cup", "a fast train"]), "n": st.integers(-5, 5)}),
        "any": SCALARS,
    },
)
INDEX = st.sampled_from([None, False, ["text"], ["tags[*]"], ["deep.text", "text"]])
EQUAL = st.one_of(
    st.fixed_dictionaries({}, optional={"text": WORDS, "n": st.integers(-5, 5), "any": SCALARS}),
    st.fixed_dictionaries({"deep": st.fixed_dictionaries({"n": st.integers(-5, 5)})}),
    st.fixed_dictionaries({"tags": st.lists(WORDS, max_size=2)}),
    st.fixed_dictionaries({"text": st.fixed_dictionaries({"$ne": WORDS})}),
    st.fixed_dictionaries({"any": st.fixed_dictionaries({"$eq": SCALARS})}),
)
ORDERED = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(-5, 5), min_size=1, max_size=2)
FIELDS = ["text", "deep.text", "tags[*]"]


def plain(item):
    return None if item is None else (item.namespace, item.key, item.value)


def everything(items):
    return sorted(repr(plain(item)) for item in items)


class Beside(RuleBasedStateMachine):
    """Each operation is carried out by both stores; what they answer is the same, the order of equals apart.

    The oracle keeps the old vectors of a value that is put again, and names that were only asked for, and takes
    no text twice in one batch: so it is told to delete first, and neither of the others is put to it.
    """

    make: Any = staticmethod(lambda: ExperienceLibrary.open(":memory:"))

    @initialize()
    def open(self):
        self.library = type(self).make()
        embed = lambda texts: [vector.tolist() for vector in self.library.admin.embedder.embed(texts)]  # noqa: E731
        self.ours = HardwonStore(self.library, index={"fields": FIELDS})
        self.oracle = InMemoryStore(index={"dims": self.library.admin.embedder.dim, "embed": embed, "fields": FIELDS})
        self.there: set[tuple[str, ...]] = set()

    def teardown(self):
        if hasattr(self, "ours"):
            self.ours.close()
            self.library.close()

    @rule(namespace=NAMESPACES, key=KEYS, value=VALUES, index=INDEX)
    def put(self, namespace, key, value, index):
        """With what is embedded of it."""
        self.oracle.delete(namespace, key)
        for store in (self.ours, self.oracle):
            store.put(namespace, key, value, index=index)

    @rule(namespace=NAMESPACES, key=KEYS)
    def delete(self, namespace, key):
        for store in (self.ours, self.oracle):
            store.delete(namespace, key)

    @rule(namespace=NAMESPACES, key=KEYS)
    def get(self, namespace, key):
        assert plain(self.ours.get(namespace, key)) == plain(self.oracle.get(namespace, key))

    @rule(prefix=PREFIXES, wanted=st.one_of(st.none(), EQUAL))
    def search(self, prefix, wanted):
        ours = self.ours.search(prefix, filter=wanted, limit=1000)
        assert everything(ours) == everything(self.oracle.search(prefix, filter=wanted, limit=1000))

    @rule(prefix=PREFIXES, wanted=ORDERED)
    def search_by_order(self, prefix, wanted):
        """The oracle cannot compare what is missing; so all have a number here."""
        having = [item for item in self.oracle.search(prefix, limit=1000) if "n" in item.value]
        numbered = InMemoryStore()
        for item in having:
            numbered.put(item.namespace, item.key, item.value)
        ours = self.ours.search(prefix, filter={"n": wanted}, limit=1000)
        assert everything(ours) == everything(numbered.search(prefix, filter={"n": wanted}, limit=1000))

    @rule(prefix=PREFIXES, wanted=st.one_of(st.none(), EQUAL), limit=st.integers(0, 4), offset=st.integers(0, 4))
    def page(self, prefix, wanted, limit, offset):
        """A part of what there is, the newest first."""
        whole = self.ours.search(prefix, filter=wanted, limit=1000)
        part = self.ours.search(prefix, filter=wanted, limit=limit, offset=offset)
        assert list(map(plain, part)) == list(map(plain, whole[offset : offset + limit]))
        assert len(part) == len(self.oracle.search(prefix, filter=wanted, limit=limit, offset=offset))
        times = [item.updated_at for item in whole]
        assert times == sorted(times, reverse=True)

    @rule(prefix=PREFIXES, query=WORDS.filter(bool), wanted=st.one_of(st.none(), EQUAL), limit=st.integers(1, 4))
    def search_by_meaning(self, prefix, query, wanted, limit):
        """The same scores in the same order, and the same score for the same value."""
        asked: dict[str, Any] = {"query": query, "filter": wanted}
        whole = {(item.namespace, item.key): item.score for item in self.oracle.search(prefix, **asked, limit=1000)}
        ours, theirs = (store.search(prefix, **asked, limit=limit) for store in (self.ours, self.oracle))
        assert [item.score for item in ours] == pytest.approx([item.score for item in theirs], abs=1e-5)
        for item in ours:
            assert item.score == pytest.approx(whole[item.namespace, item.key], abs=1e-5)
        following = self.ours.search(prefix, **asked, limit=limit, offset=1)
        assert list(map(plain, following[: limit - 1])) == list(map(plain, ours[1:]))

    @rule(
        prefix=st.one_of(st.none(), PATTERNS),
        suffix=st.one_of(st.none(), PATTERNS),
        depth=st.one_of(st.none(), st.integers(1, 3)),
        limit=st.integers(0, 3),
        offset=st.integers(0, 3),
    )
    def list_namespaces(self, prefix, suffix, depth, limit, offset):
        named: dict[str, Any] = {"prefix": prefix, "suffix": suffix}
        theirs = [labels for labels in self.oracle.list_namespaces(**named, limit=1000) if self.oracle._data[labels]]
        wanted = sorted({labels[:depth] for labels in theirs})
        ours = self.ours.list_namespaces(**named, max_depth=depth, limit=limit, offset=offset)
        assert ours == wanted[offset : offset + limit]

    @rule(
        puts=st.lists(st.tuples(NAMESPACES, KEYS, st.one_of(st.none(), VALUES)), max_size=4),
        reads=st.lists(st.tuples(NAMESPACES, KEYS), max_size=3),
    )
    def batch(self, puts, reads):
        """Reads see what was there before; of two writes to one key the last counts."""
        for namespace, key, _ in puts:
            if value := self.oracle.get(namespace, key):
                self.put(namespace, key, value.value, False)
        ops: list[Any] = [PutOp(namespace, key, value, index=False) for namespace, key, value in puts]
        ops += [*(GetOp(*read) for read in reads), SearchOp(("acme",), limit=100)]
        ours, theirs = self.ours.batch(ops), self.oracle.batch(ops)
        assert ours[: len(puts)] == theirs[: len(puts)]
        assert [plain(item) for item in ours[len(puts) : -1]] == [plain(item) for item in theirs[len(puts) : -1]]
        assert everything(ours[-1]) == everything(theirs[-1])

    @invariant()
    def nobody_sees_a_neighbour(self):
        if hasattr(self, "ours"):
            assert all(item.namespace[0] == "acme" for item in self.ours.search(("acme",), limit=1000))


TestBesideInMemoryStore = Beside.TestCase
TestBesideInMemoryStore.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("examples", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_a_shared_library_beside_in_memory_store(examples, url, tmp_path):
    """Each example has a namespace of its own."""
    names = map(str, itertools.count())

    def make():
        name = next(names)
        return ExperienceLibrary.open(url, namespace=name, replica=tmp_path / name)

    run_state_machine_as_test(
        type("BesideShared", (Beside,), {"make": staticmethod(make)}),
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )  # fmt: skip


@pytest.fixture(params=["file", "shared"])
def path(request, tmp_path, monkeypatch):
    """The address of an empty library."""
    if request.param == "file":
        return tmp_path / "experience.db"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return request.getfixturevalue("url")


@pytest.fixture
def store(library):
    """An empty store in the test's library."""
    with HardwonStore(library) as opened:
        yield opened


class FileClock:
    """A clock that stands until it is moved: minutes."""

    now = 1_000_000.0

    def time(self):
        return self.now

    def forward(self, minutes):
        self.now += 60 * minutes


class ServerClock:
    """The clock of a database, which goes on when it is moved; the given libraries notice at once."""

    def __init__(self, url, monkeypatch, *libraries):
        self.url, self.libraries, self.ahead_s, self.assign = url, libraries, 0.0, Log.assign

        def assign(log):
            head = self.assign(log)
            log._lead_s += self.ahead_s
            return head

        monkeypatch.setattr(Log, "assign", assign)

    def forward(self, minutes):
        self.ahead_s += 60 * minutes
        import psycopg

        default = f"clock_timestamp() + interval '{self.ahead_s} s'"
        with psycopg.connect(self.url) as connection:
            connection.execute(f"ALTER TABLE hardwon.log ALTER at SET DEFAULT {default}")
        for library in self.libraries:
            library.admin.sync()


@pytest.fixture
def clock(path, library, monkeypatch):
    if isinstance(path, str):
        return ServerClock(path, monkeypatch, library)
    stands = FileClock()
    monkeypatch.setattr(clock_module, "time", stands)
    return stands


# ---- lasting, and apart


def test_what_was_put_is_there_when_the_library_is_opened_again(path):
    for _ in range(2):
        with ExperienceLibrary.open(path) as library, HardwonStore(library) as store:
            known = store.get(("users", "ada"), "likes")
            store.put(("users", "ada"), "likes", {"drink": "tea"})
    assert known is not None
    assert known.value == {"drink": "tea"}
    assert known.created_at <= known.updated_at


def test_namespaces_of_the_library_are_apart(path):
    with (
        ExperienceLibrary.open(path, namespace="one") as one,
        ExperienceLibrary.open(path, namespace="two") as two,
        HardwonStore(one) as of_one,
        HardwonStore(two) as of_two,
    ):
        of_one.put(("users",), "ada", {"n": 1})
        assert of_two.get(("users",), "ada") is None
        assert of_two.search((), query="ada") == []
        assert of_two.list_namespaces() == []


def test_a_value_put_again_keeps_its_first_time_and_comes_first(store):
    for key in ("old", "new"):
        store.put(("a",), key, {"n": 0})
    first = store.get(("a",), "old")
    store.put(("a",), "old", {"n": 1})
    again = store.get(("a",), "old")
    assert (again.created_at, again.value) == (first.created_at, {"n": 1})
    assert again.updated_at > first.updated_at
    assert [item.key for item in store.search(("a",))] == ["old", "new"]


def test_many_threads_write_at_once(store):
    def write(who):
        for n in range(20):
            store.put(("a", str(who)), str(n), {"n": n})

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.search(("a",), limit=1000)) == 80


def test_the_library_is_as_sound_as_before(library, store, episode, tmp_path):
    """Its own checks, exports and imports know nothing of the store's tables."""
    library.record(episode())
    store.put(("a",), "k", {"n": 1})
    assert library.admin.verify() == []
    assert library.admin.repair() == []
    assert library.admin.export_jsonl(tmp_path / "out.jsonl") == 1
    assert "langgraph" not in (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert store.get(("a",), "k").value == {"n": 1}


def test_a_library_that_is_read_has_a_store_that_is_read(path, store):
    with ExperienceLibrary.open(path, read_only=True) as reader, HardwonStore(reader) as read:
        assert read.search(("a",)) == []
        assert read.get(("a",), "k") is None
        store.put(("a",), "k", {"n": 1}, ttl=5)
        if isinstance(reader, FleetLibrary):
            reader.admin.sync()
        assert [item.value for item in read.search(("a",))] == [{"n": 1}]
        with pytest.raises(LibraryReadOnly):
            read.put(("a",), "k", {"n": 2})


# ---- meaning


def test_only_the_fields_of_the_index_are_embedded(library):
    with HardwonStore(library, index={"fields": ["text"]}) as store:
        store.put(("a",), "told", {"text": "green tea", "note": "a bus to Rome"})
        store.put(("a",), "kept apart", {"text": "green tea"}, index=False)
        store.put(("a",), "by its note", {"text": "green tea", "note": "a bus to Rome"}, index=["note"])
        found = store.search(("a",), query="a bus to Rome")
    assert [(item.key, item.score) for item in found] == [
        ("by its note", pytest.approx(1.0, abs=1e-5)),
        ("told", pytest.approx(0.0, abs=1e-5)),
        ("kept apart", None),
    ]


def test_without_an_index_a_query_is_ignored(library):
    with HardwonStore(library, index=None) as store:
        store.put(("a",), "k", {"text": "tea"}, index=["text"])
        assert [item.score for item in store.search(("a",), query="tea")] == [None]


@FILE_ONLY
def test_vectors_of_another_embedder_are_made_again(path):
    """The library was embedded anew meanwhile; what the old vectors say counts no more."""
    from hardwon.memory.library import reembed

    with ExperienceLibrary.open(path) as library, HardwonStore(library) as store:
        store.put(("a",), "tea", {"text": "green tea"})
    reembed(path, "hashing:64")
    with ExperienceLibrary.open(path) as library, HardwonStore(library) as store:
        assert store.search(("a",), query='{"text": "green tea"}')[0].score == pytest.approx(1.0, abs=1e-5)


def counted(texts):
    """How often each of three letters occurs: not of length 1."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


async def counted_later(texts):
    """The same, later."""
    return counted(texts)


@FILE_ONLY
def test_an_embedder_holds_up_no_other_thread(path):
    """Values of another embedder are embedded outside of the lock, and a deadline ends the wait for it."""
    is_asked, may_answer = threading.Event(), threading.Event()

    def embed(texts):
        if texts != ["tea"]:
            is_asked.set()
            may_answer.wait(40)
        return [[1.0, 0.0]] * len(texts)

    with ExperienceLibrary.open(path) as library, HardwonStore(library) as first:
        first.put(("users",), "ada", {"text": "green tea"})
        with HardwonStore(library, index={"dims": 2, "embed": embed}) as store, ThreadPoolExecutor(1) as pool:
            hits = pool.submit(store.search, ("users",), query="tea")
            assert is_asked.wait(40)
            with deadline(1.0):
                assert store.get(("users",), "ada") is not None
            may_answer.set()
            assert [hit.key for hit in hits.result()] == ["ada"]
            may_answer.clear()
            with deadline(0.02), pytest.raises(LibraryBusy, match="embedder"):
                store.search(("users",), query="milk")
            may_answer.set()


@pytest.mark.parametrize("embed", [counted, counted_later])
def test_an_index_brings_its_own_embedder(library, embed):
    """As LangGraph has it: dimensions and a function, whose vectors are compared by their cosine."""
    with HardwonStore(library, index={"dims": 3, "embed": embed, "fields": ["text"]}) as store:
        store.put(("x",), "a", {"text": "aaaa"})
        store.put(("x",), "b", {"text": "bb"})
        store.put(("x",), "none", {"text": "zzz"})
        found = store.search(("x",), query="aaab")
        assert [item.key for item in found] == ["a", "b", "none"]
        assert found[0].score == pytest.approx(3 / 10**0.5, abs=1e-5)
        assert asyncio.run(store.asearch(("x",), query="b"))[0].key == "b"
    with HardwonStore(library) as store:  # the library's own embedder makes the vectors anew
        assert store.search(("x",), query='{"text": "bb"}')[0].key == "b"


@pytest.mark.parametrize(
    "index",
    [{"dims": 3}, {"embed": len}, {"dims": 0, "embed": len}, {"dims": "3", "embed": len}, {"dims": 3, "embed": 5}],
)
def test_an_index_that_cannot_embed_is_refused(library, index):
    with pytest.raises(ConfigError, match="index"):
        HardwonStore(library, index=index)


def test_vectors_of_other_dimensions_are_refused(library):
    with (
        HardwonStore(library, index={"dims": 4, "embed": counted}) as store,
        pytest.raises(ConfigError, match="dims 4"),
    ):
        store.put(("x",), "a", {"text": "aaaa"})


def test_a_filter_takes_dotted_paths(library):
    """Into objects; a key that has a dot itself comes first."""
    with HardwonStore(library, index=None) as store:
        store.put(("x",), "ada", {"user": {"plan": {"name": "pro", "seats": 5}}})
        store.put(("x",), "bob", {"user": {"plan": {"name": "free", "seats": 1}}})
        store.put(("x",), "dot", {"user.plan.name": "pro", "user": "none"})
        assert [item.key for item in store.search(("x",), filter={"user.plan.name": "pro"})] == ["dot", "ada"]
        assert [item.key for item in store.search(("x",), filter={"user.plan.seats": {"$gt": 2}})] == ["ada"]
        assert store.search(("x",), filter={"user.plan.nothing.more": "pro"}) == []


# ---- filters


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({"n": {"$gt": 1}}, ["two"]),
        ({"n": {"$gte": 1, "$lt": 2}}, ["one"]),
        ({"n": {"$lte": "1"}}, ["one"]),
        ({"day": {"$gte": "2026-02-01"}}, ["two"]),
        ({"n": {"$gt": None}}, []),
        ({"day": {"$lt": 5}}, []),
        ({"missing": {"$gt": 0}}, []),
        ({"missing": {"$ne": 0}}, ["two", "one"]),
        ({"deep": {"n": {"$eq": 1}}}, ["one"]),
        ({"n": 2, "day": {"$ne": "x"}}, ["two"]),
    ],
)
def test_filters_compare_what_can_be_compared(store, wanted, keys):
    """What is missing, or of another kind, is neither more nor less."""
    store.put(("a",), "one", {"n": 1, "day": "2026-01-31", "deep": {"n": 1}})
    store.put(("a",), "two", {"n": 2, "day": "2026-02-01", "deep": {"n": 2}})
    assert [item.key for item in store.search(("a",), filter=wanted)] == keys


def test_an_unknown_operator_is_refused(store):
    store.put(("a",), "k", {"n": 1})
    with pytest.raises(ConfigError, match=r"unknown filter operator '\$in'; use one of \$eq, \$ne"):
        store.search(("a",), filter={"n": {"$in": [1]}})


# ---- expiry


def test_a_value_expires_and_is_gone(store, clock):
    store.put(("a",), "k", {"text": "tea"}, ttl=5)
    clock.forward(6)
    assert store.get(("a",), "k") is None
    assert store.search(("a",), query="tea") == []
    assert store.list_namespaces() == []


def test_reading_a_value_puts_its_end_off(store, clock):
    for key in ("read", "listed", "glanced at"):
        store.put(("a", key), key, {"n": 1}, ttl=5)
    clock.forward(4)
    store.get(("a", "read"), "read")
    store.search(("a", "listed"))
    store.get(("a", "glanced at"), "glanced at", refresh_ttl=False)
    clock.forward(4)
    assert [item.key for item in store.search(("a",))] == ["listed", "read"]


def test_the_configuration_says_how_long_and_whether_reading_counts(library, clock):
    with HardwonStore(library, ttl={"default_ttl": 5, "refresh_on_read": False}) as store:
        store.put(("a",), "k", {"n": 1})
        store.put(("a",), "for ever", {"n": 1}, ttl=None)
        clock.forward(4)
        assert store.get(("a",), "k") is not None
        clock.forward(2)
        assert [item.key for item in store.search(("a",))] == ["for ever"]


def test_expired_values_are_kept_to_be_swept_where_that_is_wanted(library, clock):
    with HardwonStore(library, ttl={"omit_expired": False}) as store:
        store.put(("a",), "k", {"n": 1}, ttl=5)
        clock.forward(6)
        store.put(("a",), "other", {"n": 1})
        assert store.get(("a",), "k", refresh_ttl=False) is not None
        assert store.sweep_ttl() == 1
        assert store.get(("a",), "k") is None


def test_what_expired_is_deleted_by_the_next_write(library, store, clock):
    store.put(("a",), "k", {"n": 1}, ttl=5)
    clock.forward(6)
    store.put(("a",), "other", {"n": 1})
    assert store.sweep_ttl() == 0


@FILE_ONLY
def test_looking_for_expired_values_reads_no_others(path, store):
    """Each write looks for them; by the index of the namespace, it would read every value."""
    store.put(("a",), "k", {"n": 1})
    with closing(sqlite3.connect(path)) as file:
        plan = file.execute(f"EXPLAIN QUERY PLAN {stored_values._EXPIRED}", (0.0, "default")).fetchall()
    assert "langgraph_values_by_expiry" in str(plan)


def test_a_thread_sweeps_until_it_is_stopped(store):
    store.put(("a",), "k", {"n": 1}, ttl=0.0001)
    swept = threading.Event()
    sweep, count = store.sweep_ttl, []

    def sweep_and_tell():
        count.append(sweep())
        if sum(count):
            swept.set()

    store.sweep_ttl = sweep_and_tell
    store.start_ttl_sweeper(0.0001)
    assert swept.wait(10)
    assert store.stop_ttl_sweeper(10)


# ---- what cannot be


def test_labels_that_cannot_be_are_refused_in_a_batch_too(store):
    """Else `a.b` would be a way into `a`, `b`."""
    for op in (GetOp(("a.b",), "k"), SearchOp(("a.b",)), PutOp(("",), "k", {})):
        with pytest.raises(InvalidNamespaceError):
            store.batch([op])


def test_a_value_that_is_no_json_is_refused_and_nothing_of_its_batch_is_written(store):
    with pytest.raises(ConfigError, match="the value of 'bad' in \\('a',\\) cannot be stored"):
        store.batch([PutOp(("a",), "good", {"n": 1}), PutOp(("a",), "bad", {"n": object()})])
    assert store.search(()) == []


def test_what_is_no_operation_is_refused(store):
    with pytest.raises(ConfigError, match="is not a store operation"):
        store.batch(["get"])


# ---- in LangGraph


class Talk(TypedDict):
    """The state of the graph below."""

    said: str


def greet(state: Talk, runtime: Runtime[None]) -> dict[str, str]:
    assert runtime.store is not None
    known = runtime.store.get(("users",), "ada")
    runtime.store.put(("users",), "ada", {"visits": known.value["visits"] + 1 if known else 1})
    return {"said": f"visit {known.value['visits'] + 1 if known else 1}"}


def test_a_graph_is_compiled_with_it(store):
    graph = StateGraph(Talk).add_node("greet", greet).add_edge(START, "greet").compile(store=store)
    assert [graph.invoke({"said": ""})["said"] for _ in range(2)] == ["visit 1", "visit 2"]


def test_asynchronous_calls_are_the_same(store):
    async def talk():
        await store.aput(("a",), "k", {"text": "tea"})
        found = await store.asearch(("a",), query="tea")
        named = await store.abatch([ListNamespacesOp()])
        await store.adelete(("a",), "k")
        return found[0].value, named, await store.aget(("a",), "k")

    assert asyncio.run(talk()) == ({"text": "tea"}, [[("a",)]], None)


@FILE_ONLY
def test_a_value_that_expires_during_a_search_is_left_out(library, monkeypatch):
    """The search reads the clock twice."""
    with HardwonStore(library, ttl={"omit_expired": True}) as store:
        store.put(("a",), "k", {"kind": "x"}, ttl=1)
        now = time.time()
        clock = iter([now, *[now + 120] * 20])
        monkeypatch.setattr(time, "time", lambda: next(clock))
        assert store.search(("a",), filter={"kind": "x"}) == []


@pytest.mark.parametrize(("settings", "given", "seconds"), [
    (None, None, 300.0), ({"sweep_interval_minutes": 2}, None, 120.0), ({"sweep_interval_minutes": 2}, 1, 60.0)
])  # fmt: skip
def test_the_sweeper_waits_as_long_as_it_is_told(library, settings, given, seconds):
    """Five minutes otherwise; and it does not keep the process alive."""
    with HardwonStore(library, ttl=settings) as store:
        seen: list[float] = []
        vars(store)["_run_sweeper"] = seen.append
        store.start_ttl_sweeper(given)
        assert store._sweeper is not None
        assert store._sweeper.daemon
        assert store.stop_ttl_sweeper(10)
    assert seen == [seconds]


def test_a_sweeper_that_does_not_end_in_time_says_so(store):
    goes_on = threading.Event()
    vars(store)["_run_sweeper"] = lambda seconds: goes_on.wait(10)
    store.start_ttl_sweeper()
    assert not store.stop_ttl_sweeper(0.001)
    goes_on.set()
    assert store.stop_ttl_sweeper(10)


def test_a_sweeper_tries_again_after_another_writer_was_busy(store):
    """The second time it is told to stop."""
    sweeps = []

    def sweep():
        sweeps.append(1)
        if len(sweeps) == 2:
            store._stop.set()
        raise LibraryUnwritable("another process writes")

    store.sweep_ttl = sweep
    store._run_sweeper(0.0)
    assert len(sweeps) == 2


@pytest.mark.parametrize(("minutes", "is_new"), [(0, False), (5, True)])
def test_a_value_that_expired_begins_anew(store, clock, minutes, is_new):
    store.put(("a",), "k", {"n": 1}, ttl=3)
    before = store.get(("a",), "k", refresh_ttl=False).created_at
    clock.forward(minutes)
    store.put(("a",), "k", {"n": 2})
    assert (store.get(("a",), "k").created_at != before) is is_new


def test_each_text_of_a_list_has_a_name_of_its_own():
    value = {"title": "tea", "tags": ["green", "hot"]}
    texts = langgraph_store._extract_texts(value, ["title", "tags[*]"])
    assert texts == {"title": "tea", "tags[*].0": "green", "tags[*].1": "hot"}


def test_without_an_index_nothing_is_embedded_even_if_it_is_asked_for(library):
    with HardwonStore(library, index=None) as store:
        store.put(("a",), "k", {"text": "green tea"}, index=["text"])
        assert store.get(("a",), "k") is not None
        assert store._values.store.rows("SELECT * FROM langgraph_vectors") == []
