"""Shared exploration in TextWorldExpress: teams look for the coin in a house of many rooms.

Each team is in a house of its own, all alike, so that what one has seen in a room holds for the others.
A `Scout` keeps a map by rule, asks for the rooms that others found and it does not know, and
goes to the nearest one that nobody has seen.
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
    """Rooms, what is behind their exits, and where the coin is."""

    def __init__(self) -> None:
        self.exits: dict[str, dict[str, str | None]] = {}
        """By room, direction and room; None for what is behind a closed door."""
        self.seen: set[str] = set()
        """Rooms whose description is known."""
        self.coin: str | None = None

    def saw(self, observation: str) -> str | None:
        """Take what stands in the description of a room; the room's name."""
        here = _HERE.search(observation)
        if here is None:
            return None
        exits = self.exits.setdefault(here[1], {})
        self.seen.add(here[1])
        for direction, room in _EXIT.findall(observation):
            exits[direction.lower()] = room or exits.get(direction.lower())
        if re.search(r"\bcoin\b", observation.partition("Inventory")[0]):
            self.coin = here[1]
        return here[1]

    def lacks(self, room: str, direction: str) -> bool:
        """Whether there is news in what another team saw when it went from a room in a direction."""
        return self.exits.get(room, {}).get(direction) not in self.seen

    def leads(self, room: str, direction: str, value: str) -> None:
        """What another team saw when it went there."""
        self.exits.setdefault(room, {})[direction] = self.saw(value)

    def first_step(self, here: str, chance: random.Random) -> str | None:
        """The direction to the coin, else to the nearest room or door that nobody has looked at."""
        reached, ways = {here}, [(here, "")]
        while ways:
            chance.shuffle(ways)
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
    """Looks for the coin; `seed` breaks its ties."""

    name = "scout"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def decide(self, context: Context) -> Decision:
        """A pull where others know more, else the way to go."""
        own = [action for action in context.actions if not action.startswith("pull ")]
        found = self.map_of(context.state, context.history, context.guidance or "")
        if "take coin" in own:
            return Decision("take coin")
        for action in context.actions:
            offer = _OFFER.match(action)
            if offer and found.lacks(offer[2], offer[3]):
                return Decision(action)
        chance = random.Random(f"{self._seed} {context.state.location} {len(context.history)}")
        direction = found.first_step(context.state.location, chance)
        ways = [way for way in (f"move {direction}", f"open door to {direction}") if way in own]
        if not ways:
            return Decision(chance.choice(own))
        shut = re.search(rf"to the {direction} you see a closed", context.state.observation, re.I)
        return Decision(ways[-1] if shut else ways[0])

    async def adecide(self, context: Context) -> Decision:
        """The same; nothing is awaited."""
        return self.decide(context)

    @staticmethod
    def map_of(state: State, history: Sequence[Step], pulled: str) -> Map:
        """What this team has seen, and what it was told of by others."""
        found = Map()
        for observation in _seen(state, history):
            found.saw(observation)
        for room, direction, value in _PULLED.findall(pulled):
            found.leads(room, direction, value)
        return found


def _seen(state: State, history: Sequence[Step]) -> Iterable[str]:
    yield from (step.pre.observation for step in history)
    yield state.observation
