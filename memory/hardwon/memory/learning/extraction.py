"""Extraction: from one recorded episode to operations on the library.

An extractor (rules, a prompted model, or a trained one) answers with at most `max_operations` operations: add, update
and return. `apply` checks each of them. Indices must point to items that were shown, and evidence must name steps of
the episode. Failed episodes teach only what to avoid or repair, and successful ones only what to do; a lesson that
rests on rewarded or on failed steps alone is judged by these steps. An operation that fails a check is rejected with
the reason.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from hardwon.memory.records import Add, Admission, Item, Kind, Operation, Return, Trajectory, Update

from .curator import Curator
from .tuning import TUNING

FROM_SUCCESS: frozenset[Kind] = frozenset(["strategy", "skill", "insight", "remedy"])
FROM_FAILURE: frozenset[Kind] = frozenset(["warning", "guardrail", "remedy"])


class Extractor(Protocol):
    """Reads an episode and proposes what to remember from it."""

    def extract(self, trajectory: Trajectory, seen_items: Sequence[Item]) -> Sequence[Operation]:
        """Return the proposed operations."""
        ...


def apply(
    curator: Curator, operations: Sequence[Operation], trajectory: Trajectory, seen_items: Sequence[Item]
) -> list[Admission]:
    """Apply an extractor's operations on a recorded episode."""
    admissions = []
    for number, operation in enumerate(operations):
        if isinstance(operation, Return):
            continue
        # Counted before the checks, so that invalid operations use up the limit, too.
        if number >= TUNING.max_operations:
            admissions.append(
                Admission("rejected", f"at most {TUNING.max_operations} operations per episode are applied")
            )
            continue
        objection = _find_objection(operation, trajectory, seen_items)
        if trajectory.trust == "untrusted":  # whoever wrote the steps also wrote what was read out of them
            operation = replace(operation, item=replace(operation.item, trust="untrusted"))
        admissions.append(Admission("rejected", objection) if objection else _execute(curator, operation, seen_items))
    return admissions


def _execute(curator: Curator, operation: Add | Update, seen_items: Sequence[Item]) -> Admission:
    """Execute one valid operation."""
    item = operation.item
    if isinstance(operation, Add):
        return curator.admit(item)
    return curator.rewrite([seen_items[index] for index in operation.indices], item)


def _find_earned_kinds(item: Item, trajectory: Trajectory) -> frozenset[Kind]:
    """Return the kinds that the evidence itself supports, however the episode ended.

    A step that was rewarded gives an insight even if the task was not solved later, and one that failed gives a warning
    even if it was. Strategies, skills and guardrails need the whole episode.
    """
    evidence = [step for step in trajectory.steps if step.id in item.provenance]
    if all(step.reward > 0 and step.diagnosis.success for step in evidence):
        return frozenset(["insight"])
    return frozenset(["warning"]) if all(not step.diagnosis.success for step in evidence) else frozenset()


def find_allowed_kinds(trajectory: Trajectory) -> frozenset[Kind]:
    """Return the kinds that an episode teaches: those of a success or a failure, and all where it is graded between."""
    outcome = trajectory.outcome or 0.0
    return (FROM_SUCCESS if outcome > 0.0 else frozenset()) | (FROM_FAILURE if outcome < 1.0 else frozenset())


def _find_objection(operation: Add | Update, trajectory: Trajectory, seen_items: Sequence[Item]) -> str:
    """Return why an operation is invalid, or an empty string."""
    item = operation.item
    own = {step.id for step in trajectory.steps}
    if not item.provenance:
        return "it has no evidence; name the steps that it was learned from"
    if foreign := [ref for ref in item.provenance if ref not in own]:
        return f"its evidence names step {foreign[0]}, which is not of this episode"
    allowed = find_allowed_kinds(trajectory)
    if item.kind not in allowed | _find_earned_kinds(item, trajectory):
        ended = "successful" if trajectory.outcome else "failed"
        return f"a {ended} episode teaches {', '.join(sorted(allowed))}, not a {item.kind}"
    if isinstance(operation, Update):
        if not operation.indices:
            return "an update must name the items to rewrite"
        if wrong := [index for index in operation.indices if not 0 <= index < len(seen_items)]:
            return f"it updates item {wrong[0]} of {len(seen_items)} that were shown"
        if len({*operation.indices}) < len(operation.indices):
            return "it updates an item twice"
        if mismatched := [seen_items[index] for index in operation.indices if seen_items[index].kind != item.kind]:
            return f"it changes the kind from {mismatched[0].kind} to {item.kind}; an update must keep it"
    return ""
