"""Search by PUCT in imagined actions (AlphaMath, arXiv:2405.03553), and the planner that follows it."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory import Estimate, ExperienceLibrary, Recollection, State
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent, Context
from hardwon.runtime.loop.clone_model import CloneModel
from hardwon.runtime.planning.proposals import EstimatedActions
from hardwon.runtime.planning.search import (
    PathEnd,
    Searcher,
    SearchNode,
    back_up,
    is_undecided,
    score_child,
    select_path,
)
from hardwon.runtime.planning.search_planner import SearchPlanner


class Tree:
    """A world in which only the path `a, b, c` solves the task, and everything ends after three actions."""

    def __init__(self, actions=("a", "b", "c"), *, known=True, priors=None):
        self.actions, self.known, self.priors = actions, known, priors or {}
        self.looks: list[Any] = []

    def look(self, path):
        if path:
            self.looks.append(path)
            if not self.known:
                return None
        proposals = tuple((action, self.priors.get(action, 1 / 3)) for action in self.actions)
        if len(path) == 3:
            solved = path == ("a", "b", "c")
            return PathEnd(1.0 if solved else 0.0, 1.0 if solved else -1.0, True, solved)
        return PathEnd(proposals=proposals)


def test_the_score_of_the_worked_example():
    """Priors 0.8 and 0.2, visits 3 and 1, means 0.1 and 0.5, c = 1: 0.5 and 0.7, so the second is chosen."""
    first, second = SearchNode(("a",), 0.8, 3, 0.3), SearchNode(("b",), 0.2, 1, 0.5)
    assert score_child(first, 4, 1.0) == pytest.approx(0.5)
    assert score_child(second, 4, 1.0) == pytest.approx(0.7)


def test_the_mean_of_the_returns_that_were_backed_up():
    """+1, -1 and -1 through one edge: Q = -1/3."""
    root, child = SearchNode(()), SearchNode(("a",))
    for value in (1.0, -1.0, -1.0):
        back_up([root, child], value, discount=1.0)
    assert child.mean == pytest.approx(-1 / 3)
    assert root.visits == 3


def test_a_reward_counts_from_the_action_that_brings_it():
    root, first, second = SearchNode(()), SearchNode(("a",), reward=1.0), SearchNode(("a", "b"), reward=2.0)
    back_up([root, first, second], 0.0, discount=0.5)
    assert (second.mean, first.mean, root.mean) == (2.0, 2.0, 1.0)


def test_the_search_finds_the_only_solution():
    tree = Tree()
    root = Searcher(simulations=200).search(tree)
    assert select_path(root) == ("a", "b", "c")
    assert root.solved
    assert len(tree.looks) == len(set(tree.looks)) < 39  # nothing is looked at twice, nor after the solution


@pytest.mark.parametrize("world", [Tree(("a",)), Tree()])
def test_one_proposal_or_no_simulation_takes_the_first_choice_without_a_look(world):
    """Degenerate cases: the proposer's first choice, and the model is not asked."""
    world.priors = {"a": 0.6, "b": 0.3, "c": 0.1}
    root = Searcher(simulations=40 if len(world.actions) == 1 else 0).search(world)
    assert select_path(root) == ("a",)
    assert world.looks == []


def test_a_tree_that_has_ended_everywhere_is_closed():
    """27 leaves and 12 inner nodes below the root: no further look, whatever the bound."""

    class Lost(Tree):
        def look(self, path):
            look = super().look(path)
            return PathEnd(0.0, -1.0, True) if look and look.done else look

    tree = Lost()
    root = Searcher(simulations=1000).search(tree)
    assert root.closed
    assert len(tree.looks) == 39


def test_a_model_that_can_tell_nothing_decides_nothing():
    tree = Tree(known=False)
    assert is_undecided(Searcher().search(tree))
    assert len(tree.looks) == 3  # each proposal was looked at once


def test_the_order_of_the_proposals_does_not_matter():
    """Invariance; and the same world gives the same tree."""
    trees = [Tree(order) for order in (("a", "b", "c"), ("c", "a", "b"), ("a", "b", "c"))]
    roots = [Searcher(simulations=30).search(tree) for tree in trees]
    assert trees[0].looks == trees[1].looks == trees[2].looks
    assert len({select_path(root) for root in roots}) == 1


def test_priors_are_a_softmax_of_the_estimates():
    """Worked example: a difference of 0.2 makes an action e times as likely."""
    estimates = {"a": Estimate(0.5, 5), "b": Estimate(0.3, 5)}
    context = Context(State("now"), ("a", "b"), Recollection(estimates=estimates))
    priors = [decision.why.extra["prior"] for decision in EstimatedActions().propose(context, 2)]
    assert priors == pytest.approx([math.e / (1 + math.e), 1 / (1 + math.e)])


