"""Guardrails whose structural words changed: what was learned early is still refused, and nothing else is."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.guardrails.conditions import Guard
from hardwon.memory.guardrails.context_ranges import ContextRange
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.situations.keys import EVERY_WORD, Attempt, Situation
from hardwon.memory.situations.tuning import TUNING as SITUATIONS
from hardwon.memory.storage.counted import STRUCTURAL_AFTER

ROOMS = ("kitchen", "cellar", "attic", "garden", "bathroom", "study", "garage")
TASK = "find the coin"
OPEN = "open chest"


def state(number, lock="locked"):
    """A chest in one of the rooms, locked or not."""
    room = ROOMS[number % len(ROOMS)]
    return State(f"You are in the {room}. A {lock} chest stands here. There is a lamp {number % 5}.", task=TASK)


def play(library, number, lock="locked", *, tried=True):
    """Record an episode in which somebody opens the chest, or looks at the lamp alone."""
    here = state(number, lock)
    steps = [Step(here, "look at lamp", here, Diagnosis(True), 0.0, 0, library.episodes.keys(here, "look at lamp"))]
    if tried:
        failed = lock == "locked"
        judged = Diagnosis(not failed, Failure.PENALTY if failed else Failure.NONE)
        steps.append(Step(here, OPEN, here, judged, 0.0, 1, library.episodes.keys(here, OPEN)))
    library.record(Trajectory(TASK, tuple(steps), False, seed=number))


def learn(library, episodes, **kinds):
    """Record episodes from number 0 on, and learn from each."""
    for number in range(episodes):
        play(library, number, **kinds)
        library.evolve()


def test_what_was_learned_before_any_word_was_structural_stays_refused(library):
    """The failure: from episode 15 on `locked` belongs to the context, and the condition of before did not match."""
    learn(library, 6)
    assert not library.check(state(3), OPEN).allowed
    for number in range(100, 140):
        play(library, number, tried=False)
        assert not library.check(state(number), OPEN).allowed, f"after {library.episodes.count()} episodes"
    assert library.episodes.count() > 2 * STRUCTURAL_AFTER
    assert "locked" in library.episodes.context(state(3), OPEN)
    assert library.admin.verify() == []


def test_it_does_not_forbid_what_no_step_speaks_against(library):
    """Of chests that are not locked, which look the same without structural words, nothing was learned."""
    learn(library, 6)
    for number in range(100, 140):
        play(library, number, "wooden" if number % 2 else "locked", tried=number % 2 == 1)
    assert not library.check(state(4), OPEN).allowed
    assert library.check(state(4, "wooden"), OPEN).allowed


def test_words_that_are_structural_no_more_take_nothing_away(library):
    """Another game fills the library, and `locked` falls below the share; what was learned of chests stays."""
    learn(library, STRUCTURAL_AFTER, tried=False)
    learn(library, 10)
    assert any("locked" in item.condition.get("around", "") for item in library.items.find(["guardrail"]))
    assert "locked" in library.episodes.context(state(1), OPEN)
    for number in range(300):
        here = State(f"A row of {number % 3} pegs. The left peg is bent.", task="sort the pegs")
        steps = (Step(here, "move peg", here, Diagnosis(True), 0.0, 0, library.episodes.keys(here, "move peg")),)
        library.record(Trajectory("sort the pegs", steps, True, seed=1000 + number))
    assert "locked" not in library.episodes.context(state(1), OPEN)
    assert not library.check(state(1), OPEN).allowed


def test_another_process_reads_the_same(path, library):
    """What a guardrail means follows from the file alone."""
    learn(library, 6)
    for number in range(100, 140):
        play(library, number, tried=False)
    library.close()
    with ExperienceLibrary.open(path, read_only=True) as again:
        assert not again.check(state(2), OPEN).allowed
        assert again.check(state(2, "mossy"), "open cupboard").allowed


def test_a_success_speaks_against_it_whatever_the_words_are(library):
    """The call that it forbids begins to work: its outcomes count under the condition of before, too."""
    learn(library, 6)
    (before,) = {item.id for item in library.items.find(["guardrail"])}
    for number in range(100, 120):
        play(library, number, tried=False)
    here = state(3)
    for number in range(30):
        step = Step(here, OPEN, here, Diagnosis(True), 0.0, 0, library.episodes.keys(here, OPEN))
        library.record(Trajectory(TASK, (step,), False, seed=2000 + number))
        library.evolve()
    assert library.check(here, OPEN).allowed
    assert library.items.get(before).confidence < GUARDRAILS.min_confidence


def contexts(*observations, action="put cup in sink"):
    whole = [Situation(State(one), frozenset()).whole for one in observations]
    return [Attempt(one, action).argument_context for one in whole]


@pytest.mark.parametrize(
    ("structural", "observation", "within"),
    [
        ({"full"}, "The full sink is near. A cup.", True),
        ({"full"}, "The sink is near. A cup.", False),
        ({"full", "near", "old"}, "The full sink is near. A cup.", True),
        ({"full", "near", "old"}, "The full old sink is near. A cup.", True),
        ({"full", "near", "new"}, "The full new sink is near. A cup.", False),
        (set(), "The new sink. A cup.", True),
        ({"full"}, "The full sink is near.", False),
    ],
)
def test_the_hull_of_steps(structural, observation, within):
    """What all have is needed, what none has is not there; an argument that is not shown is one that is not shown."""
    words = frozenset(structural)
    context_range = ContextRange.of(contexts("The full old sink is near. A cup.", "The full sink is near. A cup."))
    here = Attempt(Situation(State(observation), words), "put cup in sink").argument_context
    assert context_range.has(here, words) is within


def test_one_context_is_equality():
    """While the words stay the same the context range is the condition's own text."""
    words = frozenset({"full", "near"})
    situation = Situation(State("The full sink is near. A cup.", {"hands": "empty"}), words)
    context_range = ContextRange.of([Attempt(situation.whole, "put cup in sink").argument_context])
    assert context_range.context(words) == situation.context("put cup in sink")
    assert context_range.context(frozenset({"full"})) == "1: ; 2: full; hands empty"


