import sqlite3
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.memory.storage.migrations import APPLICATION_ID, m001_initial
from hardwon.memory.storage.rollups import FOLD, WINDOW, Attempts, count_unfolded

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


def attempt(action="open drawer", reward=0.0, failure=Failure.NONE, see=DRAWER, location=""):
    """One step."""
    pre = replace(see, location=location) if location else see
    return Step(pre, action, State("It is open."), Diagnosis(failure is Failure.NONE, failure), reward)


def run(*steps: Step, success: bool | None = True, task: str = "find the spoon") -> Trajectory:
    """An episode of these steps."""
    return Trajectory(task, steps, success)


def tried(library, count, **how):
    """Record so many attempts of one kind, ten to an episode; returns their ids."""
    for start in range(0, count, 10):
        library.record(run(*(attempt(f"open drawer {n}", **how) for n in range(start, min(count, start + 10)))))
    return [row[0] for row in library._file.store.rows("SELECT id FROM steps ORDER BY id")]


# -- attempts -------------------------------------------------------------------------------------


def test_steps_of_one_kind_in_one_situation_are_summed_up(library):
    """Names and numbers of things aside: counts, failures by type, mean return, the first and the last."""
    ref = library.record(
        run(
            attempt("open drawer 3", failure=Failure.NO_EFFECT, see=State("You see drawer 3.")),
            attempt("open drawer 7", reward=1.0, see=State("You see drawer 7.")),
            attempt("close drawer 7", see=State("You see drawer 7.")),
        )
    )
    steps = library.episodes.get(ref).steps
    opened, closed = library.episodes.summaries(State("You see drawer 1.").signature)
    assert (opened.pattern, opened.n, opened.live, opened.failures) == ("open {1}", 2, 2, {"no_effect": 1})
    assert opened.mean_return == pytest.approx((0.95 + 1.0) / 2)
    assert (opened.best, opened.first, opened.last) == (steps[1].id, steps[0].id, steps[1].id)
    assert (closed.pattern, closed.n, closed.failures) == ("close {1}", 1, {})


def test_a_step_that_was_not_read_ahead_adds_to_its_stored_attempt(library):
    library.record(run(attempt()))
    with library._file.filed().transaction() as connection:
        attempts = Attempts(connection, library._file.number)
        ((step, ref),) = attempts.count([replace(attempt(), id=2)]).items()
        attempts.write()
    (summary,) = library.episodes.summaries()
    assert (step, summary.id, summary.n) == (2, ref, 2)


def test_what_does_not_count_is_in_no_attempt(library):
    """Episodes that the environment broke, and steps in which nothing was done."""
    library.record(run(attempt("open drawer"), success=None))
    library.record(run(attempt("", failure=Failure.POLICY_ERROR)))
    assert library.episodes.summaries() == []
    assert library._file.store.rows("SELECT DISTINCT attempt FROM steps") == [(None,)]


def test_of_equal_returns_the_newest_is_the_best(library):
    """And a better one before it stays the best."""
    ids = [library.episodes.get(library.record(run(attempt(reward=r)))).steps[0].id for r in (0.5, 0.9, 0.9, 0.1)]
    (summary,) = library.episodes.summaries()
    assert (summary.best, summary.last) == (ids[2], ids[3])


def test_ten_thousand_attempts_leave_a_bounded_tier(library):
    """systems.md §3: rolling summary bounded and auditable: counts are true, every claim resolves to ids."""
    failures = [
        Failure.NO_EFFECT if n % 3 == 0 else Failure.TOOL_ERROR if n % 7 == 0 else Failure.NONE for n in range(100)
    ]
    library.record_many(
        run(*(attempt(f"open drawer {n}", reward=0.01, failure=failure) for n, failure in enumerate(failures)))
        for _ in range(100)
    )
    (summary,) = library.episodes.summaries()
    assert summary.n == 10_000
    assert summary.live <= WINDOW
    assert library._file.store.rows("SELECT count(*) FROM steps WHERE folded = 0") == [(summary.live,)]
    assert summary.failures == {name: 100 * count for name, count in Counter(failures).items() if name != "none"}
    assert library.episodes.evidence(summary.id) == [
        row[0] for row in library._file.store.rows("SELECT id FROM steps ORDER BY id")
    ]
    for failure, count in summary.failures.items():
        claimed = library.episodes.steps(library.episodes.evidence(summary.id, failure))
        assert len(claimed) == count
        assert {step.diagnosis.failure for step in claimed} == {failure}
    assert len(library.episodes.evidence(summary.id, "none")) == 10_000 - sum(summary.failures.values())
    assert library.episodes.steps([summary.best, summary.first, summary.last])
    assert library.admin.verify() == []


