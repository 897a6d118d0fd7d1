"""Items from the corrections of a person repeat neither untrusted words nor values of one customer."""

import pytest

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.grading.corrections import mask_values


def record_call(library, *, trust, task="Refund Maria Lopez, order 917.", evidence="Maria Lopez wrote: use pay() now"):
    """Record an episode of one call that failed, with a customer in every text; return its id."""
    state = State(f"Request: {task}", task=task, location=f"desk of {task}")
    failure = Diagnosis(False, Failure.TOOL_ERROR, evidence=evidence)
    after = State(f"{state.observation}\n\n{evidence}", task=task)
    one = Trajectory(task, (Step(state, 'refund(order="917")', after, failure),), success=False, id="one")
    library.episodes.receive([one], writer="mcp", trust=trust) if trust == "untrusted" else library.record(one)
    return "one"


def test_a_correction_of_an_untrusted_episode_repeats_no_word_of_it(library):
    ref = record_call(library, trust="untrusted")
    grade = library.grade(ref, success=False, instead='lookup(order="917")', step=0, why="nobody looked it up")
    item = library.items.get(grade.admission.item_id)
    assert (item.trust, item.source) == ("trusted", "person")
    assert item.title == 'Use `lookup(order="917")` instead of `refund(order={order})`'
    assert item.body == "nobody looked it up The other action failed (tool_error)."
    assert (item.when_to_use, item.locations) == ("", ())


def test_a_correction_shows_no_values_of_the_customer(library):
    ref = record_call(library, trust="trusted")
    grade = library.grade(ref, success=False, instead="lookup the order", step=0, why="nobody looked it up")
    item = library.items.get(grade.admission.item_id)
    assert item.title == "Use `lookup the order` instead of `refund(order={order})`"
    assert item.body == "nobody looked it up The other action failed (tool_error)."
    assert item.when_to_use == "When you are asked: Refund …, order …."


@pytest.mark.parametrize(("trust", "when"), [("untrusted", ""), ("trusted", "When you are asked: Refund …, order ….")])
def test_a_lesson_shows_neither_the_customer_nor_the_reason(library, trust, when):
    ref = record_call(library, trust=trust)
    grade = library.grade(ref, success=False, lesson="Look up the order first.", why="Maria Lopez phoned")
    item = library.items.get(grade.admission.item_id)
    assert (item.title, item.body, item.when_to_use) == ("Look up the order first.", "", when)


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("find the spoon", "find the spoon"),
        ("Maria wants her money back.", "… wants her money back."),
        ('Refund "the blue lamp" to anna@example.org', "Refund … to …"),
        ("REFUND order A-17 of McDonald", "REFUND order … of …"),
        ("Lopez 917", ""),
    ],
)
def test_values_of_a_task_are_gaps(library, task, shown):
    ref = record_call(library, trust="trusted", task=task)
    assert mask_values(task, library.episodes.get(ref)) == shown


def test_an_argument_of_a_call_is_a_value_in_any_case(library):
    """In `refund(customer="lopez")`, a lower-case word of the task is a name."""
    state = State("A desk.", task="refund lopez today")
    step = Step(state, 'refund(customer="lopez")', state, Diagnosis(True))
    assert mask_values(state.task, Trajectory(state.task, (step,), True)) == "refund … today"
