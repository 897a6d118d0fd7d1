"""Work that has not ended yet is an outage: the same call may work later."""

import pytest

from hardwon.memory.guardrails.outage import tells_of_outage


@pytest.mark.parametrize(
    "text",
    [
        "job has not finished",
        "The export hasn't completed yet.",
        "not ready yet",
        "The report is not yet ready.",
        "Your refund is still pending.",
        "The build is in progress.",
        "status: in_progress",
        "IN PROGRESS",
        "The file is still being processed.",
        "task 17 is currently running",
    ],
)
def test_work_that_goes_on_is_an_outage(text):
    assert tells_of_outage(text)


@pytest.mark.parametrize(
    "text",
    [
        "the proof is not finished: step 3 is wrong",
        "A rebase is already in progress; abort it.",
        "The job has not finished: unknown argument `fast`.",
        "pending orders cannot be refunded",
        "You are not ready for this dungeon.",
        "The essay has not finished its argument.",
        "a game in progress cannot be changed",
        "The build is not running on this branch.",
    ],
)
def test_a_call_that_is_wrong_is_no_outage(text):
    assert not tells_of_outage(text)
