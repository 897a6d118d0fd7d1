from collections import Counter
from itertools import count

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.retrieval.text_index import TextIndex
from hardwon.memory.retrieval.tuning import TUNING
from hardwon.memory.storage.episodes import first_row


@pytest.fixture
def shown(library):
    """Makes a text index over items that say these things."""
    numbers = count(first_row(1) + 1)

    def make(*texts):
        with library._file.store.transaction() as connection:
            rows = [(next(numbers), text) for text in texts]
            connection.executemany("INSERT INTO items_text(rowid, text) VALUES (?, ?)", rows)
        return TextIndex(library._file.store.rows, "items", 1)

    return make


def find(index, *query):
    """Return the ids of the rows that an index finds."""
    return [row.ref for row in index.search(*query)]


def test_the_words_that_the_fewest_rows_have_are_looked_up(shown):
    """Not those that the fewest episodes showed: one long episode may be half of all rows."""
    index = shown(*["fridge oven"] * 20, "kettle", "kettle", "oven")
    chosen = index.choose("a fridge, an oven, a kettle", Counter)
    assert chosen.words == ("kettle", "fridge", "oven")
    assert chosen.since == 0


def test_words_that_no_row_has_are_not_looked_up(shown):
    """They would take the place of those that find something."""
    assert shown("a kettle").choose("the zebra and the kettle", Counter).words == ("kettle",)
    assert shown().choose("zebra", Counter).words == ()


def test_a_long_text_has_few_terms(shown):
    """A long observation must not make the text index slow."""
    words = [f"word{n}" for n in range(3000)]
    index = shown(*words[:300])
    asked = []
    rows = index._rows

    def count(*query):
        asked.append(query)
        return rows(*query)

    index._rows = count
    assert len(" ".join(words)) > 20_000
    assert len(index.choose(" ".join(words), Counter).words) == TUNING.query_terms
    assert len(asked) <= TUNING.counted_words + 2  # the newest row, the rows, and one for each word


def test_of_a_long_text_the_words_of_few_episodes_are_considered(shown):
    """Which rows have them is counted for these alone."""
    index = shown("rare", *["common"] * 5)
    text = " ".join(f"word{n}" for n in range(3000)) + " rare"
    assert index.choose(text, lambda _: Counter({f"word{n}": 7 for n in range(3000)} | {"rare": 1})).words == ("rare",)


def test_common_words_are_left_out_where_rare_ones_serve(shown):
    """Ranking costs by the row; a word in nearly all of them tells nothing."""
    index = shown(*["door"] * TUNING.ranked_rows, "door kettle")
    assert index.choose("door kettle", Counter).words == ("kettle",)


def test_where_all_words_are_common_the_newest_rows_are_ranked(shown):
    """By the words that they have: the newest with both come first, and none is older than the window."""
    index = shown(*["door", "window", "door"] * TUNING.ranked_per_word, *["door window"] * 2)
    query = index.choose("door window", Counter)
    assert query.words == ("window", "door")
    assert query.since == first_row(1) + 3 * 2 + 2
    both = [3 * TUNING.ranked_per_word + 2, 3 * TUNING.ranked_per_word + 1]
    assert find(index, "door window", 2, Counter) == both
    assert find(index, "door window", 3 * TUNING.ranked_per_word, Counter)[2:5] == [
        3 * TUNING.ranked_per_word - n for n in (1, 4, 7)
    ]
    assert min(find(index, "door window", 3 * TUNING.ranked_per_word, Counter)) == 3 * 2 + 2


def test_many_rows_are_ranked_by_the_words_that_they_have(shown):
    """A word that few rows have weighs more than one that many have; the newer of two alike comes first."""
    index = shown(*["door"] * (TUNING.ranked_per_word - 1), "window", *["kettle"] * 200, "door window")
    query = index.choose("door window kettle", Counter)
    assert (query.since, set(query.words)) == (0, {"door", "window", "kettle"})
    assert query.rows > TUNING.few_rows
    last = TUNING.ranked_per_word + 201
    assert find(index, "door window kettle", 4, Counter) == [last, TUNING.ranked_per_word, last - 1, last - 2]


