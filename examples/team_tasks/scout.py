"""Define a policy for shared exploration in TextWorldExpress: teams look for the coin in a house of many rooms.

Every team has its own copy of the same house, so an observation of one team is valid for all. A `Scout` keeps a map,
pulls the rooms that others saw and it did not, and then walks to the nearest unseen room.
"""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from hardwon.memory import State, Step
from hardwon.runtime.interfaces.types import Context, Decision

_HERE = re.compile(r"You are in the ([^.]+)\.")
_EXIT = re.compile(r"to the (north|south|east|west) you see (?:the ([^.]+)|a closed )", re.I)
_OFFER = re.compile(r"pull (\d+): ([^:]+): move (\w+) ->")
_PULLED = re.compile(r"^\[\d+\] ([^:\n]+): move (\w+) -> (.*?)(?=^\[\d+\] |\Z)", re.M | re.S)


class Map:
    """The rooms, their exits, and the room of the coin."""

    def __init__(self) -> None:
        self.exits: dict[str, dict[str, str | None]] = {}
        """Per room: direction to adjacent room, or None for an unknown room behind a closed door."""
        self.seen: set[str] = set()
        """Rooms whose description was read."""
        self.coin: str | None = None

    def add_room(self, observation: str) -> str | None:
        """Add a room from its description and return its name, or None if the text describes no room."""
        match = _HERE.search(observation)
        if match is None:
            return None
        exits = self.exits.setdefault(match[1], {})
        self.seen.add(match[1])
        for direction, room in _EXIT.findall(observation):
            exits[direction.lower()] = room or exits.get(direction.lower())
        # A coin in the inventory says nothing about the room.
        if re.search(r"\bcoin\b", observation.partition("Inventory")[0]):
            self.coin = match[1]
        return match[1]

    def is_unseen(self, room: str, direction: str) -> bool:
        """Return whether the room behind this exit has not been seen."""
        return self.exits.get(room, {}).get(direction) not in self.seen

    def add_exit(self, room: str, direction: str, value: str) -> None:
        """Add the observation of another team.

        Args:
            room: The room that the other team left.
            direction: The direction it went.
            value: The observation after the move.
        """
        self.exits.setdefault(room, {})[direction] = self.add_room(value)

    def find_direction(self, start: str, chance: random.Random) -> str | None:
        """Return the first direction of a shortest path to the coin, or None if there is no such path.

        While the coin's room is unknown, the goal is the nearest unseen room or closed door. Breadth-first search.
        """
        reached, ways = {start}, [(start, "")]
        while ways:
            chance.shuffle(ways)  # break ties at random, so that teams spread out
            following: list[tuple[str, str]] = []
            for room, first in ways:
                if first and (room == self.coin or (self.coin is None and room not in self.seen)):
                    return first
            for room, first in ways:
                for direction, behind in self.exits.get(room, {}).items():
                    if behind is None and self.coin is None:
                        return first or direction
                    if behind is not None and behind not in reached:
                        reached.add(behind)
                        following.append((behind, first or direction))
            ways = following
        return None


class Scout:
    """A rule-based policy that looks for the coin; `seed` breaks ties."""

    name = "scout"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def decide(self, context: Context) -> Decision:
        """Pull an observation that is new for this team, or else move toward the coin or an unseen room."""
        own = [action for action in context.actions if not action.startswith("pull ")]
        known_map = self.build_map(context.state, context.history, context.guidance or "")
        if "take coin" in own:
            return Decision("take coin")
        for action in context.actions:
            offer = _OFFER.match(action)
            if offer and known_map.is_unseen(offer[2], offer[3]):
                return Decision(action)
        # Seeded by place and step: a replayed episode takes the same decisions.
        chance = random.Random(f"{self._seed} {context.state.location} {len(context.history)}")
        direction = known_map.find_direction(context.state.location, chance)
        ways = [way for way in (f"move {direction}", f"open door to {direction}") if way in own]
        if not ways:
            return Decision(chance.choice(own))
        is_shut = re.search(rf"to the {direction} you see a closed", context.state.observation, re.I)
        return Decision(ways[-1] if is_shut else ways[0])

    async def adecide(self, context: Context) -> Decision:
        """Return `decide(context)`; nothing is awaited."""
        return self.decide(context)

    @staticmethod
    def build_map(state: State, history: Sequence[Step], pulled: str) -> Map:
        """Build the map from the team's own observations and the pulled ones."""
        known_map = Map()
        for observation in _list_observations(state, history):
            known_map.add_room(observation)
        for room, direction, value in _PULLED.findall(pulled):
            known_map.add_exit(room, direction, value)
        return known_map


def _list_observations(state: State, history: Sequence[Step]) -> Iterable[str]:
    yield from (step.pre.observation for step in history)
    yield state.observation
