"""Refinements: closer descriptions of a step count as far as they predict returns better."""

import random

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.situations.refinements import FULL_NAME
from hardwon.memory.values.cells import StoredCells
from hardwon.memory.values.value_table import ValueTable

KIND = "take door | here"


def key(name):
    return f"{FULL_NAME}take {name} door | here"


def table(left, right):
    """A table of alternating steps with the left and the right door; a return of 0 means that the task was lost."""
    values = ValueTable()
    steps = [step for pair in zip(left, right, strict=True) for step in zip(("left", "right"), pair, strict=True)]
    for number, (name, value) in enumerate(steps, 1):
        lost = value == 0.0
        values.add(["take {1}", KIND, key(name)], value, number, bad=lost, lost=lost, episode=number)
    return values


def estimate(values, name):
    return values.estimate(["take {1}", KIND, key(name)])


def test_the_right_door_is_told_from_the_left_one():
    """The failure: doors shared all keys, so the choice between them stayed at chance whatever happened."""
    values = table([1.0] * 12, [0.0] * 12)
    assert estimate(values, "left").value > 0.8 > 0.2 > estimate(values, "right").value
    assert estimate(values, "left").lost < 0.2 < 0.8 < estimate(values, "right").lost
    assert (estimate(values, "left").key, estimate(values, "left").n) == (key("left"), 12)
    assert estimate(values, "left").steps == tuple(range(9, 24, 2))


def test_an_untried_door_is_judged_by_its_kind():
    values = table([1.0] * 12, [0.0] * 12)
    assert estimate(values, "green").value == pytest.approx(0.5)
    assert estimate(values, "green").key == KIND


def test_numbers_that_mean_nothing_change_no_estimate():
    """200 drawers with the same chance: names move few of the estimates, and those that moved stay near the mean."""
    rng = random.Random(3)
    values, keys = ValueTable(), [f"{FULL_NAME}open drawer {n} | here" for n in range(200)]
    kind = "open drawer | here"
    for number in range(2000):
        values.add([kind, keys[number % 200]], float(rng.random() < 0.3), number + 1, episode=number)
    of_kind = values.estimate([kind]).value
    moved = [abs(values.estimate([kind, key]).value - of_kind) for key in keys]
    assert sum(moved_by > 0 for moved_by in moved) <= 0.05 * len(moved)
    assert sum(moved) / len(moved) < 0.01


GIVE, COUNTS = "give {1}", "tried 0 to unknown"


def give(task):
    return [GIVE, f"=goal give blue tonic | {task}"]


def treat(*returns, values=None):
    """A table of episodes with one step each, of a task that the action is right for, and one that it is wrong for."""
    values = ValueTable() if values is None else values
    for number, (task, value) in enumerate(returns, 1):
        values.add(give(task), value, number, action="give blue tonic", episode=number)
    return values


def test_a_gain_is_the_squared_error_that_a_refinement_saves():
    """Worked example: after a return of 1 for an itch and 0 for a flu, the third step is for an itch and brings 1.

    The action alone predicts 1/2, an error of 1/4. With k = 1/4, the task predicts (1 + 1/8) / (1 + 1/4) = 9/10, an
    error of 1/100. With k = 4 it predicts (1 + 2) / 5 = 3/5, an error of (2/5)^2.
    """
    values = treat(("itch", 1.0), ("flu", 0.0))
    assert values.cell(f"~=goal {GIVE} 0.25") is None, "no step was predicted by its task yet"
    treat_again = give("itch")
    values.add(treat_again, 1.0, 3, episode=3)
    assert values.cell(f"~=goal {GIVE} 0.25").mean == pytest.approx(0.24)
    assert values.cell(f"~=goal {GIVE} 4").mean == pytest.approx(1 / 4 - (2 / 5) ** 2)


