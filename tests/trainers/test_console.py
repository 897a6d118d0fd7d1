"""The console: progress of work that takes minutes."""

from hardwon.trainers.console import EpisodeCount


def test_the_count_of_ended_episodes_is_told_now_and_then():
    """An evaluation of a pretrained base takes minutes; without a line it looks like a hang."""
    lines: list[str] = []
    count = EpisodeCount(3, lines.append, every_s=0.0)
    for _ in range(3):
        count()
    assert lines == ["played 1 of 3 episodes", "played 2 of 3 episodes"]  # the last one is told by the result itself


def test_a_short_run_tells_nothing():
    lines: list[str] = []
    count = EpisodeCount(3, lines.append)
    for _ in range(3):
        count()
    assert lines == []