WORDS = [f"word{n}" for n in range(SITUATIONS.max_refined + 2)]


@pytest.mark.parametrize(
    ("texts", "structural", "observation", "shows"),
    [
        (("cold dark hall", "cold hall"), {"cold", "dark"}, "cold attic", True),
        (("cold dark hall", "cold hall"), {"cold", "dark"}, "dark cold", True),
        (("cold dark hall", "warm hall"), {"cold", "dark", "warm"}, "warm dark", False),
        (("cold dark hall", "cold hall"), {"cold", "dark"}, "dark attic", False),
        (("cold dark hall", "cold hall"), {"cold", "dark", "warm"}, "cold warm", False),
        (("cold dark hall", "cold hall"), set(), "warm attic", True),
        ((" ".join(WORDS),), set(WORDS), " ".join(reversed(WORDS)), True),
        ((" ".join(WORDS),), set(WORDS), " ".join(WORDS[1:]), True),
        ((" ".join(WORDS),), set(WORDS[:2]), WORDS[0], False),
    ],
)
def test_the_whole_text_of_lost_tasks(texts, structural, observation, shows):
    """One of them showed the same, in words that are structural now. Unlike near an argument, nothing lies between."""
    words = frozenset(structural)
    steps = [Attempt(Situation(State(text), EVERY_WORD), "wave") for text in texts]
    context_range = ContextRange.of([step.argument_context for step in steps], (), [step.sight for step in steps])
    here = Attempt(Situation(State(observation), words), "wave")
    assert context_range.shows(here.sight, words) is shows
    if len(texts) == 1:  # one text is equality
        same = Situation(State(texts[0]), words)
        assert context_range.context(words) == Attempt(same, "wave").full_context


def lose(library, text, action, times):
    """Lose the task so often by an action where the text says this."""
    here = State(text, task="answer the guest")
    for _ in range(times):
        judged = Diagnosis(False, Failure.TASK_LOST)
        step = Step(here, action, here, judged, 0.0, 0, library.episodes.keys(here, action))
        library.record(Trajectory(here.task, (step,), success=False))
        library.evolve()
    return here


@pytest.mark.parametrize("action", ["refund", "offer voucher", "greet guest"])
def test_what_lost_the_task_is_forbidden_where_the_text_says_the_same(library, action):
    """Also if it lost wherever it was tried: what the text says next may be what it needs."""
    here = State("The guest waits.", task="answer the guest")
    for number in range(STRUCTURAL_AFTER):
        for text in ("The guest waits.", "The order is known: the parcel is lost.", "The guest waits outside."):
            step = Step(State(text, task=here.task), "look", here, Diagnosis(True), 0.0, 0, ())
            library.record(Trajectory(here.task, (step,), success=False, seed=number))
    assert not library.check(lose(library, "The guest waits.", action, 6), action).allowed
    assert library.check(replace(here, observation="The order is known: the parcel is lost."), action).allowed
    assert not library.check(replace(here, observation="The guest, he waits."), action).allowed


