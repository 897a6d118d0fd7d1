import random
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, Estimate, Failure, Item, Recollection, State, Step
from hardwon.memory.reasons import Reasons
from hardwon.runtime.interfaces.plans import Plan, PlannedStep, bind_holes
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.planning.chat_planner import ChatPlanner
from hardwon.runtime.planning.composer import DemonstrationPlanner
from hardwon.runtime.planning.draft_planner import DraftPlanner
from hardwon.runtime.planning.plans import SkillPlanner, build_steps, find_planned_action, realize
from hardwon.runtime.planning.search_planner import SearchPlanner

KITCHEN = State("You are in the kitchen.", {"door": "closed"}, task="serve pie")
ACTIONS = ("open fridge", "open oven", "take apple", "take green apple", "take pie", "wait")


def asked(values=None, **fields):
    """A context in the kitchen with these estimates."""
    estimates = {action: Estimate(value, n=3) for action, value in (values or {}).items()}
    made = Context(
        state=KITCHEN,
        actions=ACTIONS,
        recollection=Recollection(estimates=estimates),
        guidance=None,
        forbidden={},
        history=(),
        working=WorkingMemory(),
        rng=random.Random(0),
    )
    return replace(made, **fields)


def skill(name, *steps, **fields):
    """A skill of these steps."""
    return Item("skill", name, steps=steps, **{"id": name, **fields})


def remedy(name, *steps, repairs="precondition", **fields):
    """A remedy of these steps."""
    return Item("remedy", name, steps=steps, repairs=repairs, **{"id": name, **fields})


def failed(action, failure=Failure.PRECONDITION, state=KITCHEN):
    """A history whose last step failed so."""
    return (Step(state, action, state, Diagnosis(False, failure)),)


def actions(plan):
    """The planned actions."""
    return [step.action for step in plan.steps]


BAKE = skill("bake", "open oven", "take pie", "serve pie", verify={"fact": {"pie": "served"}})


@pytest.fixture(params=[SkillPlanner, DemonstrationPlanner])
def planner(library, request):
    """Plans with an empty library: no guardrail refuses anything, and no demonstration can be bound."""
    return request.param(library)


def test_a_plan_is_made_of_the_best_skill_that_can_be_begun(planner):
    """The first offered whose first action is to be had here; its criterion is the check of its last step."""
    plan = planner.plan(asked(), [skill("fly", "fly away"), BAKE, skill("cool", "open fridge")])
    assert actions(plan) == ["open oven", "take pie", "serve pie"]
    assert (plan.goal, plan.item_ids, plan.next.action) == ("serve pie", ("bake",), "open oven")
    assert [step.check for step in plan.steps] == [None, None, {"fact": {"pie": "served"}}]


def test_where_nothing_fits_there_is_no_plan(planner):
    """None is a valid answer; a remedy alone is no plan."""
    assert planner.plan(asked(), []) is None
    assert planner.plan(asked(), [skill("fly", "fly away"), skill("empty")]) is None
    assert planner.plan(asked(), [remedy("unlock", "open oven")]) is None


def test_where_any_text_is_an_action_any_skill_may_be_begun(planner):
    """There is no list that it could be missing from."""
    assert actions(planner.plan(asked(actions=()), [skill("fly", "fly away")])) == ["fly away"]


def test_a_refused_plan_is_not_made(planner, library):
    """systems.md §3: task-granularity guardrail rejects a plan at planning time; the next skill is taken."""
    library.add(
        Item(
            "guardrail",
            "no pie here",
            condition={"fact": {"door": "closed"}},
            forbids="take pie",
            granularity="task",
            confidence=0.9,
        )
    )
    assert planner.plan(asked(), [BAKE]) is None
    assert planner.plan(asked(), [BAKE, skill("cool", "open fridge")]).item_ids == ("cool",)
    elsewhere = replace(KITCHEN, facts={"door": "open"})
    assert planner.plan(asked(state=elsewhere), [BAKE]).item_ids == ("bake",)


def test_holes_are_filled_when_a_plan_is_checked(planner, library):
    """A plan to take anything is refused where the thing that would be taken is forbidden."""
    forbids: Any = {"forbids": "take pie", "granularity": "task", "confidence": 0.9}
    library.add(Item("guardrail", "no pie", condition={"text": "kitchen"}, **forbids))
    take = skill("take", "take {1}")
    assert planner.plan(asked({"take pie": 1.0}), [take]) is None
    assert planner.plan(asked({"take apple": 1.0}), [take]) is not None


def test_a_pattern_stands_for_the_best_action_of_its_kind():
    """By the estimates; not for what was refused, or failed in this context before."""
    values = {"take pie": 0.9, "take apple": 0.5, "open oven": 2.0}
    assert realize("take {1}", asked(values)) == "take pie"
    assert realize("take {1}", asked(values, forbidden={"take pie": "no"})) == "take apple"
    working = WorkingMemory()
    working.fail("take pie", "", "precondition")
    assert realize("take {1}", asked(values, working=working)) == "take apple"
    assert realize("eat {1}", asked(values)) is None


def test_the_very_words_come_before_likeness():
    """`take apple` is also of the pattern of `take green apple`; it is meant first."""
    assert realize("take apple", asked({"take green apple": 1.0, "take apple": 0.0})) == "take apple"


def test_the_planned_action_is_that_of_the_next_step(planner):
    """None without a plan, and when it is over."""
    plan = planner.plan(asked(), [BAKE])
    assert find_planned_action(asked(plan=plan)) == "open oven"
    assert find_planned_action(asked()) is None
    assert find_planned_action(asked(plan=Plan("g", (PlannedStep(1, "wait", done=True),)))) is None


