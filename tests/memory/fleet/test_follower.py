"""The thread that follows the log: what it does when the log or the replica is in trouble."""

import logging
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

from hardwon.memory.errors import LibraryError, LibraryUnreachable
from hardwon.memory.fleet import follower
from hardwon.memory.fleet.follower import LATE_S, Follower


class Scripted(Follower):
    """A follower whose looks at the log end as listed; it stops after the last one."""

    def __init__(self, *ends):
        self._ends, self._stopping, self.pauses = list(ends), threading.Event(), []
        stubs: dict[str, Any] = {"_log": self, "_waker": self, "_store": SimpleNamespace(path="replica.db")}
        vars(self).update(stubs)

    def wake(self):
        pass

    def fileno(self):
        return 0

    def wait(self, pause_s, _):
        self.pauses.append(pause_s)

    def _work(self):
        end = self._ends.pop(0)
        if not self._ends:
            self._stopping.set()
        if end is not None:
            raise end


def test_trouble_is_logged_once_until_it_is_over(monkeypatch, caplog):
    """And looked at again after a while of its own; a server that is down is no error."""
    monkeypatch.setattr(follower, "SOON_S", 0.0)
    monkeypatch.setattr(follower, "RETRY_S", 7.0)
    down, broken, late = LibraryUnreachable("down"), LibraryError("broken"), LibraryError("after the stop")
    one = Scripted(down, down, None, down, broken, late)
    with caplog.at_level(logging.INFO, "hardwon.memory"):
        one._follow()
    assert one.pauses == [LATE_S, 7.0, 7.0, LATE_S, 7.0, 7.0]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "the replica replica.db does not follow its log: down"),
        ("INFO", "the replica replica.db does not follow its log: down"),
        ("ERROR", "the replica replica.db does not follow its log: broken"),
    ]


def test_a_look_pauses_only_after_another_one(monkeypatch):
    """An entry after a silence is applied at once; those that follow it wait for the end of the pause."""
    monkeypatch.setattr(follower, "SOON_S", 60.0)

    class Stopping(threading.Event):
        pauses: ClassVar[list[float]] = []

        def wait(self, timeout=None):
            self.pauses.append(timeout)
            return self.is_set()

    one = Scripted(None, None, None)
    one._stopping = Stopping()
    one._follow()
    first, *later = Stopping.pauses
    assert first == 0
    assert len(later) == 2
    assert all(30 < pause_s <= 60 for pause_s in later)
