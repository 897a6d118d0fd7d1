"""One conformance suite: every public method of a library, on every backend, answers like a library file."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from tests.apps.http.test_remote import served
from tests.memory.fleet.conftest import server, url
from tests.memory.upkeep.digest import compute_digest
from tests.memory.writers import restore

from hardwon.apps.http.app import create_app
from hardwon.memory import (
    Diagnosis,
    ExperienceLibrary,
    Failure,
    Item,
    State,
    Step,
    Trajectory,
)
from hardwon.memory.errors import ConfigError, HardwonError, LibraryError, UnknownName
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.upkeep.figures import count_tiers
from hardwon.memory.upkeep.queries import has_episode, select_steps

__all__ = ["server", "url"]

BACKENDS = ("memory", "postgres", "http")
"""All are compared with a library file."""
LACKS: dict[str, set[str]] = {
    "http": {
        "changes", "count_rating", "count_tiers", "deciding_episodes", "digest", "look_ahead", "forget", "gate",
        "has_episode", "index", "item_figures", "newest_change", "open_values", "repair", "restore",
        "select_steps", "standing",
    },
}  # fmt: skip
"""What a backend does not have: such a call raises an error of hardwon that says so."""
CLOCKS = {
    "at", "recorded_at", "created_at", "updated_at", "path", "bytes", "position", "staleness_s", "digest", "first_at",
    "last_at", "oldest", "newest", "scans", "age_s", "due", "seconds", "file_bytes", "began", "tried", "writer",
}  # fmt: skip
"""Names of values that depend on the clock or the place."""
START = State("You are in the attic.", {"door": "closed"}, "attic", "find the lamp")
LOFT = State("You are in the loft with a green rug.", {}, "loft", "find the lamp")
THEN = State("You are in the barn.", {"door": "open"}, "barn", "find the lamp", "the door opens")


def make_episode(number: int) -> Trajectory:
    is_good = number % 3 > 0
    action = "open door" if is_good else "kick door"
    diagnosis = Diagnosis(is_good, Failure.NONE if is_good else Failure.NO_EFFECT)
    step = Step(
        START, action, THEN if is_good else START, diagnosis, float(is_good), 0, admissible=("open door", "wait")
    )
    return Trajectory("find the lamp", (step,), is_good, float(is_good), seed=number, id=f"e{number}")


def make_way(number: int) -> Trajectory:
    """Make an episode in which the action before decides what is done in the loft."""
    first, then, rug = (("climb rope", "pull cord", "red"), ("climb ladder", "push lever", "blue"))[number % 2]
    loft = State(f"You are in the loft with a {rug} rug.", {}, "loft", "find the lamp")
    steps = Step(START, first, loft, Diagnosis(True)), Step(loft, then, THEN, Diagnosis(True), 1.0, 1)
    return Trajectory("find the lamp", steps, True, 1.0, seed=50 + number, id=f"way-{number}")


def make_item(number: int) -> Item:
    return Item(
        "insight", f"wash vegetable number {number}", f"rinse vegetable {number} in cold water", id=f"item-{number}"
    )


def fill(library: ExperienceLibrary, writer: str = "") -> None:
    """Record episodes and items and learn; with a writer as a server stores what its clients send."""

    def record(*numbers: int) -> None:
        episodes = [make_episode(number) if number < 50 else make_way(number - 50) for number in numbers]
        library.episodes.receive(episodes, writer=writer, trust="trusted") if writer else library.record_many(episodes)

    record(*range(9))
    record(9, *range(50, 56))
    for number in range(3):
        library.add(make_item(number))
    library.evolve()


def first(library: ExperienceLibrary) -> str:
    return library.items.find(kinds=["insight"], sort="old")[0].id or ""


CALLS: dict[str, Callable[[Any], Any]] = {
    "episodes": lambda library: library.episodes.count(),
    "read_only": lambda library: library.admin.read_only,
    "namespace": lambda library: library.namespace,
    "embedder": lambda library: library.admin.embedder.fingerprint,
    "trajectories": lambda library: library.episodes.find(limit=4, offset=1),
    "trajectory": lambda library: library.episodes.get("e4"),
    "items": lambda library: library.items.find(sort="old", status=None),
    "get": lambda library: library.items.get(first(library)),
    "history": lambda library: [(change["op"], change["detail"]) for change in library.items.history(first(library))],
    "usages": lambda library: library.items.usages(first(library)),
    "usefulness": lambda library: library.items.usefulness(first(library)),
    "effects": lambda library: library.items.effects(first(library)),
    "standing": lambda library: library.items.standing(first(library)),
    "recall": lambda library: library.recall(START, actions={"open door": "", "kick door": ""}),
    "recall_after": lambda library: library.recall(LOFT, after="climb rope"),
    "recall_task": lambda library: library.recall(START, level="task"),
    "recall_text": lambda library: library.recall("a vegetable", k=2, kinds=["insight"], budget_tokens=100),
    "offered": lambda library: library.offered(START),
    "check": lambda library: library.check(START, "kick door"),
    "enforce": lambda library: library.enforce(START, "kick door", keep=False),
    "check_plan": lambda library: library.check(START, ["open door", "kick door"]),
    "look_ahead": lambda library: library.look_ahead(START, ["open door"]),
    "keys": lambda library: library.episodes.keys(START, "open door"),
    "context": lambda library: library.episodes.context(START, "open door"),
    "find": lambda library: library.items.find(["insight"], sort="new", limit=1, offset=1),
    "find_none": lambda library: library.items.find([]),
    "search": lambda library: [hit.what.id for hit in library.search("vegetable number 2")],
    "summaries": lambda library: library.episodes.summaries(),
    "evidence": lambda library: library.episodes.evidence(library.episodes.summaries()[0].id),
    "steps": lambda library: library.episodes.steps([1, 2, 99]),
    "select_steps": lambda library: library.admin.query(select_steps, [1, 2], task="find the lamp", seed=1),
    "has_episode": lambda library: library.admin.query(has_episode, task="find the lamp", seed=1),
    "count_tiers": lambda library: library.admin.query(count_tiers),
    "verify": lambda library: library.admin.verify(),
    "index": lambda library: (
        sorted(library.episodes.index_demonstrations().actions)
        if hasattr(library.episodes.index_demonstrations(), "actions")
        else 0
    ),
    "pin": lambda library: library.items.update(first(library), pinned=True),
    "update": lambda library: library.items.update(first(library), body="scrub it with a brush"),
    "undo": lambda library: library.items.undo(first(library)),
    "feedback": lambda library: library.feedback(first(library), True, writer="token:x", episode="e1").score,
    "add": lambda library: library.add(make_item(7)),
    "rewrite": lambda library: library.items.merge(["item-7"], make_item(8)),
    "retire": lambda library: library.items.retire("item-2", "not needed"),
    "restore": lambda library: restore(library, make_item(20)),
    "evolve": lambda library: library.evolve(),
    "forget": lambda library: library.admin.forget(episode="e2").counts,
    "repair": lambda library: library.admin.repair(),
    "open_values": lambda library: library.admin.open_values().close(),
    "record": lambda library: library.record(make_episode(30)),
}
"""One call of each method, in this order. The calls change the library, so all backends make all of them."""


def plain(value: Any) -> Any:
    """Return a result as JSON values, without what depends on the clock or the place."""
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(name): plain(value[name]) for name in sorted(value, key=str) if name not in CLOCKS}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, bool | float):
        return round(float(value), 6)
    if isinstance(value, int):
        return float(value)
    return value if isinstance(value, str | int | bool | None) else str(value)


@contextmanager
def open_backend(name: str, folder: Path, address: Callable[[], str]) -> Iterator[ExperienceLibrary]:
    with ExitStack() as stack:
        if name == "http":
            server_url = stack.enter_context(served(folder / "served.db", trust="trusted"))
            yield stack.enter_context(RemoteLibrary(server_url, raw=True))
        elif name == "postgres":
            yield stack.enter_context(ExperienceLibrary.open(address(), replica=folder / "replica"))
        else:
            yield stack.enter_context(ExperienceLibrary.open(folder / "file.db" if name == "file" else ":memory:"))


@pytest.fixture
def address(request):
    return lambda: request.getfixturevalue("url")


def run_calls(library: ExperienceLibrary, lacks: set[str], writer: str = "") -> dict[str, Any]:
    fill(library, writer)
    answers: dict[str, Any] = {}
    for name, call in CALLS.items():
        try:
            answers[name] = plain(call(library))
        except HardwonError as error:
            answers[name] = f"{type(error).__name__}: {error}" if name not in lacks else "lacks"
        except AttributeError:
            answers[name] = "lacks"
    return answers


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_method_answers_like_that_of_a_file(backend, tmp_path, address):
    lacks = LACKS.get(backend, set())
    with open_backend("file", tmp_path, address) as file, open_backend(backend, tmp_path, address) as other:
        expected = run_calls(file, set(), "http" if backend == "http" else "")
        answers = run_calls(other, lacks)
    assert {name for name, answer in answers.items() if answer == "lacks"} <= lacks
    # What a backend cannot do, it did not do either: what the later calls count may differ.
    compared = [name for name in CALLS if name not in lacks and not (lacks and name in ("evolve", "record"))]
    assert {name: answers[name] for name in compared if answers[name] != expected[name]} == {}


@pytest.mark.parametrize("backend", ["file", *BACKENDS])
def test_errors_are_the_same(backend, tmp_path, address):
    with open_backend(backend, tmp_path, address) as library:
        library.record(make_episode(1))
        for call in (
            lambda: library.episodes.get("nothing"),
            lambda: library.items.get("nothing"),
            lambda: library.items.update("nothing", pinned=True),
        ):
            with pytest.raises(UnknownName):
                call()
        with pytest.raises(ConfigError):
            library.record(dataclasses.replace(make_episode(2), score=float("nan")))
        with pytest.raises(ConfigError):
            library.record(dataclasses.replace(make_episode(1), task="another"))
        assert library.episodes.count() == 1


@pytest.mark.parametrize("backend", ["file", *BACKENDS])
def test_an_export_of_one_is_imported_by_another(backend, tmp_path, address):
    with ExperienceLibrary.open(tmp_path / "source.db") as source:
        fill(source)
        lines = source.admin.export_jsonl(tmp_path / "source.jsonl")
    with open_backend(backend, tmp_path, address) as library:
        assert library.admin.import_jsonl(tmp_path / "source.jsonl") == lines
        assert library.admin.export_jsonl(tmp_path / "target.jsonl") == lines
    texts = [sorted((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("source", "target")]
    assert [json.loads(line) for line in texts[0]] == [json.loads(line) for line in texts[1]]


@pytest.mark.parametrize("backend", ["file", "postgres", "http"])
def test_another_handle_sees_another_namespace(backend, tmp_path, address):
    with open_backend(backend, tmp_path, address) as library:
        library.record(make_episode(1))
        with library.reopen("other") as other:
            assert (other.namespace, other.episodes.count()) == ("other", 0)
        with library.reopen() as again:
            assert again.episodes.count() == 1


class Fleet(RuleBasedStateMachine):
    """Two handles of a shared library with replicas of their own, against a model of plain dictionaries."""

    make: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.handles = type(self).make()
        self.episodes: dict[str, str] = {}
        self.items: dict[str, str] = {}
        self.number = 0

    @rule(who=st.integers(0, 1), number=st.integers(0, 6), good=st.booleans())
    def record(self, who: int, number: int, good: bool) -> None:
        episode = dataclasses.replace(make_episode(1 if good else 3), id=f"e{number}")
        action = episode.steps[0].action
        if self.episodes.get(f"e{number}", action) != action:
            with pytest.raises(ConfigError):
                self.handles[who].record(episode)
            return
        self.handles[who].record(episode)
        self.episodes[f"e{number}"] = action
        assert self.handles[who].episodes.get(f"e{number}").steps[0].action == action  # its own write

    @rule(who=st.integers(0, 1), number=st.integers(0, 6))
    def forget(self, who: int, number: int) -> None:
        if f"e{number}" not in self.episodes:
            with pytest.raises(UnknownName):
                self.handles[who].admin.forget(episode=f"e{number}")
            return
        assert self.handles[who].admin.forget(episode=f"e{number}").episodes == (f"e{number}",)
        del self.episodes[f"e{number}"]

    @rule(who=st.integers(0, 1))
    def add(self, who: int) -> None:
        self.number += 1
        words = ("copper", "velvet", "marble", "cotton", "silver", "timber", "rubber", "nickel", "canvas", "pewter")
        word = words[self.number % 10] + "x" * (self.number // 10)
        admission = self.handles[who].add(Item("insight", f"polish {word}", f"{word} {word} shines", source="person"))
        if admission.status == "added":
            self.items[admission.item_id] = "active"

    @rule(who=st.integers(0, 1), pick=st.integers(0, 99))
    def retire(self, who: int, pick: int) -> None:
        if active := sorted(ref for ref, status in self.items.items() if status == "active"):
            ref = active[pick % len(active)]
            self.handles[who].items.retire(ref, "not needed")
            self.items[ref] = "retired"

    @rule()
    def compare(self) -> None:
        for handle in self.handles:
            handle.admin.sync()
            assert {row["id"] for row in handle.episodes.find()} == set(self.episodes)
            statuses = {item.id: item.status for item in handle.items.find(status=None)}
            assert {ref: statuses[ref] for ref in self.items} == self.items
        assert self.handles[0].admin.query(compute_digest) == self.handles[1].admin.query(compute_digest)

    def teardown(self) -> None:
        self.compare()
        assert self.handles[0].admin.verify() == []
        for handle in self.handles:
            handle.close()


@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_two_handles_against_a_model(examples, server, tmp_path):
    import itertools
    import os

    numbers = itertools.count()

    def make() -> list[ExperienceLibrary]:
        number = next(numbers)
        address = server.create_database(f"machine_{os.getpid()}_{examples}_{number}")
        return [ExperienceLibrary.open(address, replica=tmp_path / f"{number}-{who}") for who in "ab"]

    machine = type("Machine", (Fleet,), {"make": staticmethod(make)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=12, deadline=None, database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )  # fmt: skip


def test_what_a_backend_lacks_says_so(tmp_path, address):
    with open_backend("http", tmp_path, address) as library:
        for call in (
            library.admin.repair,
            lambda: restore(library, make_item(1)),
            lambda: library.admin.query(compute_digest),
            library.admin.open_values,
        ):
            with pytest.raises(LibraryError, match="does not serve"):
                call()


def test_servers_on_two_hosts_answer_a_late_repetition_as_the_first_time(url, tmp_path, monkeypatch):
    """Others wrote since; what a client without an answer sends again must not undo it."""
    grade, put, drop = ("POST", "/v1/episodes/e1/grade"), ("POST", "/v1/bank/entries"), ("DELETE", "/v1/bank/entries")
    bodies = {grade: {"success": True}, put: {"team": "red", "key": "pepper", "value": "in the attic"}, drop: None}

    def ask(client, route, body, key=None):
        headers = {"Idempotency-Key": key} if key else {}
        answer = client.request(*route, json=body, headers=headers, params={"task": "t"} if "bank" in route[1] else {})
        return answer.status_code, answer.text

    with ExperienceLibrary.open(url, replica=tmp_path / "three") as library:
        library.record(dataclasses.replace(make_episode(0), id="e1"))
    with ExitStack() as stack:
        hosts = []
        for name in ("one", "two"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
            hosts.append(stack.enter_context(TestClient(create_app(url, trust="trusted"), base_url="http://localhost")))
            assert hosts[-1].get("/v1/about").is_success
        one, two = hosts
        answers = {route: ask(one, route, body, f"key of {route}") for route, body in bodies.items()}
        assert {status for status, _ in answers.values()} == {200, 204}
        ask(two, grade, {"success": False})
        ask(two, put, {"team": "red", "key": "salt", "value": "in the barn"})
        assert {route: ask(two, route, body, f"key of {route}") for route, body in bodies.items()} == answers
        assert two.get("/v1/bank/entries", params={"task": "t"}).json()["entries"][0]["key"] == "salt"
        assert two.get("/v1/episodes/e1").json()["success"] is False
        assert ask(two, grade, {"success": False}, f"key of {grade}")[0] == 422
