import pytest

from hardwon.memory import Item, State
from hardwon.memory.errors import ConfigError
from hardwon.memory.guardrails.conditions import Guard, holds, matches, validate
from hardwon.memory.guardrails.tuning import TUNING
from hardwon.memory.situations.keys import Attempt, Situation

STATE = State(
    "The chest is locked. A raw potato lies here.",
    {"front": "wall", "has": ["a key", "a map"], "alive": True, "coins": 3},
    notes=("Roast the potato in the oven.",),
    task="eat the potato",
)
HERE = Situation(STATE, frozenset({"raw", "locked", "roast", "oven"}))


def rule(condition, forbids, **fields):
    """A guardrail of an item's fields."""
    return Item("guardrail", "no", condition=condition, forbids=forbids, **{"confidence": 0.9, "id": "gu", **fields})


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        ({"text": "LOCKED"}, True),
        ({"text": "in the oven"}, True),
        ({"text": "open"}, False),
        ({"fact": {"front": "wall"}}, True),
        ({"fact": {"front": "door"}}, False),
        ({"fact": {"has": "a key"}}, True),
        ({"fact": {"has": "a sword"}}, False),
        ({"fact": {"front": "wall", "has": "a map"}}, True),
        ({"fact": {"front": "wall", "has": "a sword"}}, False),
        ({"fact": {"unheard": "of"}}, False),
        ({"fact": {"coins": 3}}, True),
        ({"signature": STATE.signature}, True),
        ({"signature": "0" * 16}, False),
        ({"around": "1: raw; alive True; coins 3; front wall; has a key a map"}, True),
        ({"around": "1: raw"}, False),
        ({"told": "1 oven"}, True),
        ({"told": "1 grill"}, False),
        ({"mark": "1 other"}, True),
        ({"mark": "1 unnamed"}, False),
        ({"not": {"text": "open"}}, True),
        ({"not": {"text": "locked"}}, False),
        ({"all": [{"text": "locked"}, {"fact": {"front": "wall"}}]}, True),
        ({"all": [{"text": "locked"}, {"text": "open"}]}, False),
        ({"any": [{"text": "open"}, {"fact": {"front": "wall"}}]}, True),
        ({"any": [{"text": "open"}, {"text": "shut"}]}, False),
        ({"all": [{"any": [{"text": "open"}, {"not": {"text": "shut"}}]}, {"not": {"all": [{"text": "shut"}]}}]}, True),
    ],
)
def test_a_condition_is_true_or_not(condition, true):
    """Every operator, alone and nested, of the potato that is to be eaten."""
    validate(condition)
    assert holds(condition, Attempt(HERE, "eat potato")) is true


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({}, "must have exactly one of: all, any"),
        ({"text": "a", "fact": {}}, "must have exactly one of"),
        (["text"], "must have exactly one of"),
        ({"texts": "a"}, "condition has 'texts'; use one of all, any"),
        ({"any": []}, "'any' needs a list of conditions, not \\[\\]"),
        ({"any": {"text": "a"}}, "'any' needs a list of conditions"),
        ({"all": [{"text": 3}]}, "'text' needs text, not 3"),
        ({"not": "locked"}, "must have exactly one of"),
        ({"fact": "front"}, '"fact" needs {name: value}, not'),
        ({"fact": {}}, '"fact" needs {name: value}'),
        ({"signature": None}, "'signature' needs text, not None"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(condition, words):
    """When it is added, not when it is checked; the message has what was seen and what would do."""
    with pytest.raises(ConfigError, match=words):
        validate(condition)


@pytest.mark.parametrize(
    ("pattern", "action", "match"),
    [
        ("eat {1}", "eat meal", True),
        ("eat {1}", "eat raw old potato", True),
        ("eat {1}", "drink meal", False),
        ("eat {1}", "eat", False),
        ("eat {1}", "eat meal with fork", False),
        ("eat meal", "eat meal", True),
        ("eat meal", "eat cold meal", True),
        ("eat meal", "eat fish", False),
        ("cook {1} in stove", "cook carrot in old stove", True),
        ("cook {1} in stove", "cook carrot in oven", False),
        ("cook {1} in {2}", "cook carrot in oven", True),
        ("cook {1} in {2}", "cook carrot on oven", False),
        ("forward", "forward", True),
        ("forward", "forwards", False),
        ("Eat Meal", "eat meal", True),
        ("delete(path={1})", 'delete(path="/etc")', True),
        ("delete(path={1})", 'delete(name="/etc")', False),
        ('delete(path="/etc")', 'delete(path="/home")', False),
        ("pay(to={1}, sum={2})", "pay(to='bob', sum=3)", True),
    ],
)
def test_a_pattern_forbids_what_it_says(pattern, action, match):
    """Holes match any argument, words the last word of one; verb and prepositions must agree."""
    assert matches(pattern, action) is match


def test_a_forbidden_action_is_refused_with_the_cause():
    """The verdict names the item and says why."""
    verdict = Guard([rule({"text": "locked"}, "open {1}", body="it needs a key")]).check(Attempt(HERE, "open chest"))
    assert (verdict.allowed, verdict.item_id, verdict.cause) == (False, "gu", "it needs a key")


def test_another_action_or_place_is_allowed():
    """A guardrail says nothing beyond its pattern and its condition."""
    guard = Guard([rule({"text": "locked"}, "open {1}")])
    assert guard.check(Attempt(HERE, "examine chest")).allowed
    assert guard.check(Attempt(Situation(State("The chest is open.")), "open chest")).allowed


def test_a_guardrail_of_little_confidence_only_advises():
    """Below the threshold nothing is refused; at it, everything is."""
    for confidence, allowed in ((TUNING.min_confidence - 0.01, True), (TUNING.min_confidence, False)):
        guard = Guard([rule({"text": "locked"}, "open {1}", confidence=confidence)])
        assert guard.check(Attempt(HERE, "open chest")).allowed is allowed


def test_what_is_retired_forbids_nothing():
    """Nor does a warning, whatever it says."""
    retired = rule({"text": "locked"}, "open {1}", status="retired")
    warning = Item("warning", "no", condition={"text": "locked"}, forbids="open {1}", confidence=0.9)
    assert Guard([retired, warning]).check(Attempt(HERE, "open chest")).allowed


def test_active_guardrails_are_those_that_forbid_something_here():
    """Of the actions there are; each once."""
    locked, fact = rule({"text": "locked"}, "open {1}", id="a"), rule({"fact": {"front": "wall"}}, "forward", id="b")
    elsewhere = rule({"text": "shut"}, "open {1}", id="c")
    attempts = [Attempt(HERE, action) for action in ("open chest", "open box", "forward", "wait")]
    active = Guard([locked, fact, elsewhere]).active(attempts)
    assert [item.id for item in active] == ["a", "b"]


def test_the_first_by_id_gives_the_cause():
    """Any process names the same guardrail."""
    rules = [rule({"text": "locked"}, "open {1}", id=ref) for ref in ("b", "a")]
    assert Guard(rules).check(Attempt(HERE, "open chest")).item_id == "a"
