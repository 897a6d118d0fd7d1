from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Hit, Item, State, Step, Trajectory
from hardwon.memory.retrieval import recall
from hardwon.memory.retrieval.candidates import fuse
from hardwon.memory.retrieval.recall import _interleave
from hardwon.memory.retrieval.tuning import TUNING
from hardwon.memory.retrieval.vector_index import VectorIndex
from hardwon.memory.storage.episodes import read_best_steps


@pytest.fixture
def taught(library):
    """A library with three items."""
    for title in ("a stove burns potatoes", "an oven roasts potatoes", "keys open doors"):
        library.add(Item("insight", title))
    return library


def titles(hits):
    """What was found."""
    return [hit.what.title for hit in hits]


def test_fusing_follows_the_formula():
    """score(d) = sum 1 / (RRF + rank), by hand; 2 is second and first, 1 first, 3 second."""
    assert fuse([1, 2], [2, 3]) == [2, 1, 3]
    assert (
        1 / (TUNING.rank_constant + 2) + 1 / (TUNING.rank_constant + 1)
        > 1 / (TUNING.rank_constant + 1)
        > 1 / (TUNING.rank_constant + 2)
    )


def test_fusing_breaks_ties_by_id():
    """Any process gives the same order."""
    assert fuse([5], [3]) == [3, 5]
    assert fuse([], []) == []


def test_meaning_finds_what_is_near(taught):
    """Dense search ranks by cosine."""
    hits = taught.search("an oven roasts", how="dense")
    assert titles(hits)[0] == "an oven roasts potatoes"
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)


def test_hybrid_says_what_found_a_hit(taught):
    """By words, by meaning, or by both."""
    why = {hit.what.title: hit.why for hit in taught.search("oven keyring")}
    assert why["an oven roasts potatoes"] == "words and meaning"
    assert why["keys open doors"] == "meaning"


def test_what_only_words_find_is_found(library):
    """A hit beyond the depth of the dense search comes in by its words."""
    for number in range(60):
        library.add(Item("insight", f"copper copper copper kettle {'abcdefgh'[number % 8]}{number}"))
    library.add(Item("insight", "copper " + " ".join(f"filler{n}" for n in range(40)) + " zinc"))
    hits = {hit.why for hit in library.search("copper kettle zinc", k=40) if "zinc" in hit.what.title}
    assert hits == {"words"}


@pytest.mark.parametrize("text", ["", "  ", "the of", '"', "'", 'a" OR b*', "NEAR(x y)", "(((", "col:x", "-", "日本語"])
def test_any_text_may_be_searched_for(taught, text):
    """No text is a syntax error of the index."""
    for how in ("hybrid", "dense", "text"):
        taught.search(text, how=how)


def test_a_changed_item_is_found_by_its_new_words(taught):
    """By meaning as well as by words, though newer items have vectors already."""
    first = taught.search("stove burns", how="dense")[0].what
    taught.items.update(first.id, title="a fridge cools milk")
    for how in ("dense", "text"):
        assert titles(taught.search("fridge cools milk", how=how))[0] == "a fridge cools milk"
        assert "a stove burns potatoes" not in titles(taught.search("stove burns", how=how))


def test_lost_vectors_are_made_again(path, taught):
    """All of them or some: the truth is the text."""
    taught.search("anything")
    for condition in ("ref = 1", "1"):
        taught._file.store.connection.execute(f"DELETE FROM vectors WHERE {condition}")
        with ExperienceLibrary.open(path) as again:
            assert len(again.search("stove oven keys potatoes doors", how="dense")) == 3
            assert again._file.store.rows("SELECT count(*) FROM vectors") == [(3,)]


def test_a_torn_vector_is_made_again(path, taught):
    """A vector of another length is none."""
    taught.search("anything")
    taught._file.store.connection.execute("UPDATE vectors SET vector = x'00' WHERE ref = 2")
    with ExperienceLibrary.open(path) as again:
        assert titles(again.search("an oven roasts potatoes", how="dense"))[0] == "an oven roasts potatoes"


def test_vectors_are_made_once(path, taught):
    """What one process embedded, another one reads."""
    taught.search("anything")
    with ExperienceLibrary.open(path) as again:
        again.admin.embedder.embed = None  # type: ignore[method-assign, assignment]
        assert len(again._file.search.index("items")) == 3


def test_vectors_of_another_process_are_taken_over(path, library, episode):
    """A reader that searched before learns what another process embedded since."""
    library.search("anything")
    with ExperienceLibrary.open(path) as other:
        other.record(episode(see="A zebra grazes."))
        other.search("anything")
    library.search("anything")
    assert len(library._file.search.index("states")) == 2


