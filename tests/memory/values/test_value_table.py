import zlib

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hardwon.memory import ExperienceLibrary, Failure, State
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.situations.keys import CONTEXT_KEY
from hardwon.memory.values.cells import MADE, Cell, StoredCells
from hardwon.memory.values.tuning import TUNING
from hardwon.memory.values.value_table import ValueTable


def opened(path):
    """The library, for tests that look inside."""
    return ExperienceLibrary.open(path)


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


def test_two_keys_are_weighed_by_precision_and_the_spread_between_keys():
    """Two returns of 0 and 1 in general, two of 1 in special, by hand.

    variance of (0, 1) is 1/4, of (1, 1) 0; precision = n (n + 2) / (n variance + 2 prior).
    """
    values = table((["*"], 0.0), (["*", "open"], 1.0), (["open"], 1.0))
    general, special = 2 * 4 / (2 * 0.25 + 2 * TUNING.prior_variance), 2 * 4 / (2 * TUNING.prior_variance)
    general = 1 / (1 / general + TUNING.key_spread)
    expected = (general * 0.5 + special * 1.0) / (general + special)
    assert values.estimate(["*", "open"]).value == pytest.approx(expected, rel=1e-12)


def test_a_form_that_hardly_ever_pays_does_not_hide_the_situation_in_which_it_does():
    """However often it brought nothing elsewhere: a general key weighs at most 1 / spread."""
    values = table(*[(["*", "get"], 0.0)] * 500, *[(["*", "get", "get | it"], 1.0)] * 5, *[(["*", "get"], 0.0)] * 500)
    assert values.estimate(["*", "get", "get | it"]).value > 0.7
    assert values.estimate(["*", "get", "get | other"]).value < 0.01


HERE = "=best walk | wash | home"


def file_tries(*returns):
    """A table of steps with five keys that others share, and with that of the quickest way, which none shares."""
    values = table(*[([*"abcde"], 0.5)] * 20)
    for n, value in enumerate(returns):
        values.add([*"abcde", HERE], value, 100 + n, episode=n + 1)
    return values


def test_of_the_quickest_way_the_best_return_counts():
    """Worked example: of .8, .99 and .9 it is .99, in any order, and of one return that return."""
    for returns in ((0.8, 0.99, 0.9), (0.99, 0.9, 0.8), (0.9, 0.8, 0.99)):
        cell = file_tries(*returns).cell(HERE)
        assert (cell.mean, cell.n) == (0.99, 3)
    assert file_tries(0.8).cell(HERE).mean == 0.8


def test_the_quickest_way_says_how_often_it_was_tried_here_and_moves_no_value():
    values = file_tries(0.99, 0.2)
    with_it, without = values.estimate([*"abcde", HERE]), values.estimate([*"abcde"])
    assert (with_it.tried, without.tried) == (2, 22)
    assert with_it.value == without.value
    assert values.estimate([*"abcde", HERE.replace("wash", "weigh")]).tried == 0
    assert values.estimate([*"abcd", "other context", HERE]).tried == 0
    assert not any("=best" in key for key in values.cells if key != HERE), "it has no gains"


def test_a_key_without_steps_does_not_count():
    """Unknown keys in between neither add nor dampen."""
    values = table((["*", "open"], 1.0), (["*"], 0.0))
    assert values.estimate(["*", "never", "nor this", "open"]) == values.estimate(["*", "open"])


def test_the_most_special_key_is_named():
    """An estimate says on which key it rests, and on which steps."""
    estimate = table((["*", "open"], 1.0), (["*"], 0.0)).estimate(["*", "open", "open | here"], "1: lit")
    assert (estimate.key, estimate.n, estimate.steps, estimate.context) == ("open", 1, (1,), "1: lit")


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
    for step in range(TUNING.memory):
        cell.add(0.0, step)
    for step in range(5 * TUNING.memory):
        cell.add(1.0, step)
    assert cell.n == 6 * TUNING.memory
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
    cell.add(0.0, 1, episode=1)
    cell.add(-1.0, 2, bad=True, episode=1)
    cell.add(-1.0, 3, bad=True, lost=True, episode=2)
    assert (cell.n, cell.bad, cell.lost, cell.bad_steps) == (3, 2, 1, [3])


