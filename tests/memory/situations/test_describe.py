import pytest

from hardwon.memory import State
from hardwon.memory.situations.describe import condition_words, key_words
from hardwon.memory.situations.keys import Situation, guard_keys

BOX = State(
    "A map reads north. The box is empty.",
    {"inventory": ["a map"], "front": "box"},
    task="put the map in the box",
    notes=("Put no coin there.",),
)
HERE = Situation(BOX, frozenset({"reads", "empty"}))


def test_a_key_is_told_with_the_names_of_the_action():
    """The action, how familiar it is, and what holds around its arguments."""
    key = "put {1} in {2} | tried 1 to new | 1:T,inventory 2: | inventory T | 1: ; 2: empty | 1: reads; 2: -"
    assert key_words(key, "put map in box") == [
        "`put {1} in {2}`",
        "tried once here, which led to a state visited once",
        "map is named by the task and in the inventory",
        "inventory: a thing of the task",
        "near box: empty",
        "told of map: reads",
    ]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("*", ["any action"]),
        ("move {1}", ["`move {1}`"]),
        ("wait | tried 0 to unknown |  | ", ["`wait`", "not tried here before"]),
        ("cook {1} in stove | 1 grill", ["`cook {1} in stove`", "told of {1}: grill"]),
        ("cook {1} | ?", ["`cook {1}`", "something was told of {1}"]),
        ("cook {1} in stove | ?", ["`cook {1} in stove`", "something was told of {1} or stove"]),
        (
            "go {1} | tried 2 to stale",
            ["`go {1}`", "tried twice or more here, which led to a state visited four times or more"],
        ),
        ("! eat {1} @ around 1: raw", ["`eat {1}`", "near {1}: raw"]),
        ("=slot:waits# send to {1} | waits: from 40", ["`send to {1}`", "the text says waits: from 40"]),
        (
            "=case:sale refund | final order | sale: yes",
            ["`refund`", "the text says final, order", "the text says sale: yes"],
        ),
        ("something | of | a | later | form | of | keys", ["`something`"]),
    ],
)
def test_every_form_of_key_is_told(key, words):
    """From any step to the guardrails' keys; a form not known is its pattern."""
    assert key_words(key) == words


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (None, "always"),
        ({"around": "1: closed"}, "near {1}: closed"),
        ({"around": "1: "}, "wherever it is"),
        ({"around": ""}, "in any situation"),
        ({"around": "1: -; 0: cold [T]"}, "the text does not name {1}; the text says cold, a word of the task"),
        ({"around": "1: closed; 0: "}, "near {1}: closed"),
        ({"told": "1 grill"}, "told of {1}: grill"),
        ({"mark": "1 unnamed"}, "{1} is not in the notes"),
        ({"text": "is locked"}, 'the text says "is locked"'),
        ({"fact": {"front": "wall"}}, "front is wall"),
        ({"signature": "9f"}, "the situation is 9f"),
        ({"any": [{"signature": "9f"}, {"signature": "a0"}]}, "the situation is one of 2 known ones"),
        ({"any": [{"signature": "9f"}, {"text": "locked"}]}, '(the situation is 9f) or (the text says "locked")'),
        ({"all": [{"text": "a"}, {"not": {"text": "b"}}]}, '(the text says "a") and (not (the text says "b"))'),
    ],
)
def test_every_condition_is_told(condition, words):
    """As a clause that follows "when"."""
    assert condition_words(condition, "cook {1} in {2}") == words


def test_every_part_of_every_key_is_said():
    """None is left as it is filed."""
    for key in (*HERE.keys("put map in box", "tried 0 to unknown"), *guard_keys(HERE, "put map in box")):
        for phrase in key_words(key, "put map in box"):
            assert " | " not in phrase
            assert "[T]" not in phrase


def test_a_key_with_full_names_is_told_as_its_action():
    key = "= open left door | tried 0 to unknown | 1: | "
    assert key_words(key) == ["`open left door`", "not tried here before"]
