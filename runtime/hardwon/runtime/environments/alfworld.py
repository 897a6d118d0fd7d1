"""ALFWorld: household tasks in text, in six kinds of games from a folder on your disk.

    environment = AlfWorld("pick_and_place_simple", data="alfworld-data")
    state = environment.reset("train", seed=7)     # You are in the middle of a room. ... Your task is to: ...
    state, reward, done, info = environment.step("go to shelf 1")

The games are ALFWorld's own (`game.tw-pddl`) and are not part of this package. A state contains only what the
game has revealed: the agent's location and what it carries are parsed from the game's answers. The environment
has no step limit; the runtime sets one. A step takes about 35 ms of CPU; TextWorld's repeated parsing and
translation are cached (see `pddl_cache`).
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, EnvironmentFailure, MissingExtra, UnknownName
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
"""ALFWorld's folder for each fold."""
SHARES = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""If there is only one folder of games, the fourths of it that belong to each fold; see `_fourth`."""
HOME = "ALFWORLD_DATA"
"""Environment variable for the folder of games."""

_INFO_ACTIONS = frozenset(("help", "inventory", "look"))
"""Actions that only repeat parts of the state."""
_REFUSED = "Nothing happens."
_TASK = "Your task is to: "
_ARRIVED = re.compile(r"You arrive at (.+?)\.")
_TAKEN = re.compile(r"You pick up the (.+?) from the ")
_PUT = re.compile(r"You move the .+? to the ")
_SEEN = re.compile(r"You (?:arrive at|open|close) ")


class AlfWorld:
    """The ALFWorld games of one kind, or of all kinds, as an `Environment`."""

    def __init__(
        self, kind: str = ALL, *, data: str | Path = "", folds: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Create an environment."""
        if kind not in (*KINDS, ALL):
            raise UnknownName.of("kind of game", kind, (*KINDS, ALL))
        self.name, self.game = f"alfworld/{kind}", kind
        self.data = str(data or os.environ.get(HOME, ""))
        self._folds = folds
        self._env: Any = None
        self._file, self._over = "", True
        if folds is not None:
            return
        if not self.data or not games(self.data, kind, "train"):
            problem = f"{self.data!r} contains no game.tw-pddl of kind {kind!r}" if self.data else "no folder is set"
            raise ConfigError(f"ALFWorld needs games, but {problem}. Set {HOME}, or pass data=FOLDER.")

    def count_seeds(self, fold: str) -> int:
        """Return the number of games in a fold."""
        return len(self._list_games(fold))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin a game."""
        fold = task.strip().lower() or "train"
        files = self._list_games(fold)
        if not 0 <= seed < len(files):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; it has {len(files)} games, from 0.")
        self.close()
        self._file = files[seed]
        self._env, first = _start(self._file)
        intro, _, self._task = first.feedback.partition(_TASK)
        self._task = self._task.strip()
        self._room = self._view = intro.partition("\n\n")[2].strip()
        self._at = self._carried = ""
        self._valid: list[str] = first.admissible_commands
        self._over = False
        return self._state("")

    def _list_games(self, fold: str) -> Sequence[str]:
        """Return the files of the games of a fold."""
        names = FOLDERS if self._folds is None else self._folds
        if fold not in names:
            raise UnknownName.of("fold", fold, names)
        return games(self.data, self.game, fold) if self._folds is None else self._folds[fold]

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action."""
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        after, _, _ = self._env.step(action)
        answer = after.feedback.strip()
        self._valid, self._over = after.admissible_commands, bool(after.won)
        info = Info(success=self._over, lost=False, score=float(self._over))
        if answer == _REFUSED:  # the game gives no reason and no other sign of an invalid action
            info["invalid"] = answer
        else:
            self._track(answer)
        return self._state(answer), float(self._over), self._over, info

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions, sorted, without those that only show the state."""
        return sorted(set(self._valid) - _INFO_ACTIONS)

    def gold_path(self) -> list[str]:
        """Return the solution in the file of the running game, whose expert knows where everything is."""
        if self._env is None:
            raise ConfigError("there is no episode to solve yet; call reset first.")
        try:
            return [str(action) for action in json.loads(Path(self._file).read_text(encoding="utf-8"))["walkthrough"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise EnvironmentFailure(f"{self._file} contains no walkthrough ({problem}).") from error

    def clone(self) -> "AlfWorld":
        """Return another environment with the same games."""
        return AlfWorld(self.game, data=self.data, folds=self._folds)

    def close(self) -> None:
        """Free the game."""
        env, self._env, self._over = self._env, None, True
        if env is not None:
            env.close()

    def _track(self, answer: str) -> None:
        """Update the agent's location, view and load from an answer of the game."""
        if arrived := _ARRIVED.match(answer):
            self._at = arrived[1]
        # Other answers, such as that to `take`, would replace the view of the place.
        if _SEEN.match(answer):
            self._view = answer
        if match := _TAKEN.match(answer):
            self._carried = match[1]
            # The game does not list the place again, so the object is removed from the remembered view.
            self._view = self._view.replace(f" a {match[1]}", "", 1)
        elif _PUT.match(answer):
            self._carried = ""

    def _state(self, feedback: str) -> State:
        carrying = f"You carry: {self._carried or 'nothing'}."
        parts = [self._room, self._view, carrying] if self._view != self._room else [self._room, carrying]
        return State("\n".join(parts), location=self._at, task=self._task, feedback=feedback)


@lru_cache(maxsize=64)
def games(data: str, kind: str, fold: str) -> tuple[str, ...]:
    """Return the files of the games of a kind in a fold, in a fixed order.

    All kinds together are mixed, so that any range of seeds has each of them.
    """
    folder = Path(data) / FOLDERS[fold]
    # Without valid_seen, all games are one pool, split by `_fourth`; else dev and test would be empty.
    has_folds = folder.is_dir() and (Path(data) / FOLDERS["dev"]).is_dir()
    files = sorted((folder if has_folds else Path(data)).rglob("game.tw-pddl"))
    if kind == ALL:
        files.sort(key=lambda path: hashlib.sha256(f"{path.parent.parent.name}/{path.parent.name}".encode()).digest())
    return tuple(
        str(path)
        for path in files
        if kind in (ALL, path.parent.parent.name.partition("-")[0]) and (has_folds or _fourth(path) in SHARES[fold])
    )


def _fourth(path: Path) -> int:
    """Return a number from 0 to 3 by task and scene, so that two trials of a task are in the same fold."""
    return hashlib.sha256(path.parent.parent.name.encode()).digest()[0] % 4


def _start(file: str) -> tuple[Any, Any]:
    """Return the game of a file, and its first observation."""
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        pddl_cache.install()
    except ImportError as error:
        raise MissingExtra.of("alfworld", "alfworld") from error
    # Nothing asked for below needs a plan, so the second translation of each problem is saved.
    with pddl_cache.skip_planning():
        env = textworld.start(file, textworld.EnvInfos(won=True, admissible_commands=True), [AlfredDemangler()])
        return env, env.reset()
