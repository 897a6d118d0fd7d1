"""Plans that follow one bound demonstration after the other, in states made by hand."""

from types import SimpleNamespace
from typing import Any

from hardwon.memory import Diagnosis, Reasons, State, Step
from hardwon.memory.values.demonstration_index import Demonstration
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.planning.composer import DemonstrationComposer, continue_with
from hardwon.runtime.planning.composition import Binding, BoundStep

TASK = "bring Lamp to Box"
SILENT = ("bring Cup to Shelf", ("ring bell 1",))
BRING = ("bring Cup to Shelf", ("grab cup 1 from desk 1", "lay cup 1 in shelf 1"))
WASH = ("bring Cup to Shelf", ("wash cup 1", "lay cup 1 in shelf 1"))


def know(*demonstrations, needed=(), unsolved=()) -> Any:
    """an index of these demonstrations, named 1, 2 and so on; names of things are words with a capital."""
    known = [Demonstration(str(n), task, actions, 9) for n, (task, actions) in enumerate(demonstrations, 1)]
    return SimpleNamespace(
        size=len(known),
        list_demonstrations=lambda task: known,
        list_needed=lambda task: frozenset(needed),
        list_unsolved=lambda task: frozenset(unsolved),
        list_names=lambda text: [word.lower() for word in text.split() if word.istitle()],
        list_frame=lambda text: frozenset(word for word in text.split() if not word.istitle()),
        is_named=lambda form, number, task: True,
        is_fixed=lambda form, number: False,
        is_way=lambda form: form.startswith("walk"),
        reveals=lambda form: 0.0,
        likelihood=lambda thing, kind: 0.0,
    )


def now(*actions, place="desk 1", history=(), **more):
    state = State(f"You are at {place}.", location=place, task=TASK)
    return Context(state, actions, history=tuple(history), **more)


def be(place, action, then, why=Reasons()):  # noqa: B008
    before, after = (State(f"You are at {name}.", location=name) for name in (place, then))
    return Step(before, action, after, Diagnosis(True), why=why)


def follow(context, index, *done, source="1"):
    """The plan after these steps of it are done."""
    plan = Plan(TASK, done, source=source) if done else None
    return DemonstrationComposer().follow(plan, context, index)


def did(number, action, part, source="1"):
    return PlannedStep(number, action, done=True, source=source, part=part)


def tell(plan):
    return [(step.number, step.action, step.part) for step in plan.open]


def test_a_plan_has_the_action_now_and_the_steps_that_remain():
    """Numbered from the first one on; an action that only prepares a step is none of its parts."""
    index = know(BRING)
    lay = "lay lamp in box"
    grab = now("grab lamp 1 from desk 1")
    assert tell(follow(grab, index)) == [(1, "grab lamp 1 from desk 1", 1), (2, lay, 2)]
    away = now("walk to shelf 1")
    assert tell(follow(away, index)) == [
        (1, "walk to shelf 1", 0),
        (2, "grab lamp from {2}", 1),
        (3, lay, 2),
    ]
    held = follow(now("lay lamp 1 in box 3"), index, did(1, "grab lamp 1 from desk 1", 1))
    assert tell(held) == [(2, "lay lamp 1 in box 3", 2)]


def test_the_first_demonstration_that_can_be_bound_and_has_what_is_needed_is_followed():
    every = know(SILENT, WASH, BRING, needed=["grab {1} from {2}"])
    plan = follow(now("grab lamp 1 from desk 1", "wash lamp 1"), every)
    assert (plan.source, plan.abandoned) == ("3", ())


def test_what_the_episode_gave_up_is_passed_over():
    """The next demonstration is followed, and the one given up stays given up."""
    given_up = be("desk 1", "wait", "desk 1", Reasons(extra={"demonstration": "episode:1"}))
    context = now("grab lamp 1 from desk 1", "wash lamp 1", history=[given_up])
    plan = follow(context, know(WASH, BRING))
    assert (plan.source, plan.abandoned) == ("2", ("1",))


def test_an_index_of_the_same_size_is_another_one():
    """A library that leaves out the task instance of each episode gives each another index of demonstrations."""
    composer, context = DemonstrationComposer(), now("grab lamp 1 from desk 1", "wash lamp 1")
    plans = [composer.follow(None, context, know(what)) for what in (BRING, WASH)]
    assert [plan and plan.open[0].action for plan in plans] == ["grab lamp 1 from desk 1", "wash lamp 1"]


