"""BabyAI: a grid world of rooms, doors, keys and things to go to, told in words.

    environment = BabyAI("GoToLocal")
    state = environment.reset("train", seed=7)      # You see a red ball 2 steps ahead and 1 step to the left. ...
    state, reward, done, info = environment.step("forward")

The agent sees the 7 by 7 cells before it and no farther than walls and closed doors let it. The
words are ours, and so are the facts; the worlds and missions are MiniGrid's. The reward is 1.0 for
solving the mission however long it took: time is the runtime's business.
"""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.signature import signature
from hardwon.runtime.interfaces.types import Info

ACTIONS = {"left": 0, "right": 1, "forward": 2, "pickup": 3, "drop": 4, "toggle": 5}
FOLDS = {"train": 0, "dev": 1_000_000, "test": 2_000_000}
"""Where the seeds of each fold start, so that no world of one fold is drawn in another."""
SEEDS = 1_000_000
"""Seeds in a fold."""

_VIEW = 7
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_POSITIONS = str.maketrans({str(steps): "i" * steps for steps in range(1, _VIEW)})
"""Spells numbers as words that a signature keeps: where things are is what situations differ in here."""
_SORTED_ACTIONS = sorted(ACTIONS)
_Seen = tuple[int, int, Any]
"""Steps ahead, steps to the right (left is negative), and the thing."""


def levels() -> list[str]:
    """The levels there are, sorted. Raises `MissingExtra` without minigrid."""
    return sorted(_level_ids())


class BabyAI:
    """One level, as an `Environment`."""

    def __init__(self, level: str = "GoToLocal") -> None:
        """`level` is `GoToLocal` or the whole `BabyAI-GoToLocal-v0`.

        Raises `UnknownName` for a level that does not exist, `MissingExtra` without minigrid.
        """
        short = level.removeprefix("BabyAI-").partition("-v")[0]
        ids = _level_ids()
        if short not in ids:
            raise UnknownName.of("level", level, ids)
        self.name = f"babyai/{short}"
        self.game = short
        self._id = ids[short]
        self._world: Any = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many seeds a fold has."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin the episode `seed`, 0 to 999999, of the fold `task`: train (the default), dev or test.

        Raises `UnknownName` for another fold, `ConfigError` for a seed out of range.
        """
        fold = task.strip().lower() or "train"
        if fold not in FOLDS:
            raise UnknownName.of("fold", task, FOLDS)
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}.")
        if self._world is None:
            self._world = _make(self._id)
        self._world.reset(seed=FOLDS[fold] + seed)
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take one of the six actions; an action that cannot work here says so and changes nothing.

        Raises `ConfigError` when no episode runs.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        number = ACTIONS.get(action.strip().lower())
        if number is None:
            words = f"{action!r} is not an action. The actions are: {', '.join(ACTIONS)}."
            return self._state(words), 0.0, False, Info(success=False, lost=False, score=0.0, invalid=words)
        refusal = _refusal(number, self._world)
        told = refusal or _told(number, self._world)
        self._world.step_count = 0  # the world's own time limit would turn a late success into no reward
        _, reward, self._over, _, _ = self._world.step(number)
        success = self._over and reward > 0
        info = Info(success=success, lost=self._over and not success, score=float(success))
        if refusal:
            info["invalid"] = refusal
        return self._state(told), float(success), self._over, info

    def admissible(self, state: State) -> list[str]:
        """Always all six."""
        return _SORTED_ACTIONS.copy()

    def clone(self) -> "BabyAI":
        """Another environment of the same level."""
        return BabyAI(self.game)

    def close(self) -> None:
        """Forget the world."""
        self._world, self._over = None, True

    def _state(self, feedback: str) -> State:
        seen = sorted(view(self._world), key=_nearness)
        things = [thing for thing in seen if thing[2].type != "wall"]
        carried = self._world.carrying
        carrying = _name(carried) if carried else "nothing"
        told = [f"You see {_a(_name(thing))} {_where(ahead, right)}." for ahead, right, thing in things]
        told += _walls(seen)
        told.append(f"You carry {_a(carrying) if carried else carrying}.")
        observation = " ".join(told)
        return State(
            observation,
            facts={
                "front": _front(self._world),
                "carrying": carrying,
                "seen": [f"{_name(thing)}: {_place(ahead, right)}" for ahead, right, thing in things],
            },
            task=self._world.mission,
            feedback=feedback,
            signature=signature(observation.translate(_POSITIONS)),
        )


def view(world: Any) -> Iterator[_Seen]:
    """What the agent sees, row by row; the same cells as MiniGrid's `gen_obs`, at a fraction of its cost."""
    x, y = (int(at) for at in world.agent_pos)
    dx, dy = _DIRECTIONS[world.agent_dir]
    cells, width, height = world.grid.grid, world.grid.width, world.grid.height
    half = _VIEW // 2
    row = [side == half for side in range(_VIEW)]
    for ahead in range(_VIEW):
        things: list[Any] = []
        clear: list[bool] = []
        for right in range(-half, half + 1):
            at_x, at_y = x + dx * ahead - dy * right, y + dy * ahead + dx * right
            inside = 0 <= at_x < width and 0 <= at_y < height
            thing = cells[at_y * width + at_x] if inside else None
            things.append(thing)
            clear.append(inside and (thing is None or thing.see_behind()))
        row, beyond = _spread(row, clear)
        for side, thing in enumerate(things):
            if row[side] and thing is not None and (ahead or side != half):
                yield ahead, side - half, thing
        row = beyond


