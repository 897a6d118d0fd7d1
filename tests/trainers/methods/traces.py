"""What the tests of estimators and shapers share: traces by hand, and random batches with every signal."""

import random
from dataclasses import replace

import pytest
from hypothesis import settings, strategies as st

from hardwon.trainers.algorithms.advantages import Trace, Turn
from hardwon.trainers.algorithms.judging.checklists import ChecklistItem, check_items

FIGURES = (
    "entropy",
    "answer",
    "confidence",
    "progress",
    "implicit",
    "observation",
    "steps",
    "score",
    "prm",
    "critic",
    "retrospection",
    "part",
    "calls",
)
SCORES = ("answer", "quality", "entities", "verdict", "arena", "prediction", "budget")
few = settings(max_examples=20, deadline=None)
"""Examples of a property that is tested for every estimator or shaper."""
ITEMS = (ChecklistItem("D1", 0.8), ChecklistItem("D2", 0.2, after=("D1",)))


def make(name, outcome, turns=1, *, group="g", valid=True, actions=None, scores=None, tags=(), facts=None, **signals):
    """A trace with this many turns, or one per value of its signals."""
    number = max([turns, *(len(values) for values in signals.values()), len(tags), len(actions or ())])
    flags = [valid] * number if isinstance(valid, bool) else valid
    acted = tuple(
        Turn(action=(actions or [f"act {t}" for t in range(number)])[t], valid=flags[t]) for t in range(number)
    )
    given = {key: tuple(values) for key, values in signals.items()}
    return Trace(name, group, acted, outcome, signals=given, scores=scores or {}, tags=tuple(tags), facts=facts or {})


def close(a, b, **tolerance):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key] == pytest.approx(b[key], **(tolerance or {"abs": 1e-9}))


def strip(trace, *names):
    """The same trace, in which nothing is known of these signals."""
    return replace(trace, signals={**trace.signals, **{name: (None,) * len(trace.turns) for name in names}})


def draw_trace(number, chance):
    """A trace of one to four turns with a value, or None, of every signal."""
    length = chance.randint(1, 4)

    def values(none=0.2):
        return tuple(None if chance.random() < none else round(chance.random(), 3) for _ in range(length))

    own = tuple(
        Turn(
            round(chance.uniform(-1, 1), 3),
            chance.choice("xyz"),
            chance.choice("abc"),
            valid=chance.random() < 0.5,
            novel=chance.random() < 0.5,
            tokens=chance.randint(0, 4),
        )
        for _ in range(length)
    )
    answers = [{name: chance.random() < 0.5 for name in ("D1", "D2")} for _ in own]
    figures = {
        **{name: values() for name in FIGURES},
        "redundant": tuple(float(chance.random() < 0.5) for _ in own),
        "contribution": values(none=0),
        "items": (1.0,) * length,
    }
    return Trace(
        f"t{number}",
        chance.choice("gh"),
        own,
        chance.choice([0.0, 0.5, 1.0]),
        chance.choice(["policy", "extractor"]),
        chance.choice(["control", "retrieved"]),
        figures,
        {name: round(chance.random(), 3) for name in SCORES},
        tuple(chance.choice(["", "planning", "explore", "reflection"]) for _ in own),
        {"checklist": check_items(ITEMS, answers), "answer": chance.choice(["A", "B", ""])},
    )


def draw_batch(seed):
    chance = random.Random(seed)
    return [draw_trace(number, chance) for number in range(chance.randint(1, 6))]


batches = st.integers(0, 10**9).map(draw_batch)
"""Random batches from a seed: drawing every field with hypothesis would take most of the time of the tests."""
