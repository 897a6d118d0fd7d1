import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from hardwon.memory import ExperienceLibrary, Failure, Item, State
from hardwon.memory.errors import UnknownName
from hardwon.memory.reasons import Reasons
from hardwon.runtime.agent import Agent
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.planning.plans import SkillPlanner
from hardwon.runtime.planning.progress import find_followed_step, judge_skills
from hardwon.runtime.policies.episodic import EpisodicPolicy

checkpoint = pytest.importorskip("langgraph.checkpoint.memory")

NOTHING_YET = {"fact": {"wood": False}}
TOOLS = ("gather wood", "craft table", "craft pickaxe")


def skill(*steps, verify=None, condition=NOTHING_YET, title="make tools", **fields):
    """A skill that may be begun with empty hands."""
    verify = verify or {"fact": {"pickaxe": True}}
    return Item("skill", title, steps=steps or TOOLS, condition=condition, verify=verify, **fields)


class Obedient:
    """Does what the plan has next, else these actions in turn; it claims that all went well."""

    name = "obedient"
    reads: Literal["values", "text"] = "values"

    def __init__(self, *otherwise):
        self.otherwise, self.seen = otherwise or ("rest",), []

    def decide(self, context):
        self.seen.append(context)
        chosen = EpisodicPolicy().decide(context) if context.plan and context.plan.next else None
        if chosen is None or not chosen.why.planned:
            taken = sum(not step.why.planned for step in context.history)
            return replace(
                EpisodicPolicy().decide(context),
                action=self.otherwise[taken % len(self.otherwise)],
                why=Reasons(extra={"done": True}),
            )
        return chosen

    async def adecide(self, context):
        return self.decide(context)


@pytest.fixture
def agent(library, workshop):
    """Makes an agent with a planner; it does not learn, so that nothing is left to chance."""

    def make(policy=None, *, world=None, **options):
        given = {"planner": "skills", "learn": False, "max_steps": 8, **options}
        return Agent(policy or Obedient(), given.pop("library", library), world or workshop(), **given)

    return make


def taken(result):
    """The actions of an episode."""
    return [step.action for step in result.trajectory.steps]


def test_a_plan_is_followed(agent, library):
    """The skill's steps in order; each says which skill it was, and the run is verified at its end."""
    ref = library.add(skill()).item_id
    result = agent().run()
    assert taken(result)[:4] == [*TOOLS, "rest"]
    assert [step.why.skills for step in result.trajectory.steps[:4]] == [(ref,), (ref,), (ref,), None]
    assert result.trajectory.meta["skills"] == {ref: True}


def test_without_a_planner_there_is_no_plan(agent, library):
    """Nothing is said of skills."""
    library.add(skill())
    result = agent(planner=None).run()
    assert set(taken(result)) == {"rest"}
    assert "skills" not in result.trajectory.meta


def test_the_control_arm_has_no_skills(agent, library):
    """It runs without memory."""
    library.add(skill())
    assert set(taken(agent(arm="control").run())) == {"rest"}


def test_a_skill_is_offered_when_its_precondition_holds(agent, library):
    """systems.md §3: skill not offered when a precondition is false."""
    library.add(skill(condition={"fact": {"stone": True}}))
    policy = Obedient()
    agent(policy).run()
    assert all(context.plan is None for context in policy.seen)


def test_a_skill_that_misses_its_criterion_failed(agent, library):
    """systems.md §3: run that fails verification is recorded as failure even if the agent says done."""
    ref = library.add(skill("gather wood", "craft table", verify={"fact": {"furnace": True}})).item_id
    result = agent().run()
    assert taken(result)[:2] == ["gather wood", "craft table"]
    assert all(step.diagnosis.success for step in result.trajectory.steps[:2])
    assert result.trajectory.steps[-1].why == {"done": True}
    assert result.trajectory.meta["skills"] == {ref: False}