def test_a_row_written_since_is_among_the_newest(shown):
    """Which rows have a word is remembered until something is written."""
    index = shown(*["door window"] * TUNING.ranked_per_word)
    before = find(index, "door window", 1, Counter)
    shown("door window")
    assert (before, find(index, "door window", 1, Counter)) == ([TUNING.ranked_per_word], [TUNING.ranked_per_word + 1])


def test_rows_further_back_are_looked_up_where_a_rarer_word_asks_for_them(shown):
    """What is remembered of a word may begin later than what the next query needs."""
    index = shown(
        *["lamp"] * TUNING.ranked_per_word, *["door lamp"] * TUNING.ranked_per_word, *["door"] * TUNING.ranked_per_word
    )
    assert min(find(index, "door", 3 * TUNING.ranked_per_word, Counter)) == 2 * TUNING.ranked_per_word + 1
    assert min(find(index, "lamp door", 3 * TUNING.ranked_per_word, Counter)) == TUNING.ranked_per_word + 1


def test_a_row_taken_away_is_not_found_once_it_is_told(shown, library):
    """An item that was retired, or changed its words, is no newer row."""
    index = shown(*["door window"] * (TUNING.ranked_per_word + 1))
    assert find(index, "door window", 1, Counter) == [TUNING.ranked_per_word + 1]
    with library._file.store.transaction() as connection:
        connection.execute("DELETE FROM items_text WHERE rowid = ?", (first_row(1) + TUNING.ranked_per_word + 1,))
        connection.execute(
            "INSERT INTO items_text(rowid, text) VALUES (?, 'lamp')", (first_row(1) + TUNING.ranked_per_word + 1,)
        )
    index.forget()
    assert find(index, "door window", 1, Counter) == [TUNING.ranked_per_word]


def test_the_rows_of_few_words_are_remembered(shown, monkeypatch):
    """Memory stays bounded however many words are asked for."""
    monkeypatch.setattr("hardwon.memory.retrieval.text_index.LISTED", 2)
    words = ("door", "lamp", "oven", "sink")
    index = shown(*[" ".join(words)] * TUNING.ranked_per_word)
    for word in words:
        assert find(index, word, 1, Counter) == [TUNING.ranked_per_word]
        assert len(index._listed) <= 2


def test_what_was_written_since_is_counted(shown):
    """A word that no row had is looked up once one has it."""
    index = shown("a kettle")
    assert find(index, "zebra", 5, Counter) == []
    shown("a zebra")
    assert find(index, "zebra", 5, Counter) == [2]


def test_words_are_counted_as_the_index_stems_them(shown):
    """`doors` finds `door`."""
    assert shown("a door").choose("doors", Counter).words == ("doors",)


def test_two_processes_choose_the_same_words(path, library, episode):
    """What is chosen follows from what the library holds, not from what was asked before."""
    for number in range(5):
        library.record(episode(see=f"You see a kettle and box {number}."))
        library.search("a kettle and a mirror", how="text")
        library.add(Item("insight", f"boxes {number}"))
    with ExperienceLibrary.open(path) as again:
        for text in ("a kettle and box 3", "boxes"):
            mine, other = (one.search(text, how="text") for one in (library, again))
            assert [hit.what.id for hit in mine] == [hit.what.id for hit in other]


def test_all_words_are_looked_up_where_few_rows_have_them(shown):
    """Of a small library BM25 over the whole query costs nothing, and finds more than four words do."""
    words = [f"word{n}" for n in range(12)]
    index = shown(" ".join(words), *words)
    assert len(index.choose(" ".join(words), Counter, TUNING.more_terms).words) == len(words)
    assert find(index, " ".join(words), 1, Counter, TUNING.more_terms) == [1]


def test_coverage_is_the_share_of_the_words_that_a_row_has(shown):
    """A word that no row has counts as well: what it asks for is not there."""
    index = shown("a kettle and a spoon", "a kettle", "a door")
    assert [one.ref for one in index.search("kettle spoon", 9, Counter)] == [1, 2]
    both, one = (one.share for one in index.search("kettle spoon", 9, Counter))
    assert both == 1.0 > one > 0.0
    ((_, door, _),) = index.search("door zebra giraffe", 9, Counter)
    assert door < 0.5
