"""Numbers of what is shown in training."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GatingTuning:
    """Numbers that no setting changes."""

    recalled_steps: int = 256
    """Candidates per kind that a recall looks through at most for those of other task instances."""
    pasted_episodes: int = 2
    """Episodes that are shown at most: those of the nearest steps."""
    pasted_steps: int = 12
    """Steps of an episode that are shown at most: the last ones, which led to its end."""
    max_characters: int = 300
    """Characters of a state or a result that are shown."""
    min_probability: float = 0.25
    """Least probability of the better word that its weight assumes."""
    min_weight: float = 1e-30
    """Least probability of a word in a sample; a probability can underflow to 0."""
    beta: float = 0.1
    """Scale of the log-ratios."""


TUNING = GatingTuning()
