"""Checklists of a task: weighted questions with dependencies, and when a trajectory satisfied them (CM2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.advantages import Trace


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One yes-or-no question about an episode."""

    name: str
    weight: float = 1.0
    after: tuple[str, ...] = ()
    """Names of the items that must be satisfied before the turn in which this one is paid."""
    question: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The items of a checklist with the turns at which a trace satisfied and was paid for them."""

    items: tuple[ChecklistItem, ...]
    satisfied: Mapping[str, int]
    """First turn after which the item was satisfied, by name."""
    paid: Mapping[str, int] = field(default_factory=dict)
    """Turn at which the item was paid, by name: it was satisfied there, and its dependencies before."""

    @property
    def reward(self) -> float:
        """Return the sum of the weights that were paid."""
        return sum(item.weight for item in self.items if item.name in self.paid)

    def average_open(self, turn: int, values: Mapping[str, float]) -> float | None:
        """Return the weighted mean of the values of the items that are open at a turn; None if there is none."""
        open_items = [item for item in self.items if self._is_open(item, turn)]
        total = sum(item.weight for item in open_items)
        return sum(item.weight * values[item.name] for item in open_items) / total if total else None

    def _is_open(self, item: ChecklistItem, turn: int) -> bool:
        return self.satisfied.get(item.name, turn) >= turn and _is_ready(item, self.satisfied, turn)


def check_items(items: Sequence[ChecklistItem], answers: Sequence[Mapping[str, bool]]) -> Checked:
    """Return when the items were satisfied and paid. An item that is unsatisfied again is paid once.

    Raises:
        ConfigError: A dependency names no item.
    """
    names = {item.name for item in items}
    for item in items:
        if unknown := sorted({*item.after} - names):
            raise ConfigError(f"checklist item {item.name!r} depends on {unknown[0]!r}; the items are {sorted(names)}.")
    satisfied: dict[str, int] = {}
    for turn, answer in enumerate(answers):
        for name in names:
            if answer.get(name):
                satisfied.setdefault(name, turn)
    paid = {
        item.name: satisfied[item.name]
        for item in items
        if item.name in satisfied and _is_ready(item, satisfied, satisfied[item.name])
    }
    return Checked(tuple(items), satisfied, paid)


def _is_ready(item: ChecklistItem, satisfied: Mapping[str, int], turn: int) -> bool:
    """Return whether the dependencies of an item were satisfied before a turn."""
    return all(name in satisfied and satisfied[name] < turn for name in item.after)


def read_checklist(trace: Trace) -> Checked | None:
    """Return the checklist that a source attached to a trace; None if the task has none.

    Raises:
        UnfedSignal: No source gives checklists.
    """
    trace.read_signal("items")
    checked = trace.facts.get("checklist")
    return checked if isinstance(checked, Checked) else None
