import pytest

from tacit.memory import Diagnosis, Failure, Item, Recollection, State, Step
from tacit.memory.records import Hit
from tacit.runtime.guidance import RetrievalGuidance

HALL = State("You are in the hall.")


def item(title, kind="insight", **fields):
    """A hit on an item."""
    return Hit(Item(kind, title, **{"id": title, **fields}), 0.5, "words")


def step(action, failure=Failure.NONE, evidence=""):
    """A hit on a step that led to a return of 0.5."""
    judged = Diagnosis(failure is Failure.NONE, failure, evidence=evidence)
    return Hit(Step(HALL, action, HALL, judged, return_to_go=0.5), 0.5, "words")


def hint(items=(), steps=(), guardrails=()):
    """What is said of a recollection."""
    return RetrievalGuidance().propose(Recollection(tuple(items), tuple(steps), tuple(guardrails)))


NO_EATING = Item("guardrail", "do not eat", "it is poison", condition={"text": "x"}, forbids="eat {1}", id="gu")


def test_nothing_recalled_says_nothing():
    """Abstaining is a valid answer and costs no token."""
    assert hint() is None


def test_what_was_recalled_is_said():
    """A line each: items, guardrails, then steps."""
    said = hint([item("doors stick", body="push hard")], [step("open door")], [NO_EATING])
    assert said.text.splitlines() == [
        "- insight: doors stick. push hard",
        "- guardrail: do not eat. it is poison",
        "- in a similar situation, `open door` led to a return of 0.50",
    ]


def test_it_says_whom_to_credit():
    """Items and guardrails, each once; steps are nobody's."""
    assert hint([item("a"), item("b"), item("a")], [step("open")], [NO_EATING]).item_ids == ("a", "b", "gu")


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ("It is locked.", "- in a similar situation, `open` failed (precondition): It is locked."),
        ("", "- in a similar situation, `open` failed (precondition)"),
    ],
)
def test_a_failed_step_warns(evidence, line):
    """With the words of the environment, where there were any."""
    assert hint(steps=[step("open", Failure.PRECONDITION, evidence)]).text == line


def test_what_a_guardrail_forbids_is_not_recommended():
    """However well it went elsewhere."""
    assert "eat cake" not in hint(steps=[step("eat cake"), step("drink tea")], guardrails=[NO_EATING]).text


def test_what_is_said_twice_is_said_once():
    """Two steps alike make one line."""
    assert hint(steps=[step("open"), step("open")]).text.count("\n") == 0


def test_a_hint_names_the_steps_it_speaks_of():
    """So that a person can ask later on what experience a choice rested."""
    state = State("a hall")
    step = Step(state, "open door", state, Diagnosis(True), id=7, return_to_go=0.5)
    hint = RetrievalGuidance().propose(Recollection(steps=(Hit(step, 1.0, "near"),)))
    assert hint is not None
    assert hint.step_ids == (7,)
