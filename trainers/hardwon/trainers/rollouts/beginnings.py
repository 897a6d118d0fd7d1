"""The first situations of task instances, read from a copy of the environment without playing."""

from hardwon.memory import State
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Environment

from .rollout import Spec


class Beginnings:
    """Reads the first state of each task instance once."""

    def __init__(self, environment: Environment | None) -> None:
        """Create a reader."""
        self._original = environment
        self._environment: Environment | None = None
        self._first: dict[str, tuple[State, tuple[str, ...]]] = {}

    def read(self, spec: Spec) -> tuple[State, tuple[str, ...]]:
        """Return the first state of an episode and its admissible actions."""
        if spec.group not in self._first:
            self._first[spec.group] = self._begin(spec)
        return self._first[spec.group]

    def _begin(self, spec: Spec) -> tuple[State, tuple[str, ...]]:
        """Return what the environment shows at the start of a task instance."""
        if self._environment is None:
            if self._original is None:
                raise ConfigError("the first state of a task instance is read from the environment, and there is none.")
            self._environment = self._original.clone()
        state = self._environment.reset(spec.task, spec.seed)
        return state, tuple(self._environment.admissible(state))
