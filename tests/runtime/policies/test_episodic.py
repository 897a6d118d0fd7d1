import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Estimate, Reasons, Recollection, State, Step
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context, Policy
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.policies.episodic import EXPLORE, MARGIN, EpisodicPolicy, RandomPolicy, compute_exploration_rate

HALL = State("You are in the hall.")


def asked(values=None, seed=0, **fields):
    """A context with estimates of these values, all alike in evidence."""
    known = values if values is not None else {"go": 0.9, "stay": 0.1}
    estimates = {action: Estimate(value, n=3, key="k", tried=5) for action, value in known.items()}
    context = Context(
        state=HALL,
        actions=tuple(sorted(known)),
        recollection=Recollection(estimates=estimates),
        guidance=None,
        forbidden={},
        history=(),
        working=WorkingMemory(),
        rng=random.Random(seed),
        practice=10**6,
    )
    return replace(context, **fields)


def choose(**fields):
    """What episodic control does."""
    return EpisodicPolicy().decide(asked(**fields)).action


def test_it_takes_what_paid_most():
    """The highest estimate wins."""
    assert choose() == "go"


def test_what_is_forbidden_is_not_taken():
    """Unless all is."""
    assert choose(forbidden={"go": "no"}) == "stay"
    assert choose(forbidden={"go": "no", "stay": "no"}) == "go"


def test_what_failed_in_this_context_is_not_repeated():
    """Within the episode, whatever the library says; unless there is nothing else."""
    working = WorkingMemory()
    working.fail("go", "", "no effect")
    assert choose(working=working) == "stay"
    working.fail("stay", "", "no effect")
    assert choose(working=working) == "go"


def test_the_untried_is_tried_first_while_learning():
    """Optimism in the face of what is not known; none when it counts."""
    estimates = {"known": Estimate(0.05, tried=50), "new": Estimate(0.0)}
    context = asked({"known": 0, "new": 0}, recollection=Recollection(estimates=estimates))
    learning = [
        EpisodicPolicy().decide(replace(context, learning=True, rng=random.Random(n))).action for n in range(50)
    ]
    assert Counter(learning)["new"] > 40
    assert EpisodicPolicy().decide(context).action == "known"


START, END, _ = EXPLORE


@pytest.mark.parametrize(
    ("untried", "before", "chosen", "rate"),
    [
        ("a", (), "a", START),  # as at the start, until each was tried once
        ("ab", (False,), "ab", START),
        ("a", (False, True), "a", START),  # further on the other way
        ("a", (True, False), "abc", END),  # back on its way, which was left once
        ("", (), "abc", END),
    ],
)
def test_what_was_never_tried_is_explored(untried, before, chosen, rate):
    estimates = {action: Estimate(0.5, tried=9, untried=action in untried) for action in "abc"}
    history = tuple(Step(HALL, "look", HALL, Diagnosis(True), why=Reasons(explored=each or None)) for each in before)
    recollection = Recollection(estimates=estimates)
    context = asked({"a": 0, "b": 0, "c": 0}, recollection=recollection, learning=True, history=history)
    decisions = [EpisodicPolicy().decide(replace(context, rng=random.Random(n))) for n in range(1000)]
    explored = [decision.action for decision in decisions if decision.why.explored]
    assert set(explored) == set(chosen)
    assert len(explored) / 1000 == pytest.approx(rate, abs=0.05)
    frozen = EpisodicPolicy().decide(replace(context, learning=False))
    assert not frozen.why.explored