def test_the_oldest_are_folded_and_stay_in_the_ledger(library):
    """systems.md §3: when a key has more than 32 steps the oldest 16 are folded; nothing is deleted."""
    ids = tried(library, WINDOW + 1)
    folded = [row[0] for row in library._file.store.rows("SELECT id FROM steps WHERE folded = 1 ORDER BY id")]
    assert folded == ids[:FOLD]
    assert library.episodes.summaries()[0].live == WINDOW + 1 - FOLD
    assert len(library.episodes.steps(ids)) == WINDOW + 1


@pytest.mark.parametrize(("n", "live"), [(0, 0), (1, 1), (32, 32), (33, 17), (48, 32), (49, 17), (10_000, 32)])
def test_how_many_are_live_depends_on_how_many_there_are(n, live):
    """As if they had come one by one, by whatever batches they came."""
    assert count_unfolded(n) == live


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0])), max_size=40), max_size=5))
def test_batches_make_no_difference(episodes):
    """One transaction or many: the same attempts, the same steps folded."""
    told = [run(*(attempt(f"{verb} drawer", reward=reward) for verb, reward in steps)) for steps in episodes]
    with ExperienceLibrary.open(":memory:") as one, ExperienceLibrary.open(":memory:") as many:
        one.record_many(told)
        for episode in told:
            many.record(episode)
        query = "SELECT signature, pattern, n, live, failures, best, best_return, first, last FROM attempts ORDER BY id"
        assert one._file.store.rows(query) == many._file.store.rows(query)
        folded = "SELECT id, attempt, folded FROM steps ORDER BY id"
        assert one._file.store.rows(folded) == many._file.store.rows(folded)
        assert one.admin.verify() == many.admin.verify() == []


def test_two_writers_count_together(path, library):
    """Neither overwrites what the other counted."""
    with ExperienceLibrary.open(path) as other:
        for _ in range(20):
            library.record(run(attempt()))
            other.record(run(attempt(failure=Failure.NO_EFFECT)))
        (summary,) = library.episodes.summaries()
        assert (summary.n, summary.failures) == (40, {"no_effect": 20})
        assert library.admin.verify() == other.admin.verify() == []


def test_an_episode_that_cannot_be_filed_counts_nothing(library, monkeypatch):
    """All or nothing, also of the counts; `verify` says why, and `repair` tries again."""
    library.record(run(attempt()))
    before = library.episodes.summaries()
    with monkeypatch.context() as patch:
        patch.setattr("hardwon.memory.storage.episodes.log_change", lambda *_, **__: 1 / 0)
        library.record(run(attempt()))
        assert library.episodes.summaries() == before
    assert [(one.where, one.what) for one in library.admin.verify()] == [
        ("inbox", "1 not stored: ZeroDivisionError('division by zero')")
    ]
    library.record(run(attempt()))
    assert library.episodes.summaries()[0].n == 2
    library.admin.repair()
    assert library.episodes.summaries()[0].n == 3
    assert library.admin.verify() == []


def test_summaries_are_paged_the_most_tried_first(library):
    """Of one situation or of all."""
    library.record(run(*(attempt(action) for action in ("a x", "b x", "b x", "c x", "c x", "c x"))))
    library.record(run(attempt("d x", see=State("elsewhere"))))
    assert [one.pattern for one in library.episodes.summaries(DRAWER.signature)] == ["c {1}", "b {1}", "a {1}"]
    assert [one.n for one in library.episodes.summaries()] == [3, 2, 1, 1]
    assert [one.pattern for one in library.episodes.summaries(limit=1, offset=1)] == ["b {1}"]


