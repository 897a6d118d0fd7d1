"""An environment under watch: what breaks or hangs in it becomes an error the runtime can act on.

    environment = Watched(BabyAI("GoToLocal"), timeout_s=30)
    environment.step("forward")        # EnvironmentCrashed, EnvironmentHung, or the step

Once it has failed it is abandoned: closed in the background if it can be, and never called again.
"""

import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tacit.memory import State
from tacit.memory.errors import EnvironmentCrashed, EnvironmentFailure, EnvironmentHung, TacitError

from ..protocols import Environment, Info

CLOSING_S = 5.0
"""How long `close` waits for an environment to close before it leaves that to the background."""

_Error = TypeVar("_Error", bound=BaseException)
_Call = tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]]


class Watched:
    """An `Environment` around another one, `inner`.

    Calls run in one background thread, so that the caller can stop waiting after `timeout_s`; with
    None they run in the caller's. Errors that the caller made (`ConfigError`, `UnknownName`,
    `MissingExtra`) pass through and break nothing.
    """

    def __init__(self, inner: Environment, *, timeout_s: float | None = 60.0) -> None:
        self.inner = inner
        self.name = inner.name
        self.broken = ""
        """What went wrong with it; "" while it works."""
        self._timeout_s = timeout_s
        self._calls: SimpleQueue[_Call | None] | None = None
        self._owner = 0
        self._closed = False

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode. Raises `EnvironmentCrashed`, `EnvironmentHung`, and what the caller did wrong."""
        state: State = self._watch(f"reset({task!r}, {seed})", lambda: self.inner.reset(task, seed))
        return state

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action. Raises as `reset` does."""
        outcome: tuple[State, float, bool, Info]
        outcome = self._watch(f"step({action!r})", lambda: self.inner.step(action))
        return outcome

    def admissible(self, state: State) -> list[str]:
        """The actions that make sense here. Raises as `reset` does."""
        actions: list[str] = self._watch("admissible(...)", lambda: self.inner.admissible(state))
        return actions

    def clone(self) -> "Watched":
        """A fresh environment of the same kind, watched alike; also of a broken one."""
        return Watched(self.inner.clone(), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Close it; a broken one is left to the background. It never raises and never waits for long."""
        if self._closed:
            return
        self._closed = True
        if self.broken:
            return
        if self._timeout_s is None:
            _outcome(self.inner.close)
            return
        answers = _send(self._queue(), self.inner.close)
        self._end()
        try:
            answers.get(timeout=CLOSING_S)
        except Empty:
            self.broken = f"it did not close within {CLOSING_S:g} s"

    def _watch(self, what: str, call: Callable[[], Any]) -> Any:
        if self.broken or self._closed:
            raise EnvironmentCrashed(f"{self.name} was {self.broken or 'closed'}; go on with a clone() of it.")
        if self._timeout_s is None:
            answer, error = _outcome(call)
        else:
            answers = _send(self._queue(), call)
            try:
                answer, error = answers.get(timeout=self._timeout_s)
            except Empty:
                raise self._abandon(
                    EnvironmentHung(f"{self.name} gave no answer to {what} within {self._timeout_s:g} s.")
                ) from None
            except BaseException as interrupt:  # Ctrl-C: the answer is still to come and must not be the next one's
                self._abandon(interrupt)
                raise
        if error is None:
            return answer
        if isinstance(error, EnvironmentFailure):
            raise self._abandon(error)
        if isinstance(error, TacitError):
            raise error
        raise self._abandon(
            EnvironmentCrashed(f"{self.name} broke in {what}: {type(error).__name__}: {error}")
        ) from error

    def _abandon(self, error: _Error) -> _Error:
        """Never call it again, and let the background close it, when it ever can."""
        self.broken = f"abandoned ({error or type(error).__name__})"
        _send(self._queue(), self.inner.close)
        self._end()
        return error

    def _queue(self) -> SimpleQueue[_Call | None]:
        """Where the worker takes calls from; starts it, also after a fork, which leaves threads behind."""
        if self._calls is None or self._owner != os.getpid():
            self._calls, self._owner = SimpleQueue(), os.getpid()
            threading.Thread(target=_work, args=(self._calls,), name=f"watched {self.name}", daemon=True).start()
            self._stop = weakref.finalize(self, self._calls.put, None)
        return self._calls

    def _end(self) -> None:
        """Let the worker end after what it has been given so far."""
        if self._calls is not None:
            self._stop()
            self._calls = None


def _send(calls: SimpleQueue[_Call | None], call: Callable[[], Any]) -> SimpleQueue[tuple[Any, BaseException | None]]:
    """Hand a call to the worker, in the caller's context (a tracer's, a framework's); its answer comes in the queue."""
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    context = contextvars.copy_context()
    calls.put((lambda: context.run(call), answers))
    return answers


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error


def _work(calls: SimpleQueue[_Call | None]) -> None:
    """The worker: run calls until told to end. It holds nothing of the environment in between."""
    while (given := calls.get()) is not None:
        call, answers = given
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))
        del given, call, answers
