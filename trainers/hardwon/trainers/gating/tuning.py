"""Numbers of what is shown in training, and judged before it is shown."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GatingTuning:
    """Numbers that no setting changes."""

    weight_used: float = 0.4
    """Penalty in ranks per unit of log(1 + times shown)."""
    weight_recent: float = 1.0
    """Penalty in ranks for items shown in the previous iteration."""
    demotion: float = 0.5
    """Probability of moving a recently shown first item to the end."""
    tie: float = 0.02
    """Cosine similarities within this distance share a rank; ties are ordered randomly."""
    wider: int = 16
    """Candidates to recall per item that is shown."""
    compared_items: int = 5
    """Number of items that a merge pass compares with each other."""
    min_similarity: float = 0.6
    """Minimum Jaccard similarity of the words of two near duplicates."""
    remembered_verdicts: int = 32
    """Newest differences kept per item."""
    scored_episodes: int = 128
    """Newest outcomes kept per task."""
    known_texts: int = 20_000
    """Maximum number of items, and of tasks, with records. The least recently updated one is dropped."""
    refined_tokens: int = 64
    """Maximum number of tokens of a refined text."""
    recalled_steps: int = 256
    """Candidates per kind that a recall looks through at most for those of other task instances."""
    pasted_episodes: int = 2
    """Episodes that are shown at most: those of the nearest steps."""
    pasted_steps: int = 12
    """Steps of an episode that are shown at most: the last ones, which led to its end."""
    max_characters: int = 300
    """Characters of a state or a result that are shown."""
    beta: float = 0.1
    """Scale of the log-ratios."""


TUNING = GatingTuning()