LAMPS = ("grab lamp 1 from desk 1", "grab lamp 2 from desk 1")


def test_a_thing_that_an_earlier_demonstration_used_is_taken_only_if_there_is_no_other():
    used = did(1, LAMPS[1], 1, source="9")
    assert follow(now(*LAMPS), know(BRING), used).open[0].action == LAMPS[0]
    assert follow(now(LAMPS[1]), know(BRING), used).open[0].action == LAMPS[1]


def test_a_place_on_the_way_of_an_earlier_demonstration_is_not_used_up():
    done = did(1, "walk to box 4", 0, source="9"), did(2, LAMPS[0], 1)
    context = now("lay lamp 1 in box 3", "lay lamp 1 in box 4")
    assert follow(context, know(BRING), *done).open[0].action == "lay lamp 1 in box 4"


def test_a_way_is_no_part_of_what_a_demonstration_achieved():
    """What it did is kept for the next demonstration."""
    bindings = [Binding(source, (BoundStep("grab {1}", ()), BoundStep("lay {1}", ()))) for source in "12"]
    done = did(1, "grab lamp 1", 1), did(2, "walk to box 4", 0)
    plan = continue_with(Plan(TASK, done, source="1"), bindings[1], bindings)
    assert [(step.source, step.part) for step in plan.steps] == [("2", 1), ("1", 0)]


def test_a_place_that_was_visited_before_the_last_step_was_done_is_visited_again():
    before = [
        be("desk 1", "walk to box 2", "box 2"),
        be("box 2", "grab lamp 1 from box 2", "box 2"),
        be("box 2", "walk to desk 1", "desk 1"),
    ]
    after = [
        be("desk 1", LAMPS[0], "desk 1"),
        be("desk 1", "walk to box 2", "box 2"),
        be("box 2", "walk to desk 1", "desk 1"),
    ]
    ways = ("walk to box 2", "walk to box 10")
    for history, grabbed, way in ((before, "grab lamp 1 from box 2", ways[0]), (after, LAMPS[0], ways[1])):
        plan = follow(now(*ways, history=history), know(BRING), did(1, grabbed, 1))
        assert plan.open[0].action == way


OTHERWISE = ("rub lamp 1", "scrub lamp 1", "polish lamp 1")


def detour(
    *past_actions, unsolved=("shiny",), actions=(*OTHERWISE, "rub cup 3", "lay lamp 1 in box 3"), known=BRING, **more
):
    """The next action once the lamp is in hand, and these were done with it."""
    history = [be("desk 1", action, "desk 1") for action in (LAMPS[0], *past_actions)]
    done = did(1, LAMPS[0], 1), *(did(n, action, 0) for n, action in enumerate(past_actions, 2))
    context = now(*actions, history=history, learning=True, **more)
    return follow(context, know(known, unsolved=unsolved), *done).open[0].action


def test_before_the_last_step_of_a_new_kind_of_task_each_form_of_action_is_tried_once():
    """With the thing of the demonstration, and no other."""
    first = detour()
    second = detour(first)
    third = detour(first, second)
    assert {first, second, third} == {*OTHERWISE}
    assert detour(first, second, third) == "lay lamp 1 in box 3"
    assert detour(forbidden=dict.fromkeys(OTHERWISE[:2], "no")) == OTHERWISE[2]


def test_what_the_task_says_is_done_first_and_ends_the_detour():
    assert detour(unsolved=("scrub",)) == "scrub lamp 1"
    assert detour("scrub lamp 1", unsolved=("scrub",)) == "lay lamp 1 in box 3"
    assert detour(unsolved=()) == "lay lamp 1 in box 3", "such tasks were solved"


def test_the_steps_before_the_last_one_are_done_first():
    longer = (BRING[0], (BRING[1][0], "dust cup 1", BRING[1][1]))
    assert detour(actions=(*OTHERWISE, "dust lamp 1"), known=longer) == "dust lamp 1"


def test_a_place_of_each_kind_is_visited_before_the_last_step():
    here, elsewhere, lay = "walk to desk 2", "walk to basin 1", "lay lamp 1 in box 3"
    assert detour(actions=(here, elsewhere, lay)) == elsewhere
    assert detour(actions=(here, lay)) == lay, "a desk was visited"
