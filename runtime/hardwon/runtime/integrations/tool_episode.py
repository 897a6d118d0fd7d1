"""An episode of tool calls, told call by call: while it runs, or afterwards from its messages.

States and actions have the form of `ToolEnvironment`, so that what was learnt behind one door serves
behind the others. This file judges and files; it calls no tool, asks no model and writes nothing.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory, Verdict
from hardwon.runtime.environments.calls import Call, build_state, clip
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.types import Info
from hardwon.runtime.interfaces.working_memory import WorkingMemory

SHOWN_CHARS = 2000
"""Characters kept of a result."""
WARNED = "Experience warns of this call:"
"""How a warning begins that is put below a call's answer; it is no part of what was seen."""
REFUSED = "Not run: experience forbids"
"""How the answer to a call begins that a guardrail refused: no evidence of anything but that."""


class ToolEpisode:
    """The steps of one request, in the order in which its calls were answered."""

    def __init__(self, library: ExperienceLibrary, task: str) -> None:
        self.task = self._request = task
        self.steps: list[Step] = []
        self._library = library
        self.working = WorkingMemory()
        self.working.begin(build_state(task, (), ""))
        self._broken: dict[str, bool] = {}
        """Of every tool that was called: whether its last call failed."""

    @property
    def broken(self) -> bool:
        """Whether an error was left as it was: a tool whose last call failed."""
        return any(self._broken.values())

    def begin_request(self, task: str) -> None:
        """Go on with another request of the same conversation: its states are those of an episode that begins with it.

        The episode keeps its first task, its steps and its outcome.
        """
        if self.steps:
            self.working = WorkingMemory()
            self.working.begin(build_state(task, (), ""))
        self._request = task

    def state(self, calls: Sequence[Call]) -> State:
        """What is seen after these calls."""
        return self.working.annotate(build_state(self._request, calls, calls[-1].result if calls else ""))

    def add_answer(
        self,
        pre: State,
        calls: Sequence[Call],
        *,
        invalid: bool = False,
        outage: bool = False,
        why: Mapping[str, Any],
    ) -> Step:
        """The last of these calls was answered; `pre` is what was seen when it was chosen.

        `outage`: it is known that the service did not answer for now; otherwise the words of the error tell.
        """
        call, post = calls[-1], self.state(calls)
        info = Info() if not call.error else Info(invalid=call.error) if invalid else Info(error=call.error)
        if outage and call.error:
            info["unavailable"] = True
        judged = diagnose(pre, call.text, post, 0.0, info, self.steps, self.working)
        keys = self._library.keys(pre, call.text, self.working.counts(pre, call.text))
        step = Step(pre, call.text, post, judged, 0.0, len(self.steps), keys, why)
        self.working.add(step)
        self._broken[call.name] = bool(call.error)
        self.steps.append(step)
        return step

    def add_rejection(self, pre: State, calls: Sequence[Call], *, why: Mapping[str, Any]) -> Step:
        """A person refused the last of these calls, and said why: it was not run."""
        call, post = calls[-1], self.state(calls)
        judged = Diagnosis(False, Failure.REJECTED, 0.0, True, evidence=call.error)
        keys = self._library.keys(pre, call.text, self.working.counts(pre, call.text))
        step = Step(pre, call.text, post, judged, 0.0, len(self.steps), keys, why)
        self.working.add(step)
        self._broken[call.name] = True
        self.steps.append(step)
        return step

    def add_refusal(self, pre: State, action: str, verdict: Verdict, why: Mapping[str, Any]) -> Step:
        """A guardrail refused the call: it was not run."""
        judged = Diagnosis(False, Failure.BLOCKED, 0.0, True, evidence=verdict.cause)
        why = {**why, "blocked": [verdict.item_id] if verdict.item_id else []}
        step = Step(pre, action, pre, judged, t=len(self.steps), why=why)
        self.steps.append(step)
        return step

    def replay(self, calls: Sequence[Call]) -> None:
        """Calls that were answered before anybody looked."""
        for n, call in enumerate(calls):
            if not call.result.startswith(REFUSED):
                self.add_answer(self.state(calls[:n]), calls[: n + 1], why={})

    def trajectory(self, success: bool | None, score: float | None = None, **fields: Any) -> Trajectory:
        """The episode, its score the reward of its last step."""
        score = float(bool(success)) if score is None else score
        steps = tuple(self.steps)
        if steps:
            steps = (*steps[:-1], replace(steps[-1], reward=score))
        return Trajectory(self.task, steps, success, score, **fields)


