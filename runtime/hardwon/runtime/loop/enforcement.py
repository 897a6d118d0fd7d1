"""What becomes of a call that guardrails forbid: refused, run with a warning, or let through.

`block` refuses it, but for the trials that probation gives (see `hardwon.memory.guardrails.probation`). `warn` runs
it and says what experience warns of; only its repetition, when it failed and nothing was done since, is
refused, once. Neither goes on for ever: what a run insists on after `MOST_IN_A_RUN` refusals is let
through, unless a person pinned the guardrail; then the run is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hardwon.memory import ExperienceLibrary, Failure, State, Step, Verdict
from hardwon.memory.errors import ConfigError, UnknownName

Mode = Literal["warn", "block"]
MOST_IN_A_RUN = 3
"""Refusals of the same call in one run, in `block`."""
MOST_WARNED = 1
"""The same in `warn`."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is done with a call."""

    verdict: Verdict
    runs: bool = True
    over: bool = False
    """It was refused too often and must not run: the run is to end."""

    @property
    def warned(self) -> bool:
        """Whether it runs although guardrails forbid it."""
        return self.runs and bool(self.verdict.items)

    @property
    def why(self) -> dict[str, list[str]]:
        """What the step says of it in its reasons: by these its outcome decides over the guardrails."""
        items = list(self.verdict.items)
        if not self.runs:
            return {"blocked": items[:1]}
        return {**({"overrode": items} if items else {}), **({"trial": items} if self.verdict.trial else {})}


def mode_of(guardrails: object) -> Mode | None:
    """Return the mode that a setting names; None is off. Raises ConfigError."""
    if guardrails is False:
        return None
    if guardrails is True or guardrails == "block":
        return "block"
    if guardrails == "warn":
        return "warn"
    raise ConfigError(f'guardrails is {guardrails!r}; use "warn", "block" or False.')


def rule(
    library: ExperienceLibrary, mode: Mode | None, state: State, action: str, steps: Sequence[Step], *, learn: bool
) -> Ruling:
    """Decide over a call that is about to be made, after these steps of its run.

    Without `learn` nothing is written: refusals are counted and trials given in this process alone; tell `settle` of
    their outcomes.
    """
    if not mode:
        return Ruling(Verdict(True))
    again = is_repetition(steps, action)
    if mode == "block":
        verdict = library.enforce(state, action, again=again, keep=learn)
    else:
        verdict = library.check(state, action, again=again)
    if verdict.allowed or (mode == "warn" and not again):
        return Ruling(verdict)
    return limit(library, verdict, refused(steps, action), MOST_IN_A_RUN if mode == "block" else MOST_WARNED)


def limit(library: ExperienceLibrary, verdict: Verdict, refusals: int, most: int = MOST_IN_A_RUN) -> Ruling:
    """Return what becomes of a call that is forbidden and was refused so often in this run."""
    if refusals < most:
        return Ruling(verdict, runs=False)
    if most > MOST_WARNED and any(_is_pinned(library, ref) for ref in verdict.items):
        return Ruling(verdict, runs=False, over=True)
    return Ruling(verdict)


def settle(library: ExperienceLibrary, step: Step) -> None:
    """Tell the library how a trial ended that is not recorded; an outage decides nothing."""
    trial = step.why.get("trial")
    if trial and step.diagnosis.failure not in (Failure.UNAVAILABLE, Failure.BLOCKED):
        library.settle_trial(trial, step.diagnosis.success)


def refused(steps: Sequence[Step], action: str) -> int:
    """Return how often the call was refused in these steps."""
    return sum(step.action == action and step.diagnosis.failure is Failure.BLOCKED for step in steps)


def is_repetition(steps: Sequence[Step], action: str) -> bool:
    """Return whether the call failed and nothing else was done since; an outage is no failure of the call."""
    for step in reversed(steps):
        if step.diagnosis.success:
            return False
        if step.action == action and step.diagnosis.failure not in (Failure.BLOCKED, Failure.UNAVAILABLE):
            return True
    return False


def is_unfinished(steps: Sequence[Step]) -> bool:
    """Return whether a call was refused and not made afterwards: how such a run would have ended is unknown."""
    made: set[str] = set()
    for step in reversed(steps):
        if step.diagnosis.failure is Failure.BLOCKED:
            if step.action not in made:
                return True
        else:
            made.add(step.action)
    return False


def _is_pinned(library: ExperienceLibrary, item_id: str) -> bool:
    try:
        return library.get(item_id).pinned
    except UnknownName:  # deleted meanwhile
        return False
