"""An episode of tool calls, recorded call by call while it runs or replayed from its messages.

States and actions have the same form as in `ToolEnvironment`, so experience transfers between integrations.
This module diagnoses and collects steps; it neither calls tools or models nor writes to the library.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Reasons, State, Step, Trajectory, Verdict
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.patterns import compile_late
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.reasons import NO_REASONS
from hardwon.runtime.environments.calls import Call, build_state, clip
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.endings import Ending, decide, find_cut
from hardwon.runtime.interfaces.results import extract_text as extract_text, find_failure
from hardwon.runtime.interfaces.types import Info
from hardwon.runtime.interfaces.working_memory import WorkingMemory

from .own_words import ResultHider, find_copied

BEFORE_CALL_S = 0.5
"""Seconds that a call of a model or tool waits for the library altogether; then it goes on without experience."""
SHOWN_CHARS = 2000
"""Maximum number of characters of a result that a step keeps."""
WARNED = "Experience warns of this call:"
"""Start of a warning below the answer of a call; it is removed before the answer becomes part of a state."""
REFUSED = "Not run: experience forbids"
"""Start of the answer to a call that a guardrail refused; such an answer is no evidence about the tool."""

_PERSON = r"(?:user|human|person|reviewer|operator|approver)"
_REJECTION = compile_late(
    rf"\A.{{0,80}}\b{_PERSON}\b.{{0,40}}\b(?:rejected|denied|declined|refused)\b|"
    rf"\A.{{0,80}}\b(?:rejected|declined) by (?:the )?{_PERSON}\b|"
    rf"\AThe {_PERSON} doesn['’]t want to (?:proceed with|take) this\b",
    re.IGNORECASE | re.DOTALL,
)
INTERRUPTED = compile_late(
    r"\W?(?:request interrupted by user\b|aborted by (?:the )?user\b|aborted\W*\Z)", re.IGNORECASE
)
"""Matches an answer to a call that a person stopped, which shows neither a success nor a failure."""


def is_rejection(answer: str) -> bool:
    """Return whether an answer says that a person rejected a call, such as "User rejected the tool call for ..."."""
    return _REJECTION.search(answer) is not None


class ToolEpisode:
    """The steps of one request, in the order in which its calls were answered."""

    def __init__(self, library: ExperienceLibrary, task: str, *, hides_results: bool = False) -> None:
        """Begin an episode for the request `task`; `library` computes the keys of steps.

        With `hides_results`, steps have the calls and their outcomes, and no word of a result.
        """
        self._hider = ResultHider() if hides_results else None
        self.task = self._request = task
        self.steps: list[Step] = []
        self._library = library
        self.working = WorkingMemory()
        self.working.begin(build_state(task, (), ""))
        self._broken: dict[str, bool] = {}
        """Whether the last call failed, by tool."""
        self._results: list[str] = []
        """The results so far in lower case, in which the agent may have read a value."""
        self.on_step: Callable[[Step], object] = lambda step: None
        """Called with every new step."""

    @property
    def broken(self) -> bool:
        """Return whether an error was left unresolved: the last call of some tool failed."""
        return any(self._broken.values())

    def judge(self, ending: Ending = "completed") -> bool | None:
        """Return the outcome that nobody graded: success, failure, or None if it is unknown.

        A call that a guardrail refused counts as one that failed, which it most likely would have: runs that were
        shown advice and runs that were not are then judged alike, however often each was refused a call.
        """
        return decide(ending, is_broken=self.broken)

    def begin_request(self, task: str) -> None:
        """Continue with another request of the same conversation.

        Its states are those of an episode that begins with this request. The episode keeps its first task, its
        steps and its outcome.
        """
        if self.steps:
            self.working = WorkingMemory()
            self.working.begin(build_state(task, (), ""))
        self._request = task

    def _find_keys(self, pre: State, action: str) -> tuple[str, ...]:
        """Return the keys of a step; none if others hold the library, which then computes them when it records."""
        with suppress(LibraryBusy), deadline(BEFORE_CALL_S):
            return self._library.episodes.keys(pre, action, self.working.counts(pre, action))
        return ()

    def state(self, calls: Sequence[Call]) -> State:
        """Return the state after these calls."""
        calls = self._hider.hide(calls) if self._hider else calls
        return self.working.annotate(build_state(self._request, calls, calls[-1].result if calls else ""))

    def add_answer(
        self,
        pre: State,
        calls: Sequence[Call],
        *,
        invalid: bool = False,
        outage: bool = False,
        why: Reasons | Mapping[str, Any] = NO_REASONS,
    ) -> Step:
        """Add a step for the last of these calls, which was answered."""
        call, post = calls[-1], self.state(calls)
        info = Info() if not call.error else Info(invalid=call.error) if invalid else Info(error=call.error)
        if outage and call.error:
            info["unavailable"] = True
        # The words of the result decide how the call failed, also where they are not kept.
        diagnosis = diagnose(pre, call.text, post, 0.0, info, self.steps, self.working)
        action = call.text
        if self._hider:
            action, diagnosis = self._hider.hide(calls)[-1].text, replace(diagnosis, evidence="")
        keys, reasons = self._find_keys(pre, action), Reasons.of(why)
        if copied := find_copied(action, pre.task, self._results):
            reasons = reasons.updated(copied=copied)
        self._results.append(f"{call.result}\n{call.error}".lower())
        step = Step(pre, action, post, diagnosis, 0.0, len(self.steps), keys, reasons)
        self.working.add(step)
        self._broken[call.name] = bool(call.error)
        self._append(step)
        return step

    def add_rejection(self, pre: State, calls: Sequence[Call], *, why: Reasons = NO_REASONS) -> Step:
        """Add a step for the last of these calls, which a person rejected, so the tool must not be blamed."""
        call, post = calls[-1], self.state(calls)
        action = self._hider.hide(calls)[-1].text if self._hider else call.text
        diagnosis = Diagnosis(False, Failure.REJECTED, 0.0, True, evidence="" if self._hider else call.error)
        keys = self._find_keys(pre, action)
        step = Step(pre, action, post, diagnosis, 0.0, len(self.steps), keys, why)
        self.working.add(step)
        self._broken[call.name] = True
        self._append(step)
        return step

    def add_refusal(self, pre: State, action: str, verdict: Verdict, why: Reasons) -> Step:
        """Add a step for a call that a guardrail refused, so it did not run."""
        diagnosis = Diagnosis(False, Failure.BLOCKED, 0.0, True, evidence=verdict.cause)
        why = why.updated(blocked=(verdict.item_id,) if verdict.item_id else ())
        # Not added to `working`, unlike a rejection: nobody saw what the call does.
        step = Step(pre, action, pre, diagnosis, t=len(self.steps), why=why)
        self._broken[action.partition("(")[0]] = True
        self._append(step)
        return step

    def _append(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    def replay(self, calls: Sequence[Call], first: Sequence[Step] = ()) -> None:
        """Add steps for calls that were answered before this process followed the episode."""
        waiting = iter(first)
        for n, call in enumerate(calls):
            # Refused calls did not run, and replaying them as answers would count as evidence.
            if call.result.startswith(REFUSED):
                self._broken[call.name] = True
                continue
            if (step := next(waiting, None)) is None:
                add = self.add_rejection if is_rejection(call.error) else self.add_answer
                add(self.state(calls[:n]), calls[: n + 1])
            else:
                self.working.add(step)
                self._broken[call.name] = bool(call.error)
                self.steps.append(step)

    def trajectory(self, success: bool | None, score: float | None = None, **fields: Any) -> Trajectory:
        """Return the episode as a trajectory; the last step's reward is the score."""
        score = float(bool(success)) if score is None else score
        steps = tuple(self.steps)
        if steps:
            steps = (*steps[:-1], replace(steps[-1], reward=score))
        return Trajectory(self.task, steps, success, score, **fields)


