"""A background thread that runs calls, so that whoever waits for them can stop waiting."""

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
    """A call gave no answer in time; it may still be running."""


class Worker:
    """Runs one call after the other. Its thread is a daemon and ends with this object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] | None = None
        self._owner = 0

    def run(self, call: Callable[[], Any], timeout_s: float | None) -> Any:
        """What `call` returns or raises. Raises `NotInTime` when there is no answer after `timeout_s`.

        Whoever gets `NotInTime`, or is interrupted while waiting, must not `run` here again: `end` it.
        """
        try:
            answer, error = self._send(call).get(timeout=timeout_s)
        except Empty:
            raise NotInTime from None
        if error is not None:
            raise error
        return answer

    def end(self, last: Callable[[], Any] | None = None) -> None:
        """Run `last`, whatever comes of it, after what was given before, and let the thread end. It does not wait."""
        if last is not None:
            self._send(last)
        if self._calls is not None:
            self._stop()
            self._calls = None

    def _send(self, call: Callable[[], Any]) -> SimpleQueue[_Outcome]:
        """Hand a call over, with the caller's context (a tracer's, a framework's); the outcome comes in the queue."""
        if self._calls is None or self._owner != os.getpid():  # a fork leaves threads behind
            self._calls, self._owner = SimpleQueue(), os.getpid()
            threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            self._stop = weakref.finalize(self, self._calls.put, None)
        outcome: SimpleQueue[_Outcome] = SimpleQueue()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), outcome))
        return outcome


def _work(calls: SimpleQueue[_Call | None]) -> None:
    """Run calls until told to end; hold nothing of them in between."""
    while (given := calls.get()) is not None:
        call, outcome = given
        try:
            outcome.put((call(), None))
        except BaseException as error:
            outcome.put((None, error))
        del given, call, outcome
