"""The policy that plans over lookahead values."""

import random
from dataclasses import replace
from itertools import cycle

import pytest

from hardwon.memory import Diagnosis, Estimate, ExperienceLibrary, Recollection, State, Step
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.values.lookahead import Elsewhere, Lookahead
from hardwon.memory.values.lookahead_table import LookaheadValue
from hardwon.runtime import Agent, LookaheadPolicy
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory

HALL = State("You are in the hall.", location="hall", task="find the coin")


def asked(here, elsewhere=(), **fields):
    """A context in the hall with these lookahead values."""
    made = Context(
        state=HALL,
        actions=tuple(sorted(here)),
        lookahead=Lookahead(dict(here), tuple(elsewhere)),
        working=WorkingMemory(),
        rng=random.Random(0),
    )
    return replace(made, **fields)


class Fixed(random.Random):
    """Draws these numbers in turn."""

    def __init__(self, *numbers):
        super().__init__(0)
        self.numbers = cycle(numbers)

    def random(self):
        return next(self.numbers)


def choose(*args, **fields):
    return LookaheadPolicy().decide(asked(*args, **fields)).action


def far(value, steps=1, first="move north"):
    return Elsewhere("take lamp", "attic", LookaheadValue(value), first, steps)


def test_the_way_to_a_better_action_elsewhere_is_taken():
    """At two steps, 1.0 is worth 0.81."""
    here = {"wait": LookaheadValue(0.8), "move north": LookaheadValue(0.0)}
    assert choose(here, [far(1.0, steps=2)]) == "move north"
    assert choose({**here, "wait": LookaheadValue(0.82)}, [far(1.0, steps=2)]) == "wait"


def test_a_step_tells_which_chain_it_is_the_first_link_of():
    why = (
        LookaheadPolicy()
        .decide(asked({"wait": LookaheadValue(0.1), "move north": LookaheadValue(0.0)}, [far(1.0, steps=2)]))
        .why
    )
    assert why.extra["plan"] == "move north, then take lamp at attic, 2 steps away"


def test_a_way_that_cannot_be_begun_is_no_way():
    assert choose({"wait": LookaheadValue(0.1)}, [far(1.0)]) == "wait"


def test_a_risky_action_is_not_taken_although_it_is_best():
    here = {"wait": LookaheadValue(0.1), "eat": LookaheadValue(2.0, lost=0.3, n=9)}
    assert choose(here) == "wait"


def test_while_learning_what_was_never_tried_counts_as_safe():
    """Otherwise the agent could never learn which of several devices is right."""
    untried = {"wait": LookaheadValue(0.1, n=99), "eat": LookaheadValue(0.3 - 2 * 0.6, gain=0.3, lost=0.65, n=0)}
    known = {**untried, "eat": replace(untried["eat"], n=99)}
    quiet = {"learning": True, "practice": 1000}
    drawn = [choose(untried, **quiet, rng=random.Random(seed)) for seed in range(20)]
    assert drawn.count("eat") > 15
    drawn = [choose(known, **quiet, rng=random.Random(seed)) for seed in range(20)]
    assert drawn.count("wait") > 15


def test_afterwards_what_was_never_tried_counts_as_twice_as_risky():
    tried = {"wait": LookaheadValue(0.1), "eat": LookaheadValue(2.0, lost=0.15, n=99)}
    assert choose(tried) == "eat"
    assert choose({**tried, "eat": LookaheadValue(2.0, lost=0.15, n=0)}) == "wait"


def test_an_action_without_effect_is_not_taken():
    assert choose({"wait": LookaheadValue(0.0), "knock": LookaheadValue(0.5, dead=0.9)}) == "wait"


def test_only_risky_actions_are_still_taken():
    assert choose({"eat": LookaheadValue(0.0, lost=0.9)}) == "eat"


def test_what_a_try_could_show_counts_while_learning_alone():
    here = {"wait": LookaheadValue(0.6), "knock": LookaheadValue(0.0, promise=0.9)}
    assert choose(here) == "wait"
    drawn = [choose(here, learning=True, rng=random.Random(seed)) for seed in range(20)]
    assert drawn.count("knock") > 15


