"""TextWorldExpress: eight text games with rooms, things and a dense score, thousands of steps a second.

    environment = TextWorldExpress("coin", "numLocations=5, includeDoors=1")
    state = environment.reset("train", seed=7)
    state, reward, done, info = environment.step("open door to north")

The games run in one Java process per Python process, which the `textworld` extra brings; importing
this module starts and imports nothing. Steps are not limited here: that is the runtime's business.
"""

import difflib
import re
from functools import lru_cache
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.signature import signature
from hardwon.runtime.interfaces.types import Info

from ._java import JavaObject, JavaProcess, shared_process, unescape

try:
    import orjson as json
except ImportError:
    import json  # type: ignore[no-redef]

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
FOLDS = {"train": 0, "dev": 10_000, "test": 20_000}
"""Where the seeds of each fold start; the engine draws its names for things from the fold's own lists."""
SEEDS = 1000
"""Seeds in a fold."""

_ENGINE = "textworldexpress.runtime.PythonInterface"
_SHOWN = frozenset(("look around", "inventory", "task"))
"""Actions that only repeat what the state says anyway."""
_OWN_PROCESS = frozenset(("sorting",))
"""Games of the engine that share things between two instances of one episode: each gets a Java of its own."""
_SWITCHES = frozenset(("includeDoors", "limitInventorySize", "memorization", "verbose"))
_PARAMETER = re.compile(r"\s*(\w+)\s*=\s*(-?\w*\.?\w*)\s*")
_UNKNOWN_PARAMETER = re.compile(r"Unrecognized property name \((.*)\)\.\s+Known properties: (.*?)\.?\s*$")
_LOCATION = re.compile(r"You are in the ([^.]+)\.")
_REFUSAL = re.compile(r"That is (?:already|not) |You can't |You are unable |.* is full\. ")
_NOT_UNDERSTOOD = "Unknown action"


def games() -> list[str]:
    """The games there are, sorted."""
    return sorted(GAMES)


