"""Extraction: from one recorded episode to operations on the library, by whoever reads it.

An extractor (rules, a prompted model, a trained one) answers with at most MAX_OPERATIONS of add,
update and return. Whatever it says goes through `apply`: indices point into the items it was shown,
evidence names steps of the episode it read, failures teach only what to avoid and repair, successes
only what to do. What does not hold is rejected with the reason; nothing is invented.
"""

from collections.abc import Sequence
from typing import Protocol

from hardwon.memory.records import Add, Admission, Item, Kind, Operation, Return, Trajectory, Update

from .curator import Curator

MAX_OPERATIONS = 3
"""Operations that one reading of an episode may ask for (Complementary RL)."""
FROM_SUCCESS: frozenset[Kind] = frozenset(["strategy", "skill", "insight", "remedy"])
FROM_FAILURE: frozenset[Kind] = frozenset(["warning", "guardrail", "remedy"])


class Extractor(Protocol):
    """Reads an episode and says what is worth keeping of it."""

    def extract(self, trajectory: Trajectory, shown: Sequence[Item]) -> Sequence[Operation]:
        """Operations; the episode's steps have their ids, `shown` are the items it was shown, in order."""
        ...


def apply(
    curator: Curator, operations: Sequence[Operation], trajectory: Trajectory, shown: Sequence[Item]
) -> list[Admission]:
    """Carry out an extractor's operations on a recorded episode; one admission for each add and update."""
    admissions = []
    for number, operation in enumerate(operations):
        if isinstance(operation, Return):
            continue
        if number >= MAX_OPERATIONS:
            admissions.append(Admission("rejected", f"only {MAX_OPERATIONS} operations are carried out"))
            continue
        objection = _objection(operation, trajectory, shown)
        admissions.append(Admission("rejected", objection) if objection else _carry_out(curator, operation, shown))
    return admissions


def _carry_out(curator: Curator, operation: Add | Update, shown: Sequence[Item]) -> Admission:
    item = operation.item
    if isinstance(operation, Add):
        return curator.admit(item)
    return curator.rewrite([shown[index] for index in operation.indices], item)


def _objection(operation: Add | Update, trajectory: Trajectory, shown: Sequence[Item]) -> str:
    """Why an operation is not carried out; empty when nothing speaks against it."""
    item = operation.item
    own = {step.id for step in trajectory.steps}
    if not item.provenance:
        return "it has no evidence: name the steps that it was learnt from"
    if foreign := [ref for ref in item.provenance if ref not in own]:
        return f"its evidence names step {foreign[0]}, which is not of this episode"
    allowed = FROM_SUCCESS if trajectory.success else FROM_FAILURE
    if item.kind not in allowed:
        ended = "successful" if trajectory.success else "failed"
        return f"a {ended} episode teaches {', '.join(sorted(allowed))}, not a {item.kind}"
    if isinstance(operation, Update):
        if not operation.indices:
            return "an update names the items that it rewrites"
        if wrong := [index for index in operation.indices if not 0 <= index < len(shown)]:
            return f"it updates item {wrong[0]} of {len(shown)} that were shown"
        if len({*operation.indices}) < len(operation.indices):
            return "it updates an item twice"
        if others := [shown[index] for index in operation.indices if shown[index].kind != item.kind]:
            return f"it rewrites {others[0].kind} as {item.kind}"
    return ""