def test_what_lost_the_task_before_any_word_was_structural_is_forbidden_there_alone(library):
    """What the texts of that time say is found in the recorded steps. Nothing follows for what lies between them."""
    lost = ["The guest waits.", "The guest leaves.", "The guest is angry."]
    for text in lost:
        lose(library, text, "refund", 2)
    others = ["The order is known: the parcel is lost.", "The guest waits, leaves.", "The guest."]
    for number in range(2 * STRUCTURAL_AFTER):
        for text in lost + others:
            here = State(text, task="answer the guest")
            step = Step(here, "look", here, Diagnosis(True), 0.0, 0, ())
            library.record(Trajectory(here.task, (step,), success=False, seed=number))
    assert [library.check(State(text, task="answer the guest"), "refund").allowed for text in lost] == [False] * 3
    assert all(library.check(State(text, task="answer the guest"), "refund").allowed for text in others)


@pytest.mark.parametrize(("errors", "status"), [(0, "retired"), (2, "active"), (6, "active")])
def test_a_guardrail_of_an_earlier_version_that_does_not_look_at_the_text_goes(library, errors, status):
    """It forbade the right decision, too, as soon as other ones had lost the task. One with errors stays."""
    here = State("The guest waits.", task="answer the guest")
    for number in range(6):
        judged = Diagnosis(False, Failure.TOOL_ERROR if number < errors else Failure.TASK_LOST)
        step = Step(here, "refund", here, judged, 0.0, 0, library.episodes.keys(here, "refund"))
        library.record(Trajectory(here.task, (step,), success=False))
    old = Item(
        "guardrail", "no refund", condition={"around": ""}, forbids="refund", confidence=0.9, source="experience"
    )
    ref = library.add(replace(old, writer="rules", provenance=(1, 2, 3, 4, 5, 6), episodes=6)).item_id
    library.evolve()
    assert library.items.get(ref).status == status


@pytest.mark.parametrize(("text", "allowed"), [("A cold hall.", False), ("A warm hall.", True)])
def test_a_condition_with_a_text_means_what_it_says(text, allowed):
    """Also without steps, as in an export."""
    item = Item("guardrail", "no", condition={"around": "0: cold"}, forbids="wave", confidence=0.9, id="gu")
    here = Situation(State(text), frozenset({"cold", "warm"}))
    assert Guard([item]).check(Attempt(here, "wave")).allowed is allowed


def test_a_condition_without_steps_means_what_it_says():
    """People and models write conditions; imported ones may have lost their steps."""
    here = Situation(State("The full sink is near. A cup."), frozenset({"full"}))
    item = Item(
        "guardrail",
        "no",
        condition={"around": "1: ; 2: full"},
        forbids="put cup in sink",
        confidence=0.9,
        id="gu",
        source="experience",
        writer="rules",
    )
    assert not Guard([item]).check(Attempt(here, "put cup in sink")).allowed
    assert Guard([item]).check(Attempt(Situation(here.state, frozenset({"near"})), "put cup in sink")).allowed


def fail(library, *actions, times):
    """Record failures of actions in turn, and learn from them."""
    here = State("A control room with pipes.", task="start the plant")
    for number in range(times):
        action = actions[number % len(actions)]
        judged = Diagnosis(False, Failure.TOOL_ERROR, evidence="it is jammed")
        library.record(Trajectory("start the plant", (Step(here, action, here, judged),), success=False))
        library.evolve()
    return here


@pytest.mark.parametrize(
    ("jammed", "other"),
    [
        ("open red valve", "open blue valve"),
        ("use key 1", "use key 2"),
        ("take right door", "take left door"),
        ("select seat 12A", "select seat 12B"),
        ("click #submit button", "click #cancel button"),
    ],
)
def test_nothing_follows_from_one_thing_for_others_of_its_kind(library, jammed, other):
    """They have one pattern, and the other was never tried."""
    here = fail(library, jammed, times=12)
    assert not library.check(here, jammed).allowed
    assert library.check(here, other).allowed


def test_an_article_makes_no_other_thing(library):
    here = fail(library, "open red valve", times=12)
    assert not library.check(here, "open the red valve").allowed


def test_several_things_of_a_kind_that_failed_speak_against_the_kind(library):
    here = fail(library, "open red valve", "open old valve", times=16)
    assert not library.check(here, "open blue valve").allowed
