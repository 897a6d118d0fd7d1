"""Questions to the library about the current state."""

from hardwon.memory import Item, State


def test_offered_items_are_ordered_by_score_times_confidence(library):
    for title, score, confidence in (("doubtful", 0.9, 0.3), ("best", 0.8, 0.9), ("weak", 0.4, 0.6)):
        library.add(Item("skill", title, steps=(f"open {title}", "take it"), score=score, confidence=confidence))
    assert [item.title for item in library.offered(State("A hall."))] == ["best", "doubtful", "weak"]
