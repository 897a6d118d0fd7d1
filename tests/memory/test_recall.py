from dataclasses import replace

import pytest

from tacit.memory import Diagnosis, Failure, Item, State, Step, Trajectory
from tacit.memory.clusters import MIN_COSINE
from tacit.memory.recall import tokens_of, within_budget
from tacit.memory.records import Hit

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


def items(recollection):
    """The titles of the items recalled."""
    return [hit.what.title for hit in recollection.items]


def actions(recollection):
    """The actions of the steps recalled."""
    return [hit.what.action for hit in recollection.steps]


def test_an_empty_library_recalls_nothing(library):
    """Empty is a valid answer, and says so."""
    recollection = library.recall(DRAWER)
    assert not recollection
    assert (recollection.path, recollection.tokens) == ("empty", 0)


def test_an_unrelated_query_recalls_nothing(library, episode):
    """What is not near enough is not shown."""
    library.record(episode())
    library.add(Item("insight", "drawers hide spoons"))
    assert not library.recall(State("Quarterly revenue rose sharply.", task="summarise"))


def test_what_is_near_is_recalled(library, episode):
    """Items and steps, with how near they are and why."""
    library.record(episode("open drawer"))
    library.add(Item("insight", "a wooden drawer may be closed"))
    recollection = library.recall(State("You see a wooden drawer. It is stuck.", task="find the spoon"))
    assert (items(recollection), actions(recollection)) == (["a wooden drawer may be closed"], ["open drawer"])
    assert all(hit.similarity >= MIN_COSINE and hit.why for hit in (*recollection.items, *recollection.steps))
    assert recollection.path == "hybrid"


def test_the_same_situation_is_recalled_first(library, episode):
    """Other numbers and names are the same situation."""
    library.record(episode("open drawer 3", see="You see drawer 3. It is closed."))
    (hit,) = library.recall(State("You see drawer 7. It is closed.")).steps
    assert (hit.similarity, hit.what.action) == (1.0, "open drawer 3")


def test_the_best_steps_of_a_situation_come_first(library, episode):
    """By what came of them."""
    for action, reward in (("kick drawer", 0.0), ("open drawer", 1.0), ("wait", 0.5)):
        library.record(episode(action, reward=reward))
    assert actions(library.recall(DRAWER, k=2)) == ["open drawer", "wait"]


def test_a_known_situation_needs_no_scan(library, episode):
    """The first visit searches and binds what it finds; the second one looks up."""
    library.record(episode())
    library.add(Item("insight", "a wooden drawer may be closed"))
    library.recall(DRAWER)
    scans = library._search.scans
    recollection = library.recall(DRAWER)
    assert library._search.scans == scans > 0
    assert recollection.path == "cluster"
    assert items(recollection) == ["a wooden drawer may be closed"]


def test_a_second_visit_recalls_what_the_first_one_did(library, episode):
    """The same items, as near as they were; in this process or another."""
    library.record(episode())
    library.add_many(Item("insight", f"a wooden drawer {word}", score=0.9) for word in ("closed", "find", "of oak"))
    first = library.recall(DRAWER, k=2)
    assert library.recall(DRAWER, k=2).items == first.items
    assert all(hit.similarity < 1.0 for hit in first.items)


def test_what_was_added_since_is_searched_for(library, episode):
    """A bound situation is searched again when the items changed."""
    library.record(episode())
    library.recall(DRAWER)
    library.add(Item("insight", "a wooden drawer may be closed"))
    assert items(library.recall(DRAWER)) == ["a wooden drawer may be closed"]


def test_an_item_bound_to_a_situation_is_recalled_in_it(library):
    """Its words need not resemble the situation; another situation does not get it."""
    library.add(Item("strategy", "zzz", signatures=(DRAWER.signature,)))
    assert items(library.recall(DRAWER)) == ["zzz"]
    assert items(library.recall(State("A red door.", task="leave"))) == []


def test_situations_get_their_own_items(library):
    """Step-level recall: two situations of one task, two answers."""
    library.add_many([Item("insight", "a drawer may be closed"), Item("insight", "a stove may be hot")])
    here = library.recall(State("a drawer that may be closed", task="t"), k=1)
    there = library.recall(State("a stove that may be hot", task="t"), k=1)
    assert (items(here), items(there)) == (["a drawer may be closed"], ["a stove may be hot"])


def test_only_the_kinds_asked_for(library):
    """Others do not take their places."""
    library.add_many([Item("insight", "a drawer closed"), Item("strategy", "a drawer closed")])
    recollection = library.recall(State("a drawer closed"), kinds=["strategy"])
    assert [hit.what.kind for hit in recollection.items] == ["strategy"]


def test_k_bounds_items_and_steps(library, episode):
    """At most k of each."""
    for number in range(4):
        library.record(episode(f"try {number}"))
        library.add(Item("insight", f"a wooden drawer may be closed {number}"))
    recollection = library.recall(DRAWER, k=2)
    assert (len(recollection.items), len(recollection.steps)) == (2, 2)


@pytest.mark.parametrize("budget", [0, 5, 8, 9, 16, 30, 100])
def test_a_token_budget_is_respected(library, episode, budget):
    """Exactly: the tokens reported are those of what is shown, and within the budget."""
    library.record(episode())
    library.add_many(Item("insight", f"a wooden drawer may be closed {'x' * n}") for n in (0, 9, 30))
    recollection = library.recall(DRAWER, budget_tokens=budget)
    shown = [tokens_of(hit.what.text) for hit in recollection.items]
    shown += [tokens_of(f"{hit.what.pre.observation} {hit.what.action}") for hit in recollection.steps]
    assert recollection.tokens == sum(shown) <= budget


