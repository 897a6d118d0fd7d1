"""Familiarity: the number of times an episode took an action in a state, and the kind of state that followed.

It is the `counts` part of a step's keys. The runtime computes it during an episode; the library recomputes it from the
steps of episodes whose keys it does not trust.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hardwon.memory.records import Failure, State, Step, Trajectory

from .actions import parse_action
from .refinements import select_filed
from .scripts import FULL_STOPS

_SENTENCE = re.compile(rf"(?<=[.!?])\s+|(?<=[{FULL_STOPS}])|\n")


@dataclass(slots=True)
class Familiarity:
    """Tries, visits and transitions of one episode, updated step by step."""

    _tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tries_at: Counter[tuple[str, str]] = field(default_factory=Counter)
    _since_gain: Counter[tuple[str, str]] = field(default_factory=Counter)
    _paid: set[str] = field(default_factory=set)
    _settled: set[str] = field(default_factory=set)
    _visits: Counter[str] = field(default_factory=Counter)
    _leads_to: dict[tuple[str, str], str] = field(default_factory=dict)
    _last: tuple[State | None, str, str] = field(default=(None, "", ""), compare=False)
    """A state with its place and location: all actions of a state are looked up one after the other."""

    def begin(self, state: State) -> None:
        """Add the state in which the episode starts."""
        self._visits[place(state)] += 1

    def add(self, step: Step) -> None:
        """Add one step."""
        (before, at), after = self._identify(step.pre), place(step.post)
        self._tries[before, step.action] += 1
        self._tries_at[at, step.action] += 1
        self._since_gain[at, step.action] += 1
        if step.reward > 0:
            # after the increment: the try that earned the reward is not one without gain
            self._since_gain.clear()
            self._paid.add(step.action)
            self._settled.update(parse_action(step.action).slots[:1])
        self._visits[after] += 1
        self._leads_to[before, step.action] = after

    def tries(self, state: State, action: str) -> int:
        """Return the number of times the action was taken in exactly this state."""
        return self._tries.get((self._identify(state)[0], action), 0)

    def counts(self, state: State, action: str) -> str:
        """Return the familiarity of an action and of the state it leads to, as a part of a key."""
        current = self._identify(state)[0]
        follows = self._leads_to.get((current, action))
        visits = self._visits[follows] if follows is not None else 0
        novelty = "unknown" if follows is None else "new" if visits == 1 else "seen" if visits < 4 else "stale"
        # tries are capped at 2, so that keys of long episodes do not all differ
        return f"tried {min(self._tries[current, action], 2)} to {novelty}{self._paid_before(action)}"

    def tries_at(self, state: State, action: str) -> int:
        """Return the number of times the action was taken at this location, in any state of it."""
        return self._tries_at.get((self._identify(state)[1], action), 0)

    def tries_since_gain(self, state: State, action: str) -> int:
        """Return the number of times the action was taken at this location since the last reward."""
        return self._since_gain.get((self._identify(state)[1], action), 0)

    def _identify(self, state: State) -> tuple[str, str]:
        """Return the place and the location of a state."""
        last, where, name = self._last
        if last is not state:
            where, name = place(state), location(state)
            self._last = state, where, name
        return where, name

    def _paid_before(self, action: str) -> str:
        """Return " paid" if the action was rewarded in this episode, " settled" if its object was, and otherwise "".

        As part of the key, it lets the library learn whether the environment rewards an action twice, and the cost of
        undoing a rewarded step.
        """
        if action in self._paid:
            return " paid"
        slots = parse_action(action).slots if self._settled else ()
        return " settled" if slots and slots[0] in self._settled else ""


KeyFunction = Callable[[State, str, str], tuple[str, ...]]
"""Returns the keys of an action in a state, given what the episode already tried."""


def with_keys(trajectory: Trajectory, keys: KeyFunction) -> Trajectory:
    """Return the episode with keys for the steps that have none.

    The runtime sets keys on its steps; code that builds steps by hand need not. A step without keys is used for neither
    values nor guardrails.
    """
    familiar = Familiarity()
    steps: list[Step] = []
    for step in trajectory.steps:
        if not steps:
            familiar.begin(step.pre)
        if _lacks_keys(step):
            filed = keys(step.pre, step.action, familiar.counts(step.pre, step.action))
            step = replace(step, keys=select_filed(filed, step.why))
        familiar.add(step)
        steps.append(step)
    return replace(trajectory, steps=tuple(steps))


def has_keys(trajectory: Trajectory) -> bool:
    """Return whether every executed step has keys."""
    return not any(map(_lacks_keys, trajectory.steps))


def _lacks_keys(step: Step) -> bool:
    """Return whether a step has no keys although its action was executed; a blocked action never ran."""
    return not step.keys and bool(step.action) and step.diagnosis.failure is not Failure.BLOCKED


def place(state: State) -> str:
    """Return the identity of a state within one episode: observation and facts, without the notes."""
    # sorted by name, because environments may list facts in any order
    return f"{state.observation}\n{sorted(state.facts.items())}" if state.facts else state.observation


def location(state: State) -> str:
    """Return the location of a state, or the first sentence of its observation."""
    if state.location:
        return state.location
    return _SENTENCE.split(state.observation.strip(), maxsplit=1)[0] or place(state)
