"""The map of an episode: where it has been, what could be done there, and which actions lead where.

The library computes it from recorded steps, and the runtime computes it during an episode. A state without a location
belongs to one nameless place, so an environment without places has no map.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from hardwon.memory.records import State, Step

from .actions import parse_action
from .familiarity import place
from .keys import Situation


@dataclass(frozen=True, slots=True)
class Visit:
    """The last state seen at a location, and its admissible actions."""

    state: State
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """The way to another location."""

    first: str
    """The first action of the way."""
    steps: int
    """Number of actions until the arrival."""


@dataclass(frozen=True, slots=True)
class Trail:
    """What an episode map knows, as a record that can be sent."""

    done: tuple[str, ...] = ()
    visits: tuple[Visit, ...] = ()
    """The last visit at each location."""
    moves: tuple[tuple[str, str, str], ...] = ()
    """(location, action, location that it led to)."""
    tried: tuple[tuple[str, str], ...] = ()
    """(place, action) of the tries in the last states of the visits."""


class EpisodeMap:
    """Visits, moves and tries of one episode, updated step by step."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        """Actions that succeeded in this episode."""
        self.visits: dict[str, Visit] = {}
        """By location, the last visit before the current state."""
        self._moves: dict[tuple[str, str], str] = {}
        self._tried: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, trail: Trail) -> "EpisodeMap":
        """Return the map that a trail was taken of."""
        episode = cls()
        episode.done = set(trail.done)
        episode.visits = {visit.state.location: visit for visit in trail.visits}
        episode._moves = {(start, action): end for start, action, end in trail.moves}
        episode._tried = set(trail.tried)
        return episode

    def trace(self) -> Trail:
        """Return what the map knows; tries in states that were left for good are not needed any more."""
        places = {place(visit.state) for visit in self.visits.values()}
        return Trail(
            tuple(sorted(self.done)),
            tuple(self.visits.values()),
            tuple((start, action, end) for (start, action), end in sorted(self._moves.items())),
            tuple(sorted(pair for pair in self._tried if pair[0] in places)),
        )

    def add(self, step: Step) -> None:
        """Add one step with its admissible actions."""
        self.visits.pop(step.pre.location, None)  # the newest is the last
        self.visits[step.pre.location] = Visit(step.pre, step.admissible)
        self._tried.add((place(step.pre), step.action))
        if step.diagnosis.success:
            self.done.add(step.action)
        if step.post.location != step.pre.location:
            self._moves[step.pre.location, step.action] = step.post.location

    def list_tried(self, state: State) -> set[str]:
        """Return the actions that were taken in exactly this state."""
        where = place(state)
        return {action for start, action in self._tried if start == where}

    def read_version(self, location: str) -> tuple[object, ...]:
        """Return all that the destinations of the actions at a location depend on, to recognize a change."""
        moves = tuple((action, end) for (start, action), end in self._moves.items() if start == location)
        return tuple(self.visits), moves

    def find_destination(self, situation: Situation, action: str) -> str:
        """Return the known location that an action leads to, or "".

        A move of this episode leads where it led before. Otherwise, it is the location that the text names together
        with an argument of the action.
        """
        place_name = situation.state.location
        destination = self._moves.get((place_name, action))
        if destination is not None or not place_name:
            return destination or ""
        slots = parse_action(action).slots
        for name in self.visits if slots else ():
            if name and name != place_name and any(situation.names_together(slot, name) for slot in slots):
                return name
        return ""

    def find_routes(self, start: str, moves: Mapping[str, Mapping[str, str]]) -> dict[str, Route]:
        """Return the shortest way to every location that can be reached."""
        routes: dict[str, Route] = {}
        waiting = deque([(start, "", 0)])
        while waiting:
            place_name, first, steps = waiting.popleft()
            for action, there in moves.get(place_name, {}).items():
                if there != start and there not in routes:
                    routes[there] = Route(first or action, steps + 1)
                    waiting.append((there, first or action, steps + 1))
        return routes
