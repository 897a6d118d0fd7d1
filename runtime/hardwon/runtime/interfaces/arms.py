"""Arms: the conditions that an experiment compares on the same tasks."""

from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from hardwon.memory.errors import ConfigError

CONTROL = "control"
"""Name of the arm without memory, to which the others are compared."""
NO_MEMORY = "none"
"""The kind of memory of an arm whose episodes consult none."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One condition of an experiment. Its name labels episodes and results; nothing is read from the name."""

    name: str
    memory: str = NO_MEMORY
    """Kind of memory that the episodes consult, such as `library`; `none` for no memory."""
    frozen: bool = False
    """Whether the memory stays as it was at the start of the run."""

    @classmethod
    def of(cls, arm: "Arm | str") -> "Arm":
        """Return the arm; of a name, the arm that recalls from the library, or the one without memory for `control`.

        Raises:
            ConfigError: The name is `control`, mistyped.
        """
        if isinstance(arm, Arm):
            return arm
        if arm != CONTROL and SequenceMatcher(None, arm.strip().lower(), CONTROL).ratio() > 0.83:
            raise ConfigError(f"arm is {arm!r}; use {CONTROL!r}, or Arm({arm!r}, 'library') for an arm of that name.")
        return cls(arm) if arm == CONTROL else cls(arm, "library")

    @property
    def has_memory(self) -> bool:
        """Return whether the episodes consult a memory."""
        return self.memory != NO_MEMORY

    def freeze(self) -> "Arm":
        """Return the arm with the memory of the start of the run, under the name `NAME-frozen`."""
        return replace(self, name=f"{self.name}-frozen", frozen=True)


RETRIEVED = Arm("retrieved", "library")
"""The usual arm of an agent: it recalls from its library."""