def test_what_is_known_to_lead_on_is_rarely_left():
    def count(value):
        here = {"open box": LookaheadValue(value), **{f"knock {n}": LookaheadValue(0.0) for n in range(9)}}
        drawn = [choose(here, learning=True, practice=0, rng=random.Random(seed)) for seed in range(100)]
        return drawn.count("open box")

    assert count(0.9) > 90
    assert count(0.3) < 80


def paid_before(*admissible, action="lift stone", reward=1.0):
    """The history of an episode: one step, and the actions that were admissible before it."""
    return (Step(HALL, action, HALL, Diagnosis(True), reward=reward, admissible=(action, *admissible)),)


RISKY = {"wait": LookaheadValue(0.1), "taste": LookaheadValue(-1.0, lost=0.55, n=9, chance=0.1)}


def test_a_stuck_agent_tries_what_the_last_paid_step_made_possible():
    """Even if similar actions lost the task: otherwise a chain whose last link looks like a mistake is never closed."""
    quiet = {"learning": True, "practice": 1000, "rng": random.Random(0)}
    assert choose(RISKY, history=paid_before("wait"), **quiet) == "taste"
    assert choose(RISKY, history=paid_before("wait", "taste"), **quiet) == "wait"  # it was possible before
    assert choose(RISKY, history=paid_before("wait", reward=0.0), **quiet) == "wait"
    assert choose({**RISKY, "wait": LookaheadValue(0.3)}, history=paid_before("wait"), **quiet) == "wait"
    assert (
        choose({**RISKY, "taste": LookaheadValue(-1.0, lost=0.55, chance=0.01)}, history=paid_before("wait"), **quiet)
        == "wait"
    )
    assert choose(RISKY, history=paid_before("wait")) == "wait"  # frozen


def test_a_stuck_frozen_agent_takes_a_risk_that_pays_more_often_than_it_loses():
    here = {"wait": LookaheadValue(0.1), "cut": LookaheadValue(0.3, gain=0.7, lost=0.3, n=1)}
    assert choose(here) == "cut"
    assert choose({**here, "wait": LookaheadValue(0.3)}) == "wait"
    assert choose({**here, "cut": LookaheadValue(0.3, gain=0.4, lost=0.3, n=1)}) == "wait"
    risk = Elsewhere("cut", "attic", LookaheadValue(0.3, gain=0.7, lost=0.3, n=1), "move north", 1)
    assert choose({"wait": LookaheadValue(0.1), "move north": LookaheadValue(0.0)}, [risk]) == "move north"


def test_what_was_taken_here_since_the_last_reward_is_worth_less():
    """Whatever else changed: a detail that differs makes the state new."""
    working = WorkingMemory()
    other = replace(HALL, observation="You are in the hall. It is dark.")
    for _ in range(2):
        working.add(Step(other, "knock", HALL, Diagnosis(True)))
    here = {"wait": LookaheadValue(0.35), "knock": LookaheadValue(0.5)}
    assert choose(here) == "knock"
    assert choose(here, working=working) == "wait"


def test_a_way_that_was_taken_in_vain_is_worth_less():
    """Otherwise two places that each look better from the other one keep the agent walking."""
    working = WorkingMemory()
    there = replace(HALL, location="attic")
    for _ in range(2):
        working.add(Step(HALL, "move north", there, Diagnosis(True)))
        working.add(Step(there, "move south", HALL, Diagnosis(True)))
    here = {"wait": LookaheadValue(0.8), "move north": LookaheadValue(0.0)}
    assert choose(here, [far(1.0)]) == "move north"
    assert choose(here, [far(1.0)], working=working) == "wait"


def test_estimated_returns_decide_where_no_lookahead_value_is_promising():
    recalled = Recollection(estimates={"left": Estimate(0.2), "right": Estimate(0.6)})
    assert choose({"left": LookaheadValue(0.1), "right": LookaheadValue(0.0)}, recollection=recalled) == "right"
    assert choose({"left": LookaheadValue(0.3), "right": LookaheadValue(0.0)}, recollection=recalled) == "left"


