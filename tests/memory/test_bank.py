import subprocess
import sys

import pytest

from tacit.memory import ExperienceLibrary, Item
from tacit.memory.errors import UnknownName


@pytest.fixture
def bank(library):
    """A bank of one task."""
    with library.bank("find the spoon") as opened:
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
    with library.bank("t") as bank:
        bank.pull(bank.put("red", "a", "1"), "blue")
    assert library._store.rows("SELECT * FROM bank_entries") == library._store.rows("SELECT * FROM bank_pulls") == []
    assert library.items() == []


def test_a_bank_is_dropped_when_its_task_fails(library):
    """An error on the way is no reason to keep it."""
    with pytest.raises(KeyError), library.bank("t") as bank:
        raise KeyError(bank.put("red", "a", "1"))
    assert library.bank("t").keys() == {}


def test_a_task_has_a_bank_of_its_own(library):
    """Nothing is seen, pulled or dropped across tasks and namespaces."""
    with library.bank("one") as one:
        entry = one.put("red", "a", "1")
        with library.bank("two") as two:
            assert two.keys() == {}
            with pytest.raises(UnknownName):
                two.pull(entry, "blue")
        assert one.keys() == {entry: "a"}
        with ExperienceLibrary.open(library.path, namespace="other") as other:
            assert other.bank("one").keys() == {}


def test_promotion_goes_through_admission(library, bank):
    """What outlasts the task is an item like any other: admitted, merged, or rejected."""
    assert bank.promote(Item("insight", "spoons are in drawers")).status == "added"
    assert bank.promote(Item("insight", "spoons are in drawers")).status == "merged"
    library.retire(library.items()[0].id, "no")
    assert bank.promote(Item("insight", "spoons are in drawers")).status == "rejected"


def test_processes_share_a_bank(path, bank):
    """Three other processes put at once; no entry is lost, and this one can pull each."""
    code = (
        "import sys; from tacit.memory import ExperienceLibrary\n"
        "bank = ExperienceLibrary.open(sys.argv[1]).bank('find the spoon')\n"
        "for n in range(20): bank.put(sys.argv[2], f'{sys.argv[2]} {n}', 'value')"
    )
    teams = [subprocess.Popen([sys.executable, "-c", code, str(path), team], stderr=subprocess.PIPE) for team in "abc"]
    assert [team.communicate()[1] for team in teams] == [b""] * 3
    assert sorted(bank.keys().values()) == sorted(f"{team} {n}" for team in "abc" for n in range(20))
    assert {bank.pull(entry, "d") for entry, _ in bank.keys().items()} == {"value"}
