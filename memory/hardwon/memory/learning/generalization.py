"""Least general generalization: what several runs of actions, or several states, have in common (Plotkin 1970)."""

from collections.abc import Sequence
from typing import Any

from hardwon.memory.records import State
from hardwon.memory.situations.actions import bind, fill, parse_action, put_values


def generalise(runs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the least general patterns that match all runs of one shape.

    Equal arguments stay and others become holes. Arguments that vary together share a hole.

        generalise([["open oven", "take pie"], ["open fridge", "take pie"]]) == ("open {1}", "take pie")
    """
    holes: dict[tuple[str, ...], str] = {}
    patterns = []
    for column in zip(*runs, strict=True):
        parsed = [parse_action(action) for action in column]
        arguments, changed = [], {}
        for values in zip(*(action.slots for action in parsed), strict=True):
            # The same tuple of values gets the same hole, which keeps arguments linked across steps.
            same = all(value == values[0] for value in values)
            arguments.append(values[0] if same else holes.setdefault(values, f"{{{len(holes) + 1}}}"))
            if not same:
                changed[values[-1]] = arguments[-1]
        # In the words of an action, because its template has lost the order of its flags and its quotes.
        pattern = put_values(column[-1], changed)
        is_one = pattern and all(bind(pattern, action) is not None for action in column)
        patterns.append(pattern if is_one else fill(parsed[0].template, arguments))
    return tuple(patterns)


def common(states: Sequence[State], before: Sequence[State] | None = None) -> dict[str, Any]:
    """Return a condition that holds in all of the states: their common facts or, without any, their clusters."""
    shared = _shared_facts(states)
    if before is not None:  # facts that already held are no sign of success
        shared -= _shared_facts(before)
    if shared:
        parts: list[dict[str, Any]] = [{"fact": {name: value}} for name, value in sorted(shared, key=repr)]
        return parts[0] if len(parts) == 1 else {"all": parts}
    clusters = [{"signature": signature} for signature in dict.fromkeys(state.signature for state in states)]
    return clusters[0] if len(clusters) == 1 else {"any": clusters}


def _shared_facts(states: Sequence[State]) -> set[tuple[str, Any]]:
    """Return the facts that all states have in common."""
    shared = _facts(states[0])
    for state in states[1:]:
        shared &= _facts(state)
    return shared


def _facts(state: State) -> set[tuple[str, Any]]:
    """Return the facts of a state as (name, value) pairs; a listing yields one pair per entry."""
    facts: set[tuple[str, Any]] = set()
    for name, value in state.facts.items():
        facts |= {(name, part) for part in value} if isinstance(value, list | tuple) else {(name, value)}
    return facts