def test_the_task_decides_once_it_has_predicted_better():
    few = treat(*[("itch", 1.0), ("flu", 0.0)] * 3)
    assert few.estimate(give("itch")).value == few.estimate(give("flu")).value, "4 predictions are too few"
    values = treat(*[("itch", 1.0), ("flu", 0.0)] * 6)
    itch, flu = (values.estimate(give(task)) for task in ("itch", "flu"))
    assert itch.value > 0.95
    assert flu.value < 0.05
    assert (itch.key, itch.n) == (give("itch")[1], 6)
    # one step with a new task suffices then: half of what it was before
    values.add(give("cramp"), 0.0, 13, episode=13)
    assert values.estimate(give("cramp")).value == pytest.approx(0.2 * values.estimate([GIVE]).value)


def test_steps_of_one_episode_do_not_predict_each_other():
    """Degenerate: returns of one episode agree, whatever describes its steps."""
    values = ValueTable()
    for number in range(60):
        values.add(give(f"task {number // 20}"), float(number // 20 == 1), number + 1, episode=number // 20)
    assert values.cell(f"~=goal {GIVE} 0.25") is None
    assert values.estimate(give("task 1")).value == values.estimate(give("task 0")).value


@pytest.mark.parametrize(("scale", "shift"), [(1, -3.0), (-1, 0.0), (100, 7.0), (1e-3, 0.0)])
def test_which_refinements_count_does_not_depend_on_the_scale_or_level_of_returns(scale, shift):
    """Invariance: all gains grow with the square of the scale, and only their differences to 0 count."""
    rng = random.Random(5)
    returns = [(task, base + rng.gauss(0, 0.2)) for _ in range(20) for task, base in (("itch", 0.8), ("flu", 0.2))]
    moved = [(task, scale * value + shift) for task, value in returns]
    prior, of_moved = (treat(*pairs)._gains.find_prior(give("itch")[1]) for pairs in (returns, moved))
    assert prior == of_moved
    assert prior is not None


def test_gains_are_kept_with_the_table():
    values = treat(*[("itch", 1.0), ("flu", 0.0)] * 6)
    stored = ValueTable(StoredCells(StoredCells.arrays(values.cells)))
    assert stored.estimate(give("itch")) == values.estimate(give("itch"))
    for number in range(13, 60):  # the world changed: the task no longer tells anything
        stored.add(give("itch"), float(number % 2), number, episode=number)
        stored.add(give("flu"), float(number % 2), 100 + number, episode=100 + number)
    assert stored.estimate(give("itch")).value == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("prefix", ["", "3\x1f"])
def test_each_world_has_gains_of_its_own(prefix):
    values = ValueTable()
    for number, (task, value) in enumerate([("itch", 1.0), ("flu", 0.0)] * 6, 1):
        values.add(give(task), value, number, episode=number, prefix=prefix)
    assert values.estimate(give("itch"), prefix=prefix).value > 0.95
    assert values.estimate(give("itch"), prefix="4\x1f").n == 0


def play(library, is_right, tasks, actions, text="A shelf."):
    for number in range(48):
        task, action = tasks[number % len(tasks)], actions[number // len(tasks) % len(actions)]
        state, won = State(text, task=task), is_right(task, action)
        step = Step(state, action, State("Done.", task=task), Diagnosis(True), float(won), admissible=tuple(actions))
        library.record(Trajectory(task, (step,), success=won, score=float(won), ending="success" if won else "failure"))


@pytest.mark.parametrize(
    ("tasks", "actions"),
    [
        (("treat the child for itch", "treat the child for flu"), ("give blue tonic", "give white tonic")),
        (("heile den Mann von Husten", "heile den Mann von Ausschlag"), ("gib rote Arznei", "gib blaue Arznei")),
        (("bring the tall lamp from there", "bring the small lamp from there"), ("take tall lamp", "take small lamp")),
        (("治疗 病人 现在 咳嗽", "治疗 病人 现在 皮疹"), ("给 红药", "给 蓝药")),
    ],
)
def test_what_an_action_is_worth_depends_on_the_task(tasks, actions):
    """The failure: counts pooled over tasks, so the right action for an itch and that for a flu looked the same."""
    right = dict(zip(tasks, actions, strict=True))
    with ExperienceLibrary.open(":memory:") as library:
        play(library, lambda task, action: right[task] == action, tasks, actions)
        for task in tasks:
            estimates = library.recall(State("A shelf.", task=task), actions=dict.fromkeys(actions, COUNTS)).estimates
            assert max(actions, key=lambda action: estimates[action].value) == right[task]
            assert estimates[right[task]].value > 0.8
            assert all(estimates[action].value < 0.2 for action in actions if action != right[task])


@pytest.mark.parametrize("scale", [1.0, 0.001])
def test_an_agent_that_always_succeeds_does_not_forget_why(scale):
    """It gives the tonic for the rash alone, so all returns are equal, and the task seems not to matter any more."""
    mixed = [("rash", scale), ("cough", 0.0)] * 12
    values = treat(*mixed, *[("rash", scale)] * 200)
    assert values.estimate(give("cough")).value < 0.2 * scale
    assert values.estimate(give("rash")).value > 0.9 * scale


def test_what_the_world_tells_later_still_counts():
    """The tonic helps with a cough from now on, so the task does not matter any more."""
    values = treat(*[("rash", 1.0), ("cough", 0.0)] * 12, *[("rash", 1.0), ("cough", 1.0)] * 100)
    assert values.estimate(give("cough")).value > 0.9


@pytest.mark.parametrize(
    ("text", "is_for_paper", "new"),
    [
        # none of twelve words is in 15 % of the texts, so no context has them
        ("Ticket {n} from Ann. Subject: {word}. Priority: normal.", lambda n: n % 12 < 6, (2, 8)),
        ("Ann reports a taxi for {n} dollars.", lambda n: n < 50, (21, 83)),
    ],
)
def test_what_stands_in_one_place_of_a_text_decides(path, text, is_for_paper, new):
    """The failure: a rare word and the size of a number were in no key, so a decision by them stayed at chance."""
    things = ["ink", "pen", "map", "cup", "key", "jar", "rope", "lamp", "book", "coin", "ring", "shoe"]
    rng = random.Random(5)
    actions = ("file as paper", "file as goods")

    def see(n):
        return State(text.format(n=n, word=things[n % 12]), task="file it")

    with ExperienceLibrary.open(path) as library:
        for _ in range(150):
            n, action = rng.randrange(100), rng.choice(actions)
            won = is_for_paper(n) is (action == "file as paper")
            step = Step(
                see(n),
                action,
                State("done"),
                Diagnosis(success=won),
                float(won),
                0,
                library.episodes.keys(see(n), action),
            )
            library.record(Trajectory("file it", (step,), won))
        for n, best in zip(new, actions, strict=True):
            estimates = library.recall(see(n), actions=dict.fromkeys(actions, "")).estimates
            assert max(actions, key=lambda action: estimates[action].value) == best
            assert estimates[best].value > 0.8 > 0.2 > min(estimate.value for estimate in estimates.values())


def test_a_word_that_becomes_structural_hides_nothing(path):
    """The failure: once a word was in 15 % of the episodes, all that was learned with it was under other keys."""
    lost, sent = (State(f"The parcel is {word}.", task="answer") for word in ("lost", "delivered"))
    actions = ("escalate", "refund")
    rng = random.Random(2)
    with ExperienceLibrary.open(path) as library:

        def record(state):
            action = rng.choice(actions)
            won = (state is lost) is (action == "escalate")
            step = Step(
                state,
                action,
                State("done"),
                Diagnosis(success=won),
                float(won),
                0,
                library.episodes.keys(state, action),
            )
            library.record(Trajectory("answer", (step,), won))

        def choose(state):
            estimates = library.recall(state, actions=dict.fromkeys(actions, "")).estimates
            return max(actions, key=lambda action: estimates[action].value), estimates["escalate"].tried

        for n in range(98):
            record(lost if n % 7 == 0 else sent)  # 14 of 98
        (best, tried) = choose(lost)
        assert best == "escalate"
        assert tried > 0
        before = library.episodes.keys(lost, "escalate")
        record(lost)
        assert library.episodes.keys(lost, "escalate") != before, "15 of 99 episodes"
        assert choose(lost) >= (best, tried)
        assert choose(sent)[0] == "refund"
