"""The environment of a run whose episodes a program plays: nothing that the run itself can step."""

from hardwon.memory import State
from hardwon.memory.errors import EnvironmentFailure
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers.config.program import PROGRAM


class ProgramEnvironment:
    """Takes the place of an environment. Exploring in it fails, so nothing is explored."""

    name = PROGRAM

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Raise an error: only the program knows how its task begins."""
        raise EnvironmentFailure("a program plays by itself; nothing can be explored in it.")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Raise an error: only the program acts."""
        raise EnvironmentFailure("a program plays by itself; nothing can be explored in it.")

    def admissible(self, state: State) -> list[str]:
        """Return no actions."""
        return []

    def clone(self) -> "ProgramEnvironment":
        """Return another one."""
        return ProgramEnvironment()

    def close(self) -> None:
        """Do nothing."""

    def describe(self) -> str:
        """Return no instructions: the program has its own."""
        return ""
