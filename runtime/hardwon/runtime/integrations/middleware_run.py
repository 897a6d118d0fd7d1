"""Per-run state of the experience middleware, the messages with which it answers, and how its graph ends.

LangGraph calls no hook of a middleware when a graph stops with an error. A callback handler, which LangChain adds to
every run while a middleware exists, follows the nodes of each graph and reports its end: a recursion limit, an
exception, a time-out, a cancelled task, an abandoned stream.

The hooks are in `middleware`; this module calls neither a model nor a tool.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID
from weakref import WeakSet

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tracers.context import register_configure_hook
from langgraph.config import get_config
from langgraph.types import Command

from hardwon.runtime.interfaces.endings import Ending, read_ending
from hardwon.runtime.loop.enforcement import Ruling

from .tool_episode import normalize_message
from .tool_run import ToolRun, append_warning

ToolAnswer = ToolMessage | Command[Any]
OnEnded = Callable[[BaseException | None], object]


@dataclass
class ActiveRun(ToolRun):
    """A run of a LangChain agent."""

    graph: UUID | None = None
    """The run of the graph that carries it out; another one after an interruption."""
    is_paused: bool = False
    """The graph ended before the run did, and may continue."""
    is_resumed: bool = False
    """The run was begun earlier, and may be recorded without what follows now."""
    has_raised: bool = False
    """The last tool raised an error, which may end the run."""
    has_answer: bool = False
    """The result of the last tool is the answer of the run (`return_direct`)."""
    own: Sequence[Any] | None = None
    """The model's last response, or what refused it; empty if other middleware answered. None before the first."""

    def read_ending(self, messages: Sequence[Any], after: Sequence[Mapping[str, Any]]) -> Ending:
        """Return how the run ended, by its messages and those after the request in plain form.

        Whoever else writes the last answer ends the run without one of the model, as a limit of calls does. Other
        middleware may edit the model's answer: it keeps its id.
        """
        ending: Ending = "completed" if self.has_answer else read_ending(after)
        if ending != "completed" or not isinstance(last := messages[-1], AIMessage):
            return ending
        own = [last] if self.own is None and self.is_resumed else self.own or ()
        return ending if any(last is message or last.id == message.id for message in own) else "unfinished"

    def read_message(self, message: Any) -> Mapping[str, Any]:
        """Return a message of LangChain as a plain one."""
        return normalize_message(message)

    def rule_on_calls(self, response: Any, message: AIMessage, before: list[Any]) -> list[Any] | AIMessage | None:
        """Rule on all calls of a message. If at least one may run, only the others are refused."""
        rulings = [self.rule_on(call) for call in message.tool_calls]
        if any(ruling.runs for ruling in rulings):
            self._refuse_some(response, message, rulings, before)
            return None
        transcript: list[Any] = [*before, *response.result]
        for call, ruling in zip(message.tool_calls, rulings, strict=True):
            transcript.append(self.refuse(call, ruling))
        if any(ruling.over for ruling in rulings):
            before[:] = transcript
            cause = rulings[0].verdict.cause or "a guardrail"
            last = AIMessage(f"This run ends here: {cause} forbids every call that the model insists on.")
            self.own = [last]
            return last
        return transcript

    def _refuse_some(self, response: Any, message: AIMessage, rulings: Sequence[Ruling], before: list[Any]) -> None:
        """Answer the refused calls of a message and keep only the others, so approval is asked for those alone."""
        refused = [(call, ruling) for call, ruling in zip(message.tool_calls, rulings, strict=True) if not ruling.runs]
        if not refused:
            return
        first, rest = split_message(message, {call["id"] for call, _ in refused})
        before += [first, *(self.refuse(call, ruling) for call, ruling in refused)]
        response.result = [rest if result is message else result for result in response.result]

    def refuse(self, call: Mapping[str, Any], ruling: Ruling) -> ToolMessage:
        """Record a refused call as a step and return the refusal."""
        refusal = self.add_refusal(call, ruling)
        return ToolMessage(refusal, name=call["name"], tool_call_id=call["id"], status="error")


def show_texts(request: ModelRequest[Any], texts: Mapping[str, str], place: str) -> ModelRequest[Any]:
    """Return the request with the texts of a run; see `ToolRun.texts`."""
    below = {name: text for name, text in texts.items() if name}
    messages = [_append_text(message, below) for message in request.messages] if below else list(request.messages)
    if not (text := texts.get("")):
        return request.override(messages=messages) if below else request
    if place == "system":
        blocks = request.system_message.content_blocks if request.system_message else []
        system = SystemMessage(content_blocks=[*blocks, {"type": "text", "text": text}])
        return request.override(messages=messages, system_message=system)
    at = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], HumanMessage)), 0)
    messages.insert(at, HumanMessage(text))
    return request.override(messages=messages)


def _append_text(message: Any, texts: Mapping[str, str]) -> Any:
    """Return a message with the text of its call below it, if it is an answer and has one."""
    text = texts.get(message.tool_call_id) if isinstance(message, ToolMessage) else None
    return message.model_copy(update={"content": append_warning(message.content, text)}) if text else message


def prepend_messages(
    response: ModelResponse[Any], before: Sequence[Any], last: AIMessage | None = None
) -> ModelResponse[Any]:
    """Return the response preceded by the refused calls and their answers.

    If the run ends here, `last` replaces the response.
    """
    if last is not None:
        return replace(response, result=[*before, last])
    return replace(response, result=[*before, *response.result]) if before else response


