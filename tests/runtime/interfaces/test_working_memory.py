from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime.interfaces.tuning import TUNING
from hardwon.runtime.interfaces.working_memory import WorkingMemory, location, place

HALL, ROOM = State("You are in the hall."), State("You are in the room.")


def step(pre, action, post, feedback="", success=True):
    """One step from here to there, with the environment's answer."""
    return Step(pre, action, replace(post, feedback=feedback), Diagnosis(success))


def after(*steps):
    """The working memory after these steps from the hall."""
    return WorkingMemory.of(HALL, steps)


def test_a_place_is_all_that_is_shown():
    """Text and facts; not what was told, nor the answer to the last action."""
    assert place(HALL) == place(replace(HALL, feedback="ok", notes=("n",)))
    assert place(HALL) != place(ROOM)
    assert place(State("x", {"a": 1})) != place(State("x", {"a": 2}))


def test_nothing_is_known_at_first():
    """No tries, nowhere led, nothing told."""
    fresh = after()
    assert fresh.tries(HALL, "go") == 0
    assert fresh.counts(HALL, "go") == "tried 0 to unknown"
    assert fresh.annotate(HALL) is HALL
    assert fresh.failed("go", "") is None


def test_tries_are_counted_in_their_place():
    """The same action elsewhere is another matter."""
    working = after(step(HALL, "go", ROOM), step(ROOM, "go", HALL), step(HALL, "go", ROOM))
    assert (working.tries(HALL, "go"), working.tries(ROOM, "go"), working.tries(ROOM, "wait")) == (2, 1, 0)


@pytest.mark.parametrize(
    ("visits", "known"),
    [(1, "tried 1 to new"), (2, "tried 2 to seen"), (3, "tried 2 to seen"), (4, "tried 2 to stale")],
)
def test_counts_say_how_familiar_the_next_place_is(visits, known):
    """New, seen, stale; and how often it was tried, up to two."""
    walk = [step(HALL, "go", ROOM), step(ROOM, "back", HALL)] * visits
    assert after(*walk).counts(HALL, "go") == known


def test_a_failure_is_remembered_in_its_context():
    """And nowhere else."""
    working = after()
    working.fail("open door", "1: locked", "precondition")
    assert working.failed("open door", "1: locked") == "precondition"
    assert working.failed("open door", "1: open") is working.failed("open box", "1: locked") is None


def test_an_answer_that_changed_nothing_is_noted():
    """A recipe read once is there for the rest of the episode."""
    working = after(step(HALL, "read recipe", HALL, "Slice the carrot. Roast it in the oven."), step(HALL, "go", ROOM))
    assert working.annotate(ROOM).notes == ("Slice the carrot.", "Roast it in the oven.")
    assert working.annotate(ROOM).signature == ROOM.signature
    told = working.annotate(replace(ROOM, notes=("Knives are sharp.", "Slice the carrot.")))
    assert told.notes == ("Knives are sharp.", "Slice the carrot.", "Roast it in the oven."), "its own notes stay"


def test_what_is_shown_anyway_is_not_noted():
    """Nor an answer to a step that moved, nor one to a step that failed."""
    assert after(step(HALL, "look", HALL, "You are in the hall.")).annotate(HALL) is HALL
    assert after(step(HALL, "go", ROOM, "You go.")).annotate(HALL) is HALL
    assert after(step(HALL, "fly", HALL, "You cannot.", success=False)).annotate(HALL) is HALL


def test_a_note_is_kept_once():
    """Read twice, noted once, where it was first."""
    told = [step(HALL, "read", HALL, text) for text in ("One.", "Two.", "One.")]
    assert after(*told).annotate(HALL).notes == ("One.", "Two.")


def test_the_oldest_notes_go_first():
    """Their number is bounded."""
    working = after(*[step(HALL, "read", HALL, f"Line {n}.") for n in range(TUNING.max_notes + 5)])
    notes = working.annotate(HALL).notes
    assert len(notes) == TUNING.max_notes
    assert (notes[0], notes[-1]) == ("Line 5.", f"Line {TUNING.max_notes + 4}.")


def test_an_answer_is_heard_once_given():
    """Word for word."""
    working = after(step(HALL, "open", HALL, "It is locked."))
    assert working.heard("It is locked.")
    assert not working.heard("It is open.")


def test_it_is_a_fold_over_the_steps():
    """Rebuilt from annotated steps, as a resumed episode does, it is the same."""
    working, steps = after(), []
    for taken in (step(HALL, "read", HALL, "Roast it."), step(HALL, "go", ROOM), step(ROOM, "read", ROOM, "Slice it.")):
        working.add(taken)
        steps.append(replace(taken, post=working.annotate(taken.post)))
    rebuilt = WorkingMemory.of(HALL, steps)
    assert vars(rebuilt.map) == vars(working.map)
    assert {**vars(rebuilt), "map": None} == {**vars(working), "map": None}


@pytest.mark.timeout(30)
def test_a_long_answer_takes_no_time():
    """Twenty thousand blanks are read in one pass."""
    assert after(step(HALL, "read", HALL, " " * 20_000)).annotate(HALL) is HALL


def test_tries_at_a_location_outlast_what_changes_there():
    """Taking a thing makes another state of the room, but not another room."""
    hall = replace(HALL, location="hall")
    changed = State("You are in the hall. You carry a lamp.", location="hall")
    working = after(step(hall, "go", ROOM), step(changed, "go", ROOM))
    assert working.tries(hall, "go") == 1
    assert working.tries_at(hall, "go") == working.tries_at(changed, "go") == 2
    assert working.tries_at(replace(hall, location="cellar"), "go") == 0


def test_a_state_without_a_location_is_where_its_first_sentence_says():
    """Text worlds begin with the name of the place; a client over HTTP sends text alone."""
    assert location(State("You are in the hall. A lamp is here.")) == location(HALL)
    assert location(State("You are in the hall. A lamp is here.", location="x")) == "x"
    assert location(State("", {"at": 3})) == place(State("", {"at": 3}))


def test_what_was_paid_belongs_to_the_counts():
    """The action that paid, and what else is done with its thing; another thing is as it was."""
    paid = replace(step(HALL, "put dress in basket", ROOM), reward=0.5)
    working = after(step(HALL, "take dress", HALL), paid)
    assert working.counts(ROOM, "put dress in basket").endswith(" paid")
    assert working.counts(ROOM, "take dress from basket").endswith(" settled")
    assert not working.counts(ROOM, "take shirt").endswith("settled")
    assert after(step(HALL, "put dress in basket", ROOM)).counts(ROOM, "take dress from basket") == "tried 0 to unknown"
