"""Familiarity: how often one episode took an action in a state, and what kind of state it led to.

The `counts` part of a step's keys says so. The runtime asks while an episode runs; the library works it out
again from the steps of an episode whose keys it does not believe.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from hardwon.memory.records import State, Step

from .actions import parse_action

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")


@dataclass(slots=True)
class Familiarity:
    """Tries, visits and transitions of one episode: a fold over its steps."""

    _tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tries_at: Counter[tuple[str, str]] = field(default_factory=Counter)
    _since_gain: Counter[tuple[str, str]] = field(default_factory=Counter)
    _paid: set[str] = field(default_factory=set)
    _settled: set[str] = field(default_factory=set)
    _visits: Counter[str] = field(default_factory=Counter)
    _leads_to: dict[tuple[str, str], str] = field(default_factory=dict)

    def begin(self, state: State) -> None:
        """Note the state in which the episode starts."""
        self._visits[place(state)] += 1

    def add(self, step: Step) -> None:
        """Note that one more step was taken."""
        before, after = place(step.pre), place(step.post)
        self._tries[before, step.action] += 1
        self._tries_at[location(step.pre), step.action] += 1
        self._since_gain[location(step.pre), step.action] += 1
        if step.reward > 0:
            self._since_gain.clear()
            self._paid.add(step.action)
            self._settled.update(parse_action(step.action).slots[:1])
        self._visits[after] += 1
        self._leads_to[before, step.action] = after

    def tries(self, state: State, action: str) -> int:
        """Return how often the action was taken in exactly this state."""
        return self._tries[place(state), action]

    def counts(self, state: State, action: str) -> str:
        """Return how familiar the action and the state it leads to are, as part of a key."""
        here = place(state)
        follows = self._leads_to.get((here, action))
        visits = self._visits[follows] if follows is not None else 0
        known = "unknown" if follows is None else "new" if visits == 1 else "seen" if visits < 4 else "stale"
        return f"tried {min(self._tries[here, action], 2)} to {known}{self._paid_before(action)}"

    def tries_at(self, state: State, action: str) -> int:
        """Return how often the action was taken at this location, whatever else changed there meanwhile."""
        return self._tries_at[location(state), action]

    def tries_since_gain(self, state: State, action: str) -> int:
        """Return how often the action was taken at this location since the last reward."""
        return self._since_gain[location(state), action]

    def _paid_before(self, action: str) -> str:
        """Return whether the action brought a reward in this episode already, or deals with a thing that did.

        Part of the key, so that the library learns from returns whether the environment pays twice, and what
        undoing a paid step costs.
        """
        if action in self._paid:
            return " paid"
        slots = parse_action(action).slots if self._settled else ()
        return " settled" if slots and slots[0] in self._settled else ""


def place(state: State) -> str:
    """Return the identity of a state within one episode: everything it shows, nothing it was told."""
    return f"{state.observation}\n{sorted(state.facts.items())}" if state.facts else state.observation


def location(state: State) -> str:
    """Return where a state is, as far as it says: its location, or the first sentence of what it shows."""
    if state.location:
        return state.location
    return _SENTENCE.split(state.observation.strip(), maxsplit=1)[0] or place(state)