def _spread(row: list[bool], clear: list[bool]) -> tuple[list[bool], list[bool]]:
    """Let sight run along a row and on to the next one, first to the right, then to the left."""
    row, beyond = row.copy(), [False] * _VIEW
    for sides, step in ((range(_VIEW - 1), 1), (range(_VIEW - 1, 0, -1), -1)):
        for side in sides:
            if row[side] and clear[side]:
                row[side + step] = beyond[side + step] = beyond[side] = True
    return row, beyond


def _nearness(seen: _Seen) -> tuple[int, int, int]:
    ahead, right, _ = seen
    return ahead + abs(right), -ahead, right


def _name(thing: Any) -> str:
    """`red ball`, `locked blue door`."""
    return f"{_door_state(thing)} {thing.color} door" if thing.type == "door" else f"{thing.color} {thing.type}"


def _door_state(door: Any) -> str:
    return "open" if door.is_open else "locked" if door.is_locked else "closed"


def _a(name: str) -> str:
    return f"an {name}" if name.startswith("open") else f"a {name}"


def _place(ahead: int, right: int) -> str:
    """`2 ahead 1 left`."""
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts)


def _where(ahead: int, right: int) -> str:
    """`2 steps ahead and 1 step to the left`."""
    parts = [f"{_steps(ahead)} ahead"] if ahead else []
    if right:
        parts.append(f"{_steps(abs(right))} to the {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _walls(seen: list[_Seen]) -> list[str]:
    """The wall the agent would walk into, and those beside it."""
    told = []
    ahead = next((at for at, right, thing in seen if right == 0 and thing.type == "wall"), 0)
    if ahead:
        told.append("A wall is directly ahead." if ahead == 1 else f"A wall is {ahead} steps ahead.")
    beside = {right for at, right, thing in seen if at == 0 and thing.type == "wall"}
    told += [f"A wall is directly to the {side}." for right, side in ((-1, "left"), (1, "right")) if right in beside]
    return told


def _ahead(world: Any) -> Any:
    """What is in the cell before the agent; None when it is clear."""
    return world.grid.get(*world.front_pos)


def _front(world: Any) -> str:
    thing = _ahead(world)
    if thing is None:
        return "clear"
    return f"{_door_state(thing)} door" if thing.type == "door" else str(thing.type)


def _refusal(action: int, world: Any) -> str:
    """Why this action will do nothing here; "" when it will do something."""
    thing, carried = _ahead(world), world.carrying
    it = "" if thing is None else "a wall" if thing.type == "wall" else _a(_name(thing))
    if action == ACTIONS["forward"] and thing is not None and not thing.can_overlap():
        return f"You cannot go forward: {it} is in the way."
    if action == ACTIONS["pickup"]:
        if thing is None:
            return "You cannot pick anything up: nothing is in front of you."
        if not thing.can_pickup():
            return f"You cannot pick up {it}."
        if carried is not None:
            return f"You cannot pick up {it}: you already carry {_a(_name(carried))}."
    if action == ACTIONS["drop"]:
        if carried is None:
            return "You cannot drop anything: you carry nothing."
        if thing is not None:
            return f"You cannot drop the {_name(carried)} here: {it} is in the way."
    if action == ACTIONS["toggle"]:
        if thing is None:
            return "You cannot toggle anything: nothing is in front of you."
        if thing.type not in ("door", "box"):
            return f"You cannot toggle {it}."
        if thing.type == "door" and thing.is_locked and not _fits(carried, thing):
            return f"You cannot open {it} without a {thing.color} key."
    return ""


def _fits(carried: Any, door: Any) -> bool:
    return carried is not None and carried.type == "key" and carried.color == door.color


def _told(action: int, world: Any) -> str:
    """What an action that works does; going and turning speak for themselves."""
    thing = _ahead(world)
    if action == ACTIONS["pickup"]:
        return f"You pick up the {_name(thing)}."
    if action == ACTIONS["drop"]:
        return f"You drop the {_name(world.carrying)}."
    if action != ACTIONS["toggle"]:
        return ""
    if thing.type == "box":
        return f"You open the {_name(thing)}: {_a(_name(thing.contains)) if thing.contains else 'nothing'} was in it."
    return (
        f"You {'close' if thing.is_open else 'unlock and open' if thing.is_locked else 'open'} the {thing.color} door."
    )


@cache
def _level_ids() -> dict[str, str]:
    """MiniGrid's id of every level, the newest version of each: {"GoToLocal": "BabyAI-GoToLocal-v0"}."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        import minigrid  # noqa: F401 - registers the levels
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        raise MissingExtra.of("minigrid", "babyai") from error
    module: Any = roomgrid_level
    module.print = lambda *_: None  # it prints every draw of a world that it rejects
    ids = sorted(level for level in gymnasium.registry if level.startswith("BabyAI-"))
    return {level.removeprefix("BabyAI-").rpartition("-v")[0]: level for level in ids}


def _make(level_id: str) -> Any:
    """The bare world: no wrappers, no window, and no image drawn at every step."""
    import gymnasium
    from gymnasium import logger

    level, logger.min_level = logger.min_level, logger.ERROR
    try:
        world: Any = gymnasium.make(level_id, disable_env_checker=True).unwrapped
    finally:
        logger.min_level = level
    world.gen_obs = dict
    return world
