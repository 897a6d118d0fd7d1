"""Numbers of the roles, which learn beside the policy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolesTuning:
    """Numbers that no setting changes."""

    shown_items: int = 6
    """Newest keys that a decision sees."""
    epsilon: float = 1e-6
    """Avoids division by zero when all rewards are equal; an advantage within it is none."""
    min_mass: float = 0.1
    """Probability of the two words together below which a base does not obey."""
    min_range: float = 0.1
    """Range of P(yes) over the texts below which the text hardly matters."""
    max_lessons: int = 8
    """Lessons that an episode offers at most."""
    held_out: int = 5
    """Subjects of which one is held out, to measure the answers on."""
    measured: int = 64
    """Held-out questions that are asked at most: half of them with the answer yes, if there are as many."""
    steps_read: int = 24
    """Newest steps of an episode that the extractor reads."""
    characters_read: int = 300
    """Characters of a text that the extractor reads."""
    looked_at: int = 2048
    """Task instances that are looked at for those that a lesson is about."""
    instances_tried: int = 4
    """Task instances in which a lesson is tried."""
    pairs_at_once: int = 8
    """Pairs of episodes between two looks at the test of a lesson."""
    least_gain: float = 0.2
    """A gain as large as this should be found."""
    false_admissions: float = 0.05
    """Largest probability of storing a lesson without a gain."""
    missed_gains: float = 0.15
    """Largest probability of giving up a lesson with the least gain before its last pair."""
    bets: tuple[float, ...] = (0.3, 0.6)
    """Sizes of the bets of the sequential test. In 800 simulated trials at a base rate of 1/2, with at most 160 pairs,
    a gain of 0 is stored in 2 % after 59 pairs on average, one of 0.2 in 87 % after 78."""


TUNING = RolesTuning()
