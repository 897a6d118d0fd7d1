import re

import pytest

from hardwon.memory import State
from hardwon.memory.learning.rule_mining import strategy_id
from hardwon.memory.situations.keys import GUARD_MARK, Situation, guard_keys
from hardwon.memory.situations.titles import (
    Difference,
    choose_cases,
    guardrail_title,
    name_arguments,
    name_holes,
    remedy_title,
    skill_title,
    strategy_title,
    warning_title,
)


@pytest.mark.parametrize(
    ("key", "title"),
    [
        (
            "take {1} | tried 0 to unknown | 1:T | inventory -",
            "Prefer `take X` when you have not tried it here yet and the task names X",
        ),
        (
            "put {1} in {2} | tried 1 to new | 1:T,inventory 2: | inventory T | 1: ; 2: empty | 1: reads; 2: -",
            "Prefer `put X in Y` when you tried it once here and it led somewhere new, the task names X, X is in the "
            'inventory, the inventory has something that the task names, the text around Y says "empty" and your '
            'notes about X say "reads"',
        ),
        ("cook {1} in stove | 1 grill", 'Prefer `cook X in stove` when your notes about X say "grill"'),
        ("wait | tried 2 to stale", "Prefer `wait` when you tried it several times here and it led to a state that "
         "you have seen many times"),
        (
            "take {1} | 1:told 2: | 1: take; 2: -",
            'Prefer `take X` when your notes say "take" about X',
        ),
        ("take {1} | 1:other | 1: reads", 'Prefer `take X` when your notes mention X, but not with "take" and your '
         'notes about X say "reads"'),
        ("go {1} |  | ", "Prefer `go X` when you can"),
    ],
)  # fmt: skip
def test_a_strategy_is_a_sentence(key, title):
    assert strategy_title(key) == title


@pytest.mark.parametrize(
    ("difference", "clause"),
    [
        (Difference(), 'the text says "cold"'),
        (Difference(("raw",)), 'the text says "raw"'),
        (Difference(lacks=("hot", "warm")), 'the text does not say "hot" or "warm"'),
        (Difference(("raw", "meat"), ("hot",)), 'the text says "raw" and "meat" but not "hot"'),
    ],
)
def test_the_difference_stands_for_all_words_of_the_text(difference, clause):
    key = "take {1} |  |  |  | 1: -; 0: [T] cold | nothing told"
    assert strategy_title(key, (), (), difference) == f"Prefer `take X` when X is not in sight and {clause}"
    if any(difference):  # also where all words of the text, and one near the argument, are common
        key, common = "take {1} |  |  |  | 1: also; 0: cold | nothing told", ("also", "cold")
        assert strategy_title(key, common, (), difference) == f"Prefer `take X` when {clause}"
    around = {"around": "1: -; 0: [T] cold"}
    assert guardrail_title("take {1}", around, (), difference) == f"Do not `take X` when X is not in sight and {clause}"
    assert warning_title("take", {"around": "0: [T] cold"}, (), difference) == f"`take` mostly fails when {clause}"


@pytest.mark.parametrize(
    ("around", "title"),
    [
        ("1: also see", "Prefer `take X` when X is in the inventory"),
        ("1: also clean see", 'Prefer `take X` when X is in the inventory and the text around X says "clean"'),
        ("1: ; front wall", 'Prefer `take X` when X is in the inventory and the situation says "front wall"'),
        ("1: -", "Prefer `take X` when X is in the inventory and X is not in sight"),
    ],
)
def test_words_that_every_situation_shows_are_left_out(around, title):
    """They tell a reader nothing; facts and marks stay."""
    key = f"take {{1}} |  | 1:inventory |  | {around} | nothing told"
    assert strategy_title(key, {"also", "see", "wall"}) == title


