"""Provide the worlds of the coin experiment: random walks that find the coin, and routes as text.

In TextWorldExpress coin, a coin lies in one of six rooms, and an episode has ten moves to take it. Nothing in this
module learns or reads the map: a route contains only what a walk saw.
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
"""Maximum moves of an episode."""
DEMOS = [("train", seed) for seed in range(250)]
"""Worlds of the walks to imitate."""
WORLDS = [("train", seed) for seed in range(300, 700)]
"""Training worlds of the extractor and of the policy."""
TUNING = [("train", seed) for seed in range(900, 950)]
"""Worlds for tuning; never reported."""
HELD_OUT = [("dev", seed) for seed in range(300, 360)]
"""Held-out worlds, used for the reported results."""
KEPT_IN = [("dev", seed) for seed in range(400, 460)]
"""Held-out worlds of stages B and C, whose settings were changed after seeing results on HELD_OUT."""
ACTED_IN = [*(("dev", seed) for seed in range(200, 260)), *HELD_OUT]
"""Held-out worlds of stage A. An earlier extractor was evaluated on the first sixty, so only stage A uses these."""
WALK = 200
"""Maximum moves of a random walk."""
PATIENCE = 20
"""Moves before an exploring walk may take the coin, so that it sees more than the route to it."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_EMPTY = re.compile(r"[^.\n]*(?:is closed|nothing (?:on|in) it)\.[ ]*|\s*Inventory \(.*\Z", re.DOTALL)

World = tuple[str, int]
"""Split and seed."""
Texts = Mapping[World, str | None]
"""The text that is shown in each world, or None."""


Move = tuple[State, float, bool, Info]
"""State, reward, whether the episode is over, and information from the environment."""
_MOVES: dict[tuple[World, str, str], tuple[Move, list[str]]] = {}
"""Cache: (world, observation, action) to the move and the admissible actions after it."""


class Coin:
    """The coin game with a cache: each action runs in the real game only once per room and world.

    Without doors, the state of a world is only the position of the player, so the cache changes no episode. It saves
    calls to the Java process. Observations omit empty furniture and the inventory, which leaves a quarter of the text.
    """

    name = "textworld/coin"
    keeps_time = True

    def __init__(self) -> None:
        self._game = TextWorldExpress(*GAME)
        self._world: World = ("", 0)
        self._actions: list[str] = []
        self._seen, self._possible = "", list[str]()

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Start an episode."""
        self._world, self._actions, self._seen = (task, seed), [], ""
        return self._advance("")[0]

    def step(self, action: str) -> Move:
        """Run an action; only a move that is not cached reaches the real game."""
        return self._advance(action)

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions."""
        return self._possible

    def clone(self) -> "Coin":
        """Return a new game; all games share one cache."""
        return Coin()

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def _advance(self, action: str) -> Move:
        key = (self._world, self._seen, action)
        if key not in _MOVES:
            _MOVES[key] = self._replay(action)
        move, self._possible = _MOVES[key]
        self._seen = move[0].observation
        self._actions.append(action)
        return move

    def _replay(self, action: str) -> tuple[Move, list[str]]:
        """Replay the episode in the real game, run the action, and return the move and the admissible actions."""
        move: Move = (self._game.reset(*self._world), 0.0, False, Info())
        for earlier in [*self._actions, action][1:]:
            move = self._game.step(earlier)
        state, *rest = move
        brief = replace(state, observation=_EMPTY.sub(" ", state.observation).strip(), feedback="")
        return (brief, *rest), self._game.admissible(state)  # type: ignore[return-value]


def open_game() -> Coin:
    """Create the game of all experiments."""
    return Coin()


def walk(
    game: Coin, world: World, chance: random.Random, *, patience: int = 0, trusts: Trajectory | None = None
) -> Trajectory:
    """Return a random walk that takes the coin when it can, but not before `patience` moves.

    Args:
        game: The game.
        world: Split and seed.
        chance: Source of randomness.
        patience: Minimum number of moves before the coin is taken.
        trusts: A walk of another world. Its moves are repeated, if possible, in rooms that are entered for the first
            time.
    """
    directions = {step.pre.location: step.action for step in without_circles(trusts.steps)} if trusts else {}
    steps: list[Step] = []
    state, over, success = game.reset(*world), False, False
    while not over and len(steps) < WALK:
        possible = game.admissible(state)
        action = directions.pop(state.location, "")  # each room at most once, else the walk could go in circles
        if action not in possible:
            action = chance.choice([option for option in possible if option.startswith("move")])
        if "take coin" in possible and len(steps) >= patience:
            action = "take coin"
        after, reward, over, info = game.step(action)
        steps.append(Step(state, action, after, Diagnosis(True), reward, t=len(steps), id=len(steps)))
        state, success = after, bool(info.get("success"))
    return Trajectory(steps[0].pre.task, tuple(steps), success, id=f"{world}/{patience}")


def collect_walks(worlds: Iterable[World], *, patience: int = 0, seed: int = 0) -> dict[World, Trajectory]:
    """Return the walks that found the coin, at most one per world.

    Args:
        worlds: Splits and seeds.
        patience: Minimum number of moves before the coin is taken.
        seed: Seed of the walks.
    """
    game = open_game()
    trajectories = {
        world: walk(game, world, random.Random(f"{seed} {world} {patience}"), patience=patience) for world in worlds
    }
    game.close()
    return {world: trajectory for world, trajectory in trajectories.items() if trajectory.success}


def collect_misled_walks(
    walks: Mapping[World, Trajectory], times: int, seed: int = 0
) -> list[tuple[Trajectory, Trajectory]]:
    """Return pairs of a successful walk and the walk of another world that it followed at first.

    Args:
        walks: Successful walks by world.
        times: Attempts per world.
        seed: Seed of the walks.
    """
    game, chance, pairs = open_game(), random.Random(f"{seed} misled"), []
    for number in range(times):
        for world in walks:
            other = walks[chance.choice([candidate for candidate in walks if candidate != world])]
            trajectory = walk(game, world, chance, trusts=other)
            if trajectory.success:
                pairs.append((replace(trajectory, id=f"{trajectory.id} misled {number}"), other))
    game.close()
    return pairs


# -- routes as text -------------------------------------------------------------------------------


def format_way(trajectory: Trajectory) -> str:
    """Return the route to the coin.

    Example: `kitchen : move east . living room : take coin .`
    """
    return format_path(without_circles(trajectory.steps))


def format_way_without_take(trajectory: Trajectory) -> str:
    """Return the route to the coin's room, without the action that takes the coin."""
    return format_path(without_circles(trajectory.steps)[:-1])


def format_either_way(trajectory: Trajectory) -> str:
    """Return one of both forms, chosen by the walk's id, so that a policy learns to read both."""
    return (format_way, format_way_without_take)[zlib.crc32(trajectory.id.encode()) % 2](trajectory)


def format_wrong_way(trajectory: Trajectory, chance: random.Random) -> str:
    """Return the route with each move in a wrong direction."""

    def change_direction(step: Step) -> Step:
        right = step.action.split()[-1]
        return replace(step, action=f"move {chance.choice([direction for direction in BACK if direction != right])}")

    path = without_circles(trajectory.steps)
    return format_path([change_direction(step) if step.action.startswith("move") else step for step in path])


def build_conditions(looks: Mapping[World, Trajectory], worlds: Sequence[World]) -> dict[str, Texts]:
    """Return the texts of stage A by condition: the right route, that of another world, and a wrong one."""
    available = [world for world in worlds if world in looks]
    return {
        "right": {world: format_way(looks[world]) for world in available},
        "another": {world: format_way(looks[available[(n + 7) % len(available)]]) for n, world in enumerate(available)},
        "wrong": {world: format_wrong_way(looks[world], random.Random(f"{world}")) for world in available},
    }


# -- candidates of an extractor -------------------------------------------------------------------


def select_usable(looks: Mapping[World, Trajectory], worlds: Sequence[World]) -> list[World]:
    """Return the worlds whose coin is not in the first room, so that there is a route to keep."""
    return [w for w in worlds if w in looks and looks[w].steps[-1].pre.location != looks[w].steps[0].pre.location]


def list_offers(trajectory: Trajectory) -> list[str]:
    """Return the route to each room that a walk visited."""
    return [candidate.text for candidate in ways(trajectory)]


def find_best(trajectory: Trajectory) -> Candidate:
    """Return the candidate that leads to the coin's room."""
    room = trajectory.steps[-1].pre.location
    return next(candidate for candidate in ways(trajectory) if candidate.seen.location == room)
