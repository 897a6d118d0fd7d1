"""A background thread that runs calls, so that the caller can stop waiting for them."""

import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_Outcome = tuple[Any, BaseException | None]
_Call = tuple[Callable[[], Any], SimpleQueue[_Outcome]]


class NotInTime(Exception):
    """A call did not finish in time; it may still be running."""


class Worker:
    """Runs calls one after another in a daemon thread, which ends with this object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] | None = None
        self._owner = 0

    def run(self, call: Callable[[], Any], timeout_s: float | None) -> Any:
        """Run a call in the thread and return its result.

        After `NotInTime` or an interrupt, do not call `run` again but `end`: the thread may still be busy.
        """
        try:
            answer, error = self._send(call).get(timeout=timeout_s)
        except Empty:
            raise NotInTime from None
        if error is not None:
            raise error
        return answer

    def end(self, last: Callable[[], Any] | None = None) -> None:
        """Run `last` after the pending calls, ignoring its errors, and end the thread. This does not wait."""
        if last is not None:
            self._send(last)
        if self._calls is not None:
            self._stop()
            self._calls = None

    def _send(self, call: Callable[[], Any]) -> SimpleQueue[_Outcome]:
        """Queue a call with the caller's context variables, and return the queue for its outcome."""
        if self._calls is None or self._owner != os.getpid():  # threads do not survive a fork
            calls: SimpleQueue[_Call | None] = SimpleQueue()
            threading.Thread(target=_work, args=(calls,), name=self._name, daemon=True).start()
            # Refers to the queue and not to self, which would then never be collected, nor its thread ended.
            self._stop = weakref.finalize(self, calls.put, None)
            # last: `end`, called by another thread or after a start that failed, needs all of it or nothing
            self._owner, self._calls = os.getpid(), calls
        # One queue per call, so that a late result is not taken for that of the next call.
        outcome: SimpleQueue[_Outcome] = SimpleQueue()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), outcome))
        return outcome


def _work(calls: SimpleQueue[_Call | None]) -> None:
    """Run queued calls until a None arrives, keeping no reference to a call in between."""
    while (queued := calls.get()) is not None:
        call, outcome = queued
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))
        del queued, call, outcome  # else the last call would keep its environment alive
