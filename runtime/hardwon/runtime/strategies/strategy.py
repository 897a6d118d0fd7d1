"""A strategy: one setting of everything that an agent may do differently from episode to episode.

    Strategy(name="plain")
    Strategy(name="skilled", policy="episodic", planner="skills")
    Strategy(name="careful", policy="openai:gpt-5", instructions="Check every result.", best_of=3)

`load_strategies` reads several of them from a TOML file with one table for each.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.upkeep.text_files import read_text

CHAT_ONLY = {"instructions": "", "temperature": None, "context": "all", "history": 20}
"""The fields that only a chat model reads, with their defaults."""
PLANNERS = ("skills", "demonstrations", "search", "recorded")
"""Names of the planners without a chat model."""
DEEPEST = 32
_DEEP_NAME = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
"""A name of many parts, of which the parser takes the square of their number."""
DRAFTS = "drafts:"
"""Before the name of a chat model that writes several plans and compares them; see `DraftPlanner`."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The settings of one way to play an episode."""

    name: str
    policy: str = ""
    """Name of a policy: episodic, lookahead, PROVIDER:MODEL; empty for the agent's own."""
    planner: str | None = None
    """Name of a planner: skills, demonstrations, search, recorded, drafts:PROVIDER:MODEL; None for the agent's own."""
    level: Literal["step", "task"] | None = None
    """How often to recall; None for as often as the agent does."""
    recall_k: int = 5
    max_steps: int | None = None
    """Number of steps after which the episode ends; None takes the agent's."""
    best_of: int = 1
    """How often the policy is asked at a step; of several answers, the library's estimates choose."""
    instructions: str = ""
    """Text for the system message of a chat model."""
    temperature: float | None = None
    context: Literal["all", "actions", "report", "omit"] = "all"
    history: int = 20

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a strategy has no name; episodes are recorded under it.")
        for name in ("recall_k", "best_of", *(("max_steps",) if self.max_steps is not None else ())):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of strategy {self.name} is {getattr(self, name)}; use 1 or more.")
        if self.planner is not None and self.planner not in PLANNERS and not self.planner.startswith(DRAFTS):
            raise UnknownName.of(f"planner of the strategy {self.name}", self.planner, [*PLANNERS, f"{DRAFTS}MODEL"])
        changed = [name for name, value in CHAT_ONLY.items() if getattr(self, name) != value]
        if changed and ":" not in self.policy:
            raise ConfigError(
                f"strategy {self.name} sets {', '.join(changed)} for the policy {self.policy or 'of the agent'!r}; "
                "name a chat model, such as openai:gpt-5."
            )


def load_strategies(path: str | Path) -> tuple[Strategy, ...]:
    """Return the strategies of a TOML file, which has one table for each."""
    try:
        text = read_text(path)
        if _DEEP_NAME.search(text):
            raise ConfigError(f"{path} has a name of over {DEEPEST} parts; a strategy is one table of settings.")
        tables = tomllib.loads(text)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # a number of 5,000 digits is no TOMLDecodeError
        raise ConfigError(f"{path} cannot be read as TOML: {error}.") from error
    strategies = tuple(_parse_strategy(name, table, path) for name, table in tables.items())
    if not strategies:
        raise ConfigError(f'{path} has no strategies; write one as [plain] and a line policy = "episodic".')
    return strategies


def save_strategies(path: str | Path, strategies: Sequence[Strategy]) -> None:
    """Write strategies to a TOML file; fields with their default are left out."""
    tables = []
    for strategy in strategies:
        changed = {field.name: getattr(strategy, field.name) for field in fields(strategy) if field.name != "name"}
        lines = [f"[{json.dumps(strategy.name)}]"]
        # a string or a number of JSON is one of TOML
        defaults = Strategy(name=strategy.name)
        lines += [f"{key} = {json.dumps(value)}" for key, value in changed.items() if value != getattr(defaults, key)]
        tables.append("\n".join(lines))
    Path(path).write_text("\n\n".join(tables) + "\n", encoding="utf-8")


def _parse_strategy(name: str, table: Any, path: str | Path) -> Strategy:
    if not isinstance(table, dict):
        raise ConfigError(f"{name} in {path} is {table!r}; write a table: [{name}].")
    allowed = {field.name: field for field in fields(Strategy) if field.name != "name"}
    for key, value in table.items():
        if key not in allowed:
            raise UnknownName.of(f"field of the strategy {name}", key, allowed)
        expected = _EXPECTED.get(key, str)
        if not isinstance(value, expected) or isinstance(value, bool):
            kind = "text" if expected is str else "number"
            raise ConfigError(f"{key} of strategy {name} is {value!r}, which is no {kind}.")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise UnknownName.of(f"{key} of the strategy {name}", str(value), _CHOICES[key])
    values: dict[str, Any] = {key: float(value) if key == "temperature" else value for key, value in table.items()}
    return Strategy(name=name, **values)


_NUMBERS = ("recall_k", "max_steps", "best_of", "history")
_EXPECTED: dict[str, Any] = {"temperature": (int, float), **dict.fromkeys(_NUMBERS, int)}
_CHOICES = {
    "level": ("step", "task"),
    "context": ("all", "actions", "report", "omit"),
}
