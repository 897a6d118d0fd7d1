import pytest

from tacit.memory import State
from tacit.memory.situation import Situation, guard_keys
from tacit.memory.wording import condition_words, key_words

BOX = State(
    "A map reads north. The box is empty.",
    {"inventory": ["a map"], "front": "box"},
    task="put the map in the box",
    notes=("Put no coin there.",),
)
HERE = Situation(BOX, frozenset({"reads", "empty"}))


def test_any_step_is_said_so():
    """The most general key."""
    assert key_words("*") == ["any action"]


def test_a_key_says_what_it_was_filed_under():
    """The action, how familiar it is, and what holds around its arguments."""
    said = key_words(HERE.keys("put map in box", "tried 1 to new")[4], "put map in box")
    assert said[:2] == ["`put {1} in {2}`", "tried once here, which led to a state visited once"]
    assert "map is named by the task, in the inventory and not in the notes" in said
    assert "inventory: a thing of the task" in said
    assert "near box: empty" in said


def test_every_part_of_every_key_is_said():
    """None is left as it is filed."""
    for key in (*HERE.keys("put map in box", "tried 0 to unknown"), *guard_keys(HERE, "put map in box")):
        for phrase in key_words(key, "put map in box"):
            assert " | " not in phrase
            assert "[T]" not in phrase


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (None, "always"),
        ({"text": "is locked"}, 'the text says "is locked"'),
        ({"fact": {"front": "wall"}}, "front is wall"),
        ({"signature": "9f"}, "the situation is 9f"),
        ({"around": "1: raw [T]"}, "near potato: raw, a word of the task"),
        ({"around": "1: -"}, "potato is not shown"),
        ({"around": ""}, "wherever it is"),
        ({"told": "1 grill"}, "told of potato: grill"),
        ({"mark": "1 unnamed"}, "potato is not in the notes"),
        ({"mark": "2 other"}, "{2} is in the notes, but not with this verb"),
        ({"not": {"text": "a"}}, 'not (the text says "a")'),
        ({"all": [{"text": "a"}, {"text": "b"}]}, '(the text says "a") and (the text says "b")'),
        ({"any": [{"text": "a"}, {"text": "b"}]}, '(the text says "a") or (the text says "b")'),
    ],
)
def test_a_condition_is_a_clause(condition, words):
    """It follows "when"; arguments have the names the pattern gives them."""
    assert condition_words(condition, "eat potato") == words
