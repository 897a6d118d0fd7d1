"""One episode of a program: its model calls with their tokens, and its outcome."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.runtime.llm.prompts import call_text
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import Ids, Rollout, Sample, compute_anchor
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.prompting.chat_record import ChatRecord, Message, Tool

UNGRADED, NO_CALLS, STEP_LIMIT = "ungraded", "no_model_calls", "step_limit"
"""Why an episode is excluded: nobody graded it, or its program never called the policy; and how a long one ended."""
_SHOWN_CHARS = 2000
"""Characters of a message that a step keeps."""


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """One answer of the policy."""

    messages: tuple[Message, ...]
    answer: Message
    prompt: Ids
    tokens: Ids
    logprobs: tuple[float, ...]
    mask: tuple[bool, ...]
    allowed: tuple[Ids | None, ...]
    version: int
    is_whole: bool = True
    """Whether the answer ended by itself."""

    @classmethod
    def of(
        cls, messages: Sequence[Message], answer: Message, prompt: Ids, completion: Completion, *, is_whole: bool
    ) -> "PolicyCall":
        """Return the call of a completion."""
        fields = (completion.tokens, completion.logprobs, completion.mask, completion.allowed, completion.version)
        return cls(tuple(messages), answer, prompt, *fields, is_whole)


@dataclass(eq=False)
class ProgramRun:
    """An episode in progress."""

    spec: Spec
    key: str
    """The API key of the program, which names the episode."""
    record: ChatRecord
    temperature: float = 1.0
    max_calls: int = 50
    instance: Any = None
    """Input of the task instance."""
    calls: list[PolicyCall] = field(default_factory=list)
    requests: int = 0
    """Requests so far, which seed the random numbers."""
    reported: float | None = None
    """The outcome that the program reported."""
    is_open: bool = True
    was_limited: bool = False
    """Whether a request was refused at the limit of model calls."""
    was_outgrown: bool = False
    """Whether a request was refused because the model cannot read a prompt of its length."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the policy answers: an engine answers one request of a session at a time."""

    def keep(self, call: PolicyCall, tools: Sequence[Tool]) -> None:
        """Keep an answer that the program receives."""
        self.record.keep(call.messages, tools, call.answer, (*call.prompt, *call.tokens))
        self.calls.append(call)

    def report(self, outcome: Any) -> None:
        """Take over the outcome that the program reports; the last one counts."""
        self.reported = read_outcome(outcome)


def read_outcome(value: Any) -> float:
    """Return an outcome as a number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the outcome is {value!r:.60}; give a number such as 0, 0.5 or 1.")
    return number


def build_rollout(
    spec: Spec,
    calls: Sequence[PolicyCall],
    outcome: float | None,
    *,
    measure: OutcomeKind,
    failed: str = "",
    error: str = "",
    ending: str = "",
    snapshot: str = "",
) -> Rollout:
    """Return an episode as a rollout whose rows are the tokens that were sampled."""
    if not failed:
        failed = NO_CALLS if not calls else UNGRADED if outcome is None else ""
    task = next((message["text"] for call in calls[:1] for message in call.messages if message["role"] == "user"), "")
    states = [_read_state(task, call, calls[n - 1] if n else None) for n, call in enumerate(calls)]
    steps = [
        Step(
            states[n], _format_action(call.answer), states[min(n + 1, len(states) - 1)],
            Diagnosis(call.is_whole), 0.0, n,
        )
        for n, call in enumerate(calls)
    ]  # fmt: skip
    if steps and not failed and outcome is not None:
        last = steps[-1]
        steps[-1] = Step(last.pre, last.action, last.post, last.diagnosis, outcome, last.t)
    success = None if failed or outcome is None else outcome >= 1
    trajectory = Trajectory(
        spec.task or task,
        tuple(steps),
        success,
        0.0 if failed or outcome is None else outcome,
        spec.arm,
        spec.seed,
        failed or ending or ("success" if success else "done"),
        {"environment": "program", **({"failed": error or failed} if failed else {})},
        spec.session,
    )
    rows = () if failed else tuple(_build_sample(spec, n, call, states[n], snapshot) for n, call in enumerate(calls))
    return Rollout(trajectory, rows, spec.group, failed, measure)


def _build_sample(spec: Spec, turn: int, call: PolicyCall, state: State, snapshot: str) -> Sample:
    fields = (call.prompt, call.tokens, call.logprobs, call.mask, call.allowed)
    anchor = compute_anchor(state.signature, None)
    return Sample(*fields, "policy", call.version, spec.arm, snapshot, anchor, spec.session, turn)


def _read_state(task: str, call: PolicyCall, before: PolicyCall | None) -> State:
    """Return what a call saw: the messages since the answer before it, or the last one."""
    new: Sequence[Message] = call.messages[-1:]
    if before is not None and len(call.messages) > len(before.messages) + 1:
        new = call.messages[len(before.messages) + 1 :]
    return State("\n".join(message["text"] for message in new)[:_SHOWN_CHARS], task=task[:_SHOWN_CHARS])


def _format_action(answer: Message) -> str:
    texts = [call_text(call["name"], call["arguments"]) for call in answer["calls"]]
    return ("; ".join(texts) or answer["text"])[:_SHOWN_CHARS]
