"""A form of action that stops to bring what it brought is learned anew."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.values.value_table import ValueTable
from hardwon.runtime.agent import Agent

DESK = State("a parcel is on the desk", task="send the parcel")
KEYS = ("*", "send to {1}", "send to {1} | tried 0", "send to {1} | tried 0 | 1:", "send to {1} | tried 0 | 1: | 1: -")


TARGETS = ("send to east", "send to north", "send to west")


def list_keys(target):
    return (*KEYS, f"send to {target} | tried 0 | 1:")


def fill(values, outcomes, target="north", *, first=1, ends=True, prefix=""):
    for number, value in enumerate(outcomes, first):
        action = f"send to {target}"
        values.add(
            list_keys(target), value, number, action=action, bad=not value, episode=number, ends=ends, prefix=prefix
        )


@pytest.mark.parametrize("prefix", ["", "w1 "])
@pytest.mark.parametrize(("wins", "losses"), [(10, 6), (30, 4), (60, 3), (400, 3)])
def test_a_few_failures_after_many_successes_are_a_change(wins, losses, prefix):
    """With 60 successes, three failures have the probability 1/62 * 2/63 * 3/64 = 0.000024; two have 0.0005."""
    values = ValueTable()
    fill(values, [1.0] * wins + [0.0] * (losses - 1), prefix=prefix)
    assert values.find_change("send to east", prefix) == 0
    fill(values, [0.0], first=wins + losses, prefix=prefix)
    assert values.find_change("send to east", prefix) == wins + losses
    assert values.estimate(list_keys("north"), prefix=prefix).value < 0.5
    fill(values, [1.0], "east", first=wins + losses + 1, prefix=prefix)
    estimates = [values.estimate(list_keys(target), prefix=prefix).value for target in ("north", "east")]
    assert estimates[1] > estimates[0]


@pytest.mark.parametrize(
    "outcomes",
    [
        [1.0] * 60,
        [1.0, 0.0] * 40,
        [1.0] + [0.0] * 14,
        [0.0] * 40,
        [0.0, 0.0, 1.0] * 5 + [0.0] * 40,
        [1.0] * 60 + [0.6] * 9,
        [1.0] * 400 + [0.0] * 2,
        [-1.0] * 40,
    ],
)
def test_chance_rare_successes_and_small_falls_are_none(outcomes):
    values = ValueTable()
    fill(values, outcomes)
    assert values.find_change() == 0


def test_rare_successes_that_stop_are_none():
    """They end when the agent changes, not the world."""
    values = ValueTable()
    for number, value in enumerate([0.0, 0.0, 1.0] * 5 + [0.0] * 80):
        keys = ("*", "send to {1}", f"send to {{1}} | text {number}")
        values.add(keys, value, number + 1, action="send to north", bad=not value, episode=number, ends=True)
    assert values.find_change() == 0


def test_failures_of_another_situation_are_none():
    values = ValueTable()
    fill(values, [1.0] * 60)
    keys = ("*", "send to {1}", "send to {1} | tried 0 | 1: locked")
    for number in range(61, 71):
        values.add(keys, 0.0, number, action="send to north", bad=True, episode=number, ends=True)
    assert values.find_change() == 0


def test_a_description_without_a_gain_does_not_hide_that_another_situation_failed():
    """The number in the text is the same in both situations, and tells nothing."""
    values, number = ValueTable(), "=slot:parcel# send to north | parcel: from 5"
    for at in range(1, 61):
        values.add((*KEYS, number), 1.0, at, action="send to north", episode=at, ends=True)
    keys = ("*", "send to {1}", "send to {1} | tried 0 | 1: locked", number)
    for at in range(61, 71):
        values.add(keys, 0.0, at, action="send to north", bad=True, episode=at, ends=True)
    assert values.find_change() == 0


def test_a_step_that_does_not_end_its_episode_shows_none():
    values = ValueTable()
    fill(values, [1.0] * 60 + [0.0] * 10, ends=False)
    assert values.find_change() == 0


def test_other_forms_keep_their_steps():
    values = ValueTable()
    for number in range(1, 61):
        values.add(["*", "wait"], 1.0, number, action="wait", episode=number)
    fill(values, [1.0] * 60 + [0.0] * 3, first=61)
    cell = values.cell("wait")
    assert cell is not None
    assert cell.n == 60
    assert values.find_change("wait") == 0


class Post:
    """Parcels go to the only open office of three, which is another one from the 61st episode on."""

    name = "post"
    begun = 0
    is_lost = True

    def clone(self):
        return self

    def close(self):
        pass

    def reset(self, task="", seed=0):
        self.begun += 1
        return DESK

    def admissible(self, state):
        return (*TARGETS, "wait")

    def step(self, action):
        won = action == ("send to north" if self.begun <= 60 else "send to west")
        return DESK, float(won), action != "wait", {"success": won, "lost": self.is_lost and not won}


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_agent_finds_another_target_when_its_own_stops_to_work(library, is_lost):
    Post.is_lost = is_lost
    agent = Agent("episodic", library, Post(), max_steps=10, seed=1)
    won = [bool(agent.run(seed=seed).success) for seed in range(120)]
    agent.close()
    assert sum(won[40:60]) >= 15
    assert sum(won[80:100]) >= 15


def record(library, number, action, won):
    diagnosis = Diagnosis(True) if won else Diagnosis(False, Failure.TASK_LOST)
    step = Step(DESK, action, DESK, diagnosis, reward=float(won))
    library.record(Trajectory("send the parcel", (step,), success=won, score=float(won), id=f"e{number}"))


def test_guardrails_from_before_a_change_are_retired_until_the_call_fails_again(tmp_path):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        for number in range(40):
            record(library, number, "send to west" if number < 5 else "send to north", number >= 5)
            library.evolve()  # the words of the text belong to the situation from the 15th episode on
        (ban,) = (item for item in library.items.find(["guardrail"]) if item.forbids == "send to west")
        for number in range(40, 46):
            record(library, number, "send to north", False)
        assert ban.id in library.evolve().retired
        for number in range(46, 52):
            record(library, number, "send to west", False)
        assert library.check(DESK, "send to west").allowed
        library.evolve()
        assert not library.check(DESK, "send to west").allowed
