"""Tools as an environment: every action calls a tool, until `finish` gives the answer.

    environment = ToolEnvironment([search, book], grader=lambda task, answer, calls: "booked" in answer)
    state = environment.reset("Book a table for two in Rome.")
    state, reward, done, info = environment.step('search(city="Rome", seats=2)')
    state, reward, done, info = environment.step('finish(answer="It is booked for eight.")')

Tools are LangChain tools, including MCP tools, or plain functions. Because calls have side effects, a
resumed episode does not repeat them. Calls are parsed and formatted in `calls`.
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool

from hardwon.memory import Failure, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.memory.guardrails.outage import is_outage
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.runtime.environments._worker import NotInTime
from hardwon.runtime.environments.calls import (
    Call,
    bind_arguments,
    build_state,
    clip,
    format_tool,
    get_schema,
    parse_call,
)
from hardwon.runtime.interfaces.results import find_failure
from hardwon.runtime.interfaces.types import Info

from ._thread import ToolThread

AnyTool = BaseTool | Callable[..., Any]
Tools = Sequence[AnyTool] | Callable[[str, int], Sequence[AnyTool]]
TaskGrader = Callable[[str, str, tuple[Call, ...]], float]

FINISH = "finish"
_FINISH_PURPOSE = "End the episode; the answer is what the request asked for."
_FINISH_SCHEMA = {
    "type": "object",
    "description": _FINISH_PURPOSE,
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
_FINISH_FORM = f"finish(answer: string): {_FINISH_PURPOSE}"


class ToolEnvironment:
    """An `Environment`, `Resumable` and `Tooled` whose task is a request in natural language."""

    @check_types
    def __init__(
        self,
        tools: Tools,
        grader: TaskGrader | None = None,
        *,
        name: str = "tools",
        call_timeout_s: float | None = 30.0,
        shown_calls: int = 8,
        shown_chars: int = 2000,
    ) -> None:
        """Create an environment from tools.

        Args:
            tools: LangChain tools or functions, which all clones share, including the data that the tools act on.
                Alternatively a function of task and seed that creates the tools of each episode.
            grader: Maps the request, the answer and the calls to a score in [0, 1] or a bool. Without a grader,
                the outcome is unknown: no episode succeeds, and the reward is 0.
            name: Name of the environment.
            call_timeout_s: Seconds to wait for a call; None waits indefinitely.
            shown_calls: Number of recent results in an observation.
            shown_chars: Maximum characters of each result.

        Raises:
            ConfigError: Two tools have the same name, or a tool is named `finish`.
        """
        self.name = name
        self._source, self._grader = tools, grader
        self._timeout_s, self._shown_calls, self._shown_chars = call_timeout_s, shown_calls, shown_chars
        self._tools: dict[str, BaseTool] = {} if callable(tools) else _index_tools(tools)
        self._has_tools = not callable(tools)
        self._schemas: dict[str, dict[str, Any]] = {}
        """Cached result of `tool_schemas`; None before the first call."""
        self._thread = ToolThread(f"{name} calls")
        self._task = ""
        self._calls: list[Call] = []
        self._over = True
        self._outage = False
        """Whether the last call failed because its service was unavailable."""

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode.

        Args:
            task: The request.
            seed: Passed to the function that creates the tools, if there is one.

        Raises:
            ConfigError: Two tools have the same name, or a tool is named `finish`.
            Exception: Any error of the function that creates the tools.
        """
        # Tools are created per episode, so that one episode's side effects do not leak into the next.
        if callable(self._source):
            self._has_tools = True
            self._tools, self._schemas = _index_tools(self._source(task, seed)), {}
        self._task, self._calls, self._over = task, [], False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Call the tool named by the action, or finish the episode.

        An exception or timeout of the tool becomes the `error` of the step.

        Args:
            action: A call such as `search(city="Rome")`, or `finish(answer="...")`.

        Returns:
            The state, the reward (the score if the episode ends, else 0), whether the episode ended, and the info.

        Raises:
            ConfigError: No episode is running.
            Exception: Any error of the grader.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        name, arguments, problem = self._parse_action(action)
        if problem:
            return self._state(problem), 0.0, False, Info(invalid=problem)
        if name == FINISH:
            return self._finish(str(arguments.get("answer", "")))
        self._outage = False
        result, error = self._call(name, arguments)
        self._calls.append(Call(name, arguments, result, error))
        info = Info(error=error) if error else Info()
        if error and self._outage:
            info["unavailable"] = True
        return self._state(result), 0.0, False, info

    def admissible(self, state: State) -> list[str]:
        """Return an empty list, because any call is an action; `describe` lists the tools."""
        return []

    def describe(self) -> str:
        """Return a description of the tools for a prompt: signature, purpose, and arguments; see `tool_schemas`."""
        self._require_tools()
        return "\n".join([*(format_tool(self._tools[name]) for name in sorted(self._tools)), _FINISH_FORM])

    def tool_schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of the arguments of every tool, and of `finish`.

        Raises:
            ConfigError: The tools are created for each episode, and no episode has begun.
        """
        self._require_tools()
        if not self._schemas:
            self._schemas = {name: get_schema(self._tools[name]) for name in sorted(self._tools)}
            self._schemas[FINISH] = _FINISH_SCHEMA
        return self._schemas

    def _require_tools(self) -> None:
        """Raise an error if there are no tools yet, which would look like an environment without any."""
        if not self._has_tools:
            raise ConfigError(f"{self.name} has no tools before its first episode; call reset first.")

    def restore(self, task: str, seed: int, steps: tuple[Step, ...]) -> State:
        """Return to the state after `steps` from their recorded results, without calling any tool.

        Args:
            task: The request.
            seed: The seed of the episode.
            steps: The steps to restore.

        Raises:
            ConfigError: See `reset`.
        """
        state = self.reset(task, seed)
        # Rebuild the calls from the record: running them again would repeat their side effects.
        for step in steps:
            name, arguments, problem = self._parse_action(step.action)
            if not problem and name != FINISH:
                failed = step.diagnosis.failure in (Failure.TOOL_ERROR, Failure.UNAVAILABLE)
                result = step.post.feedback
                self._calls.append(Call(name, arguments, result, step.diagnosis.evidence if failed else ""))
            state = self._state(step.post.feedback)
        return state

    @property
    def branches(self) -> Literal["replay"] | None:
        """Return "replay" if tools are created anew for each episode, with their data; else None.

        Shared tools would run the calls of a prefix a second time on the same data.
        """
        return "replay" if callable(self._source) else None

    def changes_nothing(self, action: str) -> bool:
        """Return whether the action calls a read-only tool.

        A tool is read-only if its metadata contains a true `readOnlyHint`, as those of MCP tools may.
        """
        name, _, problem = self._parse_action(action)
        return not problem and name != FINISH and bool((self._tools[name].metadata or {}).get("readOnlyHint"))

    def answered(self, action: str, result: str) -> tuple[State, float, bool, Info]:
        """Take a call's result from another agent instead of running the tool."""
        name, arguments, _ = self._parse_action(action)
        error = find_failure(result)
        self._calls.append(Call(name, arguments, result, error))
        return self._state(result), 0.0, False, Info(error=error) if error else Info()

    def clone(self) -> "ToolEnvironment":
        """Return another environment with the same tools, or the same function that creates them."""
        return ToolEnvironment(
            self._source,
            self._grader,
            name=self.name,
            call_timeout_s=self._timeout_s,
            shown_calls=self._shown_calls,
            shown_chars=self._shown_chars,
        )

    def close(self) -> None:
        """Stop the tool thread without waiting for a running call."""
        self._over = True
        self._thread.close()

    def _parse_action(self, action: str) -> tuple[str, dict[str, Any], str]:
        """Return the name and arguments of a call, and what is wrong with it."""
        names = ", ".join([*sorted(self._tools), FINISH])
        parsed = parse_call(action)
        if parsed is None:
            return "", {}, f'This is not a tool call. Write name(argument="value"), the name one of: {names}.'
        name, positional, named = parsed
        if name == FINISH:
            answers = [*positional, *named.values()]
            return name, {"answer": answers[0]} if answers else {}, ""
        if name not in self._tools:
            matches = difflib.get_close_matches(name, self._tools, n=1)
            hint = f" Did you mean {format_tool(self._tools[matches[0]])}" if matches else f" There are: {names}."
            return name, named, f"There is no tool {name!r}.{hint}"
        arguments, problem = bind_arguments(self._tools[name], positional, named)
        if problem:
            problem = f"{name} cannot be called like this: {problem}. Its form is {format_tool(self._tools[name])}"
        return name, arguments, problem

    def _finish(self, answer: str) -> tuple[State, float, bool, Info]:
        self._over = True
        if self._grader is None:
            return self._state("The answer was given."), 0.0, True, Info()
        score = min(max(float(self._grader(self._task, answer, tuple(self._calls))), 0.0), 1.0)
        success = score >= 1.0
        words = "The answer was accepted." if success else f"The answer was graded {score:g} of 1."
        return self._state(words), score, True, Info(success=success, lost=not success, score=score)

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
        """Return the tool's result as text, and its error."""
        request = {"name": name, "args": arguments, "id": f"call_{len(self._calls)}", "type": "tool_call"}
        try:
            returned = self._thread.invoke(self._tools[name], request, self._timeout_s)
        except NotInTime:
            error = f"{name} gave no answer within {self._timeout_s:g} s; it may still have taken effect."
            self._outage = True
        except (Exception, SystemExit) as raised:  # a tool must not end the process, even by sys.exit
            error = f"{type(raised).__name__}: {raised}"
            self._outage = is_outage(raised)
        else:
            failure = clip(find_failure(returned), self._shown_chars)
            return clip(_extract_text(returned), self._shown_chars), failure
        error = clip(error, self._shown_chars)
        return f"error: {error}", error

    def _state(self, feedback: str) -> State:
        return build_state(self._task, self._calls, feedback, self._shown_calls, self._shown_chars)


def _index_tools(tools: Sequence[AnyTool]) -> dict[str, BaseTool]:
    named: dict[str, BaseTool] = {}
    for source in tools:
        wrapped = source if isinstance(source, BaseTool) else tool(source)
        if wrapped.name in named or wrapped.name == FINISH:
            raise ConfigError(f"two tools are named {wrapped.name!r}; rename one ({FINISH!r} ends the episode).")
        named[wrapped.name] = wrapped
    return named


def _extract_text(returned: Any) -> str:
    """Return a tool's result as text that can be stored: blocks are joined, lone surrogates replaced."""
    content = returned.content if isinstance(returned, ToolMessage) else returned
    if isinstance(content, list):
        content = "\n".join(
            str(block.get("text", block)) if isinstance(block, dict) else str(block) for block in content
        )
    return str(content).encode(errors="replace").decode()