# ---- messages of any make, as plain values


def normalize_message(message: Any) -> dict[str, Any]:
    """role, text, calls [{id, name, arguments}], answers (the id of the call), error: of LangChain's or OpenAI's forms.

    Of LangChain's own objects any role will do, as "other". Raises: ValueError for what else is no message.
    """
    if hasattr(message, "type") and hasattr(message, "content"):
        told = {name: getattr(message, name, None) for name in ("type", "content", "tool_calls", "tool_call_id")}
        told |= {"name": getattr(message, "name", None), "status": getattr(message, "status", None)}
        return _plain(told if _role(told) in _KNOWN else {**told, "type": "other"})
    if not isinstance(message, Mapping):
        raise ValueError(f"{message!r:.80} is not a message")
    if message.get("lc") and "kwargs" in message:  # LangChain's serialised objects
        named = str((message.get("id") or ["", ""])[-1]).removesuffix("Chunk").removesuffix("Message").lower()
        return _plain({"type": named, **message["kwargs"]})
    if isinstance(message.get("data"), Mapping):  # messages_to_dict
        return _plain({"type": message.get("type"), **message["data"]})
    return _plain(message)


_ROLES = {
    "human": "user",
    "ai": "assistant",
    "aimessagechunk": "assistant",
    "developer": "system",
    "function": "tool",
}


_KNOWN = ("system", "user", "assistant", "tool", "other")


def _role(told: Mapping[str, Any]) -> str:
    role = str(told.get("role") or told.get("type") or "").lower()
    return _ROLES.get(role, role)


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    role = _role(told)
    if role not in _KNOWN:
        raise ValueError(f"a message with the role {role!r}; system, user, assistant and tool are known")
    calls = [normalize_call(call) for call in told.get("tool_calls") or ()]
    if told.get("function_call"):  # OpenAI's form before tools
        calls.append(normalize_call({"function": told["function_call"], "id": told["function_call"].get("name")}))
    answers = told.get("tool_call_id") or (told.get("name") if role == "tool" else None)
    failed = told.get("status") == "error"
    return {
        "role": role,
        "text": extract_text(told.get("content")),
        "calls": calls,
        "answers": answers,
        "error": failed,
    }


def normalize_call(call: Any) -> dict[str, Any]:
    """`{"function": {"name", "arguments": "{...}"}}` of OpenAI, `{"name", "args"}` of LangChain, or with `input`."""
    inner = call.get("function") or call
    arguments: Any = next((inner[key] for key in ("args", "arguments", "input") if inner.get(key) is not None), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"input": arguments}
    if not isinstance(arguments, Mapping):
        arguments = {"input": arguments}
    return {"id": call.get("id"), "name": str(inner.get("name") or ""), "arguments": dict(arguments)}


def extract_text(content: Any) -> str:
    """The words of a content: text, a list of blocks, or anything else as JSON; lone surrogates replaced."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text_of_block, content)))
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    return text.encode(errors="replace").decode()


def _text_of_block(block: Any) -> str:
    if isinstance(block, Mapping):
        return extract_text(block["text"]) if isinstance(block.get("text"), str) else f"[{block.get('type', 'data')}]"
    return extract_text(block)


def iter_calls(messages: Iterable[Mapping[str, Any]]) -> Iterator[Call]:
    """The calls in plain messages that were answered, in the order in which they were made.

    Ids may repeat (OpenAI's first form has the name of the function): a call has the next answer to its id.
    """
    told = list(messages)
    answers: dict[Any, deque[Mapping[str, Any]]] = {}
    for message in told:
        if message["role"] == "tool":
            answers.setdefault(_hashable(message["answers"]), deque()).append(message)
    for message in told:
        for call in message["calls"]:
            waiting = answers.get(_hashable(call["id"]))
            if waiting:
                answer = waiting.popleft()
                result = clip(answer["text"].partition(f"\n\n{WARNED}")[0], SHOWN_CHARS)
                yield Call(call["name"], call["arguments"], result, (result or "error") if answer["error"] else "")


def _hashable(ref: Any) -> Any:
    return ref if isinstance(ref, str) or ref is None else extract_text(ref)


def split_at_request(messages: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """The last request of a person in plain messages, and what follows it; all of them where there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user":
            return messages[at]["text"], messages[at + 1 :]
    return "", messages
