"""The clone of an environment, in which a planner tries actions."""

from typing import Any

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.loop.clone_model import CloneModel


class Corridor:
    """Four rooms in a row; the episode ends in the last one. `log` is what reached a clone."""

    name = "corridor"

    def __init__(self, log, first=0):
        self.log, self.first, self.room = log, first, 0

    def reset(self, task="", seed=0):
        self.log.append("reset")
        self.room = self.first
        return self.state()

    def step(self, action):
        self.log.append(action)
        self.room += 1
        return self.state(), 0.0, self.room == 3, {}

    def admissible(self, state):
        return ["go"]

    def clone(self):
        return Corridor(self.log)

    def close(self):
        self.log.append("close")

    def state(self):
        return State(f"Room {self.room}.")


def now(*steps):
    return Context(State(f"Room {len(steps)}."), ("go",), history=steps, start=("", 0))


def look(model, context, *path) -> Any:
    """Return where a path leads."""
    return model.imagine(context, path)


def walk(room):
    return Step(State(f"Room {room}."), "go", State(f"Room {room + 1}."), Diagnosis(True))


def test_a_longer_path_goes_on_where_the_clone_is():
    """Two actions cost two steps, not three: the first one is not repeated."""
    log: list[str] = []
    model = CloneModel(Corridor(log))
    assert look(model, now(), "go").state == State("Room 1.")
    assert look(model, now(), "go", "go").state == State("Room 2.")
    assert log == ["reset", "go", "go"]


def test_nothing_is_imagined_after_the_end():
    """The last room ends the episode, whether the clone is there already or is brought there."""
    model = CloneModel(Corridor([]))
    assert look(model, now(), *["go"] * 3).done
    assert model.imagine(now(), ["go"] * 4) is None
    assert model.imagine(now(walk(0), walk(1), walk(2)), ["go"]) is None


def test_a_start_that_was_not_repeated_is_not_tried_again():
    log: list[str] = []
    model = CloneModel(Corridor(log))
    elsewhere = Step(State("A garden."), "go", State("Room 1."), Diagnosis(True))
    assert model.imagine(now(elsewhere), ["go"]) is None
    assert model.imagine(now(elsewhere), ["go"]) is None
    assert log == ["reset"]


def test_closing_closes_the_clone_and_the_next_question_makes_another():
    log: list[str] = []
    model = CloneModel(Corridor(log))
    model.close()
    assert log == []
    model.imagine(now(), ["go"])
    model.close()
    assert log == ["reset", "go", "close"]
    assert look(model, now(), "go").state == State("Room 1.")
