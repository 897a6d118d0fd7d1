"""Generalization: what several runs of actions, or several states, have in common, and how two actions differ.

The first is least general generalization (Plotkin 1970).
"""

import re
from collections.abc import Sequence
from typing import Any

from hardwon.memory.records import State
from hardwon.memory.situations.actions import bind, fill, parse_action, put_values
from hardwon.memory.situations.commands import is_sql
from hardwon.memory.situations.phrases import REDACTED

ArgumentChange = tuple[str, str, str]
"""An argument that two calls differ in: its name, and its two values."""


def generalise(runs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the least general patterns that match all runs of one shape.

    Equal arguments stay and others become holes, also redacted ones. Arguments that vary together share a hole.

        generalise([["open oven", "take pie"], ["open fridge", "take pie"]]) == ("open {1}", "take pie")
    """
    holes: dict[tuple[str, ...], str] = {}
    patterns = []
    for column in zip(*runs, strict=True):
        parsed = [parse_action(action) for action in column]
        arguments, changed = [], {}
        for values in zip(*(action.slots for action in parsed), strict=True):
            # The same tuple of values gets the same hole, which keeps arguments linked across steps.
            same = all(value == values[0] for value in values) and not REDACTED.search(values[0])
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


def find_changes(failed: str, fixed: str) -> tuple[ArgumentChange, ...]:
    """Return the arguments that two calls of one tool differ in; empty if they are no such calls, or are equal.

    Of an argument that only one of them has, the value is left out, because it may be free text. Shell commands are no
    calls of one tool, because each is a program of its own, unless one is the other with something added.
    """
    old, new = parse_action(failed), parse_action(fixed)
    if old.verb != new.verb or not all(part.name for part in (*old.parts, *new.parts)):
        return ()
    before, after = ({part.name: part.value for part in call.parts} for call in (old, new))
    if any(part.frame != "{}" for part in (*old.parts, *new.parts)):
        changed = [name for name in before if before[name] != after.get(name)]
        added = find_addition(before[changed[0]], after.get(changed[0], "")) if len(changed) == 1 else ""
        return ((changed[0], "{}", added),) if added and before.keys() == after.keys() else ()
    return tuple(
        (name, before.get(name, ""), after.get(name, "")) if name in before and name in after
        else (name, "{}" if name in before else "", "{}" if name in after else "")
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )  # fmt: skip


def find_replacement(failed: str, fixed: str) -> str:
    """Return what another call used instead: a tool for the same arguments, a program for a subcommand, or a table.

    `pnpm test` for `npm test`, `lookup(word="fee")` for `search(word="fee")`, and a query that differs in its table
    alone, but not `cat a.py` for `pytest a.py`, which looks at the same thing for another purpose. Empty if it is no
    such call.
    """
    old, new = parse_action(failed), parse_action(fixed)
    before, after = ({part.name: part for part in call.parts} for call in (old, new))
    if not before or not all((*before, *after)) or before.keys() != after.keys():
        return ""
    changed = [name for name in before if before[name].value != after[name].value]
    if old.verb != new.verb or len(changed) != 1:
        return "" if changed or old.verb == new.verb else new.verb
    was, now = before[changed[0]], after[changed[0]]
    if is_sql(was.value, was.name):
        pairs = zip(was.value.split(), now.value.split(), strict=False)
        words = [new for word, new in pairs if word != new]
        is_table = was.frame != now.frame and len(words) == 1 and len(was.value.split()) == len(now.value.split())
        return words[0] if is_table else ""
    (_, *rest), words = was.frame.split() or [""], now.frame.split()
    given = words[: len(words) - len(rest)]
    is_same = bool(rest) and words[len(given) :] == rest and was.slots == now.slots and rest[0].isalpha()
    return " ".join(given) if is_same and given else ""


def find_addition(failed: str, fixed: str) -> str:
    """Return what a command has beyond a failed one: a variable, a folder, a flag; empty if it is another command.

    `DB=dev.db make test`, `cd app && make test`, and `.venv/bin/pytest` for `pytest`. A pipe hides the exit code, and
    makes nothing work.
    """
    missing, added = failed.split(), list[str]()
    is_program = True
    for word in fixed.split():
        if missing and word == missing[0]:
            del missing[0]
        elif missing and is_program and re.fullmatch(rf"(?:.*/)?{re.escape(missing[0])}[\d.]*", word):
            added.append(word)
            del missing[0]
        else:
            added.append(word)
            continue
        is_program = False
    is_hidden = any(sign in word for word in added for sign in "|;>") or "&" in added
    return "" if missing or is_hidden else " ".join(added)
