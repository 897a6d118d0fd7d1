"""Contrasts: titles name the few words that decide, not all words that a text shows."""

import pytest

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.learning.contrast import SeenStep, find_difference
from hardwon.memory.learning.rule_mining import RuleMiner
from hardwon.memory.situations.titles import Difference
from hardwon.memory.values.value_table import ValueTable


def seen(*texts):
    return [SeenStep("decide", tuple(text.split()), 1.0, False) for text in texts]


CUSTOMER = "customer money back"
DELIVERED, SALE = "bought days delivered no", "bought days delivered yes"
LOST = "bought days lost no"


@pytest.mark.parametrize(
    ("those", "others", "difference"),
    [
        pytest.param([LOST] * 3, [DELIVERED] * 3, Difference(("lost",)), id="one word"),
        pytest.param([LOST] * 3, [DELIVERED, SALE, CUSTOMER], Difference(("lost",)), id="one word for all"),
        pytest.param(
            [LOST, "bought days gone no"], [DELIVERED, SALE], Difference(lacks=("delivered",)), id="what is lacking"
        ),
        pytest.param(
            [SALE, "bought delivered"],
            [DELIVERED, DELIVERED, LOST, CUSTOMER, CUSTOMER],
            Difference(("delivered",), ("no",)),
            id="two words",
        ),
        pytest.param([LOST] * 3, [LOST] * 3, Difference(), id="nothing tells them apart"),
        pytest.param([LOST] * 3, [LOST, DELIVERED, DELIVERED], Difference(("lost",)), id="equal texts are left out"),
        pytest.param([LOST] * 3, [DELIVERED], Difference(), id="one text may be chance"),
        pytest.param([LOST], [DELIVERED] * 3, Difference(), id="one text may be chance here as well"),
        pytest.param([CUSTOMER] * 3, [f"{CUSTOMER} one", f"{CUSTOMER} two"], Difference(), id="a word of one text"),
        pytest.param(
            [LOST] * 3, [*[DELIVERED] * 3, f"{LOST} one", f"{LOST} two"], Difference(), id="too many are not told apart"
        ),
        pytest.param(["hi refund it"] * 2, [LOST] * 2, Difference(("refund",)), id="of equal words the longest"),
        pytest.param(["をド ドイ イへ"] * 2, [LOST] * 2, Difference(("ドイ",)), id="of those the one within a word"),
        pytest.param(["no"] * 2, ["no をド ドイ"] * 2, Difference(lacks=("ドイ",)), id="of those it lacks, too"),
        pytest.param([LOST] * 2, ["hi refund"] * 2, Difference(("bought",)), id="what it says before what it lacks"),
        pytest.param(["no"] * 2, ["no hi", "no hi refund"], Difference(lacks=("hi",)), id="what tells most apart"),
        pytest.param([], [], Difference(), id="no text"),
    ],
)
def test_the_difference_is_the_fewest_words_that_tell_texts_apart(those, others, difference):
    assert find_difference(seen(*those), seen(*others)) == difference


def test_the_order_of_texts_does_not_matter():
    """Invariance: texts are compared as sets."""
    those, others = [SALE, "bought delivered"], [DELIVERED, DELIVERED, LOST, CUSTOMER, CUSTOMER]
    expected = find_difference(seen(*those), seen(*others))
    assert find_difference(seen(*those[::-1]), seen(*others[::-1])) == expected


STRATEGY = "decide | tried 0 to unknown |  |  | 0: bought days | nothing told"
GUARDRAIL = "! decide @ around 0: {}"


def propose(key, steps):
    """The title that rules give to an item under a key, of (text, value, failed, whether it is filed under the key)."""
    values = ValueTable()
    for number, (_, value, failed, is_here) in enumerate(steps):
        keys = ["decide", *[key] * is_here]
        values.add(keys, value, number, action="decide", bad=failed, lost=failed, episode=number)

    def read(numbers):
        seen_steps = (steps[number] for number in sorted(numbers))
        return [SeenStep("decide", tuple(text.split()), value, failed) for text, value, failed, _ in seen_steps]

    return [item.title for _, item in RuleMiner().candidates(values, tuple, read)]


WON, LOSES = (LOST, 1.0, False, True), (DELIVERED, 0.0, True, False)


