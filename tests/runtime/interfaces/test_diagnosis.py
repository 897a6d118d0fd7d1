from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, Failure, State, Step
from hardwon.runtime.interfaces.diagnosis import PROGRESS_WEIGHTS, diagnose, difference, in_loop, why_replan
from hardwon.runtime.interfaces.tuning import TUNING
from hardwon.runtime.interfaces.types import Info
from hardwon.runtime.interfaces.working_memory import WorkingMemory

HALL = State("You are in the hall. A door is closed.")
ROOM = State("You are in the room. A box is here.")


def judge(pre=HALL, post=HALL, reward=0.0, info: Info | None = None, heard=()):
    """The diagnosis of one step of an episode in which these answers were heard before."""
    working = WorkingMemory()
    working.begin(pre)
    for feedback in heard:
        working.add(Step(pre, "wait", replace(pre, feedback=feedback), Diagnosis(True)))
    return diagnose(pre, "open door", post, reward, info or Info(), (), working)


def saying(feedback):
    """The hall, unchanged, with an answer."""
    return replace(HALL, feedback=feedback)


NO_KEY, NOTHING = "You need a key.", "Nothing happens."


@pytest.mark.parametrize(
    ("failure", "case"),
    [
        (Failure.NONE, {"post": ROOM}),
        (Failure.NONE, {"post": ROOM, "reward": 1.0, "info": {"success": True}}),
        (Failure.NONE, {"post": saying(NO_KEY)}),
        (Failure.TASK_LOST, {"post": ROOM, "info": {"lost": True}}),
        (Failure.INVALID_ACTION, {"info": {"invalid": "no such action"}}),
        (Failure.TOOL_ERROR, {"post": ROOM, "info": {"error": "no such table"}}),
        (Failure.UNAVAILABLE, {"post": ROOM, "info": {"error": "timeout"}}),
        (Failure.UNAVAILABLE, {"post": ROOM, "info": {"error": "shrugs", "unavailable": True}}),
        (Failure.PENALTY, {"post": ROOM, "reward": -0.5}),
        (Failure.PRECONDITION, {"post": saying(NO_KEY), "heard": [NO_KEY]}),
        (Failure.NO_EFFECT, {"post": saying(NOTHING), "heard": [NOTHING]}),
    ],
)
def test_each_failure_has_its_trace(failure, case):
    """systems.md §3: enumerated diagnosis: one crafted trace per failure type yields that label."""
    judged = judge(**case)
    assert judged.failure is failure
    assert judged.success is (failure is Failure.NONE)


@pytest.mark.parametrize(
    ("info", "reward", "failure"),
    [
        ({"success": True, "lost": True, "invalid": "x"}, -1.0, Failure.NONE),
        ({"lost": True, "invalid": "x", "error": "y"}, -1.0, Failure.TASK_LOST),
        ({"invalid": "x", "error": "y"}, -1.0, Failure.INVALID_ACTION),
        ({"error": "y"}, -1.0, Failure.TOOL_ERROR),
        ({}, -1.0, Failure.PENALTY),
    ],
)
def test_the_most_specific_failure_is_named(info, reward, failure):
    """Where several rules would fire, the first in order does."""
    assert judge(post=saying(NO_KEY), reward=reward, info=info, heard=[NO_KEY]).failure is failure


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"info": {"invalid": "no such action"}}, "no such action"),
        ({"info": {"error": "timeout"}}, "timeout"),
        ({"post": saying("You fall."), "info": {"lost": True}}, "You fall."),
        ({"post": saying(NO_KEY), "heard": [NO_KEY]}, NO_KEY),
        ({"post": ROOM}, ""),
    ],
)
def test_the_evidence_is_in_the_environment_s_words(case, words):
    """What the failure was judged on."""
    assert judge(**case).evidence == words


def test_progress_by_hand():
    """Two sentences gone and two come, one fact changed, half a reward."""
    pre, post = replace(HALL, facts={"a": 1}), replace(ROOM, facts={"a": 2})
    shown, facts, reward = PROGRESS_WEIGHTS
    assert judge(pre, post, 0.5).progress == pytest.approx(shown * 4 / 5 + facts * 1 / 2 + reward * 0.5)


def test_nothing_changed_is_no_progress():
    """Nor is a punishment."""
    assert judge().progress == judge(reward=-5.0).progress == 0.0


sentences = st.lists(st.sampled_from([f"thing {n} is here" for n in range(6)]), unique=True)
facts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))


@given(sentences, sentences, facts, facts, st.floats(-10, 10))
def test_progress_lies_between_0_and_1(one, other, had, has, reward):
    """systems.md §3: continuous p in [0,1], whatever changed."""
    pre, post = State(". ".join(one), had), State(". ".join(other), has)
    assert 0.0 <= judge(pre, post, reward).progress <= 1.0


@given(sentences, facts, facts, st.floats(0, 1), st.floats(0, 1))
def test_progress_grows_with_the_reward(shown, had, has, less, more):
    """systems.md §3: monotone in each term: the reward, all else equal."""
    pre, post = State(". ".join(shown), had), State("", has)
    less, more = sorted((less, more))
    assert judge(pre, post, less).progress <= judge(pre, post, more).progress