# ---- messages of several formats as plain dictionaries


def normalize_message(message: Any) -> dict[str, Any]:
    """Return a LangChain or OpenAI message as a plain dictionary."""
    if hasattr(message, "type") and hasattr(message, "content"):
        fields = {name: getattr(message, name, None) for name in _FIELDS}
        return _normalize(fields if _get_role(fields) in _ROLE_NAMES else {**fields, "type": "other"})
    if not isinstance(message, Mapping):
        raise ValueError(f"{message!r:.80} is not a message")
    if message.get("lc") and "kwargs" in message:  # the format of langchain_core.load.dumps
        kind = str((message.get("id") or ["", ""])[-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return _normalize({"type": kind, **message["kwargs"]})
    if isinstance(message.get("data"), Mapping):  # the format of langchain_core.messages.messages_to_dict
        return _normalize({"type": message.get("type"), **message["data"]})
    return _normalize(message)


_ROLES = {
    "human": "user",
    "ai": "assistant",
    "aimessagechunk": "assistant",
    "developer": "system",
    "function": "tool",
}


_FIELDS = (
    "type", "content", "tool_calls", "tool_call_id", "name", "status", "invalid_tool_calls", "response_metadata",
    "additional_kwargs",
)  # fmt: skip
"""What is read of a message of LangChain."""
_ROLE_NAMES = ("system", "user", "assistant", "tool", "other")


def _get_role(fields: Mapping[str, Any]) -> str:
    role = str(fields.get("role") or fields.get("type") or "").lower()
    return _ROLES.get(role, role)


def _normalize(fields: Mapping[str, Any]) -> dict[str, Any]:
    role = _get_role(fields)
    if role not in _ROLE_NAMES:
        raise ValueError(f"a message has the role {role!r}; use system, user, assistant or tool")
    calls = [normalize_call(call) for call in fields.get("tool_calls") or ()]
    if fields.get("function_call"):  # OpenAI's legacy format
        calls.append(normalize_call({"function": fields["function_call"], "id": fields["function_call"].get("name")}))
    answers = fields.get("tool_call_id") or (fields.get("name") if role == "tool" else None)
    content = fields.get("content")
    return {
        "role": role,
        "text": extract_text(content),
        "calls": calls,
        "answers": answers,
        "error": role == "tool" and bool(judge_answer(content, fields.get("status"))),
        "unfinished": find_cut(fields) if role == "assistant" else "",
    }


def judge_answer(content: Any, status: Any = None) -> str:
    """Return how a call failed, by the content and the status of a tool message; empty if it worked.

    The status "success" is LangChain's default and says nothing. A warning below the content is not the tool's.
    """
    if isinstance(content, str):
        content = content.partition(f"\n\n{WARNED}")[0]
    return find_failure(content, failed=True if status == "error" else None)


def normalize_call(call: Any) -> dict[str, Any]:
    """Return a tool call as a dictionary with id, name and arguments.

    Accepts OpenAI's `{"function": {"name", "arguments": "{...}"}}` and `{"custom": {"name", "input"}}`, LangChain's
    `{"name", "args"}`, and calls with `input`. Servers write an empty text or null for no arguments.
    """
    inner = call.get("function") or call.get("custom") or call
    arguments: Any = next((inner[key] for key in ("args", "arguments", "input") if inner.get(key) is not None), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            arguments = {"input": arguments}
    if not isinstance(arguments, Mapping):
        arguments = {} if arguments is None else {"input": arguments}
    return {"id": call.get("id"), "name": str(inner.get("name") or ""), "arguments": dict(arguments)}


def iter_calls(messages: Iterable[Mapping[str, Any]]) -> Iterator[Call]:
    """Yield the answered calls of plain messages; see `iter_answers`."""
    return (call for _, call in iter_answers(messages))


def iter_answers(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, Call]]:
    """Yield the answered calls of plain messages with their ids, in the order in which they were made.

    Ids may repeat, as in OpenAI's legacy format, where the id is the function's name, or be empty. Each call is matched
    with the next unused answer to its id, else with the next one to its name, else with the next one without an id.
    """
    # Queues of answers by id keep repeated ids in order.
    plain = list(messages)
    answers: dict[Any, deque[Mapping[str, Any]]] = {}
    for message in plain:
        if message["role"] == "tool":
            answers.setdefault(_make_hashable(message["answers"]), deque()).append(message)
    for message in plain:
        for call in message["calls"]:
            queues = map(answers.get, (_make_hashable(call["id"]), call["name"], None))
            waiting = next(filter(None, queues), None)
            if waiting:
                answer = waiting.popleft()
                if INTERRUPTED.match(answer["text"]):
                    continue
                text = answer["text"].partition(f"\n\n{WARNED}")[0]
                error = clip(find_failure(text, failed=True), SHOWN_CHARS) if answer["error"] else ""
                yield call["id"], Call(call["name"], call["arguments"], clip(text, SHOWN_CHARS), error)


def _make_hashable(ref: Any) -> Any:
    return (ref or None) if isinstance(ref, str) or ref is None else extract_text(ref)


def split_at_request(messages: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the text of the last user message and the messages after it; all messages if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user":
            return messages[at]["text"], messages[at + 1 :]
    return "", messages