class TextWorldExpress:
    """One game with its parameters, as an `Environment`."""

    keeps_time = True
    """A call that gets no answer within `step_timeout_s` raises `EnvironmentHung` by itself."""

    def __init__(self, game: str = "mapreader", params: str = "", *, step_timeout_s: float | None = 30.0) -> None:
        """`params` are the game's own, `numLocations=5, includeDoors=0`; "" is the game's default.

        Nothing is started before the first `reset`. Raises `UnknownName` for a game that does not exist
        and `ConfigError` for parameters that are not written as `name=whole number`.
        """
        if game not in GAMES:
            raise UnknownName.of("game", game, GAMES)
        self.name = f"textworld/{game}"
        self.game = game
        self.params = _parameters(game, params)
        self._timeout_s = step_timeout_s
        self._engine: JavaObject | None = None
        self._episode: tuple[int, str] | None = None
        self._valid: list[str] = []
        self._task = self._said = ""
        self._score = 0.0
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many seeds a fold has."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin the episode that `seed` names in the fold `task`: train (the default), dev or test.

        A seed is an index into the fold, 0 to 999, or the engine's own number of it (dev: 10000 to 10999).
        Raises `UnknownName` for another fold, `ConfigError` for a seed outside of the fold or parameters
        that the game refuses, `MissingExtra` without the extra, `EnvironmentFailure` when Java fails.
        """
        fold = task.strip().lower() or "train"
        self._episode = (_engine_seed(fold, seed), fold)
        engine = self._ready()
        reply = json.loads(engine.call("generateNewGameJSON", *self._episode, False).replace(b"\\\\", b"\\"))
        if reply["observation"].startswith("ERROR"):
            settings = f"{self.game} with {self.params or 'its default parameters'}"
            raise ConfigError(f"{settings} has no episode {seed}: {tidy(reply['observation'])} Change the parameters.")
        self._task = tidy(unescape(engine.call("getTaskDescription")))
        self._valid = reply["validActions"]
        self._score, self._over = 0.0, False
        self._said = tidy(reply["observation"])
        return self._state(reply, "")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action; the reward is what it added to the score.

        Raises `ConfigError` when no episode runs, `EnvironmentCrashed` or `EnvironmentHung` when Java fails.
        """
        if self._over or self._engine is None:
            raise ConfigError("no episode is running in this environment; call reset first.")
        known = action if action in self._valid else self._forgive(action)
        reply = json.loads(self._engine.call("stepJSON", known).replace(b"\\\\", b"\\"))
        answer = tidy(reply["observation"])
        score, lost = reply["score"], reply["taskfailure"]
        success = reply["tasksuccess"] and not lost
        info = Info(success=success, lost=lost, score=min(max(score, 0.0), 1.0))
        if answer.startswith(_NOT_UNDERSTOOD):
            answer = info["invalid"] = self._not_an_action(action)
        elif _REFUSAL.match(answer):
            info["invalid"] = answer
        reward = score - self._score
        self._score, self._valid = score, reply["validActions"]
        self._over = success or lost or score >= 1.0
        if answer.startswith("Simon says"):
            self._said = answer
        elif reward > 0 and not reply["look"]:  # simonsays from memory: the instruction is not repeated
            self._said = f"{self._said} {known}." if self._said.startswith("You did: ") else f"You did: {known}."
        return self._state(reply, answer), reward, self._over, info

    def admissible(self, state: State) -> list[str]:
        """What can be done now, sorted, without the actions that only show what the state shows."""
        return sorted(set(self._valid) - _SHOWN)

    def clone(self) -> "TextWorldExpress":
        """Another environment of the same game; both may run at the same time."""
        return TextWorldExpress(self.game, self.params, step_timeout_s=self._timeout_s)

    def close(self) -> None:
        """Free the game. The Java process stays for other environments and ends with Python."""
        engine, self._engine, self._over = self._engine, None, True
        if engine is not None:
            engine.close()

    def abandon(self) -> None:
        """Let go of a game that hangs in another thread: `Watched` calls this when its time is up."""
        if self._engine is not None:
            self._engine.abandon()

    def gold_path(self) -> list[str]:
        """A way to solve the episode that was last reset. Raises as `reset` does, `ConfigError` before one."""
        if self._episode is None:
            raise ConfigError("there is no episode to solve yet; call reset first.")
        engine = self._new_engine()
        try:
            engine.call("generateNewGameJSON", *self._episode, True)
            return engine.call_list("getGoldActionSequence")
        finally:
            engine.close()

    def _ready(self) -> JavaObject:
        """The engine, a new one when there is none or it is lost."""
        if self._engine is None or not self._engine.usable:
            self.close()
            self._engine = self._new_engine()
        return self._engine

    def _new_engine(self) -> JavaObject:
        process = JavaProcess() if self.game in _OWN_PROCESS else shared_process()
        engine = JavaObject(process, _ENGINE, self._timeout_s)
        refusal = unescape(engine.call("load", self.game, self.params))
        if not refusal:
            return engine
        engine.close()
        unknown = _UNKNOWN_PARAMETER.match(refusal)
        if unknown:
            known = unknown[2].removesuffix("None") or "none"
            raise ConfigError(f"{self.game} has no parameter {unknown[1]!r}. Its parameters: {known}.")
        raise ConfigError(f"{self.game} refuses {self.params!r}: {tidy(refusal)} Change it or leave it out.")

    def _state(self, reply: dict[str, Any], answer: str) -> State:
        look, inventory = tidy(reply["look"]), tidy(reply["inventory"])
        if not look and not inventory:  # simonsays: what Simon said last is all there is
            return State(self._said, task=self._task, feedback="" if answer == self._said else answer)
        location = _LOCATION.match(look)
        observation = f"{look}\n{inventory}"
        return State(
            observation,
            facts={"inventory": list(_held(inventory))},
            location=location[1] if location else "",
            task=self._task,
            feedback="" if answer == look else answer,
            signature=signature(observation),  # by default of the facts alone, which tell nothing of the room
        )

    def _forgive(self, action: str) -> str:
        """The valid action that differs only in case and spaces; the engine wants the exact letters."""
        wanted = action.split()
        plain = " ".join(wanted).lower()
        return next((valid for valid in self._valid if valid.lower() == plain), action)

    def _not_an_action(self, action: str) -> str:
        """The engine does not say why it refuses an action that is not valid here, so say what is."""
        near = difflib.get_close_matches(action, self._valid, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{action!r} is not an action that can be taken here now.{hint}"


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The engine's text without its stray spaces."""
    text = re.sub(r"(?<=\S)[ \t]+", " ", text)
    return re.sub(r" (?=[.,\n])|\s+$", "", text)


@lru_cache(maxsize=4096)
def _held(inventory: str) -> tuple[str, ...]:
    """The things in an inventory text: its lines after the heading."""
    return tuple(line.strip() for line in inventory.split("\n")[1:] if "is currently empty" not in line)


def _engine_seed(fold: str, seed: int) -> int:
    if fold not in FOLDS:
        raise UnknownName.of("fold", fold, FOLDS)
    first = FOLDS[fold]
    if 0 <= seed < SEEDS:
        return first + seed
    if first <= seed < first + SEEDS:
        return seed
    own = f", or {first} to {first + SEEDS - 1}" if first else ""
    raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}{own}.")


def _parameters(game: str, params: str) -> str:
    """`params` in one spelling. The engine takes `numLocations=abc` for its default without a word."""
    settings: dict[str, int] = {}
    for part in params.split(",") if params.strip() else ():
        match = _PARAMETER.fullmatch(part)
        if match is None:
            raise ConfigError(f"{part.strip()!r} is not a parameter of a game; write: numLocations=5, includeDoors=0.")
        name, value = match[1], match[2]
        if not re.fullmatch(r"-?\d+", value):
            raise ConfigError(f"{game} parameter {name} is {value!r}; it takes a whole number, as in {name}=1.")
        if name in _SWITCHES and value not in ("0", "1"):
            raise ConfigError(f"{game} parameter {name} is {value}; it takes 0 (off) or 1 (on).")
        if name in settings:
            raise ConfigError(f"{game} parameter {name} is given twice; give it once.")
        settings[name] = int(value)
    return ", ".join(f"{name}={value}" for name, value in settings.items())
