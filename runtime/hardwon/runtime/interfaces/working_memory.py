"""Working memory: what one episode has tried, where it led, and what it was told.

A fold over the episode's steps, so that a resumed episode rebuilds it exactly. It is dropped when
the episode ends; what should last is in the library.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from hardwon.memory import State, Step
from hardwon.memory.situations.familiarity import Familiarity, location as location, place as place

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
MAX_NOTES = 60
"""Sentences kept from what was told; the oldest go first."""


class WorkingMemory:
    """Tries, visits, transitions, failures and notes of one episode."""

    def __init__(self) -> None:
        self._familiarity = Familiarity()
        self._feedback: set[str] = set()
        self._failed: dict[tuple[str, str], str] = {}
        self._notes: dict[str, None] = {}

    @classmethod
    def of(cls, first: State, steps: Iterable[Step]) -> "WorkingMemory":
        """The working memory after these steps of an episode that began in `first`."""
        working = cls()
        working.begin(first)
        for step in steps:
            working.add(step)
        return working

    def begin(self, state: State) -> None:
        """The episode starts here."""
        self._familiarity.begin(state)

    def add(self, step: Step) -> None:
        """One more step was taken."""
        self._familiarity.add(step)
        if place(step.pre) == place(step.post) and step.diagnosis.success:
            self._note(step.post)
        self._feedback.add(step.post.feedback)

    def fail(self, action: str, context: str, why: str) -> None:
        """Remember that this action failed in this context, so that it is not repeated."""
        self._failed[action, context] = why

    def failed(self, action: str, context: str) -> str | None:
        """Why this action failed in this context before, or None."""
        return self._failed.get((action, context))

    def heard(self, feedback: str) -> bool:
        """Whether the environment gave this answer before."""
        return feedback in self._feedback

    def tries(self, state: State, action: str) -> int:
        """How often the action was taken in exactly this state."""
        return self._familiarity.tries(state, action)

    def counts(self, state: State, action: str) -> str:
        """How familiar the action and the state it leads to are, as part of a key."""
        return self._familiarity.counts(state, action)

    def tries_at(self, state: State, action: str) -> int:
        """Return how often the action was taken at this location, whatever else changed there meanwhile."""
        return self._familiarity.tries_at(state, action)

    def tries_since_gain(self, state: State, action: str) -> int:
        """Return how often the action was taken at this location since the last reward: it led nowhere so far."""
        return self._familiarity.tries_since_gain(state, action)

    def annotate(self, state: State) -> State:
        """The state with what the episode was told before and does not show any more."""
        return replace(state, notes=tuple(self._notes)) if self._notes else state

    def _note(self, state: State) -> None:
        for sentence in map(str.strip, _SENTENCE.split(state.feedback)):
            if sentence and sentence not in state.observation:
                self._notes.setdefault(sentence, None)
        while len(self._notes) > MAX_NOTES:
            del self._notes[next(iter(self._notes))]