@given(sentences, facts)
def test_progress_grows_with_what_is_shown(shown, known):
    """systems.md §3: monotone in each term: one more changed sentence is never less progress."""
    pre = State("It is dark", known)
    steps = [judge(pre, State(". ".join(["It is dark", *shown[:n]]), known)).progress for n in range(len(shown) + 1)]
    assert steps == sorted(steps)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 3)))
def test_progress_grows_with_the_facts(changes):
    """systems.md §3: monotone in each term: one more changed fact is never less progress."""
    names = sorted(changes)
    posts = [State("x", {name: changes[name] for name in names[:n]}) for n in range(len(names) + 1)]
    steps = [judge(State("x"), post).progress for post in posts]
    assert steps == sorted(steps)


states = st.builds(
    State,
    st.sampled_from(["one", "two"]),
    facts,
    location=st.sampled_from(["here", "there"]),
    task=st.sampled_from(["t", "u"]),
    feedback=st.sampled_from(["", "ok"]),
    notes=st.lists(st.sampled_from(["n", "m"])),
)


@given(states, states)
def test_the_difference_makes_the_one_state_the_other(pre, post):
    """systems.md §3: apply(diff(pre,post),pre)=post on random states; texts kept with both states are left out."""
    assert replace(pre, **difference(pre, post), observation=post.observation, notes=post.notes) == post


@given(states)
def test_no_change_is_no_difference(state):
    """Only what changed is named."""
    assert difference(state, state) == {}


def walk(text):
    """(situation, action) pairs: one letter a situation, the action always the same."""
    return [(letter, "go") for letter in text]


@pytest.mark.parametrize("text", ["ABABAB", "AAA", "ABCABCABC", "ABCDABCDABCD", "XYZABABAB", "AxAyA"])
def test_going_in_circles_is_a_loop(text):
    """A pair three times, or a cycle of up to four gone through three times."""
    assert in_loop(walk(text))


@pytest.mark.parametrize("text", ["A", "AB", "ABA", "ABAB", "ABABCB"[:5], "ABCDEFGHIJKL", "AABBCCDDEE"])
def test_getting_on_is_no_loop(text):
    """systems.md §3: a progressing walk is not flagged, whatever its length, nor is a step back."""
    assert not in_loop(walk(text))


def test_going_to_and_fro_is_flagged_by_the_sixth_step():
    """systems.md §3: A-B-A-B-A-B flagged by step 6: at the third visit, not before."""
    flags = [in_loop(walk("ABABAB"[:n])) for n in range(1, 7)]
    assert flags == [False] * 4 + [True] * 2


def test_another_action_in_the_same_place_is_no_loop():
    """Trying one thing after the other is how doors are opened."""
    assert not in_loop([("A", action) for action in ("push", "pull", "knock", "kick", "turn", "wait")])


def test_nothing_new_for_long_is_a_loop():
    """However the known situations are mixed."""
    known = [(letter, f"go {letter}") for letter in "ABCDEFGH"]
    wander = [(letter, f"back {n}") for n, letter in enumerate("HAGBFCED")]
    assert len(wander) == TUNING.no_news
    assert not in_loop([*known, *wander[:-1]])
    assert in_loop([*known, *wander])


def test_what_is_long_ago_is_no_loop():
    """Only the last steps count."""
    fresh = [(f"new {n}", "go") for n in range(TUNING.loop_window - TUNING.loop_repeats + 1)]
    assert not in_loop([*walk("AA"), *fresh, *walk("A")])


def test_a_failure_without_progress_is_stagnant():
    """A success is not, nor a failure that moved the world."""
    assert judge(info={"invalid": "x"}).stagnant
    assert not judge().stagnant
    moved = judge(post=ROOM, info={"error": "x"})
    assert moved.progress >= TUNING.stagnant_below
    assert not moved.stagnant


def went(*diagnoses):
    """An episode of steps so diagnosed."""
    return [Step(HALL, "go", ROOM, judged) for judged in diagnoses]


GOOD = Diagnosis(True, progress=0.5)
BAD = Diagnosis(False, Failure.TOOL_ERROR, 0.5)
STUCK = Diagnosis(False, Failure.NO_EFFECT, 0.0, stagnant=True, evidence=NOTHING)
CIRCLE = Diagnosis(True, loop=True)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([], None),
        ([GOOD], None),
        ([GOOD, STUCK], f"no progress: {NOTHING}"),
        ([GOOD, CIRCLE], "the last steps go in circles"),
        ([GOOD, GOOD, BAD, BAD], "2 of the last 4 steps failed"),
        ([GOOD, BAD, GOOD, GOOD], None),
        ([BAD, BAD, BAD], None),
    ],
)
def test_trouble_asks_for_another_plan(steps, reason):
    """Stagnation, a circle, or half of the last steps failed."""
    assert why_replan(went(*steps)) == reason
    assert TUNING.failure_window == 4


def test_one_trigger_asks_once():
    """systems.md §3: one replan per trigger: while the same trouble lasts, no second time; after it was over, again."""
    steps = went(GOOD, STUCK, STUCK, STUCK, GOOD, GOOD, GOOD, GOOD, STUCK)
    asked = [why_replan(steps[: n + 1]) is not None for n in range(len(steps))]
    assert asked == [False, True, False, False, False, False, False, False, True]