@pytest.mark.parametrize(("visits", "path"), [(1, ("a",)), (2, ("a", "b"))])
def test_a_path_goes_on_through_children_with_two_visits(visits, path):
    """Single visits are in no order."""
    child = SearchNode(("a",), visits=5, children=[SearchNode(("a", "b"), visits=visits)])
    assert select_path(SearchNode((), children=[child, SearchNode(("c",), visits=4)])) == path


@pytest.mark.parametrize(("totals", "undecided"), [((0.5, 0.5), True), ((0.5, 0.4), False)])
def test_equal_means_decide_nothing(totals, undecided):
    children = [SearchNode((action,), visits=1, total=total) for action, total in zip("ab", totals, strict=True)]
    assert is_undecided(SearchNode((), children=children)) is undecided


def test_a_world_that_cannot_be_looked_at_is_not_searched():
    world: Any = SimpleNamespace(look=lambda path: None)
    assert Searcher().search(world) == SearchNode(())


def test_the_steps_of_a_plan_are_numbered_from_the_last_one_done(workshop):
    world = workshop(goal="pickaxe")
    context = Context(world.reset(), tuple(world.admissible(None)), start=("", 0))
    with ExperienceLibrary.open(":memory:") as library:
        planner = SearchPlanner(library, CloneModel(world))
        plan = planner.plan(context, ())
        assert plan is not None
        half_done = replace(plan, steps=(replace(plan.steps[0], done=True),))
        repaired = planner.repair(half_done, "", context, ())
        planner.close()
    assert [step.number for step in plan.steps] == [1, 2, 3]
    assert [step.number for step in repaired.steps] == [1, 2, 3, 4]


def test_what_was_refused_is_not_proposed():
    context = Context(State("now"), ("a", "b"), forbidden={"a": "refused"})
    assert [decision.action for decision in EstimatedActions().propose(context, 5)] == ["b"]


def test_bounds_are_checked():
    with pytest.raises(ConfigError, match="simulations is -1"):
        Searcher(simulations=-1)


def play(workshop, planner, *, episodes=3, steps=12):
    with ExperienceLibrary.open(":memory:") as library:
        world = workshop(goal="pickaxe")
        agent = Agent("episodic", library, world, planner=planner, max_steps=steps, learn=False)
        results = [agent.run(seed=seed) for seed in range(episodes)]
        agent.close()
        return results


def test_an_agent_that_looks_ahead_solves_what_it_never_saw(workshop):
    """Three actions of ten in the right order, with an empty library: the search finds them in a clone."""
    assert all(result.success for result in play(workshop, "search"))
    assert [result.success for result in play(workshop, None)] != [True] * 3


def test_a_state_that_was_seen_is_not_continued(workshop):
    """Actions that change nothing, and other orders of the same ones, lead to known states."""
    world = workshop(goal="pickaxe")
    model = CloneModel(world)
    context = Context(world.reset(), tuple(world.admissible(None)), start=("", 0))
    with ExperienceLibrary.open(":memory:") as library:
        root = SearchPlanner(library, model).search(context)
    assert [child.path for child in root.children if child.children] == [("gather wood",)]
    model.close()


def test_nothing_is_run_in_the_environment_of_the_episode(workshop: Any):
    class Counting(workshop):  # type: ignore[misc]
        resets = 0

        def clone(self):
            twin = type(self)([], self.goal)
            clones.append(twin)
            return twin

    clones: list[Any] = []
    world = Counting(goal="pickaxe")
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent("episodic", library, world, planner="search", max_steps=12, learn=False)
        result = agent.run(seed=0)
        agent.close()
    assert world.ran == [step.action for step in result.trajectory.steps]
    assert len(clones) == 1
    assert len(clones[0].ran) > len(world.ran)


def test_where_actions_must_not_be_repeated_the_model_is_silent(workshop: Any):
    class Outside(workshop):  # type: ignore[misc]
        branches = None

        def clone(self):
            raise AssertionError("a clone would act outside")

    world = Outside()
    context = Context(world.reset(), tuple(world.admissible(None)), start=("", 0))
    assert CloneModel(world).imagine(context, ["gather wood"]) is None
    with ExperienceLibrary.open(":memory:") as library:
        planner = SearchPlanner(library, CloneModel(world))
        assert planner.plan(context, ()) is None


def test_an_environment_that_does_not_repeat_itself_is_not_planned_in(workshop: Any):
    class Fickle(workshop):  # type: ignore[misc]
        def reset(self, task="", seed=0):
            self.has = ["wood"] if self.ran is clone_ran else []
            return self.state("")

        def clone(self):
            return Fickle(clone_ran, self.goal)

    clone_ran: list[str] = []
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent("episodic", library, Fickle(goal="pickaxe"), planner="search", max_steps=6, learn=False)
        agent.run(seed=0)
        agent.close()