def test_few_steps_are_kept_as_evidence():
    """A key keeps the newest step ids only."""
    cell = Cell()
    for step in range(3 * TUNING.evidence_steps):
        cell.add(0.0, step, bad=True, episode=step)
    assert cell.steps == cell.bad_steps == list(range(2 * TUNING.evidence_steps, 3 * TUNING.evidence_steps))


def test_bad_steps_of_one_episode_are_one_piece_of_evidence():
    cell = Cell()
    for step, episode in enumerate((7, 7, 7, 8, 8, 9)):
        cell.add(0.0, step, bad=True, episode=episode)
    assert (cell.bad, cell.failed, cell.streak, cell.bad_steps) == (6, 3, 3, [2, 4, 5])


def test_a_rebuilt_table_equals_the_grown_one(path, library, episode):
    """The same steps give the same numbers, read one episode at a time or all at once."""
    for number in range(30):
        fell = number % 3 == 0
        library.record(
            episode("open drawer", "wait", reward=number / 7, failure=Failure.PENALTY if fell else Failure.NONE)
        )
        assert library.episodes.count() == number + 1
    grown = library._file.caught_up().statistics.values
    with opened(path) as again:
        rebuilt = again._file.caught_up().statistics.values
        assert rebuilt.cells == grown.cells


STEPS = st.lists(
    st.tuples(
        st.lists(st.text(max_size=3), max_size=4, unique=True),
        st.floats(-1e6, 1e6),
        st.sampled_from(["", "open", "éat"]),
        st.sampled_from([(False, False), (True, False), (True, True)]),
    ),
    max_size=40,
)


def filed(values, steps, first=1):
    """The table with these steps filed in it."""
    for number, (keys, value, action, (bad, lost)) in enumerate(steps, first):
        values.add(keys, value, number, action=action, bad=bad, lost=lost)
    return values


@given(STEPS, STEPS)
def test_a_stored_table_is_the_same_bit_by_bit(before, after):
    """Stored, opened and gone on with: every cell equals that of a table which was never stored."""
    grown = filed(filed(ValueTable(), before), after, 1000)
    stored = StoredCells.arrays(filed(ValueTable(), before).cells)
    opened = filed(ValueTable(StoredCells(stored)), after, 1000)
    for key in grown.cells:
        assert opened.cell(key) == grown.cell(key)
    assert opened.cell("no such key") is None
    assert opened.cells == grown.cells
    assert set(opened.touched) == set(grown.touched)


@given(STEPS)
def test_a_cell_is_made_when_it_is_asked_for(steps):
    """One by one or all at once."""
    table = filed(ValueTable(), steps)
    stored = StoredCells(StoredCells.arrays(table.cells))
    assert stored.all() == {key: stored.find(key) for key in table.cells} == table.cells
    assert len(stored) == len(table.cells)


def test_keys_of_one_checksum_are_told_apart():
    """crc32 of these two words is the same."""
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    cells = table((["plumless"], 1.0), (["buckeroo"], 0.0)).cells
    stored = StoredCells(StoredCells.arrays(cells))
    assert stored.find("plumless") == cells["plumless"] != stored.find("buckeroo") == cells["buckeroo"]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])  # it only makes values
@given(data=st.data())
def test_a_library_opened_from_its_file_estimates_the_same(data, tmp_path_factory, episode):
    """Random episodes in three sittings; the file is written after each, and equals a rebuild from the truth."""
    path = tmp_path_factory.mktemp("values") / "experience.db"
    with pytest.MonkeyPatch.context() as always:
        always.setattr("hardwon.memory.values.saved_tables.due", lambda behind, covered: behind > 0)
        for _ in range(3):
            with opened(path) as library:
                for reward in data.draw(st.lists(st.floats(-1, 1), max_size=3)):
                    failure = data.draw(st.sampled_from([Failure.NONE, Failure.PENALTY, Failure.TASK_LOST]))
                    actions = data.draw(st.lists(st.sampled_from(["open drawer", "wait", "eat"]), min_size=1))
                    library.record(episode(*actions, reward=reward, failure=failure, library=library))
                assert library._file.caught_up().statistics.values.cells is not None
    with opened(path) as library:
        from_file = library._file.caught_up().statistics.values
        rebuilt = NamespaceCache(library._file.store, 1)
        rebuilt.statistics.cache_file.folder = None  # shared by the tables
        rebuilt.catch_up()
        assert from_file.cells == rebuilt.statistics.values.cells