@pytest.mark.parametrize(
    ("steps", "clause"),
    [
        pytest.param([*[LOSES] * 20, *[WON] * 9], 'the text says "lost"', id="failures before it was learned"),
        pytest.param(
            [*[LOSES] * 20, *[(DELIVERED, 0.0, False, False)] * 9, *[WON] * 9, (f"{CUSTOMER} days", 0.0, True, True)],
            'the text says "lost"',
            id="what did not pay here is no evidence",
        ),
        pytest.param(
            [*[LOSES] * 20, *[WON] * 9, *[(f"{LOST} gone", 1.0, False, False)] * 3],
            'the text says "lost"',
            id="what paid elsewhere is not to be told apart",
        ),
        pytest.param(
            [*[(CUSTOMER, 0.0, False, False)] * 30, *[WON] * 9, *[(DELIVERED, 0.0, False, False)] * 3],
            'the text says "lost"',
            id="what did not pay without a failure",
        ),
        pytest.param([*[(LOST, 0.0, True, False)] * 20, *[WON] * 9], 'the text says "bought" and "days"', id="none"),
    ],
)
def test_a_strategy_names_what_decides(steps, clause):
    (title,) = propose(STRATEGY, steps)
    assert title.endswith(f" and {clause}")


def test_a_text_that_is_no_part_of_the_condition_is_not_named():
    """Texts of many words hardly recur. A contrast of chance made a strategy of them."""
    assert propose(STRATEGY.replace("bought days", ""), [*[LOSES] * 20, *[WON] * 9]) == []


FAILS, WORKS = (CUSTOMER, 0.0, True, True), (LOST, 1.0, False, False)


@pytest.mark.parametrize(
    ("words", "steps", "clause"),
    [
        pytest.param("[T] money", [*[FAILS] * 5, *[WORKS] * 3], 'the text says "customer"', id="what worked lacks"),
        pytest.param(
            "[T] money",
            [*[FAILS] * 5, *[WORKS] * 3, ("customer here", 0.0, False, False), ("customer there", 0.5, True, False)],
            'the text says "customer"',
            id="what did not work is not to be told apart",
        ),
        pytest.param("[T] money", [FAILS] * 5, 'the text says "money"', id="nothing worked"),
        pytest.param("[T]", [*[FAILS] * 5, *[WORKS] * 3], 'the text says "customer"', id="a task's word, of which one"),
        pytest.param("[T]", [FAILS] * 5, 'the text says "customer", "money" and "back"', id="only words of the task"),
    ],
)
def test_a_guardrail_names_what_decides(words, steps, clause):
    assert propose(GUARDRAIL.format(words), steps) == [f"Do not `decide` when {clause}"]


ASKED, FACTS = "Customer: please pay me back.", "Record: bought {} days ago, parcel {}"


def play(number, *, early, is_lost):
    """An agent that decides too early, or after it looked the facts up; a lost parcel is escalated."""
    facts = State(FACTS.format(number, "lost, it would" if is_lost else "delivered"), task="answer the customer")
    asked, over = State(ASKED, task=facts.task), State("Done.", task=facts.task)
    steps = [] if early else [Step(asked, "lookup", facts, Diagnosis(True), 0.0, t=0)]
    won = is_lost and not early
    diagnosis = Diagnosis(True) if won else Diagnosis(False, Failure.TASK_LOST)
    steps.append(Step(asked if early else facts, "escalate", over, diagnosis, float(won), t=len(steps)))
    return Trajectory(facts.task, tuple(steps), success=won, score=float(won), id=f"e{number:02d}")


def test_titles_of_a_library_name_what_decides(library):
    """The failure: they listed all words of the text, and `a word of the task` where it had no other."""
    for number in range(40):
        library.record(play(number, early=number % 4 == 3, is_lost=number % 2 == 0))
        library.evolve()
    titles = [item.title for item in library.items.find()]
    strategies = [title for title in titles if title.startswith("Prefer `escalate`")]
    assert strategies
    assert all(title.endswith('the text says "lost"') for title in strategies)
    assert 'Do not `escalate` when the text says "customer"' in titles
    assert 'Do not `escalate` when the text says "delivered"' in titles


def test_rare_words_are_not_named(library):
    """A word that few episodes showed may be a name or another person's, so the title says what the text lacks."""
    library.record_many(play(number, early=False, is_lost=number % 25 == 0) for number in range(225))
    library.evolve()
    titles = [item.title for item in library.items.find() if item.title.startswith("Prefer `escalate`")]
    assert titles
    assert all(title.endswith('the text does not say "delivered"') for title in titles)
