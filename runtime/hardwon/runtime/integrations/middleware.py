"""Experience for an existing agent, as a middleware of LangChain's `create_agent`.

    agent = create_agent(model, tools, middleware=[ExperienceMiddleware(library)])

Before each model call, the middleware queries the library and adds the result to the messages as data.
If a guardrail forbids a tool call, the call either runs with a warning below its answer or is refused with
the reason; see `guardrails`. Every call is diagnosed and becomes a step, which is on the disk at once. At the end of
a run, however it ends, its steps are recorded as one episode, and the library evolves.

Failures in the middleware are logged, and the agent continues without experience. Only configuration errors
are raised: invalid settings, or a namespace that cannot be determined. The middleware does not change how the
agent calls its model and its tools, and errors of tools pass through unchanged.
"""

import asyncio
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphDrained, GraphInterrupt, GraphRecursionError
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime

from hardwon.memory import ExperienceLibrary, Grade, Trajectory
from hardwon.memory.errors import ConfigError, LibraryBusy
from hardwon.memory.guardrails.outage import is_outage
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.open_runs import ABANDONED
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.memory.validation import check_count, check_library
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.endings import Ending, read_error
from hardwon.runtime.llm.chat_model import name_of
from hardwon.runtime.llm.extractor import as_extractor
from hardwon.runtime.llm.prompts import call_text
from hardwon.runtime.loop.advisor import Advisor
from hardwon.runtime.loop.enforcement import Mode, Ruling, mode_of

from .middleware_run import (
    GRAPHS,
    ActiveRun,
    ToolAnswer,
    collect_answers,
    find_calls,
    find_message,
    follow_graphs_for,
    prepend_messages,
    show_texts,
)
from .namespaces import Namespaces
from .recording import name_draws, record_run, report_busy
from .tool_episode import (
    BEFORE_CALL_S,
    SHOWN_CHARS,
    ToolEpisode,
    extract_text,
    iter_calls,
    judge_answer,
    normalize_message,
    split_at_request,
)
from .tool_run import append_warning, format_warning

logger = logging.getLogger(__name__)

OPEN_EPISODES = 1024
"""Maximum number of concurrent runs; beyond it, the oldest is considered abandoned."""

RunGrader = Callable[[Mapping[str, Any]], float | bool | None]
_T = TypeVar("_T")


class ExperienceState(AgentState[Any]):
    """The agent's state plus the id of its episode, which a checkpointer stores and no schema exposes."""

    hardwon_episode: NotRequired[Annotated[str, PrivateStateAttr]]


