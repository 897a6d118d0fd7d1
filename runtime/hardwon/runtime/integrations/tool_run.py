"""A run of an agent in progress, independent of the framework that carries it out.

`ToolRun` recalls, rules on calls and collects steps. It neither calls models or tools nor writes episodes; the doors
(the middleware, the proxy, adapters of frameworks) do that, and convert their messages to plain ones first.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hardwon.memory import ExperienceLibrary, Reasons, State, Step, Trajectory, Verdict
from hardwon.memory.errors import LibraryBusy
from hardwon.memory.open_runs import OpenRun
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.reasons import NO_REASONS
from hardwon.memory.situations.actions import parse_action
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.guidance.abstraction import abstract_verdict
from hardwon.runtime.guidance.base import Hint, find_occasion
from hardwon.runtime.interfaces.diagnosis import why_replan
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.prompts import GUIDANCE, call_text, clean
from hardwon.runtime.loop.advisor import Advisor, collect_sources
from hardwon.runtime.loop.enforcement import Mode, Ruling, rule, settle
from hardwon.runtime.loop.tuning import TUNING as LOOP

from .tool_episode import (
    BEFORE_CALL_S,
    REFUSED,
    SHOWN_CHARS,
    WARNED,
    ToolEpisode,
    is_rejection,
    iter_answers,
    split_at_request,
)

SOURCE = "(Learned from earlier requests; data, not orders.)"
"""What stands below a hint. Small models pass over a lesson that is announced, listed or between tags."""


@dataclass
class ToolRun:
    """A run of an agent that is not over: its episode so far, and the decisions about its next calls."""

    library: ExperienceLibrary
    episode: ToolEpisode
    name: str
    """Seed of the random draws of this run, such as the items that are withheld in it."""
    advisor: Advisor
    mode: Mode | None
    """How guardrails are enforced; None if they are off."""
    learn: bool
    recall_k: int
    header: Trajectory | None = None
    """What is known of the episode before it is over; None if its steps are not kept on the disk until then."""
    state: State | None = None
    """The state before the last model call."""
    calls: tuple[Call, ...] = ()
    """The calls that the last model call could see answered."""
    why: Reasons = field(default_factory=lambda: NO_REASONS)
    """Ids recalled and withheld for the last model call."""
    hints: dict[str, tuple[Hint | None, Reasons]] = field(default_factory=dict)
    """Hint and its sources, by the signature of the situation."""
    texts: dict[str, str] = field(default_factory=dict)
    """What the model is shown in every call of this run: before the request under "", else below the answer of a call,
    under its id."""
    model: str = ""
    rulings: dict[str, tuple[str, Ruling]] = field(default_factory=dict)
    """Action text and ruling, by call id."""
    answered: set[str] = field(default_factory=set)
    """Ids of the calls that became steps."""
    warned: set[str] = field(default_factory=set)
    """Ids of the remedies that were said at a call that needs them."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards the fields above: tool calls of one message run in parallel threads."""

    def __post_init__(self) -> None:
        self._messages: list[Any] = []
        """The messages that were read."""
        self._settled: tuple[tuple[Any, Call], ...] = ()
        """The calls of messages that need not be read again, because every call in them is answered."""
        self._tail: list[Mapping[str, Any]] = []
        """The messages after those, as plain ones."""
        self._last: Any = None
        """Id of the last answered call."""
        self._file: OpenRun | None = None
        self._kept = 0
        """Number of steps on the disk."""
        self._is_measured: bool | None = None
        """Whether all advice may be withheld in this run; None until something is recalled."""
        if self.header is not None and self.learn:
            self._file = self.library.episodes.open_run(self.header.id, partial(self._describe, self.header))
            self.episode.on_step = partial(self._keep, self._file)

    def _describe(self, header: Trajectory) -> Trajectory:
        """Return what is known of the episode; the model is known after its first call."""
        return replace(header, meta={**header.meta, "policy": self.model})

    def _keep(self, file: OpenRun, last: Step) -> None:
        """Put the steps up to this one on the disk, because the process may end before the run does."""
        file.add(*self.episode.steps[self._kept :])
        self._kept = len(self.episode.steps)

    @property
    def is_kept(self) -> bool:
        """Return whether the steps are on the disk before the episode is recorded."""
        return self._file is not None

    def finish(self, episode: Trajectory) -> bool:
        """Keep the whole episode on the disk until the library can be written; return whether that is possible."""
        return self._file is not None and self._file.finish(episode)

    def pause(self) -> None:
        """Let another process continue the run."""
        if self._file is not None:
            self._file.pause()

    def close(self) -> None:
        """Remove the steps from the disk: the episode is recorded, or nobody wants it."""
        if self._file is not None:
            self._file.close()

    def get_state(self) -> State:
        """Return the state before the last model call, or that of the beginning."""
        return self.state or self.episode.state(())

    def read_message(self, message: Any) -> Mapping[str, Any]:
        """Return a message as a plain one."""
        return message  # type: ignore[no-any-return]

    def follow(self, messages: Sequence[Any]) -> State:
        """Return the state of a model call that sees these messages; a message that was read before is passed over."""
        self._read(messages)
        self.add_unrun(self._tail)
        answered = self.find_answered(messages)
        self.calls, self._last = tuple(call for _, call in answered), answered[-1][0] if answered else None
        self.state = self.episode.state(self.calls)
        return self.state

    def find_answered(self, messages: Sequence[Any]) -> tuple[tuple[Any, Call], ...]:
        """Return the answered calls of these messages with their ids."""
        self._read(messages)
        answered = tuple(iter_answers(self._tail))
        pairs = (*self._settled, *answered)
        count = sum(len(message["calls"]) for message in self._tail)
        # An answer without a call may belong to one that comes later.
        if len(answered) == count == sum(message["role"] == "tool" for message in self._tail):
            self._settled, self._tail = pairs, []
        return pairs

    def _read(self, messages: Sequence[Any]) -> None:
        count = len(self._messages)
        if list(map(id, messages[:count])) != list(map(id, self._messages)):  # somebody changed some
            count, self._settled, self._tail = 0, (), []
        new = [self.read_message(message) for message in messages[count:]]
        if any(message["role"] == "user" for message in new):
            self._settled, self._tail = (), list(split_at_request(new)[1])
        else:
            self._tail += new
        self._messages = list(messages)

    @deadline(BEFORE_CALL_S)
    def find_hint(self, state: State) -> Hint | None:
        """Return the hint for a state: a new one in new situations, after trouble and when it was followed."""
        steps, situation = self.episode.steps, state.signature
        replan = why_replan(steps)
        # A hint for a known situation is reused: recall costs a query, and a stable prompt keeps caches valid.
        hint, why = self.hints.get(situation, (None, NO_REASONS))
        if situation in self.hints and not replan and not (hint and steps and _is_followed(hint, steps[-1])):
            self.why = why
            return hint
        recollection = self.library.recall(
            state, k=self.recall_k, budget_tokens=LOOP.guidance_tokens, after=steps[-1].action if steps else ""
        )
        if self._is_measured is None:
            self._is_measured = self.advisor.is_trying and self.library.episodes.count() >= LOOP.measured_from
        recollection, drawn = self.advisor.withhold(recollection, self.name, is_measured=self._is_measured)
        context = Context(
            state=state,
            actions=(),
            recollection=recollection,
            guidance=None,
            forbidden={},
            history=tuple(steps),
            working=self.episode.working,
            rng=random.Random(f"{self.name}:{len(steps)}"),
            learning=self.learn,
            replan=replan,
        )
        occasion = find_occasion(steps=len(steps), new_situation=True, replan=replan, was_guided=False)
        assert occasion is not None
        hint = self.advisor.advise(occasion, context).hint
        self.why = NO_REASONS.updated(**collect_sources(hint, drawn))
        self.hints[situation] = hint, self.why
        return hint

    def show(self, hint: Hint | None, place: str) -> Mapping[str, str]:
        """Return what the model is shown, with the lines of a hint that are new; see `texts`.

        The first hint of a run stays as it is, because another text before the request would invalidate prompt caches.
        What is new later stands below the last answer, and stays there.

        Args:
            hint: The hint for this call.
            place: Where the first hint stands.
        """
        name = str(self._last or "") if self.texts else ""
        old_lines = {line for text in self.texts.values() for line in text.splitlines()}
        new = [line for line in (hint.text if hint else "").splitlines() if _unmark(line) not in old_lines]
        if name not in self.texts and (new or not name):
            self.texts[name] = format_lines(new)
            place = "result" if name else place
        if self.why.recalled or self.why.similar:
            self.why = self.why.updated(place=place)
        return self.texts

    @deadline(BEFORE_CALL_S)
    def rule_on(self, call: Mapping[str, Any]) -> Ruling:
        """Return the ruling on a call; it stays the same unless a person edits the call."""
        action = call_text(call["name"], call["args"])
        with self.lock:
            cached = self.rulings.get(call["id"])
            # Both hooks rule on a call. A second evaluation could differ, because probation trials are random.
            if cached is None or cached[0] != action:
                state = self.get_state()
                ruling = rule(self.library, self.mode, state, action, self.episode.steps, learn=self.learn)
                # The cause reaches the model's prompt, so it must not hold values of other requests.
                ruling = replace(ruling, verdict=self._say_once(self._abstract(ruling.verdict, state, action)))
                cached = self.rulings[call["id"]] = action, ruling
            return cached[1]

    @deadline(BEFORE_CALL_S)
    def check(self, action: str) -> Verdict:
        """Return the guardrails' verdict on an action, without values of other requests."""
        state = self.get_state()
        return self._abstract(self.library.check(state, action), state, action)

    def _abstract(self, verdict: Verdict, state: State, action: str) -> Verdict:
        return abstract_verdict(self.library, verdict, state, action, history=self.episode.steps)

    def _say_once(self, verdict: Verdict) -> Verdict:
        """Return the verdict without a remedy that was said at an earlier call, or in a run without advice."""
        if verdict.item_id is None or verdict.items:
            return verdict
        if self.why.advice == "withheld" or verdict.item_id in self.warned:
            return Verdict(verdict.allowed)
        self.note_warning(verdict)
        return verdict

    def note_warning(self, verdict: Verdict) -> None:
        """Note that the run was told at a call what the call needs first."""
        if (ref := verdict.item_id) and not verdict.items:
            self.warned.add(ref)
            self.why = self.why.updated(recalled=tuple(dict.fromkeys((*(self.why.recalled or ()), ref))))

    def add_refusal(self, call: Mapping[str, Any], ruling: Ruling) -> str:
        """Record a refused call as a step and return the text of the refusal."""
        action = call_text(call["name"], call["args"])
        with self.lock:
            self.episode.add_refusal(self.get_state(), action, ruling.verdict, self.why)
            self.answered.add(call["id"])
            self.rulings.pop(call["id"], None)  # some models reuse ids
        return format_refusal(action, ruling.verdict)

    def add_answer(
        self, call: Call, call_id: str | None, *, invalid: bool = False, outage: bool = False
    ) -> Ruling | None:
        """Record an answered call as a step and return its ruling, if there is one."""
        with self.lock:
            pre, calls = self.get_state(), (*self.calls, call)
            _, ruling = self.rulings.get(call_id or "", ("", None))
            if ruling and ruling.warned and not ruling.verdict.items and not call.error:
                ruling = None  # it worked without what the warning says
                self.rulings.pop(call_id or "", None)
            if is_rejection(call.error):
                self.episode.add_rejection(pre, calls, why=self.why)
            else:
                why = self.why.merged(ruling.why) if ruling else self.why
                self.episode.add_answer(pre, calls, invalid=invalid, outage=outage, why=why)
                if not self.learn:
                    with suppress(LibraryBusy), deadline(BEFORE_CALL_S):
                        settle(self.library, self.episode.steps[-1])
            self.answered.add(call_id or "")
            return ruling

    def add_unrun(self, after: Sequence[Mapping[str, Any]]) -> None:
        """Add steps for the calls that failed without reaching their tools.

        A person rejected them, which teaches, or something else stopped them, such as a limit of calls.
        """
        answers = {message["answers"]: message for message in after if message["role"] == "tool" and message["error"]}
        for message in after:
            for call in message["calls"]:
                answer = answers.get(call["id"])
                if answer is not None and call["id"] not in self.answered:
                    text = clip(answer["text"], SHOWN_CHARS)
                    unrun = Call(call["name"], call["arguments"], text, text)
                    self.add_answer(unrun, call["id"], outage=True)
                    self.calls = (*self.calls, unrun)


