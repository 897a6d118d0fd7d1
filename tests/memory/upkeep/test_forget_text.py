"""A text to forget is recognized in every form in which a reader sees the same words."""

import time
from unicodedata import normalize

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.upkeep.forgetting import build_text_matcher


def record(library, text):
    """Record an episode with a text; return its id."""
    state = State(f"BankClient. {text} waits.", {"guests": [text]}, task="greet")
    return library.record(Trajectory("greet", (Step(state, "go", state, Diagnosis(True)),), success=True))


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("José", normalize("NFD", "José")),
        (normalize("NFD", "José"), "JOSÉ"),
        ("straße", "STRASSE"),
        ("Anna Schmidt", "Anna  Schmidt"),
        ("Anna Schmidt", "Anna\nSchmidt"),
        ("Anna  Schmidt", "Anna\u00a0Schmidt"),
        ("Anna Schmidt", "An\u200bna\u00ad Schmidt"),
        ("An\u200bna Schmidt", "anna schmidt"),
        ("file", "\ufb01le"),
    ],
)
def test_a_text_is_forgotten_in_every_form(path, asked, stored):
    with ExperienceLibrary.open(path) as library:
        ref, other = record(library, stored), record(library, "Bob")
        assert library.admin.forget(text=asked).episodes == (ref,)
        assert [row["id"] for row in library.episodes.find()] == [other]


def test_an_escaped_text_is_recognized():
    has_text = build_text_matcher("Anna José")
    assert has_text('["anna\\njose\\u0301"]')
    assert not has_text('["anna\\\\njosé"]')


@pytest.mark.parametrize("text", ["\u200b", "\u00a0"])
def test_a_text_of_invisible_characters_is_not_in_every_text(text):
    assert not build_text_matcher(text)("anna schmidt")
    assert build_text_matcher(text)(f"anna{text}schmidt")


def test_spaces_around_a_text_count():
    has_text = build_text_matcher(" anna ")
    assert has_text("call\n anna  now")
    assert not has_text("susanna now")


def test_a_large_text_is_searched_quickly():
    text = "Der Müller mahlt das Korn.\n" * 40_000
    begin = time.perf_counter()
    assert not build_text_matcher("José")(text)
    assert time.perf_counter() - begin < 2.0
