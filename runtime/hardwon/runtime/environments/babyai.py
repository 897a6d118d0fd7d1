"""BabyAI: a grid world of rooms, doors, keys and objects, described in text.

    environment = BabyAI("GoToLocal")
    state = environment.reset("train", seed=7)      # You see a red ball 2 steps ahead and 1 step to the left. ...
    state, reward, done, info = environment.step("forward")

The agent sees the 7 by 7 cells in front of it, as far as walls and closed doors permit. Worlds and missions
are those of MiniGrid; the text and the facts are our own. The reward for solving the mission is 1.0 at any
time. The environment has no step limit; the runtime sets one.
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
"""First seed of each fold; the ranges are disjoint, so folds share no world."""
SEEDS = 1_000_000
"""Number of seeds in a fold."""

_VIEW = 7
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_POSITIONS = str.maketrans({str(steps): "i" * steps for steps in range(1, _VIEW)})
"""Spells numbers as letters. Signatures abstract numbers away, but here positions distinguish situations."""
_SORTED_ACTIONS = sorted(ACTIONS)
_VisibleObject = tuple[int, int, Any]
"""Steps ahead, steps to the right (negative: left), and the object."""


def levels() -> list[str]:
    """Return the names of the levels, sorted."""
    return sorted(_load_level_ids())


class BabyAI:
    """A BabyAI level as an `Environment`."""

    def __init__(self, level: str = "GoToLocal") -> None:
        """Create an environment for one level.

        Args:
            level: A name such as `GoToLocal`, or the full id `BabyAI-GoToLocal-v0`.

        Raises:
            UnknownName: The level does not exist.
            MissingExtra: minigrid is not installed.
        """
        short = level.removeprefix("BabyAI-").partition("-v")[0]
        ids = _load_level_ids()
        if short not in ids:
            raise UnknownName.of("level", level, ids)
        self.name = f"babyai/{short}"
        self.game = short
        self._id = ids[short]
        self._world: Any = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return the number of seeds in a fold."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode.

        Args:
            task: The fold: train (the default), dev or test.
            seed: An index into the fold, 0 to 999999.

        Raises:
            UnknownName: The fold does not exist.
            ConfigError: The seed is out of range.
        """
        fold = task.strip().lower() or "train"
        if fold not in FOLDS:
            raise UnknownName.of("fold", task, FOLDS)
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}.")
        if self._world is None:
            self._world = _make_world(self._id)
        self._world.reset(seed=FOLDS[fold] + seed)
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action. An action without effect is reported as invalid, with the reason.

        Args:
            action: One of `ACTIONS`.

        Returns:
            The state, the reward (1.0 for solving the mission, else 0.0), whether the episode ended, and the info.

        Raises:
            ConfigError: No episode is running.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        number = ACTIONS.get(action.strip().lower())
        if number is None:
            words = f"{action!r} is not an action. The actions are: {', '.join(ACTIONS)}."
            return self._state(words), 0.0, False, Info(success=False, lost=False, score=0.0, invalid=words)
        # Both texts describe the world before the step, which moves or opens the object.
        refusal = _find_obstacle(number, self._world)
        feedback = refusal or _describe_effect(number, self._world)
        self._world.step_count = 0  # disables MiniGrid's step limit, after which a success earns no reward
        _, reward, self._over, _, _ = self._world.step(number)
        success = self._over and reward > 0
        info = Info(success=success, lost=self._over and not success, score=float(success))
        if refusal:
            info["invalid"] = refusal
        return self._state(feedback), float(success), self._over, info

    def admissible(self, state: State) -> list[str]:
        """Return all six actions, in any state."""
        return _SORTED_ACTIONS.copy()

    def clone(self) -> "BabyAI":
        """Return another environment of the same level."""
        return BabyAI(self.game)

    def close(self) -> None:
        """Drop the world."""
        self._world, self._over = None, True

    def _state(self, feedback: str) -> State:
        visible = sorted(iter_visible(self._world), key=_get_distance_key)
        things = [thing for thing in visible if thing[2].type != "wall"]
        carried = self._world.carrying
        carrying = _format_name(carried) if carried else "nothing"
        sentences = [
            f"You see {_add_article(_format_name(thing))} {_format_position(ahead, right)}."
            for ahead, right, thing in things
        ]
        sentences += _describe_walls(visible)
        sentences.append(f"You carry {_add_article(carrying) if carried else carrying}.")
        observation = " ".join(sentences)
        return State(
            observation,
            facts={
                "front": _describe_front(self._world),
                "carrying": carrying,
                "seen": [f"{_format_name(thing)}: {_format_offset(ahead, right)}" for ahead, right, thing in things],
            },
            task=self._world.mission,
            feedback=feedback,
            signature=signature(observation.translate(_POSITIONS)),
        )


def iter_visible(world: Any) -> Iterator[_VisibleObject]:
    """Yield the visible objects row by row: the cells of MiniGrid's `gen_obs` at a fraction of its cost."""
    x, y = (int(at) for at in world.agent_pos)
    dx, dy = _DIRECTIONS[world.agent_dir]
    cells, width, height = world.grid.grid, world.grid.width, world.grid.height
    # MiniGrid copies and rotates the grid for every observation. Reading the cells in place is much cheaper.
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
        row, beyond = _propagate_sight(row, clear)
        for side, thing in enumerate(things):
            if row[side] and thing is not None and (ahead or side != half):
                yield ahead, side - half, thing
        row = beyond