def test_an_episode_may_end_within_a_skill(agent, library):
    """Its criterion is asked of the last state."""
    never = library.add(skill()).item_id
    assert agent(max_steps=2).run().trajectory.meta["skills"] == {never: False}
    library.items.retire(never, "the other one")
    early = library.add(skill(*TOOLS, "mine stone", verify={"fact": {"table": True}}, title="make more")).item_id
    assert agent(max_steps=2).run().trajectory.meta["skills"] == {early: True}


def test_a_skill_that_was_not_begun_is_not_judged(agent, library, script):
    """It was offered, and nobody followed it."""
    library.add(skill())
    assert "skills" not in agent(script("rest")).run().trajectory.meta


def test_what_the_library_learns_of_a_run(agent, library):
    """The skill's confidence follows its verified runs."""
    bad = library.add(skill("gather wood", "craft table", verify={"fact": {"furnace": True}})).item_id
    before = library.items.get(bad).confidence
    learner = agent(learn=True, seed=1)
    result = learner.run()
    assert result.trajectory.meta["skills"] == {bad: False}
    assert library.items.get(bad).confidence < before
    assert [usage["outcome"] for usage in library.items.usages(bad) if usage["mode"] == "followed"] == [0.0]


TABLE_LATE = ("gather wood", "craft pickaxe", "mine stone")
"""Wrong: a table is needed first."""


def plans(policy):
    """The plans that the policy saw, without repetitions."""
    seen: list[Plan] = []
    for context in policy.seen:
        if context.plan is not None and (not seen or context.plan != seen[-1]):
            seen.append(context.plan)
    return seen


def remedy(**fields):
    """What to do when something is missing."""
    return Item("remedy", "make a table first", steps=("craft table",), repairs="precondition", **fields)


def test_a_remedy_repairs_the_plan(agent, library):
    """systems.md §3: local replan keeps prefix: the very same steps; only the suffix changes."""
    wrong = library.add(skill(*TABLE_LATE, verify={"fact": {"stone": True}})).item_id
    repair = library.add(remedy()).item_id
    policy = Obedient()
    result = agent(policy).run()
    assert taken(result)[:5] == ["gather wood", "craft pickaxe", "craft pickaxe", "craft table", "craft pickaxe"]
    assert taken(result)[5] == "mine stone"
    assert result.trajectory.meta["skills"] == {wrong: True, repair: True}
    for before, after in zip(plans(policy), plans(policy)[1:], strict=False):
        if after.done and len(after.done) >= len(before.done):
            assert [step.number for step in after.steps[: len(before.done)]] == [step.number for step in before.done]
            assert all(one is other for one, other in zip(before.done, after.steps, strict=False))


class Counting(SkillPlanner):
    """Counts what it is asked."""

    def __init__(self, library):
        super().__init__(library)
        self.repairs = []

    def repair(self, plan, reason, context, items):
        if reason:
            self.repairs.append((len(context.history), reason))
        return super().repair(plan, reason, context, items)


def test_one_trigger_is_one_replan(agent, library, script):
    """systems.md §3: one replan per trigger (cooldown): while the trouble lasts it is not asked again."""
    library.add(skill())
    planner = Counting(library)
    agent(script("rest"), planner=planner, max_steps=12).run()
    assert len(planner.repairs) == 1
    assert planner.repairs[0][0] >= 1


def test_a_planned_action_that_cannot_be_done_is_repaired(agent, library, workshop):
    """The rest is dropped, the policy goes on, and the skill failed."""
    ref = library.add(skill("gather wood", "fly away", "craft table")).item_id
    planner = Counting(library)
    result = agent(planner=planner).run()
    assert taken(result)[:2] == ["gather wood", "rest"]
    assert (1, "`fly away`, which was planned, cannot be done here") in planner.repairs
    assert result.trajectory.meta["skills"] == {ref: False}