def test_exploration_fades():
    """From EXPLORE's first to its second number over its third."""
    first, last, over = EXPLORE
    assert compute_exploration_rate(0) == first
    assert compute_exploration_rate(over // 2) == pytest.approx((first + last) / 2)
    assert compute_exploration_rate(over) == pytest.approx(last)
    assert compute_exploration_rate(10 * over) == last


def test_it_explores_while_learning_only():
    """With the chance that compute_exploration_rate() says, and says so."""
    runs = [EpisodicPolicy().decide(asked(seed=n, learning=True, practice=0)) for n in range(200)]
    explored = [run for run in runs if run.why.explored]
    assert 60 < len(explored) < 140
    assert {run.action for run in explored} == {"go", "stay"}
    assert {choose(seed=n) for n in range(50)} == {"go"}


def test_it_leaves_a_circle():
    """Asked to replan where it took its choice often enough, it takes what it tried less."""
    working = WorkingMemory()
    working.begin(HALL)
    for _ in range(3):
        working.add(Step(HALL, "go", HALL, Diagnosis(True)))
    assert choose(working=working) == "go"
    assert choose(working=working, replan="the last steps go in circles") == "stay"


def test_what_brought_nothing_at_this_place_wears_out_while_frozen():
    """The state is another one each time, as the lamp changes; the place is the same. A reward begins anew."""
    values = {"go": 0.5, "stay": 0.45}
    lamps = [State(f"You are in the hall. The lamp is {lit}.", location="hall") for lit in ("on", "off", "dim")]
    working = WorkingMemory()
    working.begin(lamps[0])
    assert choose(values=values, working=working, state=lamps[0]) == "go"
    working.add(Step(lamps[0], "go", lamps[1], Diagnosis(True)))
    assert choose(values=values, working=working, state=lamps[1]) == "stay"
    assert choose(values=values, working=working, state=replace(lamps[1], location="cellar")) == "go"
    working.add(Step(lamps[1], "stay", lamps[2], Diagnosis(True), reward=0.5))
    assert choose(values=values, working=working, state=lamps[2]) == "go"


@pytest.mark.parametrize(("lost", "taken"), [(0.5, "eat"), (0.59, "eat"), (0.61, "wait")])
def test_an_action_that_lost_the_task_is_avoided_while_frozen(lost, taken):
    """0.61 - 0.5 is more than the 0.1 by which its value is higher; up to one half costs nothing."""
    estimates = {"eat": Estimate(0.1, n=9, key="k", lost=lost), "wait": Estimate(0.0, n=9, key="k")}
    assert choose(values={"eat": 0.1, "wait": 0.0}, recollection=Recollection(estimates=estimates)) == taken
    learner = {"eat": Estimate(0.1, n=9, key="k", lost=1.0), "wait": Estimate(0.0, n=9, key="k")}
    assert choose_while_learning(learner) == "eat", "losing teaches"


def choose_while_learning(estimates):
    """Return the action that it takes most often, as it explores at times."""
    made = Counter(
        choose(
            values=dict.fromkeys(estimates), recollection=Recollection(estimates=estimates), learning=True, seed=seed
        )
        for seed in range(20)
    )
    return made.most_common(1)[0][0]


def test_it_says_why():
    """Value, evidence and the key it rests on."""
    assert EpisodicPolicy().decide(asked()).why == {"value": 0.9, "n": 3, "key": "k", "like": []}


def test_an_action_without_an_estimate_is_worth_nothing():
    """It may be taken when the others are worth less."""
    context = asked({"known": -0.5, "other": 0}, recollection=Recollection(estimates={"known": Estimate(-0.5)}))
    assert EpisodicPolicy().decide(context).action == "other"


@pytest.mark.parametrize("policy", [EpisodicPolicy(), RandomPolicy()])
def test_without_actions_there_is_no_choice(policy):
    """The message says what to use instead."""
    with pytest.raises(PolicyFailure, match="admissible actions"):
        policy.decide(asked(actions=()))


@pytest.mark.parametrize("policy", [EpisodicPolicy(), RandomPolicy()])
def test_awaited_it_is_the_same(policy):
    """The same chance, the same choice."""
    assert asyncio.run(policy.adecide(asked(seed=3))) == policy.decide(asked(seed=3))
    assert isinstance(policy, Policy)


def test_the_same_chance_makes_the_same_choice():
    """All chance comes from the context."""
    ties = dict.fromkeys("abcdef", 0.5)
    assert len({choose(values=ties, seed=n) for n in range(30)}) > 1
    assert all(choose(values=ties, seed=n) == choose(values=ties, seed=n) for n in range(30))


def test_random_takes_anything_that_is_allowed():
    """Each about as often; what is forbidden never, unless all is."""
    taken = Counter(RandomPolicy().decide(asked(seed=n)).action for n in range(400))
    assert all(150 < count < 250 for count in taken.values())
    assert {RandomPolicy().decide(asked(seed=n, forbidden={"go": "no"})).action for n in range(20)} == {"stay"}
    assert RandomPolicy().decide(asked(forbidden={"go": "", "stay": ""})).action in ("go", "stay")


def planned(*actions):
    """A plan to take these actions."""
    return Plan("g", tuple(PlannedStep(n, action) for n, action in enumerate(actions)))


def test_it_does_what_is_planned():
    """Though another action is somewhat better; and it says so."""
    margin, _ = MARGIN
    values = {"go": 0.1 + margin, "stay": 0.1}
    assert choose(values=values) == "go"
    decision = EpisodicPolicy().decide(asked(values, plan=planned("stay", "go")))
    assert (decision.action, decision.why.planned, decision.why.value) == ("stay", True, 0.1)


def test_what_is_clearly_better_comes_before_the_plan():
    """By MARGIN's margin, on evidence of so many steps."""
    margin, evidence = MARGIN
    values = {"go": 0.11 + margin, "stay": 0.1}
    assert choose(values=values, plan=planned("stay")) == "go"
    little = {"go": Estimate(0.9, n=evidence - 1), "stay": Estimate(0.1)}
    assert choose(values=values, recollection=Recollection(estimates=little), plan=planned("stay")) == "stay"


def test_what_is_forbidden_is_not_done_though_it_is_planned():
    """Nor what failed here before, nor what cannot be done."""
    assert choose(forbidden={"stay": "no"}, plan=planned("stay")) == "go"
    assert choose(plan=planned("fly")) == "go"


def test_it_does_not_explore_within_a_plan():
    """A skill is judged as a whole."""
    even = {"go": 0.5, "stay": 0.5}
    plan = planned("stay")
    runs = [EpisodicPolicy().decide(asked(even, seed=n, learning=True, practice=0, plan=plan)) for n in range(20)]
    assert {run.action for run in runs} == {"stay"}


@pytest.mark.parametrize(("tries", "chosen"), [(1, "go"), (2, "stay")])
def test_what_was_taken_often_in_a_loop_is_left(tries, chosen):
    """Once is not often."""
    looping = Step(HALL, "go", HALL, Diagnosis(True, loop=True), 1.0)
    working = WorkingMemory.of(HALL, [looping] * tries)
    assert choose(values={"go": 0.9, "stay": 0.1}, history=(looping,) * tries, working=working) == chosen
