"""One episode to run: the task instance, the arm, and where and with what it begins."""

import hashlib
from dataclasses import dataclass, field

from hardwon.memory import Item
from hardwon.memory.records import Step


@dataclass(frozen=True, slots=True)
class Spec:
    """One episode to run. Episodes with the same task and seed form a group, across arms and copies."""

    task: str
    seed: int
    arm: str = "control"
    copy: int = 0
    memory: str | None = None
    """Text shown at the start of the episode, if the arm's guidance is `GivenGuidance`."""
    salt: str = ""
    """Distinguishes the random numbers of this batch: the run's seed and the iteration."""
    candidate: Item | None = field(default=None, compare=False)
    """An item that is not in the library, shown besides what recall gives."""
    prefix: tuple[Step, ...] = field(default=(), compare=False)
    """Steps that the episode begins with; nothing of them is trained."""
    parent: str = ""
    """Session of the episode of this policy that the prefix was taken from; empty for a demonstration."""
    max_steps: int | None = None
    """Steps after which the episode ends, prefix included; None takes the run's."""
    temperature: float | None = None
    """Sampling temperature of the episode; None takes the run's."""
    note: str = ""
    """Text shown at the first own step, in any arm, such as a hint or an account of an earlier attempt."""
    label: str = ""
    """What distinguishes the episode from others of its arm, such as the share of a hint."""

    @property
    def group(self) -> str:
        """Return the name of the task instance, `TASK#SEED`."""
        return f"{self.task}#{self.seed}"

    @property
    def session(self) -> str:
        """Return the unique name of the episode, which also seeds its random numbers."""
        name = f"{self.salt}/{self.group}/{self.arm}/{self.copy:03}"
        return f"{name}+{self.label}" if self.label else name

    @property
    def root(self) -> str:
        """Return the key of how the episode begins; empty for a plain one. Only equal roots are compared."""
        if not (self.prefix or self.note or self.label):
            return ""
        actions = "\n".join(step.action for step in self.prefix)
        # episodes with equal labels are compared even if their notes differ, such as accounts of own failures
        content = f"{self.label or self.note}\n{actions}"
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
