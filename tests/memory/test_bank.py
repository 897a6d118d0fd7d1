import multiprocessing

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.bank import Entry
from hardwon.memory.errors import UnknownName


@pytest.fixture
def bank(library):
    """A bank of one task."""
    with library.admin.bank("find the spoon") as opened:
        yield opened


def test_readers_see_keys_only(bank):
    """The value appears only after a pull."""
    entry = bank.put("red", "where spoons are", "a very long account")
    assert bank.keys() == {entry: "where spoons are"}
    assert bank.pull(entry, "blue") == "a very long account"


def test_every_pull_is_logged(bank):
    """In order; a team's pull of its own entry apart."""
    first, second = bank.put("red", "a", "1"), bank.put("blue", "b", "2")
    for entry, reader in ((first, "blue"), (second, "blue"), (first, "red"), (first, "blue")):
        bank.pull(entry, reader)
    assert bank.pulls() == [(first, "blue"), (first, "blue")]
    assert bank.pulls(own=True) == [(second, "blue"), (first, "red")]


def test_an_entry_that_is_not_there_is_named(bank):
    """With those there are, and without a pull in the log."""
    bank.put("red", "a", "1")
    with pytest.raises(UnknownName, match=r"unknown bank entry '99'\. .*There are: 1\."):
        bank.pull(99, "blue")
    assert bank.pulls() == []


def test_a_bank_is_dropped_when_its_task_ends(library):
    """Entries and pulls; the library is not touched."""
    with library.admin.bank("t") as bank:
        bank.pull(bank.put("red", "a", "1"), "blue")
    assert (
        library._file.store.rows("SELECT * FROM bank_entries")
        == library._file.store.rows("SELECT * FROM bank_pulls")
        == []
    )
    assert library.items.find() == []


def test_a_bank_is_dropped_when_its_task_fails(library):
    """An error on the way is no reason to keep it."""
    with pytest.raises(KeyError), library.admin.bank("t") as bank:
        raise KeyError(bank.put("red", "a", "1"))
    assert library.admin.bank("t").keys() == {}


def test_a_task_has_a_bank_of_its_own(library):
    """Nothing is seen, pulled or dropped across tasks and namespaces."""
    with library.admin.bank("one") as one:
        entry = one.put("red", "a", "1")
        with library.admin.bank("two") as two:
            assert two.keys() == {}
            with pytest.raises(UnknownName):
                two.pull(entry, "blue")
        assert one.keys() == {entry: "a"}
        with ExperienceLibrary.open(library.path, namespace="other") as other:
            assert other.admin.bank("one").keys() == {}


def test_promotion_goes_through_admission(library, bank, episode):
    """What outlasts the task is an item like any other: admitted, merged, or rejected."""
    won = library.record(episode())
    assert bank.promote(Item("insight", "spoons are in drawers"), won).status == "added"
    assert bank.promote(Item("insight", "spoons are in drawers"), won).status == "merged"
    library.items.retire(library.items.find()[0].id, "no")
    assert bank.promote(Item("insight", "spoons are in drawers"), won).status == "rejected"


@pytest.mark.parametrize("success", [False, None])
def test_nothing_is_promoted_without_a_verified_outcome(library, bank, episode, success):
    """systems.md §7.8: task bank vs library: no self-promotion without a verified outcome."""
    lost = library.record(episode(success=success))
    for vouching in (lost, "nobody"):
        refused = bank.promote(Item("insight", "spoons are in drawers", source="experience"), vouching)
        assert refused.status == "rejected"
        assert "no verified outcome" in refused.reason
    assert library.items.find(limit=None) == []


@pytest.mark.parametrize(("score", "status"), [(1.0, "added"), (0.9, "rejected")])
def test_a_graded_episode_vouches_with_the_full_outcome(library, bank, episode, score, status):
    graded = library.record(episode(success=False, score=score, meta={"outcome": "score"}))
    assert bank.promote(Item("insight", "spoons are in drawers"), graded).status == status


def test_what_is_promoted_has_the_steps_of_who_vouches_for_it_as_evidence(library, bank, episode):
    won = library.record(episode("open drawer", "take spoon"))
    promoted = library.items.get(bank.promote(Item("insight", "spoons are in drawers"), won).item_id)
    assert promoted.provenance == tuple(step.id for step in library.episodes.get(won).steps)


def test_entries_tell_who_shared_them_and_only_what_is_new(bank):
    """systems.md §4: keys only."""
    first, second = bank.put("red", "a", "1"), bank.put("blue", "b", "2")
    assert bank.entries() == [Entry(first, "red", "a"), Entry(second, "blue", "b")]
    assert bank.entries(after=first) == [Entry(second, "blue", "b")]


def write_and_read(path, team):
    """What one process does: it puts twenty entries and pulls each."""
    bank = ExperienceLibrary.open(path).admin.bank("find the spoon")
    for n in range(20):
        bank.pull(bank.put(team, f"{team} {n}", f"value {n}"), team)


def test_eight_processes_share_a_bank_and_no_entry_is_lost(path, bank):
    """systems.md §4: global bank, concurrent: 8 writers, no lost entry. They put and pull at once."""
    fork = multiprocessing.get_context("fork")
    teams = [fork.Process(target=write_and_read, args=(path, team)) for team in "abcdefgh"]
    for team in teams:
        team.start()
    for team in teams:
        team.join()
    assert [team.exitcode for team in teams] == [0] * 8
    assert sorted(bank.keys().values()) == sorted(f"{team} {n}" for team in "abcdefgh" for n in range(20))
    assert all(bank.pull(entry, "z") == f"value {key.split()[1]}" for entry, key in bank.keys().items())
    assert len(bank.pulls(own=True)) == len(bank.pulls()) == 160
