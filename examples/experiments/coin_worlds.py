"""The worlds of the proof on coin: random walks that find the coin, and what can be said of a walk.

TextWorldExpress' coin: a coin lies in one of six rooms, and ten moves are given to take it. Nothing
here learns, and nothing knows the map: what is said of a world is what a walk saw of it.
"""

import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers.roles.note_generators import Candidate, format_path, ways

GAME = ("coin", "numLocations=6, includeDoors=0, numDistractorItems=0")
LIMIT = 10
"""Moves of an episode."""
DEMOS = [("train", seed) for seed in range(250)]
"""Worlds whose walks are imitated."""
WORLDS = [("train", seed) for seed in range(300, 700)]
"""Worlds in which the extractor learns, and the policy beside it."""
TUNING = [("train", seed) for seed in range(900, 950)]
"""Worlds on which settings were chosen; none of them is reported."""
HELD_OUT = [("dev", seed) for seed in range(300, 360)]
"""Worlds that are reported."""
KEPT_IN = [("dev", seed) for seed in range(400, 460)]
"""Those of stages B and C, whose settings were chosen anew after a look at the others."""
ACTED_IN = [*(("dev", seed) for seed in range(200, 260)), *HELD_OUT]
"""Those of stage A. In the first sixty an extractor was looked at that was changed after that: they are A's alone."""
WALK = 200
"""Moves after which a random walk gives up."""
PATIENCE = 20
"""Moves for which an exploring walk leaves the coin where it is, so that it sees more than the way there."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_EMPTY = re.compile(r"[^.\n]*(?:is closed|nothing (?:on|in) it)\.[ ]*|\s*Inventory \(.*\Z", re.DOTALL)

World = tuple[str, int]
"""Fold and seed."""
Texts = Mapping[World, str | None]
"""What is shown in each world; None for nothing."""


Move = tuple[State, float, bool, Info]
"""What came of an action."""
_KNOWN: dict[tuple[World, str, str], tuple[Move, list[str]]] = {}
"""By world, what was seen and the action: what came of it, and what could be done then."""


class Coin:
    """The game, in which every action is taken once in every room of a world and known from then on.

    Without doors a world is nothing but where one stands in it, so this changes no episode; the Java process
    is spared. Observations are without furniture that holds nothing and without the inventory: a quarter of them.
    """

    name = "textworld/coin"
    keeps_time = True

    def __init__(self) -> None:
        self._game = TextWorldExpress(*GAME)
        self._world: World = ("", 0)
        self._actions: list[str] = []
        self._seen, self._possible = "", list[str]()

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin a world."""
        self._world, self._actions, self._seen = (task, seed), [], ""
        return self._come_to("")[0]

    def step(self, action: str) -> Move:
        """Act, in the game where nobody did so here before."""
        return self._come_to(action)

    def admissible(self, state: State) -> list[str]:
        """What can be done now."""
        return self._possible

    def clone(self) -> "Coin":
        """Another one, that knows as much."""
        return Coin()

    def close(self) -> None:
        """Free the game."""
        self._game.close()

    def _come_to(self, action: str) -> Move:
        here = (self._world, self._seen, action)
        if here not in _KNOWN:
            _KNOWN[here] = self._played(action)
        move, self._possible = _KNOWN[here]
        self._seen = move[0].observation
        self._actions.append(action)
        return move

    def _played(self, action: str) -> tuple[Move, list[str]]:
        """The episode so far, and this action, in the game."""
        move: Move = (self._game.reset(*self._world), 0.0, False, Info())
        for one in [*self._actions, action][1:]:
            move = self._game.step(one)
        state, *rest = move
        brief = replace(state, observation=_EMPTY.sub(" ", state.observation).strip(), feedback="")
        return (brief, *rest), self._game.admissible(state)  # type: ignore[return-value]


def open_game() -> Coin:
    """The game that everything is played in."""
    return Coin()


