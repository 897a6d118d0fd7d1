"""TextWorldExpress: eight text games with rooms, objects and a dense score, at thousands of steps per second.

    environment = TextWorldExpress("coin", "numLocations=5, includeDoors=1")
    state = environment.reset("train", seed=7)
    state, reward, done, info = environment.step("open door to north")

The games run in one Java process per Python process, which the `games` extra installs. Importing this
module starts nothing. The environment has no step limit; the runtime sets one.
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
    # Every step parses a reply of Java, so the faster parser is used if there is one.
    import orjson as json
except ImportError:
    import json  # type: ignore[no-redef]

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
FOLDS = {"train": 0, "dev": 10_000, "test": 20_000}
"""First seed of each fold; the engine has separate lists of object names for every fold."""
SEEDS = 1000
"""Number of seeds in a fold."""

_ENGINE = "textworldexpress.runtime.PythonInterface"
_INFO_ACTIONS = frozenset(("look around", "inventory", "task"))
"""Actions that only repeat parts of the state."""
_OWN_PROCESS = frozenset(("sorting",))
"""Games whose instances share state inside Java, so each environment needs its own process."""
_SWITCHES = frozenset(("includeDoors", "limitInventorySize", "memorization", "verbose"))
_PARAMETER = re.compile(r"\s*(\w+)\s*=\s*+(-?\w*+(?:\.\w*+)?)\s*")
_UNKNOWN_PARAMETER = re.compile(r"Unrecognized property name \((.*)\)\.\s+Known properties: (.*)")
_LOCATION = re.compile(r"You are in the ([^.]+)\.")
_REFUSAL = re.compile(r"That is (?:already|not) |You can't |You are unable |.* is full\. ")
_NOT_UNDERSTOOD = "Unknown action"


class TextWorldExpress:
    """A TextWorldExpress game with its parameters, as an `Environment`."""

    keeps_time = True
    """The environment enforces `step_timeout_s` itself and raises `EnvironmentHung`."""

    def __init__(self, game: str = "mapreader", params: str = "", *, step_timeout_s: float | None = 30.0) -> None:
        """Create an environment for one game; Java starts at the first `reset`.

        Args:
            game: One of `GAMES`.
            params: The game's parameters, such as `numLocations=5, includeDoors=0`; "" means the defaults.
            step_timeout_s: Seconds to wait for Java's answer to a call; None waits indefinitely.

        Raises:
            UnknownName: The game does not exist.
            ConfigError: `params` is not a list of `name=whole number`.
        """
        if game not in GAMES:
            raise UnknownName.of("game", game, GAMES)
        self.name = f"textworld/{game}"
        self.game = game
        self.params = _normalize_parameters(game, params)
        self._timeout_s = step_timeout_s
        self._engine: JavaObject | None = None
        self._episode: tuple[int, str] | None = None
        self._valid: list[str] = []
        self._task = self._prompt = ""
        self._score = 0.0
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return the number of seeds in a fold."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode.

        Args:
            task: The fold: train (the default), dev or test.
            seed: An index into the fold, 0 to 999, or the engine's own number for it (dev: 10000 to 10999, test:
                20000 to 20999).

        Raises:
            UnknownName: The fold does not exist.
            ConfigError: The seed is outside the fold, or the game refuses the parameters.
            MissingExtra: The `games` extra is not installed.
            EnvironmentFailure: Java fails.
        """
        fold = task.strip().lower() or "train"
        self._episode = (_get_engine_seed(fold, seed), fold)
        engine = self._get_engine()
        # Java's strings arrive escaped; only doubled backslashes must be undone to get valid JSON.
        reply = json.loads(engine.call("generateNewGameJSON", *self._episode, False).replace(b"\\\\", b"\\"))
        if reply["observation"].startswith("ERROR"):
            settings = f"{self.game} with {self.params or 'its default parameters'}"
            raise ConfigError(
                f"{settings} has no episode {seed}: {strip_spaces(reply['observation'])} Change the parameters."
            )
        self._task = strip_spaces(unescape(engine.call("getTaskDescription")))
        self._valid = reply["validActions"]
        self._score, self._over = 0.0, False
        self._prompt = strip_spaces(reply["observation"])
        return self._state(reply, "")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action.

        Args:
            action: An admissible action; case and spacing may differ.

        Returns:
            The state, the reward (the change of the score), whether the episode ended, and the info.

        Raises:
            ConfigError: No episode is running.
            EnvironmentCrashed: Java fails.
            EnvironmentHung: Java does not answer in time.
        """
        if self._over or self._engine is None:
            raise ConfigError("no episode is running in this environment; call reset first.")
        command = action if action in self._valid else self._match_action(action)
        reply = json.loads(self._engine.call("stepJSON", command).replace(b"\\\\", b"\\"))
        answer = strip_spaces(reply["observation"])
        score, lost = reply["score"], reply["taskfailure"]
        success = reply["tasksuccess"] and not lost
        info = Info(success=success, lost=lost, score=min(max(score, 0.0), 1.0))
        if answer.startswith(_NOT_UNDERSTOOD):
            answer = info["invalid"] = self._explain_refusal(action)
        elif _REFUSAL.match(answer):
            info["invalid"] = answer
        reward = score - self._score
        self._score, self._valid = score, reply["validActions"]
        self._over = success or lost or score >= 1.0
        if answer.startswith("Simon says"):
            self._prompt = answer
        elif reward > 0 and not reply["look"]:
            # In simonsays with memorization, the instruction is shown once, so the state must track the progress.
            self._prompt = (
                f"{self._prompt} {command}." if self._prompt.startswith("You did: ") else f"You did: {command}."
            )
        return self._state(reply, answer), reward, self._over, info

    def admissible(self, state: State) -> list[str]:
        """Return the admissible actions, sorted, without those that only show the state."""
        return sorted(set(self._valid) - _INFO_ACTIONS)

    def clone(self) -> "TextWorldExpress":
        """Return another environment of the same game; both can run at the same time."""
        return TextWorldExpress(self.game, self.params, step_timeout_s=self._timeout_s)

    def close(self) -> None:
        """Free the game. The Java process serves other environments and ends with Python."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def abandon(self) -> None:
        """Cut off a call that hangs in another thread; `Watched` calls this after a timeout."""
        if self._engine is not None:
            self._engine.abandon()

    def gold_path(self) -> list[str]:
        """Return a sequence of actions that solves the current episode.

        Raises:
            ConfigError: No episode was begun.
            EnvironmentFailure: Java fails.
        """
        if self._episode is None:
            raise ConfigError("there is no episode to solve yet; call reset first.")
        engine = self._new_engine()
        try:
            # On an engine of its own, because a new game would reset the running episode.
            engine.call("generateNewGameJSON", *self._episode, True)
            return engine.call_list("getGoldActionSequence")
        finally:
            engine.close()

    def _get_engine(self) -> JavaObject:
        """Return the engine, creating one if there is none or it was lost."""
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
            names = unknown[2].rstrip(". \n").removesuffix("None") or "none"
            raise ConfigError(f"{self.game} has no parameter {unknown[1]!r}. Its parameters: {names}.")
        raise ConfigError(f"{self.game} refuses {self.params!r}: {strip_spaces(refusal)} Change it or leave it out.")

    def _state(self, reply: dict[str, Any], answer: str) -> State:
        look, inventory = strip_spaces(reply["look"]), strip_spaces(reply["inventory"])
        if not look and not inventory:  # simonsays: the last instruction is the whole state
            return State(self._prompt, task=self._task, feedback="" if answer == self._prompt else answer)
        location = _LOCATION.match(look)
        observation = f"{look}\n{inventory}"
        return State(
            observation,
            facts={"inventory": list(_parse_inventory(inventory))},
            location=location[1] if location else "",
            task=self._task,
            feedback="" if answer == look else answer,
            signature=signature(observation),  # the default uses only the facts, which lack the room
        )

    def _match_action(self, action: str) -> str:
        """Return the admissible action that differs only in case and spacing, else the action itself."""
        wanted = action.split()
        plain = " ".join(wanted).lower()
        return next((valid for valid in self._valid if valid.lower() == plain), action)

    def _explain_refusal(self, action: str) -> str:
        """Return an error message that suggests the closest admissible action.

        The engine does not say why it refuses an action.
        """
        matches = difflib.get_close_matches(action, self._valid, n=1)
        hint = f" Did you mean {matches[0]!r}?" if matches else ""
        return f"{action!r} is not an action that can be taken here now.{hint}"


@lru_cache(maxsize=4096)
def strip_spaces(text: str) -> str:
    """Return the engine's text without superfluous spaces."""
    text = re.sub(r"(?<=\S)[ \t]+", " ", text)
    return re.sub(r" (?=[.,\n])", "", text).rstrip()


@lru_cache(maxsize=4096)
def _parse_inventory(inventory: str) -> tuple[str, ...]:
    """Return the objects in an inventory text: its lines after the heading."""
    return tuple(line.strip() for line in inventory.split("\n")[1:] if "is currently empty" not in line)


def _get_engine_seed(fold: str, seed: int) -> int:
    if fold not in FOLDS:
        raise UnknownName.of("fold", fold, FOLDS)
    first = FOLDS[fold]
    if 0 <= seed < SEEDS:
        return first + seed
    if first <= seed < first + SEEDS:
        return seed
    alternative = f", or {first} to {first + SEEDS - 1}" if first else ""
    raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}{alternative}.")


def _normalize_parameters(game: str, params: str) -> str:
    """Return validated parameters in canonical form."""
    # Validate here, because the engine silently replaces malformed values by defaults.
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
