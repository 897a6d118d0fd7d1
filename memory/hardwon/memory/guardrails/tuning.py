"""Numbers of guardrails that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GuardrailsTuning:
    """Numbers that no setting changes."""

    # conditions
    min_confidence: float = 0.6
    """Least confidence with which a guardrail blocks a call; below it, the guardrail is only advice."""

    # context_ranges
    evidence_steps: int = 8  # steps of a guardrail's evidence that are read, the newest ones

    # outage
    error_characters: int = 2000
    """Characters read at each end of an error. Long errors name an outage at the beginning or at the end."""

    # probation
    trial_refusals: int = 5  # refusals after which the next call is allowed as a trial
    trial_hours: float = 1.0  # hours after which a call is allowed as a trial, regardless of the number of refusals
    max_refusals: int = 320  # upper limit of the refusals between two trials
    max_hours: float = 24.0  # upper limit of the hours between two trials
    weakening: float = 0.5  # factor on the confidence of a guardrail after a call that it forbids has succeeded

    # thinning
    idle_after: int = 100
    """Episodes that use its form of action after which a guardrail that never decided anything is retired."""
    idle_since_use: int = 400
    """The same for a guardrail that has decided before, or whose failures lost the task; counted from its last use."""
    search_every: int = 20  # episodes between two searches for idle guardrails


TUNING = GuardrailsTuning()
