"""The map: many points for many states, whether signatures tell them apart or not, and whether they were embedded."""

import random

import numpy as np
import pytest

from hardwon.apps.dashboard import figures, places
from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory

TOPICS = ["refund of an order", "broken screen", "flight to Rome", "lost password", "late parcel", "invoice address"]


def conversations(path, n):
    """A library of talks: states with few signatures, since nothing in them is a list of things."""
    luck = random.Random(1)
    with ExperienceLibrary.open(path) as library:
        for number in range(n):
            topic = TOPICS[number % len(TOPICS)]
            words = [f"The customer asks about the {topic} and says {luck.randrange(10**6)} {w}." for w in ("a", "b")]
            pre, post = (State(text, task="help", signature="talk") for text in words)
            step = Step(pre, f"answer({number})", post, Diagnosis(True), 1.0 if number % 6 == 0 else 0.0)
            library.record(Trajectory("help", (step,), True, id=f"e{number}"))
    return path


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    return conversations(tmp_path_factory.mktemp("talks") / "library.db", 600)


def test_one_signature_is_not_one_point(talks):
    with ExperienceLibrary.open(talks, read_only=True) as library:
        rows, points = figures.situations(library)
    assert len(rows) == 1
    assert len(points) > 50
    assert len({(point["x"], point["y"]) for point in points}) > 5
    assert sum(point["states"] for point in points) == pytest.approx(rows[0]["states"], rel=0.1)
    returns = [point["mean_return"] for point in points if point["mean_return"] is not None]
    assert max(returns) > 0.5 > min(returns)
    assert len({point["example"] for point in points}) > 50


def test_points_need_no_embedding_beforehand_and_leave_none(talks):
    with ExperienceLibrary.open(talks, read_only=True) as library:
        assert library._store.rows("SELECT count(*) FROM vectors") == [(0,)]
        _, points = figures.situations(library)
        assert points
        assert library._store.rows("SELECT count(*) FROM vectors") == [(0,)]


def test_every_signature_is_a_point_where_there_are_many(path):
    with ExperienceLibrary.open(path) as library:
        for number in range(60):
            state = State(f"Room {number} has a lamp and {number} chairs.", signature=f"s{number}")
            step = Step(state, "wait", state, Diagnosis(True))
            library.record(Trajectory("t", (step,), True, id=f"e{number}"))
        rows, points = figures.situations(library)
    assert [point["signature"] for point in points] == [row["signature"] for row in rows]


def test_one_far_away_does_not_make_a_spot_of_the_others():
    luck = np.random.default_rng(1)
    crowd = luck.normal(size=(100, 8))
    placed = np.array(places.project([*crowd, np.full(8, 1000.0)]))
    across = placed.max(axis=0) - placed.min(axis=0)
    spread = placed[:100].max(axis=0) - placed[:100].min(axis=0)
    assert (spread > across / 4).all()


def test_empty_library_has_no_points(library):
    assert figures.situations(library) == ([], [])
