"""The one rule about endings: what completes a run, and what says that more was to come."""

import asyncio

import pytest
from langgraph.errors import GraphInterrupt, GraphRecursionError, ParentCommand
from langgraph.types import Command
from tests.runtime.interfaces.ending_cases import COMPLETED_MESSAGES, COMPLETED_REASONS, UNFINISHED_MESSAGES

from hardwon.runtime.integrations.tool_episode import normalize_message
from hardwon.runtime.interfaces.endings import decide, read_ending, read_error, read_word

CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "act", "args": {}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "done"}


def plain(*messages):
    return [normalize_message(message) for message in messages]


@pytest.mark.parametrize("fields", UNFINISHED_MESSAGES, ids=repr)
def test_what_says_that_more_was_to_come_completes_no_run(fields):
    ending = read_ending(plain(CALL, RESULT, {"role": "assistant", **fields}))
    assert decide(ending, is_broken=False) is not True


@pytest.mark.parametrize("fields", COMPLETED_MESSAGES, ids=repr)
def test_a_whole_answer_completes_a_run(fields):
    assert read_ending(plain(CALL, RESULT, {"role": "assistant", **fields})) == "completed"


@pytest.mark.parametrize("messages", [(), (CALL,), (CALL, RESULT)], ids=["nothing", "a call", "a result"])
def test_a_run_without_a_last_answer_is_unfinished(messages):
    assert read_ending(plain(*messages)) == "unfinished"


@pytest.mark.parametrize("reason", COMPLETED_REASONS)
def test_a_reason_to_stop_is_read_in_every_spelling(reason):
    assert read_word(reason, is_reason=True) == ("completed" if reason else None)


def test_an_unknown_status_says_nothing_and_an_unknown_reason_to_stop_is_no_success():
    assert read_word("resolved") is None
    assert read_word("resolved", is_reason=True) == "unfinished"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (GraphInterrupt(()), "unfinished"),
        (asyncio.CancelledError(), "unfinished"),
        (GraphRecursionError("25"), "failed"),
        ("GraphInterrupt((Interrupt(value='ok?'),))", "unfinished"),
        ("CancelledError()", "unfinished"),
        (ParentCommand(Command(goto="b")), "unfinished"),
        ("ValueError('no')", "failed"),
        ("", None),
        (None, None),
    ],
)
def test_an_interrupt_is_no_failure(error, ending):
    assert read_error(error) == ending


@pytest.mark.parametrize(
    ("ending", "is_broken", "success"),
    [
        ("completed", False, True),
        ("completed", True, False),
        ("unfinished", False, None),
        ("unfinished", True, None),
        ("failed", False, False),
    ],
)
def test_only_a_completed_run_of_working_calls_is_a_success(ending, is_broken, success):
    assert decide(ending, is_broken=is_broken) is success