def test_threads_may_search_while_others_write(library, episode):
    """No crash, no lost episode, and everything is found at the end."""

    def write(who):
        for number in range(10):
            library.record(episode(see=f"{who} sees a box {number}."))
            library.add(Item("insight", f"{who} learnt {number}"))

    def look():
        for _ in range(15):
            library.search("sees a box")
            library.recall(State("ann sees a box", task="x"))

    with ThreadPoolExecutor() as pool:
        for work in [pool.submit(write, "ann"), pool.submit(write, "bob"), pool.submit(look), pool.submit(look)]:
            work.result()
    assert library.episodes.count() == 20
    assert len(library._file.search.index("states")) == 21
    assert library.admin.verify() == []


def test_of_texts_with_all_the_words_the_one_that_says_little_else_comes_first():
    """BM25 weighs the length of a text, the share of words that it has does not."""
    with ExperienceLibrary.open(":memory:") as library:
        long = "The kettle and the spoon " + " ".join(f"thing{number} lies{number}" for number in range(60))
        for number, seen in enumerate((long, "A kettle, a spoon.", *(f"Door {n} of hall {n}." for n in range(9)))):
            step = Step(State(seen), "look", State("Nothing."), Diagnosis(success=True), reward=1.0)
            library.record(Trajectory(f"task {number}", (step,), success=True, score=1.0))
        words = library._file.search.texts["states"].search("kettles and spoons", 5, Counter, 24)
        assert [round(one.share, 3) for one in words] == [1.0, 1.0]
        assert words[0].score == 1.0 > words[1].score
        found = library.search("kettles and spoons", 1)[0].what
        assert isinstance(found, Step)
        assert found.pre.observation == "A kettle, a spoon."


def test_short_text_about_the_words_comes_before_a_long_one_that_mentions_more_of_them(library, episode):
    """The order is that of weights, lengths and cosine, not of the share of words alone, which the similarity shows."""
    rest = " ".join(f"The guide describes room {name} of the museum." for name in ("amber", "beige", "coral", "denim"))
    library.record(episode("leave", see=f"{rest} A cello stood in the hall of the concert house. {rest}"))
    library.record(episode("listen", see="Ben plays the cello. His cello is old."))
    library.record(episode("wait", see="A concert in the open."))
    hits = library.search("cello concert")
    assert {hit.what.action for hit in hits[:2]} == {"listen", "wait"}
    assert hits[0].similarity < max(hit.similarity for hit in hits)


def test_items_and_steps_are_merged_by_similarity_and_keep_their_own_order():
    def ranked(*similarities):
        return [Hit(Item("insight", str(value)), value, "words") for value in similarities]

    merged = _interleave(ranked(0.5, 0.9), ranked(0.7, 0.2))
    assert [hit.similarity for hit in merged] == [0.7, 0.5, 0.9, 0.2]
    assert _interleave([], merged) == merged


def test_steps_are_read_only_as_far_as_they_are_shown(library, monkeypatch):
    """Of the states that a search finds, six are read: three, of which one repeats a text, and three more."""
    sizes: list[int] = []

    def count(store, states, where):
        sizes.append(len(states))
        return read_best_steps(store, states, where)

    monkeypatch.setattr(recall, "read_best_steps", count)
    for n, place in enumerate(("", "", " by the door", " by the wall", " by the desk", " by the bed", " by the sink")):
        state = State(f"a red lamp{place}", location=f"room {n}", task="find the lamp")
        library.record(Trajectory("find the lamp", (Step(state, "take lamp", state, Diagnosis(True), 1.0, 0),), True))
    assert len(library.search("a red lamp", k=3, how="dense")) == 3
    assert sizes == [3, 3]


def test_an_index_that_outgrows_its_form_while_the_library_cannot_be_written(path, monkeypatch):
    """All vectors are only in memory then, also those of the sample for a trained index."""
    monkeypatch.setattr(VectorIndex, "LIMIT", 8)

    def record(letters: str) -> None:
        with ExperienceLibrary.open(path) as library:
            for letter in letters:
                seen = State(f"You are in room number {letter}.")
                library.record(Trajectory("find the key", (Step(seen, "look", seen, Diagnosis(True), 1.0, 0),), True))

    record("ab")
    with ExperienceLibrary.open(path, read_only=True) as library:
        assert library.recall("You are in room number a.", k=3).steps
        record("cdefghijklmnop")
        assert library.recall("You are in room number c.", k=3).steps
