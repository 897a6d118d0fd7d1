"""Facts tell situations apart: what works elsewhere does not excuse a call where it never worked."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.evidence import evidence_of, facts_of, split_facts

CLEAR, WALL = ("carrying nothing", "front clear"), ("carrying nothing", "front wall")
NONE, REJECTED, UNMET, FAILED = "none", "invalid_action", "precondition", "tool_error"


@pytest.mark.parametrize(
    ("failure", "there", "is_bad"),
    [
        (REJECTED, CLEAR, True),
        (UNMET, CLEAR, True),
        (FAILED, CLEAR, False),
        (REJECTED, WALL, False),
        (REJECTED, (), True),
    ],
)
def test_a_rejected_call_is_excused_by_a_success_in_equal_facts_only(failure, there, is_bad):
    """A call that ran and failed, such as a test run, is excused by any later success."""
    steps = [("forward", failure), ("turn", NONE), ("forward", NONE)]
    assert evidence_of(steps, 1, [WALL, WALL, there])[0].bad is is_bad
    assert not evidence_of(steps, 1)[0].bad


def state(**facts):
    """A state with these facts, in which the text tells nothing."""
    return State("You are in a maze.", facts=facts, task="find the exit")


def play(library, *steps):
    """Record an episode of (state, action, failure)."""
    made = [
        Step(
            pre,
            action,
            pre,
            Diagnosis(failure is Failure.NONE, failure),
            keys=library.episodes.keys(pre, action),
        )
        for pre, action, failure in steps
    ]
    library.record(Trajectory("find the exit", tuple(made), True))


def test_a_call_is_forbidden_where_it_never_works_whatever_it_does_elsewhere(library):
    """It walks a thousand steps, and runs into a wall once in each of a few episodes before it goes on."""
    clear, wall = state(front="clear"), state(front="wall")
    for _ in range(TUNING.guardrail_episodes):
        walk = [(clear, "forward", Failure.NONE)] * 250
        play(library, *walk, (wall, "forward", Failure.INVALID_ACTION), (wall, "left", Failure.NONE), *walk)
    library.evolve()
    assert not library.check(wall, "forward").allowed
    assert library.check(clear, "forward").allowed
    assert library.check(wall, "left").allowed


def test_a_success_in_the_same_facts_counts_against_a_guardrail(library):
    """If the call worked there in as many episodes, it is not forbidden."""
    wall = state(front="wall")
    for _ in range(3 * TUNING.guardrail_episodes):
        play(library, (wall, "forward", Failure.INVALID_ACTION), (wall, "forward", Failure.NONE))
    library.evolve()
    assert library.check(wall, "forward").allowed
    assert library.items.find(["guardrail", "warning"]) == []


@pytest.mark.parametrize("before", [{"edited": False}, {"edited": False, "steps": 1}, {}])
def test_first_runs_of_test_first_work_are_free_though_facts_differ(library, before):
    """Run, edit, run again: the first run fails in each of forty tasks, and its facts tell that nothing is edited."""
    after = {name: True if value is False else 2 for name, value in before.items()}
    for _ in range(40):
        play(
            library,
            (state(**before), "run_tests()", Failure.TOOL_ERROR),
            (state(**before), "edit(file='a.py')", Failure.NONE),
            (state(**after), "run_tests()", Failure.NONE),
        )
        library.evolve()
    assert library.check(state(**before), "run_tests()").allowed
    assert library.items.find(["guardrail", "warning"]) == []


def test_failures_of_one_order_forbid_no_other(library):
    """Of several facts, the one with the fewest successes weighs: here the order, not the tier."""
    orders = [state(tier="gold", order=f"o{number}") for number in range(21)]
    for order in orders[1:]:
        for _ in range(5):
            play(library, (order, "refund()", Failure.NONE))
    for _ in range(12):
        play(library, (orders[0], "refund()", Failure.TOOL_ERROR))
    library.evolve()
    assert [library.check(order, "refund()").allowed for order in orders] == [False, *[True] * 20]


def test_successes_under_every_fact_of_a_situation_weigh(library):
    """A combination that nobody saw is no situation of its own: its facts were seen with successes."""
    for _ in range(100):
        play(library, (state(tier="gold", day="mon"), "refund()", Failure.NONE))
        play(library, (state(tier="lead", day="sun"), "refund()", Failure.NONE))
    mixed = state(tier="gold", day="sun")
    for _ in range(12):
        play(library, (mixed, "refund()", Failure.TOOL_ERROR))
    library.evolve()
    assert library.check(mixed, "refund()").allowed


def test_facts_are_read_from_the_keys_of_a_step(library):
    """Without those that are shown in the text, and without the words around arguments."""
    here = replace(state(front="wall", carrying="nothing"), observation="You see a red door. It is locked.")
    for action in ("forward", "open door", "put key in door"):
        assert facts_of(library.episodes.keys(here, action), action) == ("carrying nothing", "front wall")
    assert facts_of(library.episodes.keys(replace(here, facts={}), "open door"), "open door") == ()
    assert facts_of(("*", "open door"), "open door") == ()


@pytest.mark.parametrize(("context", "facts"), [("1: -; 0: cold; front wall", ("front wall",)), ("1: -; 0: ", ())])
def test_what_the_text_shows_is_no_fact(context, facts):
    assert split_facts(context, "open door") == facts
