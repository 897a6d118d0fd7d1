"""The figures of a namespace are those of its recorded episodes and items, and of no other namespace."""

from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import LibraryError
from hardwon.memory.upkeep import file_queries
from hardwon.memory.upkeep.figures import count_tiers, deciding_episodes, item_figures, list_changes, newest_change


@pytest.fixture
def two(path, episode):
    """A library with two namespaces; gives the first one, with two episodes and an item."""
    with ExperienceLibrary.open(path, namespace="other") as other:
        other.record(episode("open drawer", "take spoon", "eat apple"))
        other.add(Item("insight", "Forks lie in drawers"))
    with ExperienceLibrary.open(path) as library:
        library.record_many([episode("open drawer"), episode("take spoon")])
        library.add(Item("insight", "Spoons lie in drawers"))
        yield library


def test_tables_are_counted_by_namespace(two):
    counts = two.admin.query(count_tiers)
    assert counts.live == sum(summary.live for summary in two.episodes.summaries()) == 2
    assert counts.folded == 0
    assert counts.attempts == len(two.episodes.summaries())
    assert counts.items_by_status == {"active": {"insight": 1}}


def test_items_are_counted_by_namespace(two):
    figures = two.admin.query(item_figures)
    assert figures.by_status == {"active": {"insight": 1}}
    assert [count for _, count in figures.in_use] == [1]
    assert figures.shown == {}
    assert figures.blocked == 0


def test_items_in_use_are_counted_over_their_history(two):
    """Retired and restored items, and one that waits in quarantine until a person releases it."""
    (kept,) = two.items.find()
    ref = two.add(Item("insight", "Knives lie in drawers")).item_id
    waiting = two.add(Item("insight", "From a stranger", trust="untrusted", source="client")).item_id
    two.items.retire(ref, "a test")
    two.items.undo(ref)
    two.items.retire(kept.id, "a test")
    two.items.release(waiting, "a test")
    assert [count for _, count in two.admin.query(item_figures).in_use] == [1, 2, 2, 1, 2, 1, 2]
    assert two.admin.query(item_figures).in_use[-1][1] == sum(
        two.admin.query(item_figures).by_status["active"].values()
    )


def test_changes_are_read_from_a_position_on(two, path, episode):
    changes = two.admin.query(list_changes)
    assert [change.what for change in changes] == ["trajectory", "trajectory", "item"]
    assert two.admin.query(newest_change) == changes[-1].seq
    assert two.admin.query(list_changes, changes[0].seq, limit=1) == [changes[1]]
    with ExperienceLibrary.open(path) as writer:  # another writer's episode, which is still in the write buffer
        ref = writer.record(episode("eat apple"))
        assert [change.ref for change in two.admin.query(list_changes, changes[-1].seq)] == [ref]


def test_a_file_is_queried_as_a_whole(two, path):
    assert file_queries.list_namespaces(path) == ["default", "other"]
    assert file_queries.count_episodes(path) == {"default": 2, "other": 1}


def test_a_library_in_memory_has_figures_too(episode):
    with ExperienceLibrary.open(":memory:") as library:
        library.record(episode("open drawer"))
        assert library.admin.query(count_tiers).live == 1
        assert library.admin.query(deciding_episodes, {}) == {}


def test_figures_are_not_served(two):
    from hardwon.memory.parts.admin import LibraryAdmin
    from hardwon.memory.parts.items import LibraryItems
    from hardwon.memory.remote.parts import UnservedFile

    file: Any = UnservedFile("http://here")
    with pytest.raises(LibraryError, match="does not serve"):
        LibraryAdmin(file, LibraryItems(file)).query(count_tiers)
