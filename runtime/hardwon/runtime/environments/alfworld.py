"""ALFWorld: household tasks in text, in games of six kinds that lie in a folder of yours.

    environment = AlfWorld("pick_and_place_simple", data="alfworld-data")
    state = environment.reset("train", seed=7)     # You are in the middle of a room. ... Your task is to: ...
    state, reward, done, info = environment.step("go to shelf 1")

The games are ALFWorld's own (`game.tw-pddl`); none comes with the package. Only what the game has told
is in a state: where the agent stands and what it carries is read from its answers. Steps are not
limited here, and a game takes some 35 ms of CPU a step; what TextWorld parses and translates again and
again is cached (see `pddl_cache`).
"""

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Info

from . import pddl_cache

KINDS = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
ALL = "all"
FOLDERS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""Where ALFWorld keeps the games of a fold."""
SHARES = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""Where there is but one folder of games: which fourths of it, by a digest of what a game is about."""
HOME = "ALFWORLD_DATA"
"""The variable that names the folder of games, where it is not given."""

_SHOWN = frozenset(("help", "inventory", "look"))
"""Actions that change nothing and show what the state shows."""
_REFUSED = "Nothing happens."
_TASK = "Your task is to: "
_ARRIVED = re.compile(r"You arrive at (.+?)\.")
_TAKEN = re.compile(r"You pick up the (.+?) from the ")
_PUT = re.compile(r"You move the .+? to the ")
_SEEN = re.compile(r"You (?:arrive at|open|close) ")


class AlfWorld:
    """The games of a kind, or of all, as an `Environment`."""

    def __init__(self, kind: str = ALL, *, data: str | Path = "") -> None:
        """`data`: the folder of games; without it, what the variable `ALFWORLD_DATA` names.

        Raises `UnknownName` for a kind that does not exist, `ConfigError` where there is no game.
        """
        if kind not in (*KINDS, ALL):
            raise UnknownName.of("kind of game", kind, (*KINDS, ALL))
        self.name, self.game = f"alfworld/{kind}", kind
        self.data = str(data or os.environ.get(HOME, ""))
        if not self.data or not games(self.data, kind, "train"):
            where = f"no game.tw-pddl of kind {kind!r} is in {self.data!r}" if self.data else "no folder is given"
            raise ConfigError(f"ALFWorld needs games, but {where}. Set {HOME}, or give data=FOLDER.")
        self._env: Any = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many games a fold has."""
        return len(games(self.data, self.game, fold))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin game number `seed` of the fold `task`: train (the default), dev or test.

        Raises `UnknownName` for another fold, `ConfigError` for a seed out of range, `MissingExtra`
        without the packages.
        """
        fold = task.strip().lower() or "train"
        if fold not in FOLDERS:
            raise UnknownName.of("fold", task, FOLDERS)
        known = games(self.data, self.game, fold)
        if not 0 <= seed < len(known):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; it has {len(known)} games, from 0.")
        self.close()
        self._env, begun = _start(known[seed])
        told, _, self._task = begun.feedback.partition(_TASK)
        self._task = self._task.strip()
        self._room = self._seen = told.partition("\n\n")[2].strip()
        self._at = self._carried = ""
        self._valid: list[str] = begun.admissible_commands
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action; the reward is 1.0 for solving the task. Raises `ConfigError` when no episode runs."""
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        after, _, _ = self._env.step(action)
        answer = after.feedback.strip()
        self._valid, self._over = after.admissible_commands, bool(after.won)
        info = Info(success=self._over, lost=False, score=float(self._over))
        if answer == _REFUSED:
            info["invalid"] = answer
        else:
            self._read(answer)
        return self._state(answer), float(self._over), self._over, info

    def admissible(self, state: State) -> list[str]:
        """What can be done now, sorted, without the actions that only show what the state shows."""
        return sorted(set(self._valid) - _SHOWN)

    def clone(self) -> "AlfWorld":
        """Another environment over the same games."""
        return AlfWorld(self.game, data=self.data)

    def close(self) -> None:
        """Free the game."""
        env, self._env, self._over = self._env, None, True
        if env is not None:
            env.close()

    def _read(self, answer: str) -> None:
        """Where the agent stands, what it sees there and carries, from what the game answered."""
        if arrived := _ARRIVED.match(answer):
            self._at = arrived[1]
        if _SEEN.match(answer):
            self._seen = answer
        if taken := _TAKEN.match(answer):
            self._carried = taken[1]
            self._seen = self._seen.replace(f" a {taken[1]}", "", 1)
        elif _PUT.match(answer):
            self._carried = ""

    def _state(self, feedback: str) -> State:
        carrying = f"You carry: {self._carried or 'nothing'}."
        shown = [self._room, self._seen, carrying] if self._seen != self._room else [self._room, carrying]
        return State("\n".join(shown), location=self._at, task=self._task, feedback=feedback)


@lru_cache(maxsize=64)
def games(data: str, kind: str, fold: str) -> tuple[str, ...]:
    """Files of the games of a kind in a fold, sorted."""
    folder = Path(data) / FOLDERS[fold]
    own = folder.is_dir() and (Path(data) / FOLDERS["dev"]).is_dir()
    found = sorted((folder if own else Path(data)).rglob("game.tw-pddl"))
    return tuple(
        str(path)
        for path in found
        if kind in (ALL, path.parent.parent.name.partition("-")[0]) and (own or _fourth(path) in SHARES[fold])
    )


def _fourth(path: Path) -> int:
    """By what a game is about and its scene, so that two trials of one task are in one fold."""
    return hashlib.sha256(path.parent.parent.name.encode()).digest()[0] % 4


def _start(file: str) -> tuple[Any, Any]:
    """Return the game of a file, and what it shows at its beginning."""
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        pddl_cache.install()
    except ImportError as error:
        raise MissingExtra.of("alfworld", "alfworld") from error
    with pddl_cache.skip_planning():
        env = textworld.start(file, textworld.EnvInfos(won=True, admissible_commands=True), [AlfredDemangler()])
        return env, env.reset()
