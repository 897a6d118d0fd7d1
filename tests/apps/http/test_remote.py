"""A library behind a port is a library: the same records, the same errors, whole episodes of an agent."""

import ast
import asyncio
import inspect
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from hypothesis import given, settings, strategies as st
from tests import warm

import hardwon.runtime
from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.memory import Add, Diagnosis, ExperienceLibrary, Failure, Item, Return, State, Step, Trajectory, Update
from hardwon.memory.errors import (
    ConfigError,
    HardwonError,
    LibraryError,
    LibraryForbidden,
    LibraryReadOnly,
    LibraryUnreachable,
    UnknownName,
)
from hardwon.memory.guardrails.tuning import TUNING
from hardwon.memory.open_runs.locks import LOCKS
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.remote.parts import RemoteAdmin, RemoteEpisodes, RemoteItems
from hardwon.runtime.agent import Agent
from hardwon.runtime.policies.episodic import EpisodicPolicy
from hardwon.runtime.teams.sharing import BankClient, TeamEvent
from hardwon.runtime.teams.sharing_policy import AdmitAll, Choice

SERVED_BY_HAND_ONLY = {"admin.index", "admin.open_values", "admin.repair", "episodes.replace_many", "items.gate"}
"""What is done beside the file."""


@contextmanager
def served(path, **options):
    """The API of a library on a port of its own; gives the address."""
    server = uvicorn.Server(uvicorn.Config(create_app(path, **options), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served") / "library.db", trust="trusted") as url:
        yield url


@pytest.fixture
def remote(address, request):
    """A namespace of its own for every test."""
    with RemoteLibrary(address, namespace=request.node.name) as library:
        yield library


KILLED = """
import time
from hardwon.memory.open_runs.locks import LOCKS
from hardwon.memory.remote import RemoteLibrary
from hardwon.runtime import FunctionEpisode, remember

@remember
def book(table):
    return "booked"

with FunctionEpisode(RemoteLibrary({address!r}, namespace="killed"), "Book a table with the key {secret}."):
    book(11)
    book(12)
    print("ready", flush=True)
    time.sleep(100)
"""


def test_a_killed_client_leaves_its_steps_to_the_next_on_its_host(address, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    code = KILLED.format(address=address, secret=secret)
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    (file,) = tmp_path.glob("hardwon/*.runs/*.jsonl")
    assert secret not in file.read_text()
    for _ in range(2):
        with RemoteLibrary(address, namespace="killed") as library:
            (row,) = library.episodes.find()
            episode = library.episodes.get(row["id"])
    assert (episode.success, episode.ending) == (None, "abandoned")
    assert [step.action for step in episode.steps] == ["book(table=11)", "book(table=12)"]
    assert list(tmp_path.glob("hardwon/*")) == []


def test_a_run_of_a_client_waits_while_the_server_is_down(tmp_path, monkeypatch, episode):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hardwon.memory.wire.time.sleep", lambda seconds: None)
    with served(tmp_path / "library.db", trust="trusted") as url:
        library = RemoteLibrary(url)
        run = library.episodes.open_run("e-1", lambda: episode("look"))
        run.add(*episode("look").steps)
    library.close()
    LOCKS._drop()  # the process ends
    assert len(list(tmp_path.glob("hardwon/*.runs/*.jsonl"))) == 1


def test_a_whole_run_is_recorded_beside_its_beginning(remote, episode):
    """A server replaces no episode. Sent again, it is recorded once."""
    beginning = episode("look", success=None, id="e-1", ending="abandoned")
    for whole in (beginning, *[episode("look", "open drawer", id="e-1")] * 2):
        remote.record(whole, continued=True)
    assert [(row["id"], row["success"]) for row in remote.episodes.find()] == [("e-1-whole", True), ("e-1", None)]


# ---- the same library


def test_agent_runs_on_it_as_on_a_file(remote, rooms, script, library):
    """The same actions leave the same library, by every count."""
    for one in (remote, library):
        agent = Agent(script("wait", "go east", "go west", "go east"), one, rooms(), max_steps=12)
        for seed in range(6):
            agent.run(seed=seed)
        agent.close()
    told = ("episodes", "successes", "steps", "clusters", "items", "failures")
    assert {name: remote.admin.stats()[name] for name in told} == {name: library.admin.stats()[name] for name in told}
    assert [item.id for item in remote.items.find(sort="old")] == [item.id for item in library.items.find(sort="old")]


def test_agent_learns_by_it(remote, rooms):
    agent = Agent(EpisodicPolicy(), remote, rooms(), max_steps=30)
    steps = [len(agent.run(seed=seed).trajectory.steps) for seed in range(25)]
    agent.close()
    assert remote.episodes.count() == 25
    assert sum(steps[-5:]) < sum(steps[:5])


def test_every_answer_is_equal_to_the_file_s(learnt):
    with (
        served(learnt, read_only=True) as url,
        RemoteLibrary(url, raw=True) as far,
        ExperienceLibrary.open(learnt) as near,
    ):
        (row, *_) = near.episodes.find(limit=1)
        step = near.episodes.get(row["id"]).steps[0]
        item = near.items.find(status=None)[0]
        summary = near.episodes.summaries()[0]
        calls = [
            lambda one: one.recall(step.pre, actions={"wait": "", "open box": "1"}, after="wait"),
            lambda one: one.recall(step.pre, level="task"),
            lambda one: one.recall("a raw potato", k=3, kinds=["guardrail"], budget_tokens=100),
            lambda one: one.check(step.pre, "bite raw potato"),
            lambda one: one.check(step.pre, ["wait", "bite raw potato"]),
            lambda one: one.offered(step.pre),
            lambda one: one.episodes.keys(step.pre, "open box", "0"),
            lambda one: one.episodes.context(step.pre, "open box"),
            lambda one: one.search("apple"),
            lambda one: one.items.find(status=None, sort="old"),
            lambda one: one.items.find(["guardrail"], tag="bite", limit=3),
            lambda one: one.items.find([]),
            lambda one: one.items.get(item.id[:6]),
            lambda one: one.items.history(item.id),
            lambda one: one.items.usages(item.id),
            lambda one: one.items.usefulness(item.id),
            lambda one: one.episodes.get(row["id"]),
            lambda one: one.episodes.steps([step.id, 10**9]),
            lambda one: one.episodes.summaries(step.pre.signature),
            lambda one: one.episodes.evidence(summary.id),
            lambda one: one.episodes.segments(row["id"]),
            lambda one: one.admin.verify(),
            lambda one: one.episodes.count(),
            lambda one: [entry["id"] for entry in one.episodes.find(limit=7, offset=2)],
            lambda one: len(one.episodes.find()),
        ]
        for call in calls:
            assert call(far) == call(near)


texts = st.text(max_size=20)
plain = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), texts)


@settings(max_examples=25)
@given(
    state=st.builds(
        State, texts, facts=st.dictionaries(texts, st.one_of(plain, st.lists(texts, max_size=3)), max_size=3),
        location=texts, task=texts, feedback=texts, notes=st.lists(texts, max_size=2).map(tuple),
    ),
    action=texts,
)  # fmt: skip
def test_any_state_and_action_may_be_asked_about(address, state, action):
    with RemoteLibrary(address, namespace="any") as remote, ExperienceLibrary.open(":memory:") as near:
        assert remote.episodes.keys(state, action) == near.episodes.keys(state, action)
        assert remote.episodes.context(state, action) == near.episodes.context(state, action)


def test_operations_of_an_extractor_are_carried_out(remote, episode):
    recorded = remote.episodes.get(remote.record(episode("open drawer", "take spoon")))
    evidence = (recorded.steps[0].id,)
    first = Item("insight", "Spoons lie in drawers", provenance=evidence)
    (added,) = remote.apply([Add(first), Return("nothing else")], recorded, [])
    assert added.status == "added"
    rewritten = Item("insight", "Spoons and forks lie in drawers", provenance=evidence)
    remote.apply([Update((0,), rewritten)], recorded, [added.item_id])
    assert remote.items.get(added.item_id).title == rewritten.title
    remote.items.retire(added.item_id, "enough")
    assert remote.items.undo(added.item_id).status == "active"
    assert remote.items.update(added.item_id, pinned=True).pinned


def test_recording_twice_is_recording_once(remote, episode):
    told = episode("open drawer", id="the-same")
    assert [remote.record(told), remote.record(told)] == ["the-same", "the-same"]
    assert remote.episodes.count() == 1


def test_all_episodes_of_a_server_are_practice(remote, episode):
    """It does not say which are of one environment."""
    remote.record(episode("open drawer", reward=0.0, success=False))
    assert remote.episodes.count(State("You are on the moon.")) == 1


def test_a_revision_tells_new_episodes_from_changed_ones(remote, episode):
    """So that a reader of all episodes reads the new ones alone."""
    remote.record(episode("open drawer", id="first"))
    before = remote.revision
    remote.record(episode("open drawer", id="second"))
    assert remote.revision == (before[0] + 1, before[1])
    remote.grade("first", success=False)
    assert remote.revision[0] == before[0] + 1
    assert remote.revision[1] != before[1]


def test_export_goes_from_one_server_to_another(remote, learnt, tmp_path):
    with ExperienceLibrary.open(learnt, read_only=True) as near:
        lines = near.admin.export_jsonl(tmp_path / "near.jsonl")
    assert remote.admin.import_jsonl(tmp_path / "near.jsonl") == lines
    assert remote.admin.export_jsonl(tmp_path / "far.jsonl") == lines


def test_bank_is_shared_between_clients(remote, address, episode, request):
    """Readers see keys and pull values; an episode that succeeded vouches for what stays."""
    with RemoteLibrary(address, namespace=request.node.name) as other, remote.admin.bank("find the spoon") as bank:
        entry = bank.put("red", "spoon", "in the drawer")
        seen = other.admin.bank("find the spoon")
        assert [(one.id, one.team, one.key) for one in seen.entries()] == [(entry, "red", "spoon")]
        assert seen.entries(entry) == []
        assert seen.pull(entry, "blue") == "in the drawer"
        bank.pull(entry, "red")
        assert (bank.pulls(), bank.pulls(own=True)) == ([(entry, "blue")], [(entry, "red")])
        with pytest.raises(UnknownName, match="12345"):
            seen.pull(12345, "blue")
        vouching = remote.record(episode("open drawer"))
        assert seen.promote(Item("insight", "Spoons lie in drawers"), "nobody").status == "rejected"
        assert seen.promote(Item("insight", "Spoons lie in drawers"), vouching).status == "added"
    assert remote.admin.bank("find the spoon").keys() == {}


class Closed:
    """An admission that shares nothing."""

    name = "closed"

    async def decide(self, candidate):
        return Choice(False, 0.0)


def test_an_agent_sees_that_the_server_held_its_step_back(tmp_path):
    """The agent shares everything; the admission of the server decides."""
    step = Step(State("a lamp", task="find"), "take lamp", State("no lamp", task="find"), Diagnosis(True))
    events: list[TeamEvent] = []
    with served(tmp_path / "library.db", trust="trusted", admission=Closed()) as url, RemoteLibrary(url) as library:
        desk = BankClient(library.admin.bank("find"), "red", AdmitAll(), watch=events.append)
        asyncio.run(desk.share([step]))
        assert library.admin.bank("find").keys() == {}
    assert [shared.entry for shared in desk.shared] == [None]
    assert [event.what for event in events] == ["step", "kept"]


# ---- what is served


def test_all_that_the_runtime_calls_is_served():
    """Every method of a library, and of its parts, that a module of the runtime names."""
    called = set()
    for file in Path(inspect.getfile(hardwon.runtime)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and (
                part := re.fullmatch(r"(?:self\.)?_?library(?:\.(items|episodes|admin))?", ast.unparse(node.value))
            ):
                called.add(f"{part[1]}.{node.attr}" if part[1] else node.attr)
    assert called >= {"recall", "check", "record", "evolve", "episodes.get", "items.get", "admin.embedder"}
    parts = {"items": RemoteItems, "episodes": RemoteEpisodes, "admin": RemoteAdmin}
    served = vars(RemoteLibrary).keys() | {f"{part}.{name}" for part, kind in parts.items() for name in vars(kind)}
    inherited = {"record", "add", "items.find", "episodes.open_run"}  # of what is served and of the cache of the user
    assert called - inherited - SERVED_BY_HAND_ONLY - {"namespace", *parts} <= served


def test_what_needs_the_file_is_refused(remote):
    with pytest.raises(LibraryError, match="does not serve this operation"):
        remote.admin.repair()


# ---- errors


def test_errors_are_the_library_s_own(remote):
    with pytest.raises(UnknownName, match="in-none"):
        remote.items.get("in-none")
    with pytest.raises(ConfigError, match=r"negative|greater"):
        remote.items.find(offset=-1)
    with pytest.raises(ConfigError, match="title"):
        remote.items.update(remote.add(Item("insight", "A lamp")).item_id, title=7)
    with pytest.raises(HardwonError):
        remote.check(State("hall"), None)


@pytest.fixture
def in_haste(monkeypatch):
    """No wait between tries."""
    monkeypatch.setattr("hardwon.memory.wire.WAIT_S", 0.0)


def test_server_that_is_not_there(in_haste):
    with pytest.raises(LibraryUnreachable, match="hardwon serve"):
        RemoteLibrary("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://127.0.0.1"])
def test_address_that_is_none(url, in_haste):
    with pytest.raises((ConfigError, LibraryUnreachable), match=r"http|answer"):
        RemoteLibrary(url)


def test_token_decides_what_it_may(path):
    with ExperienceLibrary.open(path):
        pass
    tokens = Tokens.beside(path)
    reader, writer = tokens.add("reader"), tokens.add("writer", namespaces=["acme"], write=True)
    with served(path, tokens=tokens, local=False) as url:
        with RemoteLibrary(url, writer, "acme") as acme, RemoteLibrary(url, reader, "acme") as seen:
            acme.add(Item("insight", "A lamp"))
            assert (acme.admin.read_only, seen.admin.read_only) == (False, True)
            assert [item.title for item in seen.items.find()] == ["A lamp"]
            with pytest.raises(LibraryForbidden, match="reader"):
                seen.add(Item("insight", "A box"))
        with pytest.raises(LibraryForbidden):
            RemoteLibrary(url, writer, "default")
        with pytest.raises(LibraryForbidden, match="token"):
            RemoteLibrary(url)


def test_read_only_library_says_so(learnt):
    with served(learnt, read_only=True) as url, RemoteLibrary(url) as library:
        assert library.admin.read_only
        with pytest.raises(LibraryReadOnly):
            library.add(Item("insight", "A lamp"))


def test_many_threads_may_use_one(remote, episode):
    told = [[episode("open drawer", id=f"{worker}-{n}") for n in range(5)] for worker in range(4)]
    threads = [threading.Thread(target=lambda mine: [remote.record(one) for one in mine], args=(t,)) for t in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remote.episodes.count() == 20
    assert all(isinstance(step, Step) for step in remote.episodes.get("0-0").steps)


# ---- guardrails on probation


BROKEN, WORKED = Diagnosis(False, Failure.TOOL_ERROR, evidence="the bulb is broken"), Diagnosis(True)
DARK = State("a dark room", task="light the room")


def lamps(number):
    """A lamp for every number, by name."""
    return f"light(lamp='{'abcdefghijklmnopqrstuvwxyz'[number]}')"


def test_probation_is_that_of_the_file(remote):
    """Five are refused, and looking counts nothing; the trial that is due names what its outcome decides."""
    for number in range(12):
        made = [(lamps(number), BROKEN)] * 2 + [("change(part='bulb')", WORKED), (lamps(number), WORKED)]
        steps = [Step(DARK, action, DARK, judged, t=t) for t, (action, judged) in enumerate(made)]
        remote.record(Trajectory("light the room", tuple(steps), False))
    remote.evolve()
    state, action = DARK, lamps(20)
    assert remote.check(state, action).allowed
    assert remote.check(state, action, again=True).items
    assert not remote.enforce(state, action, again=True).allowed
    (guard, *_) = remote.check(state, action, again=True).items
    for _ in range(TUNING.trial_refusals - 1):
        assert not remote.enforce(state, action, again=True).allowed
    verdict = remote.enforce(state, action, again=True)
    assert (verdict.allowed, verdict.trial) == (True, True)
    assert guard in verdict.items
    assert not remote.enforce(state, action, again=True).allowed
