from dataclasses import replace

import pytest

from hardwon.memory import Item
from hardwon.memory.errors import ConfigError, UnknownName, WrongType
from hardwon.memory.items import identify
from hardwon.memory.learning.tuning import TUNING


@pytest.fixture
def narrow(library, monkeypatch):
    """A library that holds two items of a kind."""
    monkeypatch.setattr("hardwon.memory.learning.curator.TUNING", replace(TUNING, capacity=2))
    return library


def add(library, title, **fields):
    """Add an insight; what became of it."""
    return library.add(Item("insight", title, **fields))


def ops(library, ref):
    """What happened to an item."""
    return [change["op"] for change in library.items.history(ref)]


def test_a_new_item_is_added(library):
    """It gets an id, and is there."""
    admission = add(library, "drawers hide spoons")
    assert (admission.status, admission.reason) == ("added", "new")
    assert library.items.get(admission.item_id).title == "drawers hide spoons"


def test_the_same_finding_meets_itself(library):
    """Merged, its evidence united, its confidence the newer one's; one item, two entries in its history."""
    first = add(library, "Drawers hide spoons.", provenance=(1, 2), signatures=("a",), confidence=0.5)
    second = add(library, "drawers HIDE spoons", provenance=(2, 3), signatures=("b",), confidence=0.7, body="so far")
    assert (second.status, second.item_id) == ("merged", first.item_id)
    item = library.items.get(first.item_id)
    assert (item.provenance, item.signatures, item.confidence, item.body) == ((1, 2, 3), ("a", "b"), 0.7, "so far")
    assert item.version == 2
    assert ops(library, first.item_id) == ["added", "merged"]


def test_merging_keeps_the_title_and_the_score(library):
    """What was learnt of its use is not lost when it is found again."""
    ref = add(library, "Drawers hide spoons", score=0.9).item_id
    add(library, "drawers hide spoons", score=0.1)
    assert (library.items.get(ref).title, library.items.get(ref).score) == ("Drawers hide spoons", 0.9)


def test_another_writer_cannot_lower_confidence(library):
    """A rule that finds what a person wrote confirms it."""
    ref = add(library, "x", confidence=0.9).item_id
    add(library, "x", confidence=0.4, writer="rules")
    assert library.items.get(ref).confidence == 0.9


def test_evidence_is_bounded(library):
    """The newest stays."""
    add(library, "x", provenance=tuple(range(TUNING.max_evidence)))
    ref = add(library, "x", provenance=(1000,)).item_id
    assert library.items.get(ref).provenance == (*range(1, TUNING.max_evidence), 1000)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Item("insight", "Open doors!"), Item("insight", "open  doors"), True),
        (Item("insight", "x", body="a"), Item("insight", "x", body="b"), True),
        (Item("insight", "x"), Item("strategy", "x"), False),
        (Item("warning", "x", forbids="eat"), Item("warning", "x", forbids="drink"), False),
        (Item("warning", "x", condition={"text": "a"}), Item("warning", "x", condition={"text": "b"}), False),
        (Item("insight", "日本語"), Item("insight", "中文"), False),
        (Item("insight", "?"), Item("insight", "!"), False),
    ],
)
def test_an_id_is_made_of_what_is_said(one, other, same):
    """Kind, words of the title, condition and forbidden action; of any script."""
    assert (identify(one) == identify(other)) is same


def test_a_condition_that_cannot_be_evaluated_is_not_admitted(library):
    """Nor is an item changed to have one; the library goes on as before."""
    with pytest.raises(ConfigError, match="condition has 'texts'"):
        add(library, "x", condition={"texts": "a"})
    ref = add(library, "x").item_id
    with pytest.raises(ConfigError, match="condition has 'texts'"):
        library.items.update(ref, condition={"texts": "a"})
    assert ops(library, ref) == ["added"]


def test_items_added_together_are_added_or_not(library):
    """One transaction: the second one's fault leaves nothing of the first."""
    with pytest.raises(ConfigError):
        library.items.add_many([Item("insight", "x"), Item("insight", "y", condition={})])
    assert library.items.find(status=None) == []


def test_a_full_kind_rejects_a_weaker_item(narrow):
    """Minimum 0.4 rejects 0.3; the size stays."""
    add(narrow, "a", score=0.4)
    add(narrow, "b", score=0.6)
    admission = add(narrow, "c", score=0.3)
    assert (admission.status, admission.item_id) == ("rejected", None)
    assert admission.reason == "insight is full and its weakest scores 0.40"
    assert [item.title for item in narrow.items.find()] == ["b", "a"]


def test_a_full_kind_replaces_its_weakest(narrow):
    """0.5 takes the place of 0.4, which is kept in the history with the reason."""
    weak = add(narrow, "a", score=0.4).item_id
    add(narrow, "b", score=0.6)
    admission = add(narrow, "c", score=0.5)
    assert admission.status == "replaced"
    assert [item.title for item in narrow.items.find()] == ["b", "c"]
    assert narrow.items.history(weak)[-1]["detail"] == {"why": f"replaced by {admission.item_id}"}


def test_an_equal_item_does_not_replace(narrow):
    """A newcomer must be better, or two would take turns."""
    for name in "abc":
        admission = add(narrow, name, score=0.5)
    assert admission.status == "rejected"