def test_a_thing_too_long_makes_way_for_a_shorter_one():
    """The budget is filled, not cut off at the first that does not fit."""
    long, short = Hit(Item("insight", "x" * 400), 1.0, ""), Hit(Item("insight", "y" * 40), 0.5, "")
    assert within_budget([long, short], [], 50) == ((short,), (), 11)


def test_no_budget_shows_all():
    """None is no limit; nothing is nothing."""
    hit = Hit(Item("insight", "x" * 400), 1.0, "")
    assert within_budget([hit], [], None)[0] == (hit,)
    assert within_budget([], [], None) == ((), (), 0)


def test_utility_ranks_equals(library):
    """Of two items equally near, the one that helped is first."""
    for title, score in (("drawer closed a", 0.45), ("drawer closed b", 0.9), ("drawer closed c", 0.5)):
        library.add(Item("insight", title, score=score, signatures=(DRAWER.signature,)))
    assert items(library.recall(DRAWER)) == ["drawer closed b", "drawer closed c", "drawer closed a"]


def test_a_retired_item_is_never_recalled(library):
    """Neither by search nor where it was bound."""
    ref = library.add(Item("insight", "a wooden drawer may be closed", signatures=(DRAWER.signature,))).item_id
    assert library.recall(DRAWER).items
    library.retire(ref, "wrong")
    assert not library.recall(DRAWER)
    assert not library.search("a wooden drawer may be closed")


def test_a_guardrail_is_active_where_its_condition_holds(library):
    """And where an action there is of its pattern."""
    library.add(Item("guardrail", "no", condition={"text": "closed"}, forbids="take {1}", confidence=0.9))
    assert library.recall(DRAWER, k=0, actions={"take spoon": "", "wait": ""}).guardrails
    assert not library.recall(DRAWER, k=0, actions={"wait": ""}).guardrails
    assert not library.recall(State("It is open."), k=0, actions={"take spoon": ""}).guardrails


@pytest.mark.parametrize(
    ("see", "offered"), [("The drawer to open is closed.", True), ("The drawer to open is shut.", False)]
)
def test_a_skill_is_offered_where_its_precondition_holds(library, see, offered):
    """However near its words are."""
    library.add(Item("skill", "open the drawer", "grip, then pull", condition={"text": "closed"}))
    assert bool(library.recall(State(see, task="open the drawer")).items) is offered


def test_a_warning_is_offered_where_it_speaks_of_an_action(library):
    """Its pattern and its condition are asked of the admissible actions, where those are known."""
    library.add(Item("warning", "take the spoon", condition={"text": "closed"}, forbids="take {1}"))
    here = State("take the spoon: closed")
    assert library.recall(here).items
    assert library.recall(here, actions={"take spoon": ""}).items
    assert not library.recall(here, actions={"wait": ""}).items
    assert not library.recall(State("take the spoon: open"), actions={"take spoon": ""}).items


def test_estimates_are_given_for_the_actions(library, episode):
    """And for those only; without other things when k is 0."""
    library.record(episode("open drawer", reward=0.8, library=library))
    recollection = library.recall(DRAWER, k=0, actions={"open drawer": "", "wait": ""})
    assert recollection.estimates["open drawer"].value == pytest.approx(0.8)
    assert set(recollection.estimates) == {"open drawer", "wait"}
    assert recollection.items == recollection.steps == ()


def test_steps_of_an_excluded_episode_are_not_recalled(library, episode):
    """What the environment broke says nothing of the actions."""
    library.record(episode("open drawer", success=None))
    assert actions(library.recall(DRAWER)) == actions(library.recall("wooden drawer closed")) == []


def test_steps_without_an_action_are_not_recalled(library):
    """The policy failed there: nothing was done."""
    judged = Diagnosis(False, Failure.POLICY_ERROR)
    library.record(Trajectory("find the spoon", (Step(DRAWER, "", DRAWER, judged),), False))
    assert not library.recall(DRAWER).steps


def test_a_text_may_be_asked_instead_of_a_state(library, episode):
    """By a person or a tool: always by search."""
    library.record(episode("open drawer"))
    recollection = library.recall("a wooden drawer, closed", task="find the spoon")
    assert actions(recollection) == ["open drawer"]
    assert recollection.path == "hybrid"


def test_by_task_whole_episodes_are_recalled(library, episode):
    """The most similar task's steps, in their order, and estimates from these alone."""
    library.record(episode("open drawer", "take spoon", library=library))
    recollection = library.recall(DRAWER, level="task", actions={"open drawer": ""})
    assert actions(recollection) == ["open drawer", "take spoon"]
    assert recollection.path == "task"
    assert recollection.estimates["open drawer"].n == 1


def test_by_task_the_library_is_asked_once(library, episode, monkeypatch):
    """What was chosen for the task is kept until something new is written."""
    library.record(episode())
    first = library.recall(DRAWER, level="task")
    monkeypatch.setattr("tacit.memory.recall._similar_episodes", None)
    assert library.recall(replace(DRAWER, observation="elsewhere"), level="task").steps == first.steps


def test_by_task_the_better_of_equal_episodes_come_first(library, episode):
    """And excluded ones not at all."""
    for action, reward in (("a", 0.1), ("b", 0.9), ("c", 0.5)):
        library.record(episode(action, reward=reward))
    library.record(episode("d", reward=9.0, success=None))
    assert actions(library.recall(DRAWER, level="task")) == ["b", "c", "a"]