def _propagate_sight(row: list[bool], clear: list[bool]) -> tuple[list[bool], list[bool]]:
    """Propagate visibility along a row and to the next one, first to the right, then to the left."""
    row, beyond = row.copy(), [False] * _VIEW
    # MiniGrid's `process_vis` scans in this order; another one would show other cells.
    for sides, step in ((range(_VIEW - 1), 1), (range(_VIEW - 1, 0, -1), -1)):
        for side in sides:
            if row[side] and clear[side]:
                row[side + step] = beyond[side + step] = beyond[side] = True
    return row, beyond


def _get_distance_key(thing: _VisibleObject) -> tuple[int, int, int]:
    ahead, right, _ = thing
    # No two cells tie, so the same view always gives the same text, and objects are never compared.
    return ahead + abs(right), -ahead, right


def _format_name(thing: Any) -> str:
    """Return a name such as `red ball` or `locked blue door`."""
    return f"{_get_door_state(thing)} {thing.color} door" if thing.type == "door" else f"{thing.color} {thing.type}"


def _get_door_state(door: Any) -> str:
    return "open" if door.is_open else "locked" if door.is_locked else "closed"


def _add_article(name: str) -> str:
    return f"an {name}" if name.startswith("open") else f"a {name}"


def _format_offset(ahead: int, right: int) -> str:
    """Return a position such as `2 ahead 1 left`."""
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts)


def _format_position(ahead: int, right: int) -> str:
    """Return a position such as `2 steps ahead and 1 step to the left`."""
    parts = [f"{_format_steps(ahead)} ahead"] if ahead else []
    if right:
        parts.append(f"{_format_steps(abs(right))} to the {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _format_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _describe_walls(visible: list[_VisibleObject]) -> list[str]:
    """Return sentences about the walls ahead of and beside the agent."""
    sentences = []
    ahead = next((at for at, right, thing in visible if right == 0 and thing.type == "wall"), 0)
    if ahead:
        sentences.append("A wall is directly ahead." if ahead == 1 else f"A wall is {ahead} steps ahead.")
    beside = {right for at, right, thing in visible if at == 0 and thing.type == "wall"}
    sentences += [
        f"A wall is directly to the {side}." for right, side in ((-1, "left"), (1, "right")) if right in beside
    ]
    return sentences


def _get_object_ahead(world: Any) -> Any:
    """Return the object in the cell in front of the agent; None if it is empty."""
    return world.grid.get(*world.front_pos)


def _describe_front(world: Any) -> str:
    thing = _get_object_ahead(world)
    if thing is None:
        return "clear"
    return f"{_get_door_state(thing)} door" if thing.type == "door" else str(thing.type)


def _find_obstacle(action: int, world: Any) -> str:
    """Return why an action will have no effect; "" if it will have one."""
    thing, carried = _get_object_ahead(world), world.carrying
    it = "" if thing is None else "a wall" if thing.type == "wall" else _add_article(_format_name(thing))
    if action == ACTIONS["forward"] and thing is not None and not thing.can_overlap():
        return f"You cannot go forward: {it} is in the way."
    if action == ACTIONS["pickup"]:
        if thing is None:
            return "You cannot pick anything up: nothing is in front of you."
        if not thing.can_pickup():
            return f"You cannot pick up {it}."
        if carried is not None:
            return f"You cannot pick up {it}: you already carry {_add_article(_format_name(carried))}."
    if action == ACTIONS["drop"]:
        if carried is None:
            return "You cannot drop anything: you carry nothing."
        if thing is not None:
            return f"You cannot drop the {_format_name(carried)} here: {it} is in the way."
    if action == ACTIONS["toggle"]:
        if thing is None:
            return "You cannot toggle anything: nothing is in front of you."
        if thing.type not in ("door", "box"):
            return f"You cannot toggle {it}."
        if thing.type == "door" and thing.is_locked and not _can_unlock(carried, thing):
            return f"You cannot open {it} without a {thing.color} key."
    return ""


def _can_unlock(carried: Any, door: Any) -> bool:
    return carried is not None and carried.type == "key" and carried.color == door.color


def _describe_effect(action: int, world: Any) -> str:
    """Return the feedback of an action that works; moving and turning have none."""
    thing = _get_object_ahead(world)
    if action == ACTIONS["pickup"]:
        return f"You pick up the {_format_name(thing)}."
    if action == ACTIONS["drop"]:
        return f"You drop the {_format_name(world.carrying)}."
    if action != ACTIONS["toggle"]:
        return ""
    if thing.type == "box":
        content = _add_article(_format_name(thing.contains)) if thing.contains else "nothing"
        return f"You open the {_format_name(thing)}: {content} was in it."
    return (
        f"You {'close' if thing.is_open else 'unlock and open' if thing.is_locked else 'open'} the {thing.color} door."
    )


@cache
def _load_level_ids() -> dict[str, str]:
    """Return the newest MiniGrid id of every level, {"GoToLocal": "BabyAI-GoToLocal-v0"}."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        import minigrid  # noqa: F401 - registers the levels
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        raise MissingExtra.of("minigrid", "games") from error
    module: Any = roomgrid_level
    module.print = lambda *_: None  # it prints a line for every world that it rejects
    ids = sorted(level for level in gymnasium.registry if level.startswith("BabyAI-"))
    return {level.removeprefix("BabyAI-").rpartition("-v")[0]: level for level in ids}


def _make_world(level_id: str) -> Any:
    """Return the bare world, without wrappers, window and rendering."""
    import gymnasium
    from gymnasium import logger

    level, logger.min_level = logger.min_level, logger.ERROR
    try:
        world: Any = gymnasium.make(level_id, disable_env_checker=True).unwrapped
    finally:
        logger.min_level = level
    world.gen_obs = dict  # skips the rendering of an observation that nothing reads
    return world
