"""Steps as lines of a file, each with only what is new in it, and without secrets.

A state shows the calls before it again, and a step has most texts twice. Each text is written once and has a number
from then on, so a line costs as much as its own call.

    [first number, new texts, state before, action, state after, diagnosis, reward, reasons, actions]

The state before is null if it is the state after the step before. Keys are not written: they are computed when the
episode is recorded.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

from hardwon.memory.privacy.redaction import redact_step
from hardwon.memory.records import Diagnosis, Failure, State, Step
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.upkeep.write_buffer import BROKEN

_BETWEEN = "\n\n> "
"""Stands between the calls that a state shows."""
_SEEN = attrgetter("observation", "facts", "location", "task", "feedback", "notes")
"""Returns what a state consists of; its signature follows from it."""


class StepWriter:
    """Writes the lines of one file."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._post: State | None = None
        self._clean: State | None = None
        """The state after the last step without secrets; the next step begins with it."""

    def encode(self, step: Step) -> str:
        """Return the line of a step."""
        before, self._post = self._post, step.post
        follows = before is not None and (before is step.pre or _SEEN(before) == _SEEN(step.pre))
        # The next recall and the recording of the episode read the same texts, and find them in the cache.
        clean = redact_step(step, self._clean if before is step.pre else None)
        self._clean = clean.post
        if clean is step:
            line = _Line(self._numbers, len(self._numbers))
            text = line.encode(step, follows)
            self._numbers |= line.new
            return text
        # Its texts are not referred to later, because what is a secret depends on the words around it.
        return _Line({}, len(self._numbers)).encode(clean, follows)

    def start_over(self) -> None:
        """Write the next line without reference to earlier ones, because they may not be in the file."""
        self._numbers, self._post, self._clean = {}, None, None


class _Line:
    """A line that is being written."""

    def __init__(self, numbers: dict[str, int], first: int) -> None:
        self._numbers, self._first = numbers, first
        self.new: dict[str, int] = {}
        """The texts that no earlier line has, with their numbers."""

    def encode(self, step: Step, follows: bool) -> str:
        """Return the line of a step, without the state before it if that follows from the step before."""
        diagnosis, other = step.diagnosis, dict(step.diagnosis.diff)
        pre = None if follows else self._encode_state(step.pre)
        action, post = self._number(step.action), self._encode_state(step.post)
        texts = {name: self._number(other.pop(name)) for name in [*other] if isinstance(other[name], str)}
        checks = [bool(diagnosis.success), diagnosis.failure, float(diagnosis.progress), bool(diagnosis.stagnant)]
        assessment = [*checks, bool(diagnosis.loop), other, texts, self._number(diagnosis.evidence)]
        why, actions = step.why.to_dict(with_trajectory=False), [*map(self._number, step.admissible)]
        return dumps([self._first, [*self.new], pre, action, post, assessment, float(step.reward), why, actions])

    def _encode_state(self, state: State) -> list[Any]:
        parts = [[*map(self._number, part.split("\n", 1))] for part in state.observation.split(_BETWEEN)]
        texts = map(self._number, (state.location, state.task, state.feedback))
        return [parts, dict(state.facts), *texts, [*map(self._number, state.notes)], state.signature_if_known]

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        return self.new.setdefault(text, self._first + len(self.new)) if number is None else number


def read_steps(lines: Iterable[str]) -> Iterator[Step]:
    """Yield the steps of lines; a line that was cut by a kill is skipped."""
    texts: list[str] = []
    post: State | None = None
    t = 0
    for line in filter(None, lines):
        with suppress(*BROKEN):
            first, new, *values = json.loads(line)
            if first > len(texts):
                raise ValueError(f"the line of step {t} refers to one that is missing")
            texts[first:] = new
            step = replace(_decode(values, texts, post), t=t)
            post, t = step.post, t + 1
            yield step


def _decode(values: list[Any], texts: list[str], before: State | None) -> Step:
    pre, action, post, assessment, reward, why, actions = values
    success, failure, progress, stagnant, loop, diff, changed, evidence = assessment
    state = before if pre is None else _decode_state(pre, texts)
    if state is None:
        raise ValueError("the step before is missing")
    diff |= {name: texts[number] for name, number in changed.items()}
    diagnosis = Diagnosis(success, Failure(failure), progress, stagnant, loop, diff, texts[evidence])
    admissible = tuple(texts[number] for number in actions)
    return Step(state, texts[action], _decode_state(post, texts), diagnosis, reward, why=why, admissible=admissible)


def _decode_state(values: list[Any], texts: list[str]) -> State:
    parts, facts, location, task, feedback, notes, signature = values
    observation = _BETWEEN.join("\n".join(texts[number] for number in part) for part in parts)
    seen = texts[location], texts[task], texts[feedback]
    return State(observation, facts, *seen, tuple(texts[number] for number in notes), signature)
