"""The extractor of a server reads recorded episodes beside the requests."""

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from hardwon.apps.http.app import create_app
from hardwon.apps.http.state.reader import BackgroundReader
from hardwon.apps.http.state.shelf import Shelf
from hardwon.apps.http.state.watch import Measures
from hardwon.memory import Add, Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.records import Trust
from hardwon.memory.wire import plain


class Notes:
    """An extractor that proposes one insight for each episode, and remembers what it read."""

    def __init__(self):
        self.read, self.failing = [], set[str]()

    def extract(self, trajectory, shown):
        self.read.append((trajectory.id, [item.title for item in shown]))
        if trajectory.id in self.failing:
            raise RuntimeError("the model is gone")
        evidence = tuple(step.id for step in trajectory.steps)
        return [Add(Item("insight", f"lamps of {trajectory.id} are blue", provenance=evidence, source="model"))]


def episode(name, **changes):
    seen, after = State("a lamp", task="find"), State("no lamp", task="find")
    step = Step(seen, "take lamp", after, Diagnosis(True), reward=1.0)
    return replace(Trajectory("find", (step,), True, 1.0, id=name), **changes)


@pytest.fixture
def notes():
    return Notes()


def send(path, notes, *episodes, trust: Trust = "trusted"):
    """Record episodes over HTTP and return the items of the library, once all episodes are read."""
    with TestClient(create_app(path, extractor=notes, trust=trust), base_url="http://127.0.0.1:8420") as client:
        body = {"episodes": [plain(Trajectory, each) for each in episodes]}
        assert client.post("/v1/episodes", json=body).status_code == 200
        cast(Any, client.app).state.reader.wait()
        figures = client.get("/metrics").text
    with ExperienceLibrary.open(path) as library:
        return {
            item.title: item.status for item in library.items.find(status=None) if "lamps of" in item.title
        }, figures


def test_each_recorded_episode_is_read_once(tmp_path, notes):
    items, _ = send(tmp_path / "library.db", notes, episode("a"), episode("b"))
    assert items == {"lamps of a are blue": "active", "lamps of b are blue": "active"}
    assert [name for name, _ in notes.read] == ["a", "b"]


def test_what_is_read_out_of_an_untrusted_episode_waits_in_quarantine(tmp_path, notes):
    items, _ = send(tmp_path / "library.db", notes, episode("a"), trust="untrusted")
    assert items == {"lamps of a are blue": "quarantined"}


def test_what_its_agent_has_read_and_what_has_no_outcome_is_passed_over(tmp_path, notes):
    read = episode("a", meta={"extraction": {"operations": ["return"]}})
    items, figures = send(tmp_path / "library.db", notes, read, episode("b", success=None))
    assert not items
    assert not notes.read
    assert 'hardwon_extractor_episodes_total{result="passed over"} 2.0' in figures


def test_a_failure_at_one_episode_leaves_the_next(tmp_path, notes):
    notes.failing = {"a"}
    items, figures = send(tmp_path / "library.db", notes, episode("a"), episode("b"))
    assert [*items] == ["lamps of b are blue"]
    assert 'hardwon_extractor_episodes_total{result="failed"} 1.0' in figures


def test_the_extractor_is_given_the_active_items_that_the_episode_was_shown(tmp_path, notes):
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path) as library:
        kept, gone = (
            library.add(Item("insight", f"shelf {name} has lamps", source="person")).item_id for name in ("one", "two")
        )
        library.items.retire(str(gone), "it is wrong")
    first = episode("a").steps[0]
    shown = replace(first, why=replace(first.why, recalled=(gone, kept)))
    send(path, notes, episode("a", steps=(shown,)))
    assert notes.read == [("a", ["shelf one has lamps"])]


def test_more_episodes_than_may_wait_are_left_to_the_rules(tmp_path, notes):
    shelf = Shelf(tmp_path / "library.db")
    begun, go = threading.Event(), threading.Event()

    class Slow:
        def extract(self, trajectory, shown):
            begun.set()
            go.wait(10)
            return []

    with shelf.writing("default") as library:
        library.record_many([episode(name) for name in "abcd"])
    measures = Measures(shelf)
    reader = BackgroundReader(shelf, Slow(), measures, most=1)
    reader.submit("default", ["a"])
    assert begun.wait(10)
    reader.submit("default", ["b", "c", "d"])
    go.set()
    reader.wait()
    reader.close()
    assert 'hardwon_extractor_episodes_total{result="skipped"} 2.0' in measures.text().decode()
    shelf.close()