@pytest.mark.parametrize(
    ("condition", "title"),
    [
        ({"around": "1: raw; front wall"}, 'the text around X says "raw" and the situation says "front wall"'),
        ({"around": "1: -"}, "X is not in sight"),
        ({"around": "1: raw; 0: cold dark"}, 'the text around X says "raw" and the text says "cold" and "dark"'),
        ({"around": "1: raw; 0: "}, 'the text around X says "raw"'),
        ({"around": "1: ; 2: "}, "no common word is near X and Y"),
        ({"told": "1 grill"}, 'your notes about X say "grill"'),
        ({"mark": "2 unnamed"}, "your notes do not mention Y"),
        ({"text": "is locked"}, 'the text says "is locked"'),
    ],
)
def test_what_is_forbidden_and_what_fails_are_sentences(condition, title):
    assert guardrail_title("cook {1} in {2}", condition) == f"Do not `cook X in Y` when {title}"
    assert warning_title("cook {1} in {2}", condition) == f"`cook X in Y` mostly fails when {title}"


def test_an_argument_that_the_action_names_is_named_in_the_condition():
    """X would be unknown to the reader."""
    assert guardrail_title("move south", {"around": "1: "}) == "Do not `move south` when no common word is near south"
    title = guardrail_title("put map in {2}", {"around": "1: torn; 2: shut"})
    assert title == 'Do not `put map in Y` when the text around map says "torn" and the text around Y says "shut"'


@pytest.mark.parametrize(
    ("condition", "clause"),
    [
        ({"around": "1: raw; mark X"}, 'the text around south says "raw" and the situation says "mark X"'),
        ({"around": "1: X"}, 'the text around south says "X"'),
        ({"told": "1 X"}, 'your notes about south say "X"'),
        ({"mark": "1 X"}, "south is in the X"),
        ({"text": "gate X"}, 'the text says "gate X"'),
    ],
)
def test_a_letter_in_the_words_of_a_situation_is_no_argument(condition, clause):
    assert guardrail_title("move south", condition) == f"Do not `move south` when {clause}"


@pytest.mark.parametrize(
    ("pattern", "around", "clause"),
    [
        ("click[]", "1: red", 'the text around X says "red"'),
        ("open ", "1: red", 'the text around X says "red"'),
        ("say  to bob", "1: -; 2: blue", 'X is not in sight and the text around bob says "blue"'),
        ("say  to bob", "1: ; 2: ", "no common word is near X and bob"),
    ],
)
def test_an_empty_argument_keeps_its_letter_and_its_number(pattern, around, clause):
    assert guardrail_title(pattern, {"around": around}) == f"Do not `{pattern}` when {clause}"


def test_without_a_condition_nothing_follows():
    assert guardrail_title("shake drawer", {"around": ""}) == "Do not `shake drawer`"


def test_skills_and_remedies_are_sentences():
    assert skill_title(["open {1}", "take {2} from {1}"]) == "To earn a reward, `open X`, then `take Y from X`"
    assert remedy_title("open {4}", ["take key", "open {4}"], "no effect", is_usual=True) == (
        "First `take key`, then `open X4`"
    )
    assert remedy_title("open {4}", ["take key", "open {4}"], "no effect", is_usual=False) == (
        "If `open X4` fails (no effect), first `take key`, then `open X4`"
    )


def test_placeholders_of_calls_are_named_by_their_parameters():
    """Across all steps: the same value has the same name."""
    assert skill_title(["find(name={1})", "book(customer={1}, room={2}, other={3})"]) == (
        "To earn a reward, `find(name={name})`, then `book(customer={name}, room={room}, other={other})`"
    )
    assert name_holes(["move(id={1})", "move(id={2})"]) == ["move(id={id})", "move(id=Y)"]
    assert guardrail_title("refund(order={1}, to=card)", {"around": "1: [T] late"}) == (
        'Do not `refund(order={order}, to=card)` when the text around {order} says a word of the task and "late"'
    )
    assert name_arguments("refund(order={1}, to='Card', n=3)", ["to", "n"]) == "`refund(to='Card', n=3)`"