@pytest.fixture
def large(path, library, episode, monkeypatch):
    """A library whose values are in a file."""
    monkeypatch.setattr("hardwon.memory.values.saved_tables.due", lambda behind, covered: behind > 0)
    monkeypatch.setattr("hardwon.memory.values.saved_tables.SAVE_AFTER", 1)
    for number in range(5):
        library.record(episode("open drawer", "wait", reward=number / 7))
    assert library._file.caught_up().statistics.values.cells["*"].n == 10
    return path


def test_values_are_read_when_they_are_asked_for(large):
    """A recall without actions needs none."""
    with opened(large) as library:
        library.recall(State("You see a wooden drawer. It is closed."), k=3)
        assert not library._file.derived.statistics.filed.is_read
        assert library.recall(State("x"), k=0, actions={"wait": ""}).estimates["wait"].n == 5


def test_values_come_from_their_file(large, monkeypatch):
    """No step that the file covers is read again."""
    monkeypatch.setattr("hardwon.memory.values.cells.Cell.add", None)
    with opened(large) as library:
        assert library._file.caught_up().statistics.values.cell("*").n == 10


def test_steps_after_the_file_are_read_from_the_library(large, episode, monkeypatch):
    """The file is behind; the values are not."""
    monkeypatch.setattr("hardwon.memory.values.saved_tables.due", lambda behind, covered: False)
    with opened(large) as library:
        library.record(episode("wait"))
    with opened(large) as library:
        assert library._file.caught_up().statistics.values.cell("*").n == 11
        library.record(episode("wait"))
        assert library._file.caught_up().statistics.values.cell("*").n == 12


def test_a_damaged_file_of_values_is_said_and_rebuilt(large, caplog):
    """The estimates are those of the truth."""
    file = large.with_name(large.name + ".index") / "1-values"
    file.write_bytes(file.read_bytes()[:-3])
    with opened(large) as library:
        assert library._file.caught_up().statistics.values.cells["*"].n == 10
        assert "its checksum is wrong" in caplog.text
        assert library._file.derived.statistics.cache_file.problem("values", MADE) is None
    assert file.exists()


def test_values_are_the_same_however_few_rows_are_read_at_once(path, episode, monkeypatch):
    """An episode is never counted in parts: its returns come from all of its steps."""
    with opened(path) as library:
        for number in range(9):
            library.record(episode(*["open drawer", "wait", "eat"][: 1 + number % 3], reward=number / 7))
        whole = library._file.caught_up().statistics.values.cells
        for rows in (1, 2, 4, 5):
            monkeypatch.setattr("hardwon.memory.values.saved_tables._READ", rows)
            rebuilt = NamespaceCache(library._file.store, 1)
            rebuilt.statistics.cache_file.folder = None
            rebuilt.catch_up()
            assert rebuilt.statistics.values.cells == whole


def test_keys_that_are_not_stored_are_looked_for_once(monkeypatch):
    """Most keys of an action are of no step; one that is filed later is found."""
    looked = []
    monkeypatch.setattr(StoredCells, "find", lambda self, key: looked.append(key))
    table = ValueTable(StoredCells(StoredCells.arrays({"a": Cell()})))
    assert [table.cell("b"), table.cell("b")] == [None, None]
    assert looked == ["b"]
    table.add(["b"], 1.0, 1)
    assert table.cell("b") is not None


def test_the_probability_of_losing_backs_off_to_general_keys():
    """By hand: 2 of 4 steps lost in general, 0 + 2 as if of 5; 2 of 2 in special, (2 + 2/5) of 3."""
    values = ValueTable()
    for number, (keys, lost) in enumerate([(["*"], False), (["*"], False), (["*", "eat"], True), (["*", "eat"], True)]):
        values.add(keys, 0.0, number, bad=lost, lost=lost, episode=number)
    assert values.estimate(["*"]).lost == pytest.approx(2 / 5)
    assert values.estimate(["*", "eat"]).lost == pytest.approx((2 + 2 / 5) / 3)
    assert values.estimate(["*", "drink"]).lost == values.estimate(["*"]).lost
    assert table(("*", 0.0)).estimate(["*"]).lost == table().estimate(["*"]).lost == 0.0
