"""Why an agent was told something, or why not: each stage that advice passes, with its evidence."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, Reasons, State, Step, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.memory.tracing import trace_advice

TASK = "refund an order"
HERE = State("A counter. The order was paid by card.", task=TASK)
FAR = State("A garden with roses and bees.", task="water the roses")
FINE = Diagnosis(True)


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        yield library


def record(library, *steps, name, task=TASK):
    """Record an episode of steps in order."""
    numbered = tuple(replace(step, t=t) for t, step in enumerate(steps))
    library.record(Trajectory(task, numbered, True, id=name))
    return library.episodes.get(name)


def trace(library, about, episode):
    return [(stage.name, stage.passed) for stage in trace_advice(library, about, episode).stages]


PASSED = [("recorded", True), ("indexed", True), ("recalled", True)]


def test_what_nobody_recorded(library):
    episode = record(library, Step(HERE, "refund()", HERE, FINE), name="now")
    answer = trace_advice(library, "ask the manager", episode)
    assert [(stage.name, stage.passed) for stage in answer.stages] == [("recorded", False)]
    assert answer.says == "Not recorded: no lesson and no step before this episode has the words 'ask the manager'."


def test_what_only_this_episode_recorded(library):
    """It could not have been told."""
    episode = record(library, Step(HERE, "call_manager()", HERE, FINE), name="now")
    assert trace(library, "call_manager", episode) == [("recorded", False)]


def test_steps_that_were_shown(library):
    first = record(library, Step(HERE, "check_order()", HERE, FINE), name="first")
    why = Reasons(recalled=(), similar=(first.steps[0].id,))
    followed = record(library, Step(HERE, "check_order()", HERE, FINE, why=why), name="followed")
    ignored = record(library, Step(HERE, "refund()", HERE, FINE, why=why), name="ignored")
    assert trace(library, "check_order", followed) == [*PASSED, ("shown", True), ("followed", True)]
    assert trace(library, "check_order", ignored) == [*PASSED, ("shown", True), ("followed", False)]
    assert "the agent did `refund()` instead" in trace_advice(library, "check_order", ignored).says


def test_a_call_that_was_refused_was_not_made_against_advice(library):
    """The agent asked for it and then did what was advised."""
    remedy = Item("remedy", "Use the voucher", forbids="pay(by=cash)", steps=("pay(by=voucher)",), source="person",
                  repairs="tool_error")  # fmt: skip
    why = Reasons(recalled=(library.add(remedy).item_id,))
    refused = Step(HERE, 'pay(by="cash")', HERE, Diagnosis(False, Failure.BLOCKED), why=why)
    done = Step(HERE, 'pay(by="voucher")', HERE, FINE, why=why)
    episode = record(library, refused, done, name="now")
    assert trace_advice(library, "voucher", episode).says == (
        'Followed: the agent did `pay(by="voucher")` at step 1, which worked.'
    )


@pytest.mark.parametrize("first", ["check()", "pay()"])
def test_advice_to_do_something_first_is_followed_by_doing_that_first(library, first):
    remedy = Item("remedy", "First `check()`", steps=("check()", "pay()"), source="person", repairs="tool_error")
    why = Reasons(recalled=(library.add(remedy).item_id,))
    actions = (first, "check()", "pay()")
    episode = record(library, *(Step(HERE, action, HERE, FINE, why=why) for action in actions), name="now")
    says = trace_advice(library, "check", episode).says
    if first == "check()":
        assert says == "Followed: the agent did `check()` at step 0, which worked."
    else:
        assert says == "Not followed: the agent did `pay()` at step 0, which worked, and not `check()` first."


def test_steps_that_fit_and_were_not_shown(library):
    record(library, Step(HERE, "check_order()", HERE, FINE), name="first")
    plain = record(library, Step(HERE, "refund()", HERE, FINE), name="plain")
    why = Reasons(advice="withheld")
    withheld = record(library, Step(HERE, "refund()", HERE, FINE, why=why), name="withheld")
    assert trace(library, "check_order", plain) == [*PASSED, ("shown", False)]
    assert trace_advice(library, "check_order", plain).says == "Not shown: the agent read no hint in this episode."
    assert "all advice was withheld in this episode at random" in trace_advice(library, "check_order", withheld).says


@pytest.fixture
def lesson(library):
    """A lesson of a person."""
    return library.add(Item("insight", "Ask for the receipt.", when_to_use="an order was paid by card")).item_id


def test_a_lesson_that_was_learned_later(library):
    first = record(library, Step(HERE, "refund()", HERE, FINE), name="first")
    steps = (first.steps[0].id,)
    library.add(Item("insight", "Ask for the receipt.", provenance=steps))
    assert trace(library, "receipt", first) == [("recorded", True), ("indexed", False)]


def test_a_lesson_that_was_told_was_in_use(library):
    """Its evidence may include the episode by now, and it may be retired since."""
    first = record(library, Step(HERE, "refund()", HERE, FINE), name="first")
    lesson = library.add(Item("insight", "Ask for the receipt.", provenance=(first.steps[0].id,))).item_id
    told = record(library, Step(HERE, "refund()", HERE, FINE, why=Reasons(recalled=(lesson,))), name="told")
    library.add(Item("insight", "Ask for the receipt.", provenance=(first.steps[0].id, told.steps[0].id)))
    assert trace(library, lesson, told)[:4] == [*PASSED, ("shown", True)]
    library.items.retire(lesson, "wrong")
    assert trace(library, lesson, told)[:4] == [*PASSED, ("shown", True)]


@pytest.mark.parametrize(
    ("title", "followed"),
    [("Use `pay(card)`", False), ("If `pay(cash)` fails (tool error), then `pay(card)`", True)],
)
def test_a_remedy_is_not_followed_by_the_failure_that_it_prevents(library, title, followed):
    """A remedy for usual failures comes before the call; one for rare failures comes after it."""
    lesson = library.add(Item("remedy", title, forbids="pay(cash)", steps=("pay(card)",), repairs="tool_error")).item_id
    why = Reasons(recalled=(lesson,))
    bad, good = (Step(HERE, f"pay({how})", HERE, Diagnosis(how == "card"), why=why) for how in ("cash", "card"))
    episode = record(library, bad, good, name="now")
    assert trace(library, lesson, episode)[-1] == ("followed", followed)


@pytest.mark.parametrize(
    ("says", "amount", "followed"),
    [
        ('write amount as "##.##" (# is a digit)', "10.00", True),
        ('write amount as "##.##" (# is a digit)', "10,00", False),
        ('use amount="10.00" if the text says "ten"', "10.00", None),
    ],
)
def test_a_value_is_followed_by_a_call_that_has_it(library, says, amount, followed):
    """The remedy names the same form of call as what works and as what fails."""
    form = "pay(amount={1})"
    lesson = library.add(Item("remedy", f"In `pay`, {says}", forbids=form, steps=(form,), repairs="tool_error")).item_id
    call = Step(HERE, f'pay(amount="{amount}")', HERE, FINE, why=Reasons(recalled=(lesson,)))
    assert trace(library, lesson, record(library, call, name="now"))[-1] == ("followed", followed)


def test_a_lesson_that_is_not_in_use(library, lesson):
    episode = record(library, Step(HERE, "refund()", HERE, FINE), name="now")
    library.items.retire(lesson, "wrong")
    assert trace(library, lesson, episode) == [("recorded", True), ("indexed", False)]
    assert "its status is retired" in trace_advice(library, lesson, episode).says


def test_a_lesson_of_another_situation(library):
    """Its condition says where it holds."""
    added = library.add(
        Item("guardrail", "no water at noon", condition={"text": "noon"}, forbids="water {1}", confidence=0.9)
    )
    episode = record(library, Step(HERE, "refund()", HERE, FINE), name="now")
    assert trace(library, added.item_id, episode) == [("recorded", True), ("indexed", True), ("recalled", False)]
    assert "its condition does not hold" in trace_advice(library, added.item_id, episode).says.casefold()


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Reasons(), "the agent read no hint"),
        (Reasons(recalled=()), "other lessons and steps took its place"),
        (Reasons(advice="withheld"), "all advice was withheld"),
    ],
)
def test_a_lesson_that_fits_and_was_not_shown(library, lesson, why, words):
    episode = record(library, Step(HERE, "refund()", HERE, FINE, why=why), name="now")
    assert trace(library, lesson, episode)[-1] == ("shown", False)
    assert words in trace_advice(library, lesson, episode).says


def test_a_lesson_that_was_withheld(library, lesson):
    why = Reasons(recalled=(), withheld=(lesson,))
    episode = record(library, Step(HERE, "refund()", HERE, FINE, why=why), name="now")
    assert "it was withheld in this episode at random" in trace_advice(library, lesson, episode).says


def test_a_lesson_in_words_was_shown_and_nobody_knows_whether_it_was_followed(library, lesson):
    episode = record(library, Step(HERE, "refund()", HERE, FINE, why=Reasons(recalled=(lesson,))), name="now")
    assert trace(library, lesson, episode)[-2:] == [("shown", True), ("followed", None)]


@pytest.mark.parametrize(
    ("action", "why", "followed"),
    [
        ("pay(cash)", Reasons(blocked=("no-cash",)), True),
        ("pay(cash)", Reasons(overridden=("no-cash",)), False),
        ("pay(card)", Reasons(recalled=("no-cash",)), True),
    ],
)
def test_a_guardrail_that_acted(library, action, why, followed):
    """Refused, let through as a trial, or read and kept."""
    rule = Item("guardrail", "no cash", condition={"text": "counter"}, forbids="pay(cash)", confidence=0.9)
    library.add(replace(rule, id="no-cash"))
    diagnosis = Diagnosis(False, Failure.BLOCKED) if why.blocked else Diagnosis(True)
    episode = record(library, Step(HERE, action, HERE, diagnosis, why=why), name="now")
    assert trace(library, "no-cash", episode)[-2:] == [("shown", True), ("followed", followed)]


def test_nothing_named_is_refused(library):
    episode = record(library, Step(HERE, "refund()", HERE, FINE), name="now")
    with pytest.raises(UnknownName, match="give the id of a lesson"):
        trace_advice(library, "  ", episode)
