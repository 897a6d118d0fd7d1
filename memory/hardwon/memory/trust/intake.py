"""Doors: what an episode becomes that a program sent, rather than this process recorded.

The door says who wrote it and whether that writer is trusted; the client cannot. Keys are worked out here, from the
states and actions alone: an episode under another action's keys would otherwise block or praise that action. Of an
untrusted episode the signatures are worked out as well, and its reasons, which name items and move scores, are dropped.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Failure, State, Step, Trajectory, Trust
from hardwon.memory.situations.familiarity import Familiarity

LOCAL = ""
"""The writer of what this process, or another that opens the library's file, records."""
LONGEST = 80
"""Characters of a writer's name."""
_NAME = re.compile(r"[^\w.@-]+")

Keys = Callable[[State, str, str], tuple[str, ...]]
"""Returns the keys of an action in a state, given what the episode already tried."""


def writer_name(kind: str, name: str = "") -> str:
    """Return the name of a door's writer, `token:ci` or `mcp:claude-code`; what no name has becomes a dash."""
    plain = _NAME.sub("-", name).strip("-")[:LONGEST]
    return f"{kind}:{plain}" if plain else kind


def received(trajectory: Trajectory, keys: Keys, *, writer: str, trust: Trust) -> Trajectory:
    """Return the episode as its door lets it in: with the door's writer and trust, and keys of its own steps.

    Raises: ConfigError for an untrusted writer without a name.
    """
    if trust == "untrusted" and not writer:
        raise ConfigError("an untrusted episode needs the name of its writer: give writer, such as token:NAME.")
    familiar = Familiarity()
    states: dict[int, State] = {}

    def own(state: State) -> State:
        if trust == "trusted":  # an environment may have signatures of its own
            return state
        return states.setdefault(id(state), replace(state, signature=""))

    steps: list[Step] = []
    for step in trajectory.steps:
        pre = own(step.pre)
        if not steps:
            familiar.begin(pre)
        filed = keys(pre, step.action, familiar.counts(pre, step.action)) if _is_done(step) else ()
        steps.append(replace(step, pre=pre, post=own(step.post), keys=filed))
        familiar.add(steps[-1])
    if trust == "untrusted":
        steps = [_without_reasons(step) for step in steps]
    return replace(trajectory, steps=tuple(steps), writer=writer, trust=trust)


def with_keys(trajectory: Trajectory, keys: Keys) -> Trajectory:
    """Return the episode with keys for the steps that have none; a step without keys teaches no value and no guardrail.

    The runtime gives keys with its steps. Code that builds steps by hand need not know of them.
    """
    if has_keys(trajectory):
        return trajectory
    familiar = Familiarity()
    steps: list[Step] = []
    for step in trajectory.steps:
        if not steps:
            familiar.begin(step.pre)
        if not step.keys and _is_done(step):
            step = replace(step, keys=keys(step.pre, step.action, familiar.counts(step.pre, step.action)))
        familiar.add(step)
        steps.append(step)
    return replace(trajectory, steps=tuple(steps))


def has_keys(trajectory: Trajectory) -> bool:
    """Return whether every step that was carried out has keys."""
    return all(step.keys or not _is_done(step) for step in trajectory.steps)


def _is_done(step: Step) -> bool:
    return bool(step.action) and step.diagnosis.failure is not Failure.BLOCKED  # a refusal is no evidence


def _without_reasons(step: Step) -> Step:
    return replace(step, why={}, diagnosis=replace(step.diagnosis, progress=0.0))