class ExperienceMiddleware(AgentMiddleware[ExperienceState, Any, Any]):
    """Add recall, guardrails, diagnosis and recording to an agent.

    The agent's own model and tools stay unchanged. List this middleware first.
    """

    state_schema = ExperienceState

    @check_types
    def __init__(
        self,
        library: ExperienceLibrary,
        *,
        namespace: Callable[[Any], str] | None = None,
        grader: RunGrader | None = None,
        arm: Arm | str = "retrieved",
        learn: bool = True,
        guardrails: bool | Literal["warn", "block"] = "warn",
        guidance: Guidance | None = None,
        place: Literal["message", "system"] = "message",
        recall_k: int = 5,
        seed: int = 0,
        trust: Literal["own", "trusted"] = "own",
        extractor: "Extractor | BaseChatModel | str | None" = None,
    ) -> None:
        """Create the middleware for one library.

        Args:
            library: Where experience is recalled from and recorded to.
            namespace: Maps the run's context to the namespace whose experience is used, for example
                `lambda context: context.user_id`. None uses the library's own namespace.
            grader: Maps the agent's final state to a score in [0, 1], a bool, or None for an unknown outcome.
                Without a grader, a run succeeds if it ends with a structured response, or if the last call of
                every tool worked.
            arm: The experiment arm recorded with the episodes. A name alone stands for an arm that recalls from the
                library; "control" stands for one that recalls nothing, for comparison.
            learn: Whether to record episodes and evolve the library.
            guardrails: "warn" runs forbidden calls and puts a warning below the answer. If such a call failed and
                is repeated with nothing done in between, it is refused once. "block" (or True) refuses forbidden
                calls before anyone is asked for approval, except for probation trials; see `loop.enforcement`.
                False checks no guardrails.
            guidance: Turns recalled experience into a hint. None uses `RetrievalGuidance`.
            place: Where the hint of a run stands in each of its model calls. "message" is a message of its own before
                the request. "system" is the end of the system message, for models that refuse two messages of the user
                in a row. What is new later stands below the last result in both.
            recall_k: Number of similar steps and items to recall.
            seed: Seeds the random holdout of items, which measures what each item is worth.
            trust: What is recorded of a run. "own" records the request, the calls and how they ended, and no word of a
                tool's result, which anybody may have written. "trusted" records the results, too.
            extractor: Reads every finished episode and proposes lessons in words: an extractor, a chat model, or the
                name of one, such as "openai:gpt-5". None leaves this to the library's rules.

        Raises:
            ConfigError: A setting is invalid, or they cannot work together.
        """
        check_library(library)
        check_count("recall_k", recall_k)
        if learn and library.admin.read_only:
            raise ConfigError(f"{library.path} is open read-only. Open it for writing, or pass learn=False.")
        if namespace is not None and library.path == ":memory:":
            raise ConfigError("an in-memory library has only one namespace. Use a library file, or omit namespace.")
        super().__init__()
        self.tools = []
        self._grader, self._arm, self._learn = grader, Arm.of(arm), learn
        self._guardrails: Mode | None = mode_of(guardrails)
        self._guidance, self._place = guidance or RetrievalGuidance(), place
        self._recall_k, self._seed, self._hides_results = recall_k, seed, trust == "own"
        self._extractor = None if extractor is None else as_extractor(extractor)
        self._libraries = Namespaces(library, namespace)
        self._open: OrderedDict[str, ActiveRun] = OrderedDict()
        self._lock = threading.Lock()
        self._rebuilding = threading.Lock()
        follow_graphs_for(self)

    # ---- hooks

    def before_agent(self, state: ExperienceState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Begin an episode and store its id in the agent's state; the id is empty if that fails."""
        name, earlier = uuid.uuid4().hex, self._get_open(state.get("hardwon_episode") or "")
        if earlier is not None and earlier.is_paused:  # the thread goes on with another request
            self._run_safely(lambda: self._record(state["hardwon_episode"], None, ending=ABANDONED))
        # An empty id turns off every later hook of this run.
        begun = self._run_safely(lambda: self._begin(name, state, runtime))
        return {"hardwon_episode": name} if begun else {"hardwon_episode": ""}

    async def abefore_agent(self, state: ExperienceState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Begin an episode in a thread, because opening a library blocks; see `before_agent`."""
        return await asyncio.to_thread(self.before_agent, state, runtime)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with recalled experience in its messages.

        If guardrails refuse every tool call of the response, the model is called again with the refusals.

        Args:
            request: The model call.
            handler: Executes a model call.

        Returns:
            The response, preceded by the refused calls and their refusals. If the model insists on forbidden
            calls, a message that ends the run takes its place.
        """
        before: list[Any] = []
        while True:
            # Refusals are added to the original request, so hints of earlier attempts do not pile up.
            attempt = request.override(messages=[*request.messages, *before]) if before else request
            advised = self._run_safely(partial(self._add_hint, attempt))
            with collect_answers() as answers:
                response = handler(advised or attempt)
            read = partial(self._refuse_all, request, response, before, is_own=bool(answers))
            retry = self._run_safely(read)
            if not retry:
                return prepend_messages(response, before)
            if isinstance(retry, AIMessage):
                return prepend_messages(response, before, retry)
            before = retry

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model like `wrap_model_call`, with library queries in a thread."""
        before: list[Any] = []
        while True:
            attempt = request.override(messages=[*request.messages, *before]) if before else request
            advised = await asyncio.to_thread(self._run_safely, partial(self._add_hint, attempt))
            with collect_answers() as answers:
                response = await handler(advised or attempt)
            read = partial(self._refuse_all, request, response, before, is_own=bool(answers))
            retry = await asyncio.to_thread(self._run_safely, read)
            if not retry:
                return prepend_messages(response, before)
            if isinstance(retry, AIMessage):
                return prepend_messages(response, before, retry)
            before = retry

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]) -> ToolAnswer:
        """Run a tool call unless a guardrail refuses it, and record it as a step.

        Args:
            request: The tool call.
            handler: Executes the call.

        Returns:
            The tool's answer, with a warning below it where a guardrail warns, or the refusal.

        Raises:
            Exception: Any error of the tool, unchanged, after it was recorded.
        """
        if refusal := self._run_safely(lambda: self._refuse_if_forbidden(request)):
            return refusal
        try:
            answer = handler(request)
        except GraphBubbleUp:  # an interrupt or a jump in the graph is control flow, not a failure of the tool
            raise
        except BaseException as error:
            self._record_error(request, error)
            raise
        self._run_safely(lambda: self._record_answer(request, answer))
        return answer

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Run a tool call like `wrap_tool_call`, with library queries in a thread."""
        if refusal := await asyncio.to_thread(lambda: self._run_safely(lambda: self._refuse_if_forbidden(request))):
            return refusal
        try:
            answer = await handler(request)
        except GraphBubbleUp:
            raise
        except Exception as error:
            await asyncio.to_thread(self._record_error, request, error)
            raise
        except BaseException as error:  # a cancelled task waits for nothing more
            self._record_error(request, error)
            raise
        await asyncio.to_thread(self._run_safely, lambda: self._record_answer(request, answer))
        return answer

    def after_agent(self, state: ExperienceState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Record the episode and evolve the library."""
        self._run_safely(lambda: self._finish(state, runtime))
        return None

    async def aafter_agent(self, state: ExperienceState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Record the episode in a thread; see `after_agent`."""
        return await asyncio.to_thread(self.after_agent, state, runtime)

    def grade(
        self, *, thread: str | None = None, episode: str | None = None, context: Any = None, **grade: Any
    ) -> Grade:
        """Grade, correct or explain a finished run, when its outcome is known later.

        Args:
            thread: Thread of the run, as in the agent's configuration; its newest run is graded.
            episode: Id of the episode, instead of a thread.
            context: Context of the run, which selects the namespace.
            **grade: The grade, as arguments of `ExperienceLibrary.grade`, such as `success=True`.

        Raises:
            ConfigError: Not exactly one of thread and episode is given, or a value is invalid.
            UnknownName: No run of this thread, or no such episode, is recorded.
        """
        if (thread is None) == (episode is None):
            raise ConfigError(f"grade received thread={thread!r} and episode={episode!r}; give exactly one of them.")
        library = self._libraries.of(context)
        try:
            name = self._libraries.find_run(library, thread) if thread is not None else str(episode)
            return library.grade(name, **grade)
        finally:
            self._libraries.release(library)

    def close(self) -> None:
        """Close the libraries opened for namespaces; the library given to the constructor stays open."""
        self._libraries.close()

    def _run_safely(self, work: Callable[[], _T]) -> _T | None:
        """Return the result of `work`, or None after logging an error other than a `ConfigError`."""
        try:
            return work()
        except ConfigError:
            raise
        except LibraryBusy as error:
            report_busy("the agent", error)
            return None
        except Exception:
            logger.exception("the experience middleware failed; the agent continues without it here")
            return None

    # ---- episodes

    @deadline(BEFORE_CALL_S)
    def _begin(self, name: str, state: Mapping[str, Any], runtime: Any, *, resumed: bool = False) -> ActiveRun:
        library = self._libraries.of(getattr(runtime, "context", None))
        task, after = split_at_request([normalize_message(message) for message in state["messages"]])
        thread = getattr(getattr(runtime, "execution_info", None), "thread_id", None) or ""
        meta = {"environment": "langchain", "thread": thread}
        run = ActiveRun(
            library,
            ToolEpisode(library, task, hides_results=self._hides_results),
            name_draws(library, self._seed, task),
            Advisor(library, self._guidance, self._learn),
            self._guardrails,
            self._learn,
            self._recall_k,
            Trajectory(task, (), None, arm=self._arm.name, meta=meta, id=name),
            is_resumed=resumed,
        )
        if resumed:
            run.episode.replay(list(iter_calls(after)))
            # Mark replayed calls as answered, so failures among them are not recorded twice.
            run.answered.update(message["answers"] for message in after if message["role"] == "tool")
        with self._lock:
            self._open[name] = run
            # A run that waits for a person may wait forever.
            oldest = next(iter(self._open)) if len(self._open) > OPEN_EPISODES else ""
        self._follow(name, run)
        if oldest:
            self._record(oldest, None, ending=ABANDONED)
        return run

    def _find_run(self, state: Mapping[str, Any], runtime: Any) -> ActiveRun | None:
        """Return the episode of a state, rebuilt from its messages if another process began it."""
        name = state.get("hardwon_episode")
        if not name:
            return None
        run = self._get_open(name)
        if run is None:
            if GRAPHS.find_graph() is None:  # a tool that goes on after its run was recorded
                return None
            # Parallel tool calls of a resumed run arrive at once; a second rebuild would lose the steps of the first.
            with self._rebuilding:
                run = self._get_open(name) or self._begin(name, state, runtime, resumed=True)
        self._follow(name, run)
        return run

    def _follow(self, name: str, run: ActiveRun) -> None:
        """Have the end of the graph reported that carries out a run now."""
        graph = GRAPHS.find_graph()
        if graph is not None and graph != run.graph:
            run.graph, run.is_paused = graph, False
            GRAPHS.watch(graph, partial(self._end_graph, name))

    def _end_graph(self, name: str, error: BaseException | None) -> None:
        """Record a run that its graph did not carry to the end, unless it may continue later."""
        run = self._get_open(name)
        if run is None:
            return
        if error is None or isinstance(error, GraphInterrupt | GraphDrained):
            run.is_paused = True
            run.pause()
            return
        limit = "step_limit" if isinstance(error, GraphRecursionError) else type(error).__name__
        ending = "tool_error" if run.has_raised else limit
        # A model that cannot be reached shows nothing about the calls.
        is_cut = is_outage(error) and not run.has_raised
        success = None if is_cut else run.episode.judge(read_error(error) or "failed")
        work = partial(self._run_safely, lambda: self._record(name, success, ending=ending))
        if not _is_in_event_loop():
            work()
            return
        thread = threading.Thread(target=work, name="hardwon-recording")
        thread.start()
        # Seconds for which the end of a cancelled or failed run may hold up an event loop; recording goes on behind it.
        thread.join(0.5)

    def _get_open(self, name: str) -> ActiveRun | None:
        """Return an open episode of this process."""
        with self._lock:
            return self._open.get(name)

    @deadline(BEFORE_CALL_S)
    def _add_hint(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request with a hint, or unchanged if there is none."""
        run = self._find_run(request.state, request.runtime)
        if run is None:
            return request
        with run.lock:
            state = run.follow(request.messages)
            run.model, run.has_raised, run.has_answer = name_of(request.model), False, False
            texts = run.show(run.find_hint(state), self._place) if self._arm.has_memory else {}
            return show_texts(request, texts, self._place)

    @deadline(BEFORE_CALL_S)
    def _refuse_all(
        self, request: ModelRequest[Any], response: Any, before: list[Any], *, is_own: bool
    ) -> list[Any] | AIMessage | None:
        """Return the messages for another model call, or the last message of the run, if all calls are refused.

        Returns None if at least one call may run. Calls are checked here and not when the tool runs, because a
        person may be asked for approval in between.
        """
        run = self._find_run(request.state, request.runtime)
        if run is None:
            return None
        run.own = response.result if is_own else ()
        message = None if self._guardrails is None else find_calls(response, request.tools)
        return None if message is None else run.rule_on_calls(response, message, before)

    @deadline(BEFORE_CALL_S)
    def _refuse_if_forbidden(self, request: ToolCallRequest) -> ToolMessage | None:
        """Return the refusal of a call that guardrails forbid, or None if the call may run."""
        run = self._find_run(request.state, request.runtime)
        if run is None or self._guardrails is None:
            return None
        ruling = run.rule_on(request.tool_call)
        return None if ruling.runs else run.refuse(request.tool_call, ruling)

    def describe(self, tool_call: Mapping[str, Any], state: Mapping[str, Any], runtime: Any) -> str:
        """Return a description of a tool call for the person who approves it, with any guardrail warning.

        For LangChain's `HumanInTheLoopMiddleware`: `interrupt_on={"book": {..., "description": experience.describe}}`.

        Args:
            tool_call: The call, with `name` and `args`.
            state: The agent's state.
            runtime: The agent's runtime, whose `context` selects the namespace.

        Returns:
            The call as text, followed by the warning if a guardrail applies.
        """
        action = call_text(tool_call["name"], tool_call["args"])
        run = self._run_safely(lambda: self._find_run(state, runtime))
        if run is None or self._guardrails is None:
            return action
        verdict = self._run_safely(lambda: run.check(action))
        return action if verdict is None or not verdict.item_id else f"{action}\n\n{format_warning(verdict)}"

    def _record_answer(self, request: ToolCallRequest, answer: ToolAnswer) -> None:
        """Record the answer of a tool as a step, and put the warning of a guardrail below it if there is one."""
        message = find_message(answer, request.tool_call["id"])
        result = clip(extract_text(message.content) if message is not None else "", SHOWN_CHARS)
        error = "" if message is None else clip(judge_answer(message.content, message.status), SHOWN_CHARS)
        ruling = self._add_step(request, result, error)
        if ruling is not None and ruling.warned and message is not None:
            message.content = append_warning(message.content, format_warning(ruling.verdict))

    def _record_error(self, request: ToolCallRequest, error: BaseException) -> None:
        """Record a tool's exception as a step; it may end the run. A call that was cut off shows nothing about it."""
        text, is_cut = clip(f"{type(error).__name__}: {error}", SHOWN_CHARS), not isinstance(error, Exception)
        self._run_safely(lambda: self._add_step(request, f"error: {text}", text, outage=is_cut or is_outage(error)))
        if (run := self._get_open(request.state.get("hardwon_episode") or "")) is not None:
            run.has_raised = not is_cut

    def _add_step(self, request: ToolCallRequest, result: str, error: str, *, outage: bool = False) -> Ruling | None:
        run = self._find_run(request.state, request.runtime)
        if run is None:
            return None
        run.has_answer = bool(getattr(request.tool, "return_direct", False))
        call = Call(request.tool_call["name"], request.tool_call["args"], result, error)
        return run.add_answer(call, request.tool_call["id"], invalid=request.tool is None, outage=outage)

    def _finish(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> None:
        run = self._find_run(state, runtime)
        if run is None:
            return
        with run.lock:
            after = split_at_request([normalize_message(message) for message in state["messages"]])[1]
            run.add_unrun(after)
        score = self._grade(state, run, run.read_ending(state["messages"], after))
        success = None if score is None else score >= 1.0
        self._record(state["hardwon_episode"], success, score=score or 0.0, ending="success" if success else "done")

    def _grade(self, state: Mapping[str, Any], run: ActiveRun, ending: Ending) -> float | None:
        if self._grader is not None:
            graded = self._run_safely(lambda: self._grader(state) if self._grader else None)
            return None if graded is None else min(1.0, max(0.0, float(graded)))
        if state.get("structured_response") is not None:
            return 1.0
        success = run.episode.judge(ending)
        return None if success is None else float(success)

    def _record(self, name: str, success: bool | None, *, score: float = 0.0, ending: str) -> None:
        """Write the episode once; an episode without steps is not written."""
        with self._lock:
            # Popped under the lock, because two ends of a run may want to write the episode.
            run = self._open.pop(name, None)
        if run is None or run.header is None:
            return
        try:
            recorded = record_run(
                run, success=success, score=score, environment="langchain", ending=ending, episode=name,
                meta=run.header.meta, arm=self._arm.name, extractor=self._extractor, is_continued=run.is_resumed,
            )  # fmt: skip
            if recorded and run.header.meta["thread"]:
                self._libraries.remember(run.library, run.header.meta["thread"], name)
        finally:
            self._libraries.release(run.library)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
