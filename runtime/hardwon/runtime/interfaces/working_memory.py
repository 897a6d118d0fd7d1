"""Working memory: tried actions, their results, and the messages of one episode.

It is computed from the steps of the episode, so that a resumed episode rebuilds it exactly. It is dropped when the
episode ends; the library keeps the durable experience.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from hardwon.memory import State, Step
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.familiarity import Familiarity, location as location, place as place
from hardwon.memory.situations.scripts import FULL_STOPS

from .tuning import TUNING

_SENTENCE = re.compile(rf"(?<=[.!?])\s+|(?<=[{FULL_STOPS}])|\n")


class WorkingMemory:
    """The tries, visits, transitions, failures and notes of one episode."""

    def __init__(self) -> None:
        self._familiarity = Familiarity()
        self.map = EpisodeMap()
        """Where the episode has been, and which actions lead where."""
        self._feedback: set[str] = set()
        self._failed: dict[tuple[str, str], str] = {}
        self._notes: dict[str, None] = {}  # an ordered set

    @classmethod
    def of(cls, first: State, steps: Iterable[Step]) -> "WorkingMemory":
        """Return the working memory of an episode that began in `first` and took these steps."""
        working = cls()
        working.begin(first)
        for step in steps:
            working.add(step)
        return working

    def begin(self, state: State) -> None:
        """Register the first state of the episode."""
        self._familiarity.begin(state)

    def add(self, step: Step) -> None:
        """Register a finished step."""
        self._familiarity.add(step)
        self.map.add(step)
        # A successful action that changed nothing was an inquiry: its answer is the information to keep.
        if place(step.pre) == place(step.post) and step.diagnosis.success:
            self._note(step.post)
        self._feedback.add(step.post.feedback)

    def fail(self, action: str, context: str, why: str) -> None:
        """Remember that an action failed in a context, so that it is not repeated."""
        self._failed[action, context] = why

    def failed(self, action: str, context: str) -> str | None:
        """Return why an action failed in a context before, or None."""
        return self._failed.get((action, context))

    def has_failed(self, action: str) -> bool:
        """Return whether an action failed before, in whatever context."""
        return any(action == name for name, _ in self._failed)

    def heard(self, feedback: str) -> bool:
        """Return whether the environment gave this feedback before."""
        return feedback in self._feedback

    def tries(self, state: State, action: str) -> int:
        """Return how often an action was taken in exactly this state."""
        return self._familiarity.tries(state, action)

    def counts(self, state: State, action: str) -> str:
        """Return how familiar an action and the state it leads to are, as part of a key."""
        return self._familiarity.counts(state, action)

    def tries_at(self, state: State, action: str) -> int:
        """Return how often an action was taken at this location, even if other things there have changed."""
        return self._familiarity.tries_at(state, action)

    def tries_since_gain(self, state: State, action: str) -> int:
        """Return how often an action was taken at this location since the last reward."""
        return self._familiarity.tries_since_gain(state, action)

    def annotate(self, state: State) -> State:
        """Return a state with its own notes, and earlier feedback that the observation no longer shows."""
        return replace(state, notes=tuple(dict.fromkeys((*state.notes, *self._notes)))) if self._notes else state

    def _note(self, state: State) -> None:
        for sentence in map(str.strip, _SENTENCE.split(state.feedback)):
            if sentence and sentence not in state.observation:
                self._notes.setdefault(sentence, None)
        while len(self._notes) > TUNING.max_notes:
            del self._notes[next(iter(self._notes))]
