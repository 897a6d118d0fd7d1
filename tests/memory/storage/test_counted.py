"""Whose episodes count, and what is counted over them."""

import json
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, State
from hardwon.memory.storage.counted import (
    ALONE,
    TRUSTED,
    EpisodeClock,
    extract_words,
    find_counted_writers,
    is_counted,
    is_outnumbered,
    read_structural_words,
    recount_words,
)


@pytest.mark.parametrize(
    ("writers", "counted"),
    [((), TRUSTED), (("",), TRUSTED), (("a",), ALONE), (("", "a"), TRUSTED), (("a", "b"), TRUSTED)],
)
def test_a_writer_with_a_name_counts_while_nobody_else_writes(writers, counted):
    """The library's own process writes without a name."""
    assert find_counted_writers(lambda *_: [(name,) for name in writers], 1) == counted


@pytest.mark.parametrize(
    ("success", "trust", "counted", "counts"),
    [
        (True, "trusted", TRUSTED, True),
        (False, "trusted", TRUSTED, True),
        (None, "trusted", TRUSTED, False),
        (True, "untrusted", TRUSTED, False),
        (True, "untrusted", ALONE, True),
        (None, "untrusted", ALONE, False),
    ],
)
def test_an_episode_counts_unless_it_is_excluded_or_of_a_stranger(episode, success, trust, counted, counts):
    assert is_counted(episode(success=success, trust=trust), counted) is counts


def test_a_lone_stranger_is_outnumbered_by_the_next_writer(library, episode):
    connection, number = library._file.filed().connection, library._file.number
    assert not is_outnumbered(connection, number, ALONE, TRUSTED)  # there are no episodes
    library.episodes.receive([episode()], writer="token:a", trust="untrusted")
    assert library.episodes.count() == 1
    assert is_outnumbered(connection, number, ALONE, TRUSTED)
    assert not is_outnumbered(connection, number, ALONE, ALONE)
    assert not is_outnumbered(connection, number, TRUSTED, ALONE)


def test_the_clock_counts_new_episodes_and_begins_again_when_others_count(library, episode):
    clock, others = EpisodeClock(library._file.number), EpisodeClock(library._file.number + 1)

    def read():
        assert others.read(library._file.filed().rows) == 0
        return clock.read(library._file.filed().rows), clock.episodes

    assert read() == (0, 0)
    library.episodes.receive([episode(), episode("close drawer")], writer="token:a", trust="untrusted")
    assert read() == read() == (2, 2)
    library.record(episode("wait", success=None))
    assert read() == (0, 2)  # now strangers do not count, and what is excluded never does
    library.record(episode("kick drawer", success=False))
    assert read() == read() == (1, 3)


def count_words(library):
    rows = library._file.filed().rows
    return dict(rows("SELECT word, episodes FROM words WHERE namespace = ?", (library._file.number,)))


def test_words_counted_again_are_those_of_the_episodes_that_count(path, episode):
    """Of the states before and after, their feedback and their facts; each word once in an episode."""
    with ExperienceLibrary.open(path) as library:
        pre = State("a red lamp, a red lamp", facts={"weather": "rainy"})
        post = State("a sofa", feedback="the carpet squeaks")
        made = episode("wait")
        library.record(replace(made, steps=(replace(made.steps[0], pre=pre, post=post),)))
        library.record(episode("open drawer"))
        library.record(episode("hide", see="a purple curtain", success=None))
        before = count_words(library)
        assert {word: before.get(word, 0) for word in ("red", "rainy", "squeaks", "sofa", "drawer", "purple")} == {
            "red": 1, "rainy": 1, "squeaks": 1, "sofa": 1, "drawer": 1, "purple": 0,
        }  # fmt: skip
        library.episodes.receive([episode("x", see="a golden crown")], writer="token:a", trust="untrusted")
        assert count_words(library) == before
        with library._file.transaction() as connection:
            recount_words(connection, library._file.number, TRUSTED)
        assert count_words(library) == before
        with library._file.transaction() as connection:
            connection.execute("UPDATE states SET facts = '{' WHERE observation LIKE '%lamp%'")
            recount_words(connection, library._file.number, ALONE)
        after = count_words(library)
        assert after["golden"] == after["red"] == 1
        assert "rainy" not in after


def test_structural_words_that_occur_twice_and_four_times_as_often_are_marked(library, episode):
    """15 %, 30 % and 60 % of 20 episodes; the first may soon be less."""
    for n in range(20):
        rare, more = ("amber " if n < 2 else ""), ("basil " if n < 3 else "") + ("cedar " if n < 6 else "")
        library.record(episode("wait", see=f"{rare}{more}{'dusk' if n < 12 else ''}"))
    words = read_structural_words(library._file.filed().rows, library._file.number, 20)
    named = sorted(word for word in words if word.startswith(("amber", "basil", "cedar", "dusk")))
    assert named == ["basil", "basil~", "cedar", "cedar+", "dusk", "dusk+", "dusk++"]


def test_the_words_of_an_episode_are_those_of_all_its_states(episode):
    made = episode("a", "b", see="a lamp")
    seen = replace(made.steps[1], post=State("a sofa", facts={"lid": "open"}, feedback="it creaks"))
    words = extract_words(replace(made, steps=(made.steps[0], seen)))
    assert {"lamp", "sofa", "creaks", "open"} <= words
    assert json.dumps(sorted(words)) == json.dumps(sorted(extract_words(replace(made, steps=(seen, made.steps[0])))))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE writers SET name = 'token:c' WHERE name = 'token:a'",
        "UPDATE writers SET name = 'x' WHERE name = ''",
        "UPDATE writers SET id = id + 10 WHERE name = 'token:b'",
        "DELETE FROM writers",
    ],
)
def test_a_changed_writer_is_told_and_put_right(library, episode, change):
    """Who wrote decides what counts, so a changed row of a writer is damage."""
    library.record(episode())
    for writer in ("token:a", "token:b"):
        library.episodes.receive([episode()], writer=writer, trust="untrusted")
    library.admin.index()
    assert library.admin.verify() == []
    before = library._file.store.rows("SELECT id, name FROM writers WHERE name != ''")
    library._file.store.connection.execute(change)
    assert [problem.where for problem in library.admin.verify()] == ["writers"]
    library.admin.repair()
    assert library.admin.verify() == []
    assert set(library._file.store.rows("SELECT id, name FROM writers")) >= set(before)
