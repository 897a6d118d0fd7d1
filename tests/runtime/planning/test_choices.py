"""The next action towards one step of a bound demonstration, in states made by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, Estimate, Recollection, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.values.demonstration_index import Demonstration
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.planning.composition import (
    Argument,
    Binding,
    BindingProgress,
    BoundStep,
    bind_demonstration,
    choose_action,
)

INDEX: Any = SimpleNamespace(
    is_way=lambda form: form.startswith("walk"),
    reveals=lambda form: {"open": 0.9, "ring": 0.1}.get(form.split()[0], 0.0),
    likelihood=lambda thing, kind: {("lamp", "chest"): 0.6, ("lamp", "drawer"): 0.5}.get((thing, kind), 0.0),
)


def step(action, *arguments):
    """A step of the form of an action with these arguments, as (thing of the demonstration, kind)."""
    return BoundStep(parse_action(action).template, tuple(Argument(*argument) for argument in arguments))


GRAB = step("grab lamp 9 from desk 9", ("lamp 9", "lamp"), ("desk 9", ""))
LAY = step("lay lamp 9 in box 9", ("lamp 9", "lamp"), ("box 9", "box"))
HELD = ((0, "grab lamp 1 from desk 1"),)


def now(*actions, place="desk 1", history=(), **fields):
    return Context(State(f"You are at {place}.", location=place), actions, history=tuple(history), **fields)


def be(place, action, then, see="", admissible=()):
    """A step of the episode from one place to another one."""
    before, after = (State(f"You are at {name}. {see}", location=name) for name in (place, then))
    return Step(before, action, after, Diagnosis(True), admissible=admissible)


def choose(at, context, **progress):
    return choose_action(Binding("episode:1", (GRAB, LAY)), at, BindingProgress(**progress), context, INDEX)


LAMPS = ("grab lamp 1 from desk 1", "grab lamp 2 from desk 1")


def test_of_several_fitting_things_the_one_with_the_best_estimate_is_taken():
    estimates = {LAMPS[0]: Estimate(0.9, 3)}
    assert choose(0, now(*LAMPS)) == LAMPS[1]
    assert choose(0, now(*LAMPS, recollection=Recollection(estimates=estimates))) == LAMPS[0]


def test_what_was_refused_or_has_failed_here_is_not_chosen():
    working = WorkingMemory()
    working.fail(LAMPS[1], "", "no_effect")
    assert choose(0, now(*LAMPS, forbidden={LAMPS[1]: "no"})) == LAMPS[0]
    assert choose(0, now(*LAMPS, working=working)) == LAMPS[0]
    assert choose(0, now(*LAMPS, working=working, forbidden={LAMPS[0]: "no"})) == ""


def test_what_an_earlier_demonstration_used_is_another_thing():
    assert choose(0, now(*LAMPS), used=frozenset({"lamp 2"})) == LAMPS[0]


def test_what_is_held_is_laid_where_the_step_says():
    """The way there is taken, and nothing on it is opened."""
    here = now("open desk 1", "walk to box 10", "walk to box 2", "walk to chest 1")
    assert choose(1, here, done=HELD) == "walk to box 2"
    assert choose(1, now("open box 2", "walk to desk 1", place="box 2"), done=HELD) == "open box 2"


def test_a_step_about_a_place_alone_leads_there():
    """Nothing has to be found before."""
    clean = Binding("episode:1", (step("clean box 9", ("box 9", "box")),))
    here = now("walk to chest 1", "walk to box 2")
    assert choose_action(clean, 0, BindingProgress(), here, INDEX) == "walk to box 2"


def test_a_place_that_was_visited_since_the_last_step_is_not_visited_again():
    walked = [be("desk 1", "walk to box 2", "box 2"), be("box 2", "walk to desk 1", "desk 1")]
    here = now("walk to box 2", "walk to box 10", history=walked)
    assert choose(1, here, done=HELD) == "walk to box 10"
    assert choose(1, here, done=HELD, since=2) == "walk to box 2"


def test_a_missing_thing_is_searched_where_such_things_were_found_first():
    """Its share is spread over the places of a kind: of one chest and two drawers, the chest."""
    ways = [f"walk to {place}" for place in ("drawer 2", "drawer 10", "shelf 1", "chest 1")]
    assert choose(0, now(*ways)) == "walk to chest 1"
    assert choose(0, now(*ways[:3])) == "walk to drawer 2"
    walked = [be("drawer 2", "walk to desk 1", "desk 1")]
    assert choose(0, now(*ways[:3], history=walked)) == "walk to drawer 2"  # only where it arrived was it looked for
    walked = [be("desk 1", "walk to drawer 2", "drawer 2"), be("drawer 2", "walk to desk 1", "desk 1")]
    assert choose(0, now(*ways[:3], history=walked)) == "walk to drawer 10"


def test_a_thing_that_is_missing_is_found_before_the_place_that_a_step_names():
    """Wherever it is: the step says where it was in the demonstration."""
    take = Binding("episode:1", (step("grab lamp 9 from box 9", ("lamp 9", "lamp"), ("box 9", "box")),))
    here = now("walk to box 2", "walk to chest 1")
    assert choose_action(take, 0, BindingProgress(), here, INDEX) == "walk to chest 1"


def test_what_is_here_is_opened_once_before_the_search_goes_on():
    here = ("open desk 1", "ring desk 1", "open chest 1", "walk to shelf 1")
    assert choose(0, now(*here)) == "open desk 1"
    opened = [be("desk 1", "open desk 1", "desk 1")]
    assert choose(0, now(*here, history=opened)) == "walk to shelf 1"
    elsewhere = [be("shelf 2", "open desk 1", "desk 1")]
    assert choose(0, now(*here, history=elsewhere)) == "open desk 1"


@pytest.mark.parametrize(
    ("see", "admissible", "back"),
    [
        ("", ("grab lamp 1 from shelf 2",), True),
        ("", ("grab cup 1 from shelf 2",), False),
        ("There is a lamp 3.", (), True),
        ("There is a lamp 1.", (), False),
        ("There is a clamp 3.", (), False),
    ],
)
def test_the_way_back_leads_to_where_the_step_was_possible_or_its_thing_was_seen(see, admissible, back):
    """A thing that the episode has used is not what is looked for; nor is it part of another word."""
    walked = [
        be("door 1", "walk to shelf 2", "shelf 2"),
        be("shelf 2", "walk to desk 1", "desk 1", see, admissible),
        be("desk 1", "wait", "desk 1"),
    ]
    here = now("walk to shelf 2", "walk to shelf 1", history=walked)
    chosen = choose(0, here, used=frozenset({"lamp 1"} if not admissible else ()), since=2)
    assert chosen == ("walk to shelf 2" if back else "walk to shelf 1")


def test_where_the_episode_has_been_since_the_last_step_is_no_way_back():
    walked = [be("shelf 2", "walk to desk 1", "desk 1", "There is a lamp 3.")]
    again = [*walked, be("desk 1", "walk to shelf 2", "shelf 2"), be("shelf 2", "walk to desk 1", "desk 1")]
    ways = ("walk to shelf 2", "walk to shelf 1")
    assert choose(0, now(*ways, history=walked), since=1) == "walk to shelf 2"
    assert choose(0, now(*ways, history=again), since=1) == "walk to shelf 1"


def bind(demonstrated, task, *actions):
    """The steps of a demonstration of a task that are bound to another one; names are words with a capital."""
    words: Any = SimpleNamespace(
        list_names=lambda text: [word.lower() for word in text.split() if word.istitle()],
        list_frame=lambda text: frozenset(word for word in text.split() if not word.istitle()),
        is_named=lambda form, number, task: True,
        is_fixed=lambda form, number: False,
    )
    binding = bind_demonstration(Demonstration("1", demonstrated, actions, len(actions)), task, words)
    return [step.text for step in binding.steps] if binding else None


def test_what_a_demonstration_did_to_unnamed_things_is_left_out():
    """Wherever it stands among the steps."""
    actions = ("ring bell 1", "grab lamp 1", "ring bell 1", "lay lamp 1 in box 2")
    assert bind("bring a Lamp to Box", "bring a Cup to Shelf", *actions) == ["grab cup", "lay cup in shelf"]


@pytest.mark.parametrize(
    ("aside", "is_bound"), [("lay vase 1 in box 2", True), ("grab vase 1", True), ("hang vase 1 over box 2", False)]
)
def test_what_a_demonstration_did_to_other_things_was_by_chance_if_it_did_the_same_to_the_named_one(aside, is_bound):
    steps = bind("bring a Lamp to Box", "bring a Cup to Shelf", aside, "grab lamp 1", "lay lamp 1 in box 2")
    assert steps == (["grab cup", "lay cup in shelf"] if is_bound else None)


@pytest.mark.parametrize(
    ("task", "is_bound"), [("bring a Cup to Shelf", True), ("bring Cup on Shelf", False), ("bring to Cup Shelf", True)]
)
def test_a_demonstration_is_bound_to_a_task_that_shares_half_of_the_words(task, is_bound):
    """Worked example: of `bring a to` and `bring on` one of four is shared, and of `bring a to` and `bring to` two."""
    assert (bind("bring a Lamp to Box", task, "grab lamp 1") is not None) is is_bound