def split_message(message: AIMessage, refused: Collection[str | None]) -> tuple[AIMessage, AIMessage]:
    """Split a message into one with only the refused calls and one with everything else.

    The second message keeps the original id. The provider-specific copies of the calls are split as well.
    """
    refused_calls = [call for call in message.tool_calls if call["id"] in refused]
    remaining = [call for call in message.tool_calls if call["id"] not in refused]
    content = message.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("id") in refused)]
    # OpenAI repeats the calls in additional_kwargs, and an API rejects a call that has no answer.
    extra = dict(message.additional_kwargs)
    if isinstance(extra.get("tool_calls"), list):
        extra["tool_calls"] = [call for call in extra["tool_calls"] if call.get("id") not in refused]
    rest = message.model_copy(update={"tool_calls": remaining, "content": content, "additional_kwargs": extra})
    return AIMessage("", tool_calls=refused_calls, name=message.name), rest


def get_tool_name(tool: Any) -> str:
    """Return the name of a tool, which may be in a provider's own format."""
    return str(tool.get("name", "")) if isinstance(tool, Mapping) else str(tool.name)


def find_calls(response: Any, tools: Sequence[Any]) -> AIMessage | None:
    """Return the last message of a response if it has tool calls and all of them can be ruled on."""
    message = next((result for result in reversed(response.result) if isinstance(result, AIMessage)), None)
    if message is None or not message.tool_calls or response.structured_response is not None:
        return None
    # Unknown tools and calls without an id go on to the agent, which reports them itself.
    names = {get_tool_name(tool) for tool in tools}
    return message if all(call["name"] in names and call["id"] for call in message.tool_calls) else None


def find_message(answer: ToolAnswer, call_id: str | None) -> ToolMessage | None:
    """Return the message that answers a call, also if the tool returned a state update; None if there is none."""
    if isinstance(answer, ToolMessage):
        return answer
    update = getattr(answer, "update", None)
    messages: Sequence[Any] = update.get("messages", ()) if isinstance(update, Mapping) else ()
    answers = (message for message in messages if isinstance(message, ToolMessage) and message.tool_call_id == call_id)
    return next(answers, None)


class GraphRuns(BaseCallbackHandler):
    """The graphs of this process that run now."""

    run_inline = True
    """Called where the event happens: a thread would cost more than the work."""

    @property
    def ignore_chat_model(self) -> bool:
        """Skip the events of chat models."""
        return True

    @property
    def ignore_retriever(self) -> bool:
        """Skip the events of retrievers."""
        return True

    @property
    def ignore_agent(self) -> bool:
        """Skip the events of agents of older versions."""
        return True

    def __init__(self) -> None:
        self._graphs: dict[UUID, UUID] = {}
        """The run of the graph by the run of each of its nodes."""
        self._watchers: dict[UUID, list[OnEnded]] = {}

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **fields: Any
    ) -> None:
        """Note a node of a graph."""
        if parent_run_id is not None:
            self._graphs[run_id] = parent_run_id

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **fields: Any) -> None:
        """Report the end of a graph, which may wait for a person."""
        self._end(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **fields: Any) -> None:
        """Report the error that ended a graph."""
        self._end(run_id, error)

    def on_llm_end(self, response: Any, *, run_id: UUID, **fields: Any) -> None:
        """Count an answer of a model for those who wait for one."""
        if (waiting := _ANSWERS.get()) is not None:
            waiting.append(run_id)

    def _end(self, run: UUID, error: BaseException | None) -> None:
        self._graphs.pop(run, None)
        for ended in self._watchers.pop(run, ()):
            ended(error)

    def find_graph(self) -> UUID | None:
        """Return the run of the graph whose node calls this; None outside, and in a node whose graph has ended."""
        try:
            callbacks: Any = get_config().get("callbacks")
        except RuntimeError:
            return None
        node = getattr(callbacks, "parent_run_id", None)
        return None if node is None else self._graphs.get(node)

    def watch(self, graph: UUID, ended: OnEnded) -> None:
        """Call `ended` once with the error that ends a graph, or with None."""
        self._watchers.setdefault(graph, []).append(ended)


_ANSWERS: ContextVar[list[UUID] | None] = ContextVar("hardwon_answers", default=None)


@contextmanager
def collect_answers() -> Iterator[list[UUID]]:
    """Give a list that gets the run of each model that answers in the body: other middleware may answer instead."""
    answers: list[UUID] = []
    token = _ANSWERS.set(answers)
    try:
        yield answers
    finally:
        _ANSWERS.reset(token)


GRAPHS = GraphRuns()
"""The graphs of this process."""


class _Following:
    """Stands for a context variable: its value is the handler while something needs it, in every thread."""

    def __init__(self) -> None:
        self.needed_by: WeakSet[object] = WeakSet()

    def get(self) -> GraphRuns | None:
        return GRAPHS if self.needed_by else None


_FOLLOWING = _Following()
register_configure_hook(cast(Any, _FOLLOWING), inheritable=True)


def follow_graphs_for(middleware: object) -> None:
    """Add the handler to the graphs and chains of this process as long as a middleware exists."""
    _FOLLOWING.needed_by.add(middleware)
