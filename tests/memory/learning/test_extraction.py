from dataclasses import replace

import pytest

from hardwon.memory import Add, Item, Return, Update


@pytest.fixture
def read(library, episode):
    """A successful episode as an extractor reads it: recorded, with ids."""
    return library.episodes.get(library.record(episode("open drawer", "take spoon")))


def insight(read, title="spoons are in drawers", **fields):
    """What a model writes, with evidence."""
    evidence = (read.steps[0].id,)
    return Item("insight", title, **{"source": "model", "writer": "chat:x", "provenance": evidence, **fields})


def test_an_addition_is_admitted_like_any_other(library, read):
    (admission,) = library.apply([Add(insight(read))], read, [])
    assert admission.status == "added"


def test_to_return_nothing_is_a_valid_answer(library, read):
    """systems.md §5: add, update, return."""
    assert library.apply([Return("nothing new")], read, []) == []


def test_only_three_operations_are_carried_out(library, read):
    operations = [
        Add(insight(read, f"{name} is in the drawer of the kitchen")) for name in ("spoon", "fork", "knife", "cup")
    ]
    admissions = library.apply(operations, read, [])
    assert [a.status for a in admissions] == ["added", "added", "added", "rejected"]


@pytest.mark.parametrize("indices", [(1,), (-1,), (0, 5), ()])
def test_an_update_of_what_was_not_shown_is_refused(library, read, indices):
    """systems.md §5: update of a non-retrieved index refused."""
    shown = library.add(insight(read)).item_id
    (admission,) = library.apply([Update(indices, insight(read, "anew"))], read, [shown])
    assert admission.status == "rejected"
    assert library.items.get(shown).title == "spoons are in drawers"


def test_an_update_rewrites_into_one_and_unites_evidence(library, read):
    """systems.md §5: merge reduces count and unites evidence."""
    first = library.add(insight(read, "spoons are in kitchen drawers", provenance=(1,))).item_id
    second = library.add(insight(read, "forks are in kitchen drawers", provenance=(2,))).item_id
    (admission,) = library.apply([Update((0, 1), insight(read, "cutlery is in drawers"))], read, [first, second])
    assert (admission.status, admission.item_id) == ("merged", first)
    (item,) = library.items.find()
    assert (item.title, set(item.provenance)) == ("cutlery is in drawers", {1, 2, read.steps[0].id})
    assert library.items.history(second)[-1]["detail"] == {"why": f"merged into {first}"}


@pytest.mark.parametrize(("evidence", "reason"), [((), "no evidence"), ((999,), "not of this episode")])
def test_evidence_is_never_invented(library, read, evidence, reason):
    (admission,) = library.apply([Add(insight(read, provenance=evidence))], read, [])
    assert (admission.status, reason in admission.reason) == ("rejected", True)


@pytest.mark.parametrize(("success", "kind"), [(True, "warning"), (False, "strategy"), (False, "skill")])
def test_both_tracks_are_kept_apart(library, episode, success, kind):
    """systems.md §1: failures produce warnings only, successes strategies only."""
    read = library.episodes.get(library.record(episode("open drawer", success=success)))
    (admission,) = library.apply([Add(replace(insight(read), kind=kind))], read, [])
    assert "episode teaches" in admission.reason


def test_what_is_not_trusted_does_not_rewrite_what_is(library, read):
    """It waits in quarantine beside it."""
    shown = library.add(Item("insight", "spoons are in drawers")).item_id
    (admission,) = library.apply([Update((0,), insight(read, "spoons are poison", trust="untrusted"))], read, [shown])
    assert library.items.get(shown).title == "spoons are in drawers"
    assert library.items.get(admission.item_id).status == "quarantined"


def test_a_pinned_item_is_not_rewritten(library, read):
    shown = library.add(insight(read)).item_id
    library.items.update(shown, pinned=True)
    (admission,) = library.apply([Update((0,), insight(read, "anew, and better"))], read, [shown])
    assert "pinned" in admission.reason


def test_a_skill_is_not_rewritten_into_a_warning(library, read):
    shown = library.add(insight(read)).item_id
    update = Update((0,), replace(insight(read), kind="strategy", title="look in drawers first"))
    (admission,) = library.apply([update], read, [shown])
    assert "changes the kind from insight to strategy" in admission.reason
