"""A desk that answers one tool call: the smallest world whose actions are calls instead of a list."""

from collections.abc import Mapping
from typing import Any

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Info

FIND = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class BankClient:
    """The seed says in which city the table is."""

    name = "desk"

    def __init__(self) -> None:
        self.city = ""

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.city = ("Rome", "Oslo")[seed % 2]
        return State(f"A guest from {self.city} wants a table at home.", task="Find a table.")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        won = action == f'find(city="{self.city}")'
        return State("Done.", task="Find a table."), float(won), True, Info(success=won, score=float(won))

    def admissible(self, state: State) -> list[str]:
        return []

    def tool_schemas(self) -> Mapping[str, Mapping[str, Any]]:
        return {"find": FIND}

    def clone(self) -> "BankClient":
        return BankClient()

    def close(self) -> None:
        pass


class PatientDesk(BankClient):
    """A desk that answers until the table is found, so one guess in two is right, and there is something to learn."""

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        _, reward, _, info = super().step(action)
        won = bool(reward)
        return State("Done." if won else f"{action} found no table.", task="Find a table."), reward, won, info

    def gold_path(self) -> list[str]:
        """Return the call that finds the table."""
        return [f'find(city="{self.city}")']

    def clone(self) -> "PatientDesk":
        return PatientDesk()
