"""Short texts ranked by the words of a query."""

import math

import pytest

from hardwon.memory.retrieval.text_index import StemIndex

TEXTS = ["getUser(name={name}) none", "cancel_reservation(id={id}) timeout", "open the red door", "open the blue door"]


@pytest.mark.parametrize(
    ("query", "positions"),
    [
        ("users", [0]),
        ("cancelling reservations", [1]),
        ("opened doors", [2, 3]),
        ("the blue doors", [3, 2]),
        ("the", [2, 3]),  # nothing but function words
        ("zebra", []),
        ("", []),
        ('" OR * NEAR(', []),
    ],
)
def test_texts_are_ranked_by_rare_words_and_stems(query, positions):
    assert [position for position, _ in StemIndex(TEXTS).rank(query)] == positions


def test_a_text_without_spaces_is_ranked_by_its_parts():
    assert [position for position, _ in StemIndex(["今天下午开会", "打开厨房的抽屉"]).rank("厨房抽屉")] == [1]


def test_unknown_words_lower_every_share():
    index = StemIndex(TEXTS)
    ((_, alone),) = index.rank("user")
    ((_, beside),) = index.rank("user zebra")
    assert alone == 1.0
    assert 0 < beside < 0.6
    assert StemIndex(()).rank("user") == []


def test_worked_example_of_a_share():
    """Of four texts two have "red" and one has "fox"; "owl", which none has, weighs as much as "fox"."""
    red, fox = math.log1p(4 / 2), math.log1p(4 / 1)
    ranks = StemIndex(("red fox", "red hen", "blue hen", "old hen")).rank("red owl fox")
    assert [position for position, _ in ranks] == [0, 1]
    assert [share for _, share in ranks] == pytest.approx([(red + fox) / (red + 2 * fox), red / (red + 2 * fox)])


def test_an_unknown_word_counts_the_same_wherever_the_alphabet_puts_it():
    """Else the last digit would tell whether a word that a reader may not see is before or after the others."""
    index = StemIndex([f"fee {'red ' * (n % 2)}{'owl ' * (n % 3 == 0)}{'cat ' * (n % 5 == 0)}" for n in range(30)])
    rest = "fee red owl cat"
    assert len({tuple(index.rank(f"{word} {rest}")) for word in ("aaa", "dog", "pig", "zzz")}) == 1
