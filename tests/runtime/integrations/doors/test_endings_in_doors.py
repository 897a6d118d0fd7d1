"""How runs end in the middleware and in functions: only a whole answer after working calls is a success."""

import asyncio
from contextlib import nullcontext
from typing import Annotated, Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from tests.runtime.integrations.scripted import call, create_agent, last, model
from tests.runtime.interfaces.ending_cases import COMPLETED_REASONS, LIMITS, UNFINISHED_REASONS

from hardwon.memory import Failure
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember


@tool
def act(order: str = "A-1") -> str:
    """Act."""
    return "done"


@tool(return_direct=True)
def answer(order: str = "A-1") -> str:
    """Answer."""
    return "done"


def run(library, *script, middleware: Any = (), tools: Any = (act, answer), chat: Any = None, in_loop: bool = False):
    chat = chat or model(*script)
    agent = create_agent(chat, list(tools), middleware=[ExperienceMiddleware(library), *middleware])
    request = {"messages": [("user", "Act.")]}
    asyncio.run(agent.ainvoke(request)) if in_loop else agent.invoke(request)
    return last(library)


@pytest.mark.parametrize(
    "message",
    [
        # some of each kind: `tests/runtime/interfaces` has the rules themselves
        *(AIMessage("It", response_metadata={"finish_reason": reason}) for reason in UNFINISHED_REASONS[::4]),
        *(AIMessage("It", response_metadata={"stop_reason": reason}) for reason in UNFINISHED_REASONS[::4]),
        *(AIMessage(text) for text in LIMITS[::4]),
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


@pytest.mark.parametrize("reason", COMPLETED_REASONS[::4])
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


@pytest.mark.parametrize("most", [2, 9])
def test_a_call_that_a_limit_answers_is_a_failed_one_that_shows_nothing_about_its_tool(library, most):
    script = [*(call("act", str(n), order=str(n)) for n in range(3)), AIMessage("All is done.")]
    episode = run(library, *script, middleware=[ToolCallLimitMiddleware(run_limit=most)])
    failures = [step.diagnosis.failure for step in episode.steps]
    assert failures == [Failure.NONE, Failure.NONE, Failure.UNAVAILABLE if most == 2 else Failure.NONE]
    assert episode.success is (most > 2)


def test_a_hand_over_to_another_agent_is_no_failure(library):
    @tool
    def hand_over(order: str, ref: Annotated[str, InjectedToolCallId]):
        """Hand over."""
        return Command(graph=Command.PARENT, goto=END, update={"messages": [ToolMessage("done", tool_call_id=ref)]})

    chat = model(call("hand_over", order="A-1"))
    agent = create_agent(chat, [hand_over], middleware=[ExperienceMiddleware(library)])
    team: Any = StateGraph(MessagesState)
    team.add_node("first", agent)
    team.add_edge(START, "first")
    team.compile().invoke({"messages": [("user", "Act.")]})
    assert (len(last(library).steps), last(library).success) == (1, None)


class Polite(AgentMiddleware):
    """Ends a run by its own count, in words that no rule knows, at one of its hooks."""

    def __init__(self, hook, most=1):
        super().__init__()
        self.hook, self.most = hook, most
        self.message = AIMessage("Many thanks, here is where we part.")

    def end(self, hook, state):
        count = sum(message.type == "tool" for message in state["messages"])
        return {"jump_to": "end", "messages": [self.message]} if hook == self.hook and count >= self.most else None

    @hook_config(can_jump_to=["end"])
    def before_model(self, state, runtime):
        return self.end("before_model", state)

    @hook_config(can_jump_to=["end"])
    def after_model(self, state, runtime):
        return self.end("after_model", state)

    def after_agent(self, state, runtime):
        return self.end("after_agent", state) and {"messages": [self.message]}

    def wrap_model_call(self, request, handler):
        return self.message if self.end("wrap", request.state) else handler(request)

    async def awrap_model_call(self, request, handler):
        return self.message if self.end("wrap", request.state) else await handler(request)


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("hook", ["before_model", "after_model", "after_agent", "wrap"])
def test_an_answer_that_is_not_the_models_is_no_success(library, hook, in_loop):
    episode = run(library, call("act"), AIMessage("Done."), middleware=[Polite(hook)], in_loop=in_loop)
    assert (len(episode.steps), episode.success) == (1, None)
    assert run(library, call("act"), AIMessage("Done."), middleware=[Polite(hook, 9)], in_loop=in_loop).success is True


class Unreachable(GenericFakeChatModel):
    def bind_tools(self, tools, **settings):
        return self

    def _generate(self, messages, *args, **settings):
        if any(message.type == "tool" for message in messages):
            raise ConnectionError("refused")
        return super()._generate(messages, *args, **settings)


def test_an_excuse_for_a_model_that_cannot_be_reached_is_no_success(library):
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, on_failure=lambda error: "See you tomorrow.")
    assert run(library, middleware=[retry], chat=Unreachable(messages=iter([call("act")]))).success is None


class Rewriting(AgentMiddleware):
    """Edits the model's answers, as it is or as a new message."""

    def wrap_model_call(self, request, handler):
        message = handler(request).result[0]
        return AIMessage(message.content and f"{message.content}!", tool_calls=message.tool_calls)


@pytest.mark.parametrize(
    "other", [Rewriting(), PIIMiddleware("email", apply_to_output=True), ModelFallbackMiddleware(model())]
)
def test_an_edited_answer_of_the_model_is_a_success(library, other):
    assert run(library, call("act"), AIMessage("Done, a@b.example."), middleware=[other]).success is True


class Approving(AgentMiddleware):
    """Asks a person about the last answer."""

    def after_agent(self, state, runtime):
        interrupt("Send it?")


def test_an_answer_that_a_person_approves_in_another_process_is_a_success(library):
    """That process has seen no answer of the model: it is in the messages."""
    chat, saver, config = (
        model(call("act"), AIMessage("Done.")),
        InMemorySaver(),
        {"configurable": {"thread_id": "ada"}},
    )

    def agent():
        experience = ExperienceMiddleware(library)
        return create_agent(chat, [act], middleware=[experience, Approving()], checkpointer=saver)

    agent().invoke({"messages": [("user", "Act.")]}, config)
    agent().invoke(Command(resume="yes"), config)
    assert last(library).success is True


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
