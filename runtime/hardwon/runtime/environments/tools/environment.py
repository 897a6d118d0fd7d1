"""Tools as an environment: every action is the call of a tool, until `finish` gives the answer.

    environment = ToolEnvironment([search, book], grader=lambda task, answer, calls: "booked" in answer)
    state = environment.reset("Book a table for two in Rome.")
    state, reward, done, info = environment.step('search(city="Rome", seats=2)')
    state, reward, done, info = environment.step('finish(answer="It is booked for eight.")')

Tools are LangChain tools (MCP ones too) or plain functions. Their calls have side effects, so a
resumed episode does not make them again. How a call is written and read is in `calls`.
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool

from hardwon.memory import Failure, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.memory.guardrails.outage import is_outage
from hardwon.runtime.environments._worker import NotInTime
from hardwon.runtime.environments.calls import Call, bind_arguments, build_state, clip, format_tool, parse_call
from hardwon.runtime.interfaces.types import Info

from ._thread import ToolThread

AnyTool = BaseTool | Callable[..., Any]
Tools = Sequence[AnyTool] | Callable[[str, int], Sequence[AnyTool]]
Grader = Callable[[str, str, tuple[Call, ...]], float]

FINISH = "finish"
_FINISH_FORM = "finish(answer: string): End the episode; the answer is what the request asked for."


class ToolEnvironment:
    """An `Environment` and `Resumable`; `task` of an episode is the request in words."""

    def __init__(
        self,
        tools: Tools,
        grader: Grader | None = None,
        *,
        name: str = "tools",
        call_timeout_s: float | None = 30.0,
        shown_calls: int = 8,
        shown_chars: int = 2000,
    ) -> None:
        """`tools` is a list, or a function of task and seed that makes the tools of each episode anew.

        A list is shared by all clones, and so is whatever the tools act on. `grader` gets the request,
        the answer and the calls made, and returns a score in [0, 1] or a bool; without one nothing says
        whether an episode succeeded, so none is called a success and no reward is given. Observations
        show the last `shown_calls` results, `shown_chars` characters of each.
        Raises `ConfigError` for two tools of one name and for one named `finish`.
        """
        self.name = name
        self._given, self._grader = tools, grader
        self._timeout_s, self._shown_calls, self._shown_chars = call_timeout_s, shown_calls, shown_chars
        self._tools: dict[str, BaseTool] = {} if callable(tools) else _by_name(tools)
        self._thread = ToolThread(f"{name} calls")
        self._task = ""
        self._calls: list[Call] = []
        self._over = True
        self._outage = False
        """Whether the last call met an outage."""

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode for the request `task`; `seed` goes to the function that makes the tools.

        Raises `ConfigError` as the constructor does, and whatever that function raises.
        """
        if callable(self._given):
            self._tools = _by_name(self._given(task, seed))
        self._task, self._calls, self._over = task, [], False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Call the tool that the action names, or finish.

        What a tool raises, or that it does not answer in time, is the `error` of the step. Raises
        `ConfigError` when no episode runs, and whatever the grader raises.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        name, arguments, problem = self._understand(action)
        if problem:
            return self._state(problem), 0.0, False, Info(invalid=problem)
        if name == FINISH:
            return self._finish(str(arguments.get("answer", "")))
        self._outage = False
        result, error = self._call(name, arguments)
        self._calls.append(Call(name, arguments, result, error))
        told = Info(error=error, unavailable=True) if error and self._outage else Info(error=error) if error else Info()
        return self._state(result), 0.0, False, told

    def admissible(self, state: State) -> list[str]:
        """Empty: any call is an action. What can be called is in `describe`."""
        return []

    def describe(self) -> str:
        """The tools for a prompt: how each is called, what it does, what its arguments mean."""
        return "\n".join([*(format_tool(self._tools[name]) for name in sorted(self._tools)), _FINISH_FORM])

    def restore(self, task: str, seed: int, steps: tuple[Step, ...]) -> State:
        """Continue after `steps` with what their calls returned then; no tool is called. Raises as `reset` does."""
        state = self.reset(task, seed)
        for step in steps:
            name, arguments, problem = self._understand(step.action)
            if not problem and name != FINISH:
                failed = step.diagnosis.failure in (Failure.TOOL_ERROR, Failure.UNAVAILABLE)
                result = step.post.feedback
                self._calls.append(Call(name, arguments, result, step.diagnosis.evidence if failed else ""))
            state = self._state(step.post.feedback)
        return state

    def changes_nothing(self, action: str) -> bool:
        """Whether the action calls a tool that says so: `readOnlyHint` in its metadata, as MCP tools have it."""
        name, _, problem = self._understand(action)
        return not problem and name != FINISH and bool((self._tools[name].metadata or {}).get("readOnlyHint"))

    def answered(self, action: str, result: str) -> tuple[State, float, bool, Info]:
        """Take a result that somebody else had of this call, instead of making it."""
        name, arguments, _ = self._understand(action)
        self._calls.append(Call(name, arguments, result))
        return self._state(result), 0.0, False, Info()

    def clone(self) -> "ToolEnvironment":
        """Another environment with the same tools, or the same way to make them."""
        return ToolEnvironment(
            self._given,
            self._grader,
            name=self.name,
            call_timeout_s=self._timeout_s,
            shown_calls=self._shown_calls,
            shown_chars=self._shown_chars,
        )

    def close(self) -> None:
        """End the thread in which the tools run; it does not wait for one that is running."""
        self._over = True
        self._thread.close()

    def _understand(self, action: str) -> tuple[str, dict[str, Any], str]:
        """Name and arguments of a call, and what is wrong with it."""
        known = ", ".join([*sorted(self._tools), FINISH])
        parsed = parse_call(action)
        if parsed is None:
            return "", {}, f'This is not a tool call. Write name(argument="value"), the name one of: {known}.'
        name, positional, named = parsed
        if name == FINISH:
            answers = [*positional, *named.values()]
            return name, {"answer": answers[0]} if answers else {}, ""
        if name not in self._tools:
            near = difflib.get_close_matches(name, self._tools, n=1)
            hint = f" Did you mean {format_tool(self._tools[near[0]])}" if near else f" There are: {known}."
            return name, named, f"There is no tool {name!r}.{hint}"
        arguments, problem = bind_arguments(self._tools[name], positional, named)
        if problem:
            problem = f"{name} cannot be called so: {problem}. Its form is {format_tool(self._tools[name])}"
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
        """What the tool returned, as text, and its error."""
        request = {"name": name, "args": arguments, "id": f"call_{len(self._calls)}", "type": "tool_call"}
        try:
            returned = self._thread.invoke(self._tools[name], request, self._timeout_s)
        except NotInTime:
            error = f"{name} gave no answer within {self._timeout_s:g} s; it may have done its work all the same."
            self._outage = True
        except (Exception, SystemExit) as raised:
            error = f"{type(raised).__name__}: {raised}"
            self._outage = is_outage(raised)
        else:
            text = clip(_text(returned), self._shown_chars)
            return text, text if getattr(returned, "status", "") == "error" else ""
        error = clip(error, self._shown_chars)
        return f"error: {error}", error

    def _state(self, feedback: str) -> State:
        return build_state(self._task, self._calls, feedback, self._shown_calls, self._shown_chars)


def _by_name(tools: Sequence[AnyTool]) -> dict[str, BaseTool]:
    named: dict[str, BaseTool] = {}
    for given in tools:
        made = given if isinstance(given, BaseTool) else tool(given)
        if made.name in named or made.name == FINISH:
            raise ConfigError(f"two tools are named {made.name!r}; rename one ({FINISH!r} ends the episode).")
        named[made.name] = made
    return named


def _text(returned: Any) -> str:
    """What a tool returned, as text that can be stored: content blocks joined, lone surrogates replaced."""
    content = returned.content if isinstance(returned, ToolMessage) else returned
    if isinstance(content, list):
        content = "\n".join(
            str(block.get("text", block)) if isinstance(block, dict) else str(block) for block in content
        )
    return str(content).encode(errors="replace").decode()
