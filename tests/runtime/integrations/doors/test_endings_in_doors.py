"""How runs end in the middleware and in functions: only a whole answer after working calls is a success."""

from contextlib import nullcontext
from typing import Any

import pytest
from langchain.agents.middleware import ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from tests.runtime.integrations.scripted import call, create_agent, last, model
from tests.runtime.interfaces.ending_cases import COMPLETED_REASONS, LIMITS, UNFINISHED_REASONS

from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember


@tool
def act(order: str = "A-1") -> str:
    """Act."""
    return "done"


@tool(return_direct=True)
def answer(order: str = "A-1") -> str:
    """Answer."""
    return "done"


def run(library, *script, middleware: Any = (), tools: Any = (act, answer)):
    agent = create_agent(model(*script), list(tools), middleware=[ExperienceMiddleware(library), *middleware])
    agent.invoke({"messages": [("user", "Act.")]})
    return last(library)


@pytest.mark.parametrize(
    "message",
    [
        *(AIMessage("It", response_metadata={"finish_reason": reason}) for reason in UNFINISHED_REASONS),
        *(AIMessage("It", response_metadata={"stop_reason": reason}) for reason in UNFINISHED_REASONS),
        *(AIMessage(text) for text in LIMITS),
        AIMessage("It", response_metadata={"status": "incomplete"}),
        AIMessage("", additional_kwargs={"refusal": "I can't."}),
        AIMessage([{"type": "refusal", "refusal": "I can't."}]),
        AIMessage(""),
        AIMessage(
            "", invalid_tool_calls=[{"name": "act", "args": "{", "id": "2", "error": "x", "type": "invalid_tool_call"}]
        ),
    ],
    ids=lambda message: f"{message.response_metadata or message.additional_kwargs or message.content!r:.40}",
)
def test_an_answer_that_is_not_whole_is_no_success(library, message):
    episode = run(library, call("act"), message)
    assert (episode.success, episode.steps[-1].reward) == (None, 0.0)


@pytest.mark.parametrize("reason", COMPLETED_REASONS)
def test_a_whole_answer_is_a_success(library, reason):
    assert run(library, call("act"), AIMessage("Done.", response_metadata={"finish_reason": reason})).success is True


@pytest.mark.parametrize(
    "limit",
    [
        ModelCallLimitMiddleware(run_limit=2),
        ToolCallLimitMiddleware(run_limit=1, exit_behavior="end"),
        ToolCallLimitMiddleware(tool_name="act", run_limit=1, exit_behavior="end"),
    ],
    ids=["model", "tool", "one tool"],
)
def test_a_limit_that_ends_a_run_politely_is_no_success(library, limit):
    episode = run(library, *(call("act", str(n)) for n in range(9)), middleware=[limit])
    assert (episode.success, episode.score, episode.steps[-1].reward) == (None, 0.0, 0.0)


def test_a_result_that_is_the_answer_is_a_success(library):
    assert run(library, call("answer")).success is True


def test_an_error_that_is_the_answer_is_a_failure(library):
    @tool(return_direct=True)
    def pay() -> str:
        """Pay."""
        return "Error: not verified"

    assert run(library, call("pay"), tools=[pay]).success is False


@pytest.mark.parametrize(
    ("error", "success"), [(None, True), (ValueError("no"), False), (KeyboardInterrupt(), None), (SystemExit(), None)]
)
def test_a_function_episode_ends_as_its_block_does(library, error, success):
    @remember
    def look():
        return "seen"

    episode = FunctionEpisode(library, "Look.")
    with pytest.raises(type(error)) if error else nullcontext(), episode:
        look()
        if error is not None:
            raise error
    assert library.episodes.get(episode.id).success is success
