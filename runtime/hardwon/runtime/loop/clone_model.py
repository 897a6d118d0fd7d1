"""Looking ahead in a clone of the environment: exact where repeating the actions leads to the same state."""

from collections.abc import Sequence

from hardwon.memory.errors import CannotBranch, EnvironmentFailure
from hardwon.runtime.interfaces.extension import Imagined
from hardwon.runtime.interfaces.types import Context, Environment

from .starts import NOT_EXECUTED, bring_back, can_branch


class CloneModel:
    """Repeats an episode in a clone of its environment and tries actions there.

    It can tell nothing where actions have effects outside (see `loop.starts.can_branch`), where the environment is not
    deterministic, and where the task and seed of the episode are not known. It needs the task instance itself, as a
    simulator does, so compare agents that use it with others that use it.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._clone: Environment | None = None
        self._at: tuple[tuple[str, int], tuple[str, ...]] | None = None
        """Where the clone is: its start and the actions since; None if it must begin anew."""
        self._refused: tuple[str, int] | None = None
        """A start that the clone could not repeat."""

    def imagine(self, context: Context, path: Sequence[str]) -> Imagined | None:
        """Return where the actions lead; None if the environment cannot be repeated or is over before the last one."""
        if context.start is None or context.start == self._refused or not can_branch(self._environment):
            return None
        try:
            return self._try_path(context, context.start, tuple(path))
        except CannotBranch:
            self._refused, self._at = context.start, None
            return None
        except EnvironmentFailure:
            self.close()  # the clone broke; the episode's own environment did not
            return None

    def _try_path(self, context: Context, start: tuple[str, int], path: tuple[str, ...]) -> Imagined | None:
        if self._clone is None:
            self._clone = self._environment.clone()
        executed = tuple(step.action for step in context.history if step.diagnosis.failure not in NOT_EXECUTED)
        whole = (*executed, *path)
        if self._at != (start, whole[:-1]):
            self._at = None
            reached = bring_back(self._clone, *start, context.history)
            if reached.done:
                return None
            for action in path[:-1]:
                _, _, done, _ = self._clone.step(action)
                if done:
                    return None
        self._at = None
        state, reward, done, info = self._clone.step(path[-1])
        self._at = None if done else (start, whole)
        return Imagined(state, () if done else tuple(self._clone.admissible(state)), reward, done, info)

    def close(self) -> None:
        """Close the clone; the next question makes another."""
        if self._clone is not None:
            self._clone.close()
        self._clone, self._at = None, None
