"""An item that is not in the library is recalled where it would be recalled if it were."""

import random

import pytest

from hardwon.memory import ExperienceLibrary, Item, State

PLACES = ("oakdale", "elmford", "ashton", "birchwick", "foxmoor")
PLANTS = ("fern", "sage", "mint", "moss", "dill", "reed")
AILMENTS = ("rash", "cough", "fever", "cramp")
STATES = [
    State(f"A patient with {ailment} waits.", location=place, task=f"Cure the {ailment} in {place}.")
    for place in PLACES
    for ailment in AILMENTS[:2]
]
CANDIDATES = (
    "In oakdale hot fern cures rash",
    "hot fern cures rash",
    "In oak hot fern cures rash",
    "In newton cold moss cures cough",
    "Patients wait",
    "Cure nothing but the cough in elmford",
    "quarterly revenue rose sharply",
)


def build(episode, texts, further=()):
    library = ExperienceLibrary.open(":memory:")
    for state in STATES[:6]:
        library.record(episode("give fern", see=state.observation))
    library.items.add_many([Item("insight", text) for text in (*texts, *further)])
    return library


def write_texts(count):
    chance = random.Random(count)
    lines = (f"In {p} {h} does not cure {a}" for p in PLACES[:4] for h in PLANTS for a in AILMENTS)
    return chance.sample(list(lines), count)


@pytest.mark.parametrize("count", [0, 2, 60])
def test_an_item_beside_the_library_is_recalled_where_it_would_be_if_it_were_in_it(episode, count):
    """In libraries of several sizes, for lessons that fit more or less."""
    texts = write_texts(count)
    with build(episode, texts) as library:
        for text in CANDIDATES:
            with build(episode, texts, [text]) as other:
                for question in (*STATES, "which plant cures rash in oakdale?"):
                    beside = library.recall(question, k=3, beside=Item("insight", text, id="x")).items
                    stored = other.recall(question, k=3).items
                    assert ("x" in {hit.what.id for hit in beside}) == (text in {hit.what.title for hit in stored})


def test_an_item_beside_the_library_is_forgotten_after_the_recall(episode):
    with build(episode, write_texts(12)) as library:
        for state in STATES:
            library.recall(state, k=3)
        first = [library.recall(state, k=3).items for state in STATES]
        for state in STATES:
            assert "x" in {
                hit.what.id for hit in library.recall(state, k=3, beside=Item("insight", state.task, id="x")).items
            }
        assert [library.recall(state, k=3).items for state in STATES] == first


def test_an_item_of_the_library_stands_before_one_beside_it_with_the_same_words(episode):
    with build(episode, [*write_texts(12), "In oakdale hot fern cures rash"]) as library:
        beside = Item("insight", "in oakdale hot fern cures rash", id="x", score=1.0)
        hits = library.recall(STATES[0], beside=beside).items
        assert "In oakdale hot fern cures rash" in {hit.what.title for hit in hits}
        assert "x" not in {hit.what.id for hit in hits}