def test_a_skill_that_failed_is_not_begun_again(agent, library):
    """In the same episode; it may be in the next one."""
    ref = library.add(skill("dig sand", "fly away")).item_id
    for _ in range(2):
        followed_steps = [step.why.skills for step in agent().run().trajectory.steps]
        assert followed_steps.count((ref,)) == 1


def test_a_check_that_is_not_met_asks_for_a_repair(agent, library):
    """The step did not fail, but it did not bring what was planned; asked once, not while the trouble lasts."""
    library.add(skill("rest", verify={"fact": {"iron": True}}))
    planner = Counting(library)
    agent(planner=planner, max_steps=2).run()
    assert planner.repairs == [(1, "`rest` did not bring about what was planned")]


def test_trouble_without_a_plan_may_be_repaired_too(agent, library, script):
    """A remedy needs no plan."""
    ref = library.add(remedy()).item_id
    policy = Obedient("gather wood", "craft pickaxe", "craft pickaxe")
    result = agent(policy, max_steps=4).run()
    failures = [step.diagnosis.failure for step in result.trajectory.steps]
    assert failures[2] is Failure.PRECONDITION
    assert (taken(result)[3], result.trajectory.steps[3].why.skills) == ("craft table", (ref,))


def test_a_guardrail_comes_before_the_plan(agent, library, workshop):
    """A plan is no order: what is forbidden at the moment is not run."""
    library.add(skill())
    library.add(
        Item("guardrail", "no tables", condition={"fact": {"wood": True}}, forbids="craft table", confidence=0.9)
    )
    world = workshop()
    agent(world=world).run()
    assert "craft table" not in world.ran


def test_an_unknown_planner_is_named(agent):
    """With the one there is."""
    with pytest.raises(UnknownName, match=r"unknown planner 'skill'\. Did you mean 'skills'"):
        agent(planner="skill")


def test_what_is_not_planned_is_not_followed():
    """Nor is anything when there is no plan."""
    plan = Plan("g", (PlannedStep(1, "take {1}"),))
    assert find_followed_step(plan, "take pie") is plan.next
    assert find_followed_step(plan, "eat pie") is None
    assert find_followed_step(None, "take pie") is None


def bare(trajectory):
    """Without the id it was given by chance."""
    return replace(trajectory, id="")


def stock(library):
    """A skill that goes wrong, and its remedy."""
    library.add(skill(*TABLE_LATE, verify={"fact": {"stone": True}}))
    library.add(remedy())


def test_all_graphs_follow_alike(agent, library):
    """In one node or stage by stage, called or awaited, checkpointed or not."""
    stock(library)
    expected = bare(agent().run().trajectory)
    assert expected.meta["skills"]
    assert bare(list(agent().stream())[-1].update["trajectory"]) == expected
    assert bare(asyncio.run(agent().arun()).trajectory) == expected
    assert bare(agent(checkpointer=checkpoint.InMemorySaver()).run().trajectory) == expected


def test_an_interrupted_plan_is_resumed(agent):
    """After any stage: as if nothing had happened."""
    with ExperienceLibrary.open(":memory:") as library:
        stock(library)
        expected = bare(agent(library=library, max_steps=6).run(thread_id="t").trajectory)
        for after in (6, 7, 8, 17, 27, 36, 37, 38, 39, 45, 55):
            saver = checkpoint.InMemorySaver()
            running = agent(library=library, max_steps=6, checkpointer=saver).stream(thread_id="t")
            for _ in range(after):
                next(running)
            running.close()
            resumed = agent(library=library, max_steps=6, checkpointer=saver).resume("t")
            assert bare(resumed.trajectory) == expected, f"interrupted after stage {after}"


def test_a_skill_that_goes_on_does_not_keep_others_from_being_judged():
    steps = tuple(
        PlannedStep(n, "wait", item_id, tries=1, done=done)
        for n, item_id, done in ((1, "on", False), (2, "over", True))
    )
    plan = Plan("rest", steps)
    assert judge_skills(plan, State("now"), {}, continued_by=Plan("rest", steps[:1])) == {"over": True}
