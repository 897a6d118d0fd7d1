"""Agents' steps: in the event loop's own thread only where they are short, and hold up nobody."""

import threading
import time

import pytest
from fastapi.testclient import TestClient

from hardwon.apps.http.app import create_app
from hardwon.apps.http.routes import place
from hardwon.memory import ExperienceLibrary


@pytest.fixture
def client(path):
    with TestClient(create_app(path), base_url="http://127.0.0.1") as made:
        yield made


@pytest.fixture
def threads(monkeypatch):
    """In which threads recalls ran, in their order."""
    seen, recall = [], ExperienceLibrary.recall

    def watched(self, *asked, **how):
        seen.append(threading.get_ident())
        return recall(self, *asked, **how)

    monkeypatch.setattr(ExperienceLibrary, "recall", watched)
    monkeypatch.setattr(place, "QUICK_S", 60.0)  # however busy the machine is
    return seen


def ask(client, **asked):
    assert client.post("/v1/recall", json={"text": "where is a spoon?", **asked}).status_code == 200


def loop(client):
    """The event loop's own thread."""
    return client.portal.call(threading.get_ident)


def test_first_of_a_kind_is_worked_on_beside_the_loop_and_the_next_one_in_it(client, threads):
    for _ in range(3):
        ask(client)
    assert [one == loop(client) for one in threads] == [False, True, True]


@pytest.mark.parametrize("other", [{"k": 0}, {"level": "task"}, {"actions": {"wait": ""}}])
def test_what_asks_for_something_else_is_another_kind(client, threads, other):
    """It may have to read what was not read yet."""
    ask(client)
    ask(client, **other)
    assert loop(client) not in threads


def test_what_was_written_since_is_read_beside_the_loop(client, threads):
    ask(client)
    client.post("/v1/items", json={"items": [{"kind": "insight", "title": "Spoons lie in drawers"}]})
    ask(client)
    assert loop(client) not in threads


def test_a_long_text_is_worked_on_beside_the_loop(client, threads):
    for _ in range(2):
        ask(client, text="spoon " * ((64 * 1024) // 5))
    assert loop(client) not in threads


def test_what_was_slow_is_worked_on_beside_the_loop(client, threads, monkeypatch):
    monkeypatch.setattr(place, "QUICK_S", 0.0)
    for _ in range(2):
        ask(client)
    assert loop(client) not in threads


def test_a_step_that_waits_for_a_writer_holds_up_nobody_else(client, threads):
    ask(client)
    with client.app.state.shelf.writing("default") as library, library._file.transaction():
        waiting = threading.Thread(target=ask, args=(client,))
        waiting.start()
        while not client.app.state.turn._lock.locked():
            time.sleep(0.001)
        assert client.get("/openapi.json").status_code == 200
        assert waiting.is_alive()
    waiting.join()
    assert threads[1] != loop(client)
