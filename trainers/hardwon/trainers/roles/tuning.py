"""Numbers of the roles, which learn beside the policy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolesTuning:
    """Numbers that no setting changes."""

    shown_items: int = 6
    """Newest keys that a decision sees."""
    epsilon: float = 1e-6
    """Avoids division by zero when all rewards are equal."""
    min_mass: float = 0.1
    """Probability of the two words together below which a base does not obey."""
    min_range: float = 0.1
    """Range of P(yes) over the texts below which the text hardly matters."""
    shrinkage: float = 2.0
    """An item with n uses counts n / (n + shrinkage) of its mean effect."""
    min_trial_probability: float = 0.1
    """Least probability of a trial that the weight of a verdict assumes."""
    max_lessons: int = 8
    """Lessons that an episode offers at most."""
    held_out: int = 5
    """Subjects of which one is held out, to measure the answers on."""
    measured: int = 64
    """Held-out questions that are asked at most: half of them with the answer yes, if there are as many."""
    looked_at: int = 8
    """Task instances that are looked at for each one that is played, while candidates wait."""
    max_buffered: int = 4096
    """Largest number of verdicts that wait to be trained on."""
    max_waiting: int = 256
    """Largest number of candidates that wait for a trial. The oldest one without any trial is dropped."""
    min_probability: float = 0.25
    """Least probability of the better word that its weight assumes."""
    min_weight: float = 1e-30
    """Least probability of a word in a sample; a probability can underflow to 0."""


TUNING = RolesTuning()
