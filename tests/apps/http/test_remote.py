"""A library behind a port is a library: the same records, the same errors, whole episodes of an agent."""

import ast
import asyncio
import inspect
import itertools
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
    LibraryForbidden,
    LibraryReadOnly,
    LibraryUnreachable,
    UnknownName,
)
from hardwon.memory.guardrails.tuning import TUNING
from hardwon.memory.open_runs.locks import LOCKS
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.remote.parts import RemoteAdmin, RemoteEpisodes, RemoteItems
from hardwon.memory.retrieval import request
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.runtime.agent import Agent
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
def remote(address, request: pytest.FixtureRequest):
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


LONG = "You see a drawer. " + "a mug and a pan " * 20_000
LONG_STATES = {
    "observation": State(LONG, task="find the spoon"),
    "notes": State("You see a drawer.", task="find the spoon", notes=("a mug and a pan " * 20,) * 1000),
    "facts": State("You see a drawer.", {"page": LONG}, task="find the spoon"),
    "many facts": State(
        "You see a drawer.", {f"shelf {n}": ["a mug"] * 9 for n in range(6_000)}, task="find the spoon"
    ),
    "task": State("You see a drawer.", task=LONG),
}


@pytest.mark.parametrize("part", LONG_STATES)
def test_a_state_that_is_longer_than_a_server_takes_is_cut(remote, library, part):
    """As a library in a file cuts it. Of an action, the middle is left out."""
    state, answers = LONG_STATES[part], []
    assert sum(map(len, request.list_texts(state))) > request.LONGEST_SERVED
    for one in (remote, library):
        steps = (Step(state, "open drawer", state, Diagnosis(True), 1.0, 0),)
        one.record(Trajectory(state.task, steps, True, id="e-1"))
        whole = one.recall(state, actions={"open drawer": ""}, after=LONG, task=LONG)
        answers.append([
            (whole.path, whole.estimates["open drawer"].value),
            one.check(state, "open drawer"), one.check(state, ["open drawer"]), one.enforce(state, "open drawer"),
            one.check(state, f"write(content={LONG * 2!r})").allowed, one.offered(state),
            one.look_ahead(state, ["open drawer"]), one.episodes.keys(state, "open drawer")[:2],
        ])  # fmt: skip
        assert isinstance(one.episodes.context(state, "open drawer"), str)
    assert answers[0] == answers[1]


def test_a_text_that_is_longer_than_a_server_takes_is_cut(remote, library, episode):
    answers = []
    for one in (remote, library):
        one.record(episode("open drawer"))
        one.add(Item("insight", "Mugs", "a mug and a pan"))
        answers.append([
            one.recall(LONG).path, len(one.search(LONG)), len(one.search("é " * 90_000)),
            [item.title for item in one.items.find(text="mug " * 90_000)],
            len(one.items.find(text=" ".join(f"mug{n}" for n in range(20_000)))),
        ])  # fmt: skip
    assert answers[0] == answers[1]
    assert answers[0][3] == ["Mugs"]


@pytest.mark.parametrize(("places", "length"), [(1_200, 1), (300, 1_000), (2, 150_000)])
def test_of_a_long_episode_the_newest_places_are_sent(remote, library, places, length):
    """In which the way back to the last place is known."""
    episode = EpisodeMap()
    states = [State("x" * length, location=f"room {number}", task="find the spoon") for number in range(places)]
    states.append(State("Here.", location="end", task="find the spoon"))
    for here, there in itertools.pairwise(states):
        episode.add(Step(here, f"go {there.location}", there, Diagnosis(True), admissible=("look", "take spoon")))
        episode.add(Step(there, f"go {here.location}", here, Diagnosis(True), admissible=("look",)))
    taken = Step(states[-2], "take spoon", states[-2], Diagnosis(True), 1.0)
    for one in (remote, library):
        one.record(Trajectory("find the spoon", (taken,), True))
        value = one.look_ahead(states[-1], [f"go {states[-2].location}"], episode).by_action
        assert value or length > request.LONGEST_SERVED // 2
    episode.add(Step(states[0], "look", states[0], Diagnosis(True)))
    trail = episode.trace()
    assert [visit.state.location for visit in trail.visits[-2:]] == [states[-1].location, states[0].location]
    assert sum(map(len, request.list_trail(trail))) > request.LONGEST_SERVED or places > request.MOST_VISITS
    short = EpisodeMap()
    short.add(Step(states[-1], "look", states[-1], Diagnosis(True)))
    assert request.fit_trail(short.trace()) == short.trace()


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
        # another remedy each time: one for all would explain the failures, and take the place of a guardrail
        made = [(lamps(number), BROKEN)] * 2 + [(f"change_{number}(part='bulb')", WORKED), (lamps(number), WORKED)]
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
