"""Enforcement of guardrails: refuse a forbidden call, run it with a warning, or let it through.

In `block` mode a forbidden call is refused, except for the trials of a guardrail on probation (see
`hardwon.memory.guardrails.probation`). In `warn` mode it runs with a warning. Only its repetition after a failure, with
nothing else done since, is refused, and only once. No mode refuses for ever: after `TUNING.max_refusals` refusals of
one call the call runs. If a person pinned the guardrail, the run ends instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hardwon.memory import ExperienceLibrary, Failure, Reasons, State, Step, Verdict
from hardwon.memory.errors import ConfigError, UnknownName

from .tuning import TUNING

Mode = Literal["warn", "block"]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision about one call."""

    verdict: Verdict
    runs: bool = True
    """Whether the call runs."""
    over: bool = False
    """The call was refused too often and must never run, so the run ends."""

    @property
    def warned(self) -> bool:
        """Return whether the call runs although guardrails forbid it, or a remedy says what it needs first."""
        return self.runs and bool(self.verdict.items or self.verdict.item_id)

    @property
    def why(self) -> Reasons:
        """Return the reasons to record with the step; they link the step's outcome to the guardrails."""
        items = self.verdict.items
        if not self.runs:
            return Reasons(blocked=items[:1])
        return Reasons(overridden=items or None, trial=items if self.verdict.trial else None)


def mode_of(guardrails: object) -> Mode | None:
    """Return the mode that a setting names, or None if guardrails are off."""
    if guardrails is False:
        return None
    if guardrails is True or guardrails == "block":
        return "block"
    if guardrails == "warn":
        return "warn"
    raise ConfigError(f'guardrails is {guardrails!r}; use "warn", "block" or False.')


def rule(
    library: ExperienceLibrary,
    mode: Mode | None,
    state: State,
    action: str,
    steps: Sequence[Step],
    *,
    learn: bool,
    by_hours: bool = False,
) -> Ruling:
    """Decide about a call that is about to run."""
    if not mode:
        return Ruling(Verdict(True))
    again = is_repetition(steps, action)
    # `enforce` counts the refusal and draws trials; `check` only reads.
    if mode == "block":
        verdict = library.enforce(state, action, again=again, keep=learn, by_hours=by_hours)
    else:
        verdict = library.check(state, action, again=again)
    if verdict.allowed or (mode == "warn" and not again):
        return Ruling(verdict)
    most = TUNING.max_refusals if mode == "block" else TUNING.max_warnings
    return limit(library, verdict, count_refusals(steps, action), most)


def limit(library: ExperienceLibrary, verdict: Verdict, refusals: int, most: int = TUNING.max_refusals) -> Ruling:
    """Return the ruling for a forbidden call that this run has already refused `refusals` times."""
    if refusals < most:
        return Ruling(verdict, runs=False)
    # In `warn` mode even a pinned guardrail never ends a run.
    if most > TUNING.max_warnings and any(_is_pinned(library, ref) for ref in verdict.items):
        return Ruling(verdict, runs=False, over=True)
    return Ruling(verdict)


def settle(library: ExperienceLibrary, step: Step) -> None:
    """Report the outcome of a trial whose episode is not recorded; an outage proves nothing and is ignored."""
    trial = step.why.trial
    if trial and step.diagnosis.failure not in (Failure.UNAVAILABLE, Failure.BLOCKED):
        library.items.settle_trial(trial, step.diagnosis.success)


def count_refusals(steps: Sequence[Step], action: str) -> int:
    """Return how often the call was refused in these steps."""
    return sum(step.action == action and step.diagnosis.failure is Failure.BLOCKED for step in steps)


def is_repetition(steps: Sequence[Step], action: str) -> bool:
    """Return whether the call failed and nothing has succeeded since; an outage is not a failure of the call."""
    for step in reversed(steps):
        if step.diagnosis.success:
            return False
        if step.action == action and step.diagnosis.failure not in (Failure.BLOCKED, Failure.UNAVAILABLE):
            return True
    return False


def _is_pinned(library: ExperienceLibrary, item_id: str) -> bool:
    try:
        return library.items.get(item_id).pinned
    except UnknownName:  # another process has deleted it
        return False
