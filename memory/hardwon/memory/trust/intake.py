"""Intake of episodes that other programs sent: their writer, trust and keys are set here, not by the client.

Keys are dropped, and computed from the states and actions when the episode is filed. Otherwise, it could be filed under
the keys of another action, and block or recommend it. For untrusted episodes the signatures are recomputed as well, and
the steps' `why` is dropped, because it names items and changes their scores.
"""

import re
from dataclasses import replace

from hardwon.memory.errors import ConfigError
from hardwon.memory.reasons import NO_REASONS
from hardwon.memory.records import State, Step, Trajectory, Trust

LOCAL = ""
"""Name of the writer for episodes that this process, or another one with the library's file, records."""
_NAME = re.compile(r"[^\w.@-]+")


def writer_name(kind: str, name: str = "") -> str:
    """Return the name of a writer, such as `token:ci` or `mcp:claude-code`; invalid characters become a dash."""
    plain = _NAME.sub("-", name).strip("-")[:80]
    return f"{kind}:{plain}" if plain else kind


def received(trajectory: Trajectory, *, writer: str, trust: Trust) -> Trajectory:
    """Return an episode as it is stored: with the given writer and trust, and without keys, which are computed here."""
    if trust == "untrusted" and not writer:
        raise ConfigError("an untrusted episode has no writer; give its name, such as token:NAME.")
    states: dict[int, State] = {}

    def own(state: State) -> State:
        if trust == "trusted":  # keep its signatures: an environment may define its own
            return state
        return states.setdefault(id(state), replace(state, signature=""))  # shared states stay shared

    steps = [replace(step, pre=own(step.pre), post=own(step.post), keys=()) for step in trajectory.steps]
    if trust == "untrusted":
        steps = [_without_reasons(step) for step in steps]
    return replace(trajectory, steps=tuple(steps), writer=writer, trust=trust)


def _without_reasons(step: Step) -> Step:
    """Return the step without reasons and progress, which an untrusted writer could use to change scores.

    What the action copied from a result stays, because it only hides words.
    """
    why = NO_REASONS.updated(copied=step.why.copied) if step.why.copied else NO_REASONS
    return replace(step, why=why, diagnosis=replace(step.diagnosis, progress=0.0))
