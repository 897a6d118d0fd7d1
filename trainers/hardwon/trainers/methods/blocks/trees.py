"""Trees of episodes that share their first turns."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import Trace

Node = tuple[str, ...]
"""The actions up to a situation of one task instance and arm."""


def group_trees(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group traces by group, role and arm, whatever they began with; a trace that is listed twice counts once."""
    groups: dict[tuple[str, str, str], dict[str, Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.group, trace.role, trace.arm), {})[trace.id] = trace
    return [list(group.values()) for group in groups.values()]
