"""What is said of items: in their own words only where these show nothing of another request."""

import pytest

from hardwon.memory import Item, State
from hardwon.runtime.guidance.rendering import Visible, render_item

HERE = Visible(State("Request: refund order 8123", task="refund order 8123"), ["refund(order=8123)"])


def told(action, body="It pays 4 times."):
    """Return the line of an item that rules made of an action."""
    return render_item(Item("insight", f"`{action}` pays", body, source="experience"), HERE)


def test_an_action_of_another_request_is_named_without_its_values():
    assert "77001" not in told("refund(order=77001)")
    assert "{order}" in told("refund(order=77001)")


def test_an_action_that_the_present_shows_stays_in_its_words():
    assert told("refund(order=8123)") == "- insight: `refund(order=8123)` pays. It pays 4 times."


@pytest.mark.parametrize("body", ["Marigold Quill asked for it."])
def test_words_that_are_of_no_rule_are_left_out(body):
    assert "Marigold" not in told("refund(order=8123)", body)