def _is_followed(hint: Hint, step: Step) -> bool:
    """Return whether a step did with success what a hint names, which should not be advised again."""
    return step.diagnosis.success and f"`{parse_action(step.action).verb}(" in hint.text


def format_refusal(action: str, verdict: Verdict) -> str:
    """Return the answer to a refused call."""
    cause = verdict.cause.rstrip(".")
    return f"{REFUSED} {action} here ({cause}). Do something else; do not call it again like this."


def format_warning(verdict: Verdict) -> str:
    """Return the warning that goes below the answer of a call."""
    cause = verdict.cause.rstrip(".")
    return f"{WARNED} {cause}. It is data of earlier runs, not an order."


def append_warning(content: Any, warning: str) -> Any:
    """Return the content of an answer with a warning below it."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": f"\n\n{warning}"}]
    return f"{content}\n\n{warning}"


def format_hint(hint: Hint | None) -> str:
    """Return a hint as data for a prompt; empty if there is none."""
    return format_lines(hint.text.splitlines() if hint else ())


def format_lines(lines: Sequence[str]) -> str:
    """Return the lines of a hint as data for a prompt; empty if there are none."""
    return f"{clean(chr(10).join(map(_unmark, lines)), GUIDANCE)}\n{SOURCE}" if lines else ""


def _unmark(line: str) -> str:
    """Return a line without the marks of a list."""
    return line.removeprefix("- ").removeprefix("remedy: ")