def test_a_full_kind_leaves_the_others_room(narrow):
    """Capacity is by kind."""
    add(narrow, "a")
    add(narrow, "b")
    assert narrow.add(Item("strategy", "c", score=0.0)).status == "added"


def test_a_merge_needs_no_room(narrow):
    """It takes none."""
    for name in "aba":
        admission = add(narrow, name)
    assert admission.status == "merged"


def test_a_pin_protects_from_being_replaced(narrow):
    """The weakest unpinned goes; when all are pinned, none."""
    pinned = add(narrow, "a", score=0.1).item_id
    narrow.items.update(pinned, pinned=True)
    add(narrow, "b", score=0.2)
    assert add(narrow, "c", score=0.5).status == "replaced"
    assert narrow.items.get(pinned).status == "active"
    narrow.items.update(narrow.items.find()[0].id, pinned=True)
    assert add(narrow, "d", score=1.0).reason == "insight is full of pinned items"


def test_a_pin_can_be_taken_back(library):
    """Both are in the history."""
    ref = add(library, "x").item_id
    assert library.items.update(ref, pinned=True).pinned
    assert not library.items.update(ref, pinned=False).pinned
    assert ops(library, ref) == ["added", "pinned", "unpinned"]


def test_what_was_retired_stays_retired(library):
    """Found again it is not taken in again: a person's word outlasts a rule's."""
    ref = add(library, "x").item_id
    library.items.retire(ref, "misleading")
    again = add(library, "x")
    assert (again.status, again.reason) == ("rejected", f"{ref} says the same and was retired")
    assert library.items.get(ref).status == "retired"
    assert library.items.find() == []
    assert library.items.history(ref)[-1]["detail"] == {"why": "misleading"}


def test_the_history_tells_every_change(library):
    """In order, with what the item was after it."""
    ref = add(library, "x", score=0.5).item_id
    library.items.update(ref, title="y", score=0.75)
    library.items.retire(ref, "enough")
    history = library.items.history(ref)
    assert [change["op"] for change in history] == ["added", "updated", "retired"]
    assert [change["seq"] for change in history] == sorted(change["seq"] for change in history)
    assert (history[0]["detail"]["title"], history[1]["detail"]["title"]) == ("x", "y")
    assert [change["detail"].get("version") for change in history[:2]] == [1, 2]


@pytest.mark.parametrize("name", ["id", "kind", "status", "version", "writer", "titel"])
def test_a_field_that_may_not_be_changed_is_refused(library, name):
    """The message lists those that may."""
    ref = add(library, "x").item_id
    with pytest.raises(ConfigError, match=f"'{name}' of an item cannot be changed; use one of body, condition"):
        library.items.update(ref, **{name: "y"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"score": 2.0}, r"score is 2.0; give a number in \[0, 1\]"),
        ({"score": "high"}, "cannot be changed to {'score': 'high'}"),
        ({"title": ""}, "the item has no title"),
        ({"title": 3}, "cannot be changed to {'title': 3}"),
    ],
)
def test_a_value_that_cannot_be_is_refused(library, changes, words):
    """And the item is as it was."""
    ref = add(library, "x").item_id
    with pytest.raises(ConfigError, match=words):
        library.items.update(ref, **changes)
    assert ops(library, ref) == ["added"]


def test_an_unknown_item_is_named(library):
    """With the one that was meant."""
    ref = add(library, "x").item_id
    with pytest.raises(UnknownName, match=f"Did you mean '{ref}'"):
        library.items.retire(ref[:-1] + "_", "no")


def test_items_are_listed_as_asked(library):
    """By score, confidence or age; filtered by kind and status; paged."""
    for title, score, confidence in (("a", 0.1, 0.9), ("b", 0.9, 0.1), ("c", 0.5, 0.5)):
        add(library, title, score=score, confidence=confidence)
    library.add(Item("strategy", "d", score=0.0, confidence=0.0))

    def listed(**how):
        return "".join(item.title for item in library.items.find(**how))

    assert listed() == "bcad"
    assert listed(sort="confidence") == "acbd"
    assert listed(sort="new") == "dcba"
    assert listed(sort="old", limit=2, offset=1) == "bc"
    assert listed(kinds=["strategy"]) == "d"
    assert listed(kinds=[]) == ""
    assert listed(status="retired") == ""


def test_a_listing_that_cannot_be_is_refused(library):
    """The message has what could."""
    with pytest.raises(WrongType, match=r"sort is 'scoer' \(str\); give one of score, .*\. Did you mean 'score'\?"):
        library.items.find(sort="scoer")
    with pytest.raises(WrongType, match=r"kinds is \['insights'\] .*; give a list of one of .*insight"):
        library.items.find(kinds=["insights"])
    with pytest.raises(ConfigError, match="must not be negative"):
        library.items.find(limit=-1)


def test_a_score_alone_leaves_text_and_vector(library):
    """A change of figures does not make anything be embedded again."""
    ref = add(library, "drawers hide spoons").item_id
    library.search("spoons")
    library.items.update(ref, score=0.9)
    assert library._file.store.rows("SELECT count(*) FROM vectors") == [(1,)]
    assert library.search("spoons")[0].what.score == 0.9
    assert library.admin.verify() == []
