"""The console: progress of work that takes minutes."""

import io
import sys

from hardwon.trainers.console import EpisodeCount, Screen


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


def test_a_signal_that_interrupts_a_print_prints_its_own_line(monkeypatch, capfd):
    """Python's streams refuse a print inside a print, and the error would end the run instead of saving it."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside a buffered writer")

    monkeypatch.setattr(sys, "stderr", Interrupted())
    Screen(1, ["control"]).tell_from_signal("stopping")
    Screen(1, ["control"], quiet=True).tell_from_signal("nothing")
    assert capfd.readouterr().err == "stopping\n"