def test_what_filled_a_hole_fills_it_in_what_follows():
    """Arguments that are the same hole are the same thing; what is done keeps the action that was run."""
    plan = Plan("g", build_steps(skill("fetch", "take {1}", "put {1} in {2}"), 1))
    plan = plan.tried("take green apple", done=True)
    assert actions(plan) == ["take green apple", "put green apple in {2}"]
    assert bind_holes("put {1} in {2}", "put pie in old box") == {"{1}": "pie", "{2}": "old box"}


def test_a_try_that_failed_leaves_the_step_to_do():
    """It is counted."""
    plan = Plan("g", build_steps(BAKE, 1)).tried("open oven", done=False)
    assert (plan.steps[0].tries, plan.steps[0].done, plan.done) == (1, False, ())


@pytest.fixture
def half_done(planner):
    """A plan to bake whose first step is done."""
    return planner.plan(asked(), [BAKE]).tried("open oven", done=True)


def kept(before, after):
    """Whether the completed prefix is the very same steps."""
    pairs = zip(before.done, after.steps, strict=False)
    return len(after.steps) >= len(before.done) and all(one is other for one, other in pairs)


def test_a_repair_keeps_what_is_done(planner, half_done):
    """systems.md §3: local replan keeps prefix: prefix ids identical before and after; only the suffix changes."""
    for items in ([], [skill("cool", "open fridge", "wait")], [remedy("warm", "wait", scope="suffix")]):
        repaired = planner.repair(half_done, "no progress", asked(history=failed("take pie")), items)
        assert kept(half_done, repaired)
        assert [step.number for step in repaired.done] == [1]
        assert {step.number for step in repaired.open}.isdisjoint(step.number for step in half_done.open)


def test_a_remedy_for_the_failure_comes_first(planner, half_done):
    """Before another skill; not one for another failure."""
    items = [skill("cool", "open fridge"), remedy("shout", "wait", repairs="tool_error"), remedy("warm", "wait")]
    repaired = planner.repair(half_done, "no progress", asked(history=failed("take pie")), items)
    assert repaired.item_ids == ("bake", "warm")
    assert actions(repaired)[1] == "wait"


def test_a_remedy_of_one_step_goes_on_with_the_plan(planner, half_done):
    """The rest is still to do; where the remedy ends with the action that failed, it is not done twice."""
    context = asked(history=failed("take pie"))
    before = planner.repair(half_done, "", context, [remedy("warm", "wait")])
    assert actions(before) == ["open oven", "wait", "take pie", "serve pie"]
    assert before.open[1:] == half_done.open
    instead = planner.repair(half_done, "", context, [remedy("warm", "wait", "take {1}")])
    assert actions(instead) == ["open oven", "wait", "take pie", "serve pie"]
    wide = planner.repair(half_done, "", context, [remedy("warm", "wait", scope="suffix")])
    assert actions(wide) == ["open oven", "wait"]


def test_what_one_action_s_failures_taught_repairs_that_action(planner, half_done):
    """A remedy that was induced speaks of its last action; a person's or a model's of any such failure."""
    induced = remedy("unlock", "open fridge", "open {1}", source="experience")
    of_take = asked(history=failed("take pie"))
    assert planner.repair(half_done, "", of_take, [induced]).open == ()
    of_open = asked(history=failed("open oven"))
    assert [step.action for step in planner.repair(half_done, "", of_open, [induced]).open][:2] == [
        "open fridge",
        "open oven",
    ]


def test_another_action_takes_the_place_of_the_one_that_failed(planner, half_done):
    """With the values of the failed one where the remedy leaves them open."""
    grab = remedy("grab", "grab {1}", forbids="take {1}", source="experience")
    context = asked(history=failed("take pie"), actions=(*ACTIONS, "grab pie"))
    repaired = planner.repair(half_done, "", context, [grab])
    assert actions(repaired) == ["open oven", "grab pie", "serve pie"]
    assert planner.repair(half_done, "", asked(history=failed("open oven")), [grab]).open == ()


def test_a_remedy_is_tried_once_in_a_situation(planner, half_done):
    """In another situation of the episode it may be tried again."""
    elsewhere = State("You are on the roof.")
    for where, items in ((KITCHEN, ("bake",)), (elsewhere, ("bake", "warm"))):
        tried = Step(where, "wait", where, Diagnosis(True), why=Reasons(skills=("warm",)))
        history = (tried, *failed("take pie"))
        repaired = planner.repair(half_done, "", asked(history=history), [remedy("warm", "wait", scope="suffix")])
        assert repaired.item_ids == items


def test_without_a_remedy_another_skill_is_taken(planner, half_done):
    """Not the one that the plan is in the middle of."""
    items = [BAKE, skill("cool", "open fridge", "wait")]
    repaired = planner.repair(half_done, "circles", asked(), items)
    assert repaired.item_ids == ("bake", "cool")
    assert actions(repaired) == ["open oven", "open fridge", "wait"]


def test_where_nothing_fits_the_suffix_is_dropped(planner, half_done):
    """The plan is over; what was done stays done."""
    repaired = planner.repair(half_done, "circles", asked(), [BAKE, skill("fly", "fly away")])
    assert (repaired.steps, repaired.next) == (half_done.done, None)


def test_a_plan_survives_a_checkpoint(half_done):
    """Lists come back as tuples."""
    assert Plan(half_done.goal, list(half_done.steps)) == half_done  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("planner", "waits"),
    [(SkillPlanner, False), (DemonstrationPlanner, False), (ChatPlanner, True), (DraftPlanner, True),
     (SearchPlanner, True)],
)  # fmt: skip
def test_a_planner_that_asks_a_model_waits(planner, waits):
    """An asynchronous loop runs it in a thread."""
    assert planner.waits is waits
