"""One rule in every door inside a program: middleware, functions, tool environments, and replayed messages."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command
from tests.runtime.integrations.scripted import call, create_agent, model
from tests.runtime.interfaces.result_cases import FAILED, WORKED

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, ToolEnvironment, remember
from hardwon.runtime.integrations.tool_episode import iter_calls, normalize_message

CASES = [*((text, True) for text in FAILED[::9]), *((text, False) for text in WORKED[::9])]
"""Some of the texts: `tests/runtime/interfaces` has the rule itself, and a door only has to ask it."""


@pytest.fixture(scope="module")
def shared():
    with ExperienceLibrary.open(":memory:") as library:
        yield library


def steps_of(library, episode=""):
    newest = episode or library.episodes.find()[0]["id"]
    return library.episodes.get(newest).steps


def run_agent(library, answer: Any):
    """Run an agent whose tool answers so, and return the step."""

    @tool
    def act(order: str, runtime: Any = None) -> Any:
        """Act."""
        return answer

    agent = create_agent(
        model(call("act", order="A-1"), AIMessage("Done.")),
        [act],
        middleware=[ExperienceMiddleware(library, trust="trusted")],
    )
    agent.invoke({"messages": [("user", "Act.")]})
    return steps_of(library)[0]


@pytest.mark.parametrize(("text", "is_failed"), CASES)
def test_a_function_fails_by_its_result(shared, text, is_failed):
    @remember
    def act(order):
        return text

    with FunctionEpisode(shared, "Act.") as episode:
        act("A-1")
    (step,) = steps_of(shared, episode.id)
    assert step.diagnosis.success is not is_failed


@pytest.mark.parametrize(("text", "is_failed"), CASES)
def test_a_tool_environment_reads_the_result_of_a_tool(text: str, is_failed):
    def act(order: str) -> str:
        """Act."""
        return text

    environment = ToolEnvironment([act])
    environment.reset("Act.")
    *_, info = environment.step('act(order="A-1")')
    assert bool(info.get("error")) is is_failed
    *_, info = environment.answered('act(order="A-1")', text)
    assert bool(info.get("error")) is is_failed
    environment.close()


@pytest.mark.parametrize(("text", "is_failed"), CASES)
@pytest.mark.parametrize("content", [str, lambda text: [{"type": "text", "text": text}]], ids=["text", "blocks"])
def test_messages_that_are_replayed_say_the_same(text, is_failed, content):
    asked = normalize_message(call("act", order="A-1"))
    (answered,) = iter_calls(
        [asked, normalize_message(ToolMessage(content(text), tool_call_id=asked["calls"][0]["id"]))]
    )
    assert bool(answered.error) is is_failed


@pytest.mark.parametrize(("text", "is_failed"), CASES)
def test_a_tool_of_langchain_fails_by_what_it_returns(shared, text, is_failed):
    assert run_agent(shared, text).diagnosis.success is not is_failed


@pytest.mark.parametrize(
    "answer",
    [
        {"success": False, "error": "not verified"},
        [{"type": "text", "text": "Error: not verified"}],
        Command(update={"messages": [ToolMessage("Error: not verified", tool_call_id="1")]}),
        ToolMessage("Error: not verified", tool_call_id="1"),
    ],
    ids=["dictionary", "blocks", "command", "message"],
)
def test_a_tool_of_langchain_may_return_a_structure(shared, answer):
    diagnosis = run_agent(shared, answer).diagnosis
    assert not diagnosis.success
    assert "not verified" in diagnosis.evidence


def test_the_artifact_of_a_tool_is_no_statement_about_the_call(shared):
    @tool(response_format="content_and_artifact")
    def act(order: str) -> Any:
        """Act."""
        return "Error: not verified", {"success": True}

    agent = create_agent(
        model(call("act", order="A-1"), AIMessage("Done.")), [act], middleware=[ExperienceMiddleware(shared)]
    )
    agent.invoke({"messages": [("user", "Act.")]})
    assert not steps_of(shared)[0].diagnosis.success


def test_a_warning_below_a_result_does_not_hide_its_failure():
    asked = normalize_message(call("act", order="A-1"))
    text = '{"success": false, "error": "no"}\n\nExperience warns of this call: it failed.'
    answer = normalize_message(ToolMessage(text, tool_call_id=asked["calls"][0]["id"]))
    assert answer["error"]
    assert [answered.error for answered in iter_calls([asked, answer])] == ["no"]


def test_the_option_failed_outranks_the_words_of_a_result(shared):
    @remember(failed=lambda result: False)
    def act():
        return "Error: this is what was asked for"

    with FunctionEpisode(shared, "Act.") as episode:
        act()
    assert steps_of(shared, episode.id)[0].diagnosis.success