def walk(
    game: Coin, world: World, chance: random.Random, *, patience: int = 0, trusts: Trajectory | None = None
) -> Trajectory:
    """A random walk that takes the coin once its patience is over.

    `trusts`: in a room that it comes to for the first time it goes where that walk went, if it can.
    """
    directions = {step.pre.location: step.action for step in without_circles(trusts.steps)} if trusts else {}
    steps: list[Step] = []
    state, over, success = game.reset(*world), False, False
    while not over and len(steps) < WALK:
        possible = game.admissible(state)
        action = directions.pop(state.location, "")
        if action not in possible:
            action = chance.choice([one for one in possible if one.startswith("move")])
        if "take coin" in possible and len(steps) >= patience:
            action = "take coin"
        after, reward, over, info = game.step(action)
        steps.append(Step(state, action, after, Diagnosis(True), reward, t=len(steps), id=len(steps)))
        state, success = after, bool(info.get("success"))
    return Trajectory(steps[0].pre.task, tuple(steps), success, id=f"{world}/{patience}")


def walks(worlds: Iterable[World], *, patience: int = 0, seed: int = 0) -> dict[World, Trajectory]:
    """The walks that found the coin, one a world."""
    game = open_game()
    made = {
        world: walk(game, world, random.Random(f"{seed} {world} {patience}"), patience=patience) for world in worlds
    }
    game.close()
    return {world: trajectory for world, trajectory in made.items() if trajectory.success}


def misled(found: Mapping[World, Trajectory], times: int, seed: int = 0) -> list[tuple[Trajectory, Trajectory]]:
    """For each walk others of its world that trusted another world's, and found the coin; each with that one."""
    game, chance, made = open_game(), random.Random(f"{seed} misled"), []
    for number in range(times):
        for world in found:
            other = found[chance.choice([one for one in found if one != world])]
            trajectory = walk(game, world, chance, trusts=other)
            if trajectory.success:
                made.append((replace(trajectory, id=f"{trajectory.id} misled {number}"), other))
    game.close()
    return made


# -- what is said of a walk -----------------------------------------------------------------------


def way(trajectory: Trajectory) -> str:
    """The way to the coin: `kitchen : move east . living room : take coin .`"""
    return format_path(without_circles(trajectory.steps))


def way_there(trajectory: Trajectory) -> str:
    """The way to where the coin is, without taking it."""
    return format_path(without_circles(trajectory.steps)[:-1])


def either_way(trajectory: Trajectory) -> str:
    """One of the two, by the walk's name: a policy learns to read both."""
    return (way, way_there)[zlib.crc32(trajectory.id.encode()) % 2](trajectory)


def astray(trajectory: Trajectory, chance: random.Random) -> str:
    """The way with every move in another direction."""

    def turned(step: Step) -> Step:
        right = step.action.split()[-1]
        return replace(step, action=f"move {chance.choice([one for one in BACK if one != right])}")

    path = without_circles(trajectory.steps)
    return format_path([turned(step) if step.action.startswith("move") else step for step in path])


def four(looks: Mapping[World, Trajectory], worlds: Sequence[World]) -> dict[str, Texts]:
    """What stage A shows beside nothing: the right way, another world's, a wrong one."""
    known = [world for world in worlds if world in looks]
    return {
        "right": {world: way(looks[world]) for world in known},
        "another": {world: way(looks[known[(n + 7) % len(known)]]) for n, world in enumerate(known)},
        "wrong": {world: astray(looks[world], random.Random(f"{world}")) for world in known},
    }


# -- what an extractor is offered -----------------------------------------------------------------


def usable(looks: Mapping[World, Trajectory], worlds: Sequence[World]) -> list[World]:
    """Worlds whose coin is not where the walk began: there, there is a way to keep."""
    return [w for w in worlds if w in looks and looks[w].steps[-1].pre.location != looks[w].steps[0].pre.location]


def offered(trajectory: Trajectory) -> list[str]:
    """The way to each room that a walk came to."""
    return [one.text for one in ways(trajectory)]


def best(trajectory: Trajectory) -> Candidate:
    """The way to the room of the coin, with that room."""
    room = trajectory.steps[-1].pre.location
    return next(one for one in ways(trajectory) if one.seen.location == room)