def test_no_form_of_key_shows_in_a_title():
    """No number in braces, no bar, no count: whatever key the library makes."""
    state = State(
        "A map reads north. The box is empty.",
        {"inventory": ["a map"], "front": "box"},
        task="put the map in the box",
        notes=("Put no coin there.",),
    )
    here = Situation(state, frozenset({"reads", "empty"}))
    titles = [strategy_title(key) for key in here.keys("put map in box", "tried 0 to unknown") if " | " in key]
    for key in guard_keys(here, "put map in box"):
        pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
        operator, _, operand = condition.partition(" ")
        titles.append(guardrail_title(pattern, {operator: operand}))
    assert len(titles) > 10
    assert not [title for title in titles if re.search(r"\{\d|\||tried \d|\[T\]|\d:", title)]


def test_an_id_does_not_depend_on_the_title():
    """A strategy of an older library is met again under its id."""
    assert strategy_id("take {1} | tried 0 to unknown | 1:T | inventory -") == "st-ddbf57d14047"


CHOICE = "Before `refund`, call `check`. In `refund`, use "
SAID = 'to="a" if the text says "gift", "card" and "lost" but not "new", to="b" if the text does not say "gift"'
IDS = 'to="a" if order begins with "A", to="b" if order begins with "B"'


@pytest.mark.parametrize(
    ("cases", "text", "start", "kept"),
    [
        (SAID, "lost gift card", "", SAID.partition(", to=")[0]),
        (SAID, "lost new gift card", "", None),
        (
            SAID,
            "invoice",
            "",
            'to="b" if the text does not say "gift"',
        ),
        (IDS, "", "B", 'to="b" if order begins with "B"'),
        (IDS, "", "Z", None),  # another id
        (IDS, "", None, IDS),  # no id yet
    ],
)
def test_of_a_choice_the_cases_are_said_that_the_present_meets(cases, text, start, kept):
    title = choose_cases(
        CHOICE + cases, text.split().__contains__, lambda begin: start is not None and begin in ("", start)
    )
    assert title == (CHOICE + kept if kept else "Before `refund`, call `check`")


def test_a_choice_of_which_no_case_is_met_says_nothing():
    assert choose_cases("In `refund`, use " + IDS, "".__contains__, lambda begin: not begin) == ""


@pytest.mark.parametrize(("text", "is_said"), [("gift", True), ("invoice", False)])
def test_a_remedy_for_some_requests_is_said_to_them(text, is_said):
    title = 'First `check()`, then `pay(order={order})` if the text says "gift"'
    assert choose_cases(title, text.split().__contains__, lambda begin: False) == (title if is_said else "")


@pytest.mark.parametrize(
    "title", ["Use `f(x)` if you can", "Be kind", "Then, use tact", 'Call `f`, use x="1" if you can']
)
def test_other_titles_stay(title):
    assert choose_cases(title, "".__contains__, lambda begin: False) == title


def test_what_holds_for_most_calls_is_no_condition_of_one():
    """A request names what a tool is called with, and in its own words."""
    for words in ("[T]", "request", "[T] request"):  # each observation of a call begins with "Request: "
        assert guardrail_title("refund(order={1})", {"around": f"1: {words}"}) == "Do not `refund(order={order})`"
    assert (
        guardrail_title("take {1}", {"around": "1: [T]"})
        == "Do not `take X` when the text around X says a word of the task"
    )
    key = "pay(to={1}) | tried 0 to unknown | 1:T said | inventory - | 1: [T] | "
    assert strategy_title(key) == "Prefer `pay(to={to})` when you can"
    assert (
        strategy_title(key.replace("1: [T]", "1: due")) == 'Prefer `pay(to={to})` when the text around {to} says "due"'
    )
    assert strategy_title(key.replace("pay(to={1})", "take {1}")).startswith("Prefer `take X` when you have not tried")