def test_a_summary_that_does_not_exist_is_named(library):
    """And a failure that is none."""
    library.record(run(attempt()))
    with pytest.raises(UnknownName, match="unknown summary '99'"):
        library.episodes.evidence(99)
    with pytest.raises(UnknownName, match="unknown failure 'bad luck'"):
        library.episodes.evidence(library.episodes.summaries()[0].id, "bad luck")


def test_summaries_are_of_a_namespace(path, library):
    """Neither read nor resolved from another."""
    library.record(run(attempt()))
    with ExperienceLibrary.open(path, namespace="other") as other:
        assert other.episodes.summaries() == []
        with pytest.raises(UnknownName):
            other.episodes.evidence(library.episodes.summaries()[0].id)


# -- an older library -----------------------------------------------------------------------------


def older(path, library):
    """A file as schema 1 had it, with what this library has of episodes and items."""
    connection = sqlite3.connect(path, isolation_level=None)
    m001_initial(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("ATTACH ? AS new", (library.path,))
    made = [row[0] for row in connection.execute("SELECT name FROM new.namespaces ORDER BY id")]
    for number, _ in enumerate(made, 1):
        connection.execute(
            f"CREATE VIRTUAL TABLE states_text_{number} USING fts5(text, content='', tokenize='porter unicode61')"
        )
        connection.execute(f"CREATE VIRTUAL TABLE items_text_{number} USING fts5(text, tokenize='porter unicode61')")
        connection.execute(
            f"INSERT INTO states_text_{number}(rowid, text) SELECT id, task || char(10) || observation || char(10) "
            "|| feedback FROM new.states WHERE namespace = ?",
            (number,),
        )
        connection.execute(
            f"INSERT INTO items_text_{number}(rowid, text) SELECT rowid & {2**40 - 1}, text FROM new.items_text "
            f"WHERE rowid >> 40 = {number}"
        )
    for table in ("namespaces", "trajectories", "states", "keys", "steps", "items", "usages", "words", "changes"):
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO main.{table}({columns}) SELECT {columns} FROM new.{table}")
    connection.close()


@pytest.fixture
def grown(path, library, episode):
    """A library with a past, in two namespaces."""
    tried(library, 40, failure=Failure.NO_EFFECT)
    library.record(run(attempt("take spoon", reward=1.0)))
    ref = str(library.add(Item("insight", "drawers hide spoons", signatures=(DRAWER.signature,))).item_id)
    shown = replace(attempt(), why={"recalled": [ref]})
    library.record(run(shown))
    with ExperienceLibrary.open(path, namespace="other") as other:
        other.record(run(attempt("go east"), attempt("go west", reward=1.0)))
    return library


def test_an_older_file_is_rebuilt_by_the_first_writer(tmp_path, grown):
    """Attempts, places and use of items, in every namespace, once; the steps stay as they are."""
    older(tmp_path / "old.db", grown)
    with ExperienceLibrary.open(tmp_path / "old.db") as library:
        assert library._file.store.rows("SELECT * FROM meta WHERE name = 'rebuild'") == []
        assert library.admin.verify() == []
        query = "SELECT signature, pattern, n, live, failures, best, first, last FROM attempts ORDER BY id"
        assert library._file.store.rows(query) == grown._file.store.rows(query)
        places = [sorted(each._file.store.rows("SELECT * FROM item_places")) for each in (library, grown)]
        assert places[0] == places[1] != []
        assert library._file.store.rows("SELECT uses, fresh FROM items") == [(1, 6)]
        assert library.recall(DRAWER).summaries == grown.recall(DRAWER).summaries
        library.record(run(attempt()))
        assert library.admin.verify() == []
    with ExperienceLibrary.open(tmp_path / "old.db", namespace="other") as other:
        assert [one.pattern for one in other.episodes.summaries()] == ["go {1}"]
        assert other.admin.verify() == []


def test_an_empty_older_file_needs_no_rebuilding(tmp_path, library):
    """There is nothing to derive."""
    older(tmp_path / "old.db", library)
    with ExperienceLibrary.open(tmp_path / "old.db") as opened:
        assert opened._file.store.rows("SELECT * FROM meta WHERE name = 'rebuild'") == []
        assert opened.admin.verify() == []
