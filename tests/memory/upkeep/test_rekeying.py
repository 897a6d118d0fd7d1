"""A library written under older keys keeps what it learnt."""

import sqlite3

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Reasons, State, Step, Trajectory
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.situations.refinements import BEST, FULL_NAME
from hardwon.memory.upkeep import rekeying

HERE = State("You see a sinkbasin 1 and a bed 1. Simon says, 'go to bed'.", task="go to bed")
COUNTS = "tried 0 to unknown"
ACTIONS = {"go to sinkbasin 1": 0.0, "go to bed 1": 1.0}


def old_keys(action):
    """The keys that version 1 made: an argument by its last word."""
    last = action.rsplit(" ", 1)[-1]
    form = "go to {1}"
    return (
        *("*", form, f"{form} | {COUNTS}", f"{form} | {COUNTS} | 1: | ", f"{form} | {COUNTS} | 1: |  | 1: | "),
        *(f"go to {last} | {COUNTS} | 1: | ", f"! {form} @ around 1: ", f"! go to {last} @ around 1: "),
    )


@pytest.fixture
def old(tmp_path):
    """The path of a library as version 1 wrote it, with an episode that waits in the inbox."""
    path = tmp_path / "old.db"
    with ExperienceLibrary.open(path, "hashing") as library:
        for seed in range(16):
            steps = tuple(
                Step(
                    HERE, action, HERE, Diagnosis(True), reward, t, old_keys(action), Reasons(explored=bool(t) or None)
                )
                for t, (action, reward) in enumerate(ACTIONS.items())
            )
            library.record(Trajectory("go to bed", steps, success=True, score=1.0, seed=seed))
            if seed == 14:
                assert library.admin.stats()["episodes"] == 15  # files what waits; the last one waits
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'keys'")
        connection.execute("UPDATE words SET word = 'bed''' WHERE word = 'bed'")
    connection.close()
    return path


def estimates(library):
    found = library.recall(HERE, actions=dict.fromkeys(ACTIONS, COUNTS)).estimates
    return {action: (estimate.n, estimate.key.partition(" | ")[0]) for action, estimate in found.items()}


def test_steps_are_filed_under_todays_keys(old):
    """What was learnt of the bed is found again, and apart from the sink."""
    with ExperienceLibrary.open(old) as library:
        assert estimates(library) == {
            "go to sinkbasin 1": (16, "go to sinkbasin"),
            "go to bed 1": (16, "go to bed"),
        }
        assert library.admin.verify() == []
        newest = library.episodes.get(library.episodes.find()[0]["id"])
        for step, is_own in zip(newest.steps, (False, True), strict=True):
            keys = library.episodes.keys(HERE, step.action, COUNTS)
            assert step.keys == tuple(key for key in keys if is_own or not key.startswith(BEST))


def test_it_is_done_once(old):
    """The version is written down; a library that is up to date is only asked for it."""
    ExperienceLibrary.open(old).close()
    with ExperienceLibrary.open(old) as library:
        assert rekeying.rekey(library._file.store) == 0
        assert library._file.store.rows("SELECT value FROM meta WHERE name = 'keys'") == [(str(KEYS_VERSION),)]


def test_a_failure_amid_it_leaves_the_file_as_it_was(old, monkeypatch):
    """All or nothing: the next opening begins again."""
    monkeypatch.setattr(rekeying, "_compute_keys", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ExperienceLibrary.open(old)
    monkeypatch.undo()
    with sqlite3.connect(old) as connection:
        assert connection.execute("SELECT 1 FROM words WHERE word = 'bed'''").fetchone()
        assert not connection.execute("SELECT 1 FROM meta WHERE name = 'keys'").fetchone()
    connection.close()
    with ExperienceLibrary.open(old) as library:
        assert estimates(library)["go to bed 1"] == (16, "go to bed")


def test_readers_leave_it_to_a_writer(old):
    """A library opened to be read is read as it is."""
    with ExperienceLibrary.open(old, read_only=True) as library:
        assert library.episodes.count() == 16
    with sqlite3.connect(old) as connection:
        assert not connection.execute("SELECT 1 FROM meta WHERE name = 'keys'").fetchone()
    connection.close()


NUMBERED = State("You see drawer no. 7 and ｄｒａｗｅｒ ８.", task="open ｄｒａｗｅｒ ８")


def test_numbers_and_letters_of_another_width_are_found_again(tmp_path):
    """Version 3 knew `drawer no. 7` as `no`, and letters of full width were other letters."""
    path, actions = tmp_path / "wide.db", ["open drawer no. 7", "open ｄｒａｗｅｒ ８"]
    with ExperienceLibrary.open(path, "hashing") as library:
        for seed in range(4):
            steps = []
            for t, (action, head) in enumerate(zip(actions, ("no", "ｄｒａｗｅｒ"), strict=True)):
                form, facts = "open {1}", f"{COUNTS} | 1: | "
                keys = ("*", form, f"{form} | {COUNTS}", f"{form} | {facts}", f"open {head} | {facts}")
                steps.append(
                    Step(NUMBERED, action, NUMBERED, Diagnosis(True), float(t), t, keys, Reasons(explored=True))
                )
            library.record(Trajectory(NUMBERED.task, tuple(steps), success=True, seed=seed))
        assert library.admin.stats()["episodes"] == 4
        fresh = [library.episodes.keys(NUMBERED, action, COUNTS) for action in actions]
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '3' WHERE name = 'keys'")
    connection.close()
    with ExperienceLibrary.open(path) as library:
        newest = library.episodes.get(library.episodes.find()[0]["id"])
        assert [step.keys for step in newest.steps] == fresh
        found = library.recall(NUMBERED, actions=dict.fromkeys(actions, COUNTS)).estimates
        assert [found[action].n for action in actions] == [4, 4]  # only the second is named by the task
        kinds = [found[action].key.partition(" | ")[0] for action in actions]
        assert kinds == [f"{FULL_NAME}open drawer {number}" for number in (7, 8)]
        assert library.admin.verify() == []