def test_without_any_lookahead_value_a_random_action_is_taken():
    assert (
        len({choose({"a": LookaheadValue(0.0), "b": LookaheadValue(0.0)}, rng=random.Random(n)) for n in range(20)})
        == 2
    )


def test_the_value_of_an_estimated_return_is_its_distance_from_the_mean():
    """Worked example: returns 0 and 1 in units of 2 are 0.25 below and above it."""
    recalled = Recollection(estimates={"left": Estimate(0.0), "right": Estimate(1.0)})
    context = asked({"left": LookaheadValue(0.0), "right": LookaheadValue(0.0)}, recollection=recalled)
    context = replace(context, lookahead=replace(context.lookahead, scale=2.0))
    assert LookaheadPolicy().decide(context).why.value == 0.25


def test_a_stuck_frozen_agent_risks_what_makes_much_possible():
    here = {"wait": LookaheadValue(0.1), "cut": LookaheadValue(0.0, unlock=0.9, lost=0.4, n=1)}
    assert choose(here) == "cut"


def test_chance_decides_between_equals_alone():
    """The smallest draw does not outweigh a difference, however the draws fall."""
    unlucky = {"rng": Fixed(1e-9, 1.0)}
    assert choose({"knock": LookaheadValue(0.5), "open box": LookaheadValue(0.6)}, **unlucky) == "open box"
    fresh = {
        "drink": LookaheadValue(-1.0, lost=0.9, n=9, chance=0.1),
        "taste": LookaheadValue(-1.0, lost=0.9, n=9, chance=0.2),
    }
    assert choose(fresh, history=paid_before("wait"), learning=True, practice=1000, **unlucky) == "taste"


def test_what_was_tried_since_the_last_paid_step_is_not_tried_again():
    """Also if another step came after it."""
    tried = [Step(HALL, action, HALL, Diagnosis(True), admissible=("wait",)) for action in ("taste", "wait")]
    history = (*paid_before("wait"), *tried)
    assert choose(RISKY, history=history, learning=True, practice=1000, rng=Fixed(0.9)) == "wait"


@pytest.mark.parametrize(
    ("best", "practice", "rate"), [(0.4, 0, 0.35), (0.4, 50, 0.215), (0.4, 100, 0.08), (0.4, 900, 0.08), (0.6, 0, 0.03)]
)
def test_exploration_falls_from_its_start_to_its_end_over_the_episodes(best, practice, rate):
    """Half way it is in the middle; what is promising is rarely left."""

    def explores(draw):
        context = asked({"wait": LookaheadValue(best), "knock": LookaheadValue(0.3)}, learning=True, practice=practice)
        return bool(LookaheadPolicy().decide(replace(context, rng=Fixed(draw))).why.explored)

    assert [explores(rate - 0.005), explores(rate + 0.005)] == [True, False]


def test_a_planned_action_is_taken_and_says_so():
    plan = Plan("find the coin", (PlannedStep(1, "open box"),))
    decision = LookaheadPolicy().decide(
        asked({"wait": LookaheadValue(0.9), "open box": LookaheadValue(0.1)}, plan=plan)
    )
    assert (decision.action, decision.why.planned) == ("open box", True)


@pytest.mark.parametrize("learning", [False, True])
def test_the_promise_is_among_the_reasons_while_it_counts(learning):
    why = (
        LookaheadPolicy()
        .decide(asked({"wait": LookaheadValue(0.6, promise=0.2)}, learning=learning, rng=Fixed(0.9)))
        .why
    )
    assert why.extra.get("promise") == (0.2 if learning else None)


def test_the_order_of_actions_does_not_matter():
    here = {"wait": LookaheadValue(0.1), "open box": LookaheadValue(0.9), "knock": LookaheadValue(0.5)}
    assert {choose(dict(sorted(here.items(), reverse=flip))) for flip in (True, False)} == {"open box"}


def watch_recall(monkeypatch):
    """The actions of each recall."""
    calls, recall = [], ExperienceLibrary.recall

    def watch(library, *given, actions=None, **named):
        calls.append(sorted(actions))
        return recall(library, *given, actions=actions, **named)

    monkeypatch.setattr(ExperienceLibrary, "recall", watch)
    return calls


