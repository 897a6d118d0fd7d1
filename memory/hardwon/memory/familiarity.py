"""Familiarity: how often one episode took an action in a state, and what kind of state it led to.

The `counts` part of a step's keys says so. The runtime asks while an episode runs; the library works it out
again from the steps of an episode whose keys it does not believe.
"""

from collections import Counter
from dataclasses import dataclass, field

from .records import State, Step


@dataclass(slots=True)
class Familiarity:
    """Tries, visits and transitions of one episode: a fold over its steps."""

    _tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    _visits: Counter[str] = field(default_factory=Counter)
    _leads_to: dict[tuple[str, str], str] = field(default_factory=dict)

    def begin(self, state: State) -> None:
        """Note the state in which the episode starts."""
        self._visits[place(state)] += 1

    def add(self, step: Step) -> None:
        """Note that one more step was taken."""
        before, after = place(step.pre), place(step.post)
        self._tries[before, step.action] += 1
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
        return f"tried {min(self._tries[here, action], 2)} to {known}"


def place(state: State) -> str:
    """Return the identity of a state within one episode: everything it shows, nothing it was told."""
    return f"{state.observation}\n{sorted(state.facts.items())}" if state.facts else state.observation
