"""Reports of an environment about the outcome of its episodes: a success, a score, rewards."""

from dataclasses import dataclass, field
from typing import Any

from hardwon.memory import State
from hardwon.runtime import Environment

_PROTOCOLS = ("name", "reset", "admissible", "close", "describe", "tool_schemas", "restore")
"""Members of the protocols of environments, which the loop looks for."""


@dataclass(slots=True)
class Reported:
    """Outcomes that the steps of all clones of an environment reported."""

    steps: int = 0
    names: set[str] = field(default_factory=set)


class Reporting:
    """An environment that notes which of `success` and `score` its steps report."""

    def __init__(self, inner: Environment, reported: Reported | None = None) -> None:
        self._inner = inner
        self.reported = reported or Reported()
        # From Python 3.12 on, isinstance of a runtime protocol sees attributes, but not what __getattr__ answers.
        self.__dict__.update({name: getattr(inner, name) for name in _PROTOCOLS if hasattr(inner, name)})

    def step(self, action: str) -> tuple[State, float, bool, Any]:
        """Run an action and note what was reported."""
        return self._note(self._inner.step(action))

    def _note(self, result: tuple[State, float, bool, Any]) -> tuple[State, float, bool, Any]:
        _, reward, _, info = result
        self.reported.steps += 1
        self.reported.names |= {"success", "score"} & {*info}
        if reward:
            self.reported.names.add("reward")
        return result

    def clone(self) -> "Reporting":
        """Return a clone that notes in the same place."""
        return Reporting(self._inner.clone(), self.reported)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.__dict__["_inner"], name)
        if name == "astep":

            async def astep(action: str) -> tuple[State, float, bool, Any]:
                return self._note(await inner(action))

            return astep
        return inner