def play_keyhole(**fields):
    """Learn in 24 episodes, then play two frozen; return all actions with their values."""
    with ExperienceLibrary.open(":memory:") as library:
        learner = Agent("lookahead", library, Keyhole(), max_steps=20, **fields)
        episodes = [learner.run(seed=seed).trajectory for seed in range(24)]
        player = Agent("lookahead", library, Keyhole(), max_steps=20, learn=False, **fields)
        episodes += [player.run(seed=seed).trajectory for seed in (100, 101)]
    return [[(step.action, step.why.value) for step in episode.steps] for episode in episodes]


def test_estimates_are_recalled_only_in_the_steps_that_need_them(monkeypatch):
    """They decide nothing elsewhere: an agent that recalls at every step does the same, and learns the whole chain."""
    calls = watch_recall(monkeypatch)
    played = play_keyhole()
    assert all(len(steps) <= 8 and steps[-1][0] == "unlock door with key" for steps in played[-2:])
    steps = sum(map(len, played))
    assert len(calls) < steps / 10
    calls.clear()
    monkeypatch.setattr(LookaheadPolicy, "recalls_on_demand", False)
    assert play_keyhole() == played
    assert len(calls) >= steps


def test_a_stuck_frozen_agent_recalls_the_estimates_of_all_actions(monkeypatch):
    """The degenerate case: an empty library has no promising action, so every step needs them."""
    calls = watch_recall(monkeypatch)
    with ExperienceLibrary.open(":memory:") as library:
        steps = Agent("lookahead", library, Keyhole(), max_steps=3, learn=False).run(seed=0).trajectory.steps
    assert calls == [sorted(step.admissible) for step in steps]


def test_a_planner_reads_estimates_at_every_step(monkeypatch):
    calls = watch_recall(monkeypatch)
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent("lookahead", library, Keyhole(), max_steps=5, planner="demonstrations")
        assert len(agent.run(seed=0).trajectory.steps) == len(calls) == 5


def test_an_action_that_failed_in_the_same_context_is_left_out():
    """Only the context of an action that failed is recalled."""
    working, contexts = WorkingMemory(), []

    def recall(actions):
        contexts.append(list(actions))
        return Recollection(estimates={action: Estimate(0.0, context="dark") for action in actions})

    here = {"wait": LookaheadValue(0.4), "open box": LookaheadValue(0.9)}
    assert choose(here, working=working, recall=recall) == "open box"
    working.fail("open box", "light", "no_effect")
    assert choose(here, working=working, recall=recall) == "open box"
    working.fail("open box", "dark", "no_effect")
    assert choose(here, working=working, recall=recall) == "wait"
    assert contexts == [["open box"]] * 2


def test_an_environment_without_admissible_actions_is_refused():
    with pytest.raises(PolicyFailure, match="admissible"):
        LookaheadPolicy().decide(asked({}))


class Keyhole:
    """Fetch a key in one room, open a door with it in another one; only the door pays."""

    name = "keyhole"

    def reset(self, task="", seed=0):
        self.here, self.key = ("hall", "cellar")[seed % 2], False
        return self._state("")

    def _state(self, feedback):
        other = "cellar" if self.here == "hall" else "hall"
        text = f"You are in the {self.here}. To the north you see the {other}."
        held = ["a key"] if self.key else []
        return State(text, {"carried": held}, location=self.here, task="open the door", feedback=feedback)

    def admissible(self, state):
        found = ["look at wall", "move north", "sing"]
        if self.here == "cellar" and not self.key:
            found.append("take key")
        if self.here == "hall" and self.key:
            found.append("unlock door with key")
        return sorted(found)

    def step(self, action):
        won = action.startswith("unlock")
        if action == "move north":
            self.here = "cellar" if self.here == "hall" else "hall"
        self.key = self.key or action == "take key"
        return self._state(f"You {action}."), float(won), won, {"success": won}

    def clone(self):
        return Keyhole()

    def close(self):
        pass
