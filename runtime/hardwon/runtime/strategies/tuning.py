"""Numbers of strategies that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategiesTuning:
    """Numbers that no setting changes."""

    # automatic
    test_every: int = 4  # while the agent learns, one of so many episodes is a test
    counted_tests: int = 20  # tests of a strategy that count: earlier ones say what it achieved with a smaller library
    window: int = 60
    """Episodes that count for the choice of the strategy that explores. With a window, a strategy that failed with a
    small library is tried again (Garivier and Moulines, arXiv:0805.3415)."""
    exploration_bonus: float = 0.5
    """Weight of the bonus sqrt(ln N / n) for a strategy that explored in few of the episodes that count."""
    explored: float = 0.25  # weight of an episode in which the strategy explored, beside a test

    # guide
    min_task_episodes: int = 5  # episodes of a task, with any strategy, from which they alone decide about that task

    # scaffold
    edited_episodes: int = 8  # recorded episodes that the editor reads


TUNING = StrategiesTuning()
