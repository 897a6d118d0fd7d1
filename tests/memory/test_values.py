import pytest

from tacit.memory import ExperienceLibrary, Failure
from tacit.memory.situation import CONTEXT_KEY
from tacit.memory.values import GENERALITY, MEMORY, SAMPLES, SPREAD, Cell, ValueTable


def table(*steps):
    """A table of (keys, value) pairs."""
    values = ValueTable()
    for number, (keys, value) in enumerate(steps, 1):
        values.add(keys, value, number)
    return values


def test_an_empty_table_says_nothing():
    """No step, no value."""
    assert table().estimate(["*", "open"]).value == 0.0
    assert table().estimate(["*", "open"]).n == 0


def test_one_key_gives_its_mean():
    """With one key known, the estimate is the mean of its returns."""
    assert table((["*"], 1.0), (["*"], 0.0)).estimate(["*", "unknown"]).value == 0.5


def test_two_keys_are_weighed_by_precision_and_generality():
    """Two returns of 0 and 1 in general, two of 1 in special, by hand.

    variance of (0, 1) is 1/4, of (1, 1) 0; precision = n (n + 2) / (n variance + 2 SPREAD).
    """
    values = table((["*"], 0.0), (["*", "open"], 1.0), (["open"], 1.0))
    general, special = 2 * 4 / (2 * 0.25 + 2 * SPREAD), 2 * 4 / (2 * SPREAD)
    expected = (GENERALITY * general * 0.5 + special * 1.0) / (GENERALITY * general + special)
    assert values.estimate(["*", "open"]).value == pytest.approx(expected, rel=1e-12)


def test_a_key_without_steps_does_not_count():
    """Unknown keys in between neither add nor dampen."""
    values = table((["*", "open"], 1.0), (["*"], 0.0))
    assert values.estimate(["*", "never", "nor this", "open"]) == values.estimate(["*", "open"])


def test_the_most_special_key_is_named():
    """An estimate says on which key it rests, and on which steps."""
    estimate = table((["*", "open"], 1.0), (["*"], 0.0)).estimate(["*", "open", "open | here"], "1: lit")
    assert (estimate.key, estimate.n, estimate.steps, estimate.context) == ("open", 1, (1,), "1: lit")


def test_the_more_special_key_speaks_louder():
    """Equal evidence in general and in special: the special key pulls the estimate to its side."""
    values = table((["general"], 0.0), (["special"], 1.0))
    assert values.estimate(["general", "special"]).value > 0.5
    assert values.estimate(["special", "general"]).value < 0.5


def test_returns_that_agree_speak_louder_than_returns_that_scatter():
    """Precision, not the number of steps alone, decides."""
    values = table(*[(["agree"], 0.8)] * 4, *[(["scatter"], value) for value in (0.0, 1.0, 0.0, 1.0)])
    assert values.estimate(["scatter", "agree"]).value > 0.75


def test_tried_counts_the_context_key():
    """How familiar an action is in its context is read from that key alone."""
    keys = [f"key {n}" for n in range(CONTEXT_KEY + 2)]
    values = table((keys[: CONTEXT_KEY + 1], 1.0), (keys[:1], 1.0))
    assert values.estimate(keys).tried == 1
    assert values.estimate(keys[:CONTEXT_KEY]).tried == 0


def test_old_returns_fade():
    """After MEMORY steps a mean follows the newer ones: what a weaker policy got does not linger."""
    cell = Cell()
    for step in range(MEMORY):
        cell.add(0.0, step)
    for step in range(5 * MEMORY):
        cell.add(1.0, step)
    assert cell.n == 6 * MEMORY
    assert cell.mean > 0.99


def test_a_mean_over_few_steps_is_exact():
    """Until MEMORY is full the running mean is the mean, the variance the variance."""
    cell = Cell()
    for step, value in enumerate([0.0, 1.0, 0.5, 0.25]):
        cell.add(value, step)
    assert cell.mean == pytest.approx(0.4375)
    assert cell.variance == pytest.approx(sum((v - 0.4375) ** 2 for v in (0.0, 1.0, 0.5, 0.25)) / 4)


def test_failures_are_counted_apart():
    """Bad steps are evidence for guardrails; those that lost the task weigh more."""
    cell = Cell()
    cell.add(0.0, 1)
    cell.add(-1.0, 2, bad=True)
    cell.add(-1.0, 3, bad=True, lost=True)
    assert (cell.n, cell.bad, cell.lost, cell.bad_steps) == (3, 2, 1, [2, 3])


def test_few_steps_are_kept_as_evidence():
    """A key keeps the newest step ids only."""
    cell = Cell()
    for step in range(3 * SAMPLES):
        cell.add(0.0, step, bad=True)
    assert cell.steps == cell.bad_steps == list(range(2 * SAMPLES, 3 * SAMPLES))


def test_a_rebuilt_table_equals_the_grown_one(path, library, episode):
    """The same steps give the same numbers, read one episode at a time or all at once."""
    for number in range(30):
        fell = number % 3 == 0
        library.record(
            episode("open drawer", "wait", reward=number / 7, failure=Failure.PENALTY if fell else Failure.NONE)
        )
        assert library.episodes == number + 1
    grown = library._caught_up().values
    with ExperienceLibrary.open(path) as again:
        rebuilt = again._caught_up().values
        assert rebuilt.cells == grown.cells
