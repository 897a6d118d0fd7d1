"""An environment with a timeout: its crashes and hangs become errors that the runtime can handle.

    environment = Watched(BabyAI("GoToLocal"), timeout_s=30)
    environment.step("forward")        # returns the step, or raises EnvironmentCrashed or EnvironmentHung

After a failure, the environment is abandoned: it is closed in the background if possible, and never called
again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hardwon.memory import State
from hardwon.memory.errors import EnvironmentCrashed, EnvironmentFailure, EnvironmentHung, HardwonError
from hardwon.runtime.interfaces.types import Environment, Info

from ._worker import NotInTime, Worker

CLOSING_S = 5.0
"""Seconds that `close` waits before it leaves closing to the background thread."""

_Error = TypeVar("_Error", bound=BaseException)


class Watched:
    """An `Environment` that runs another one, `inner`, with a timeout.

    Calls run in one background thread, so that the caller can stop waiting after `timeout_s` seconds. With a
    timeout of None, they run in the caller's thread. The caller's own errors (`ConfigError`, `UnknownName`,
    `MissingExtra`) pass through, and the environment stays usable. If `inner` has a method `abandon()`, it is
    called after a failure to cut off a hanging call; it must not block.
    """

    def __init__(self, inner: Environment, *, timeout_s: float | None = 60.0) -> None:
        """Wrap `inner`; `timeout_s` is the limit of each call in seconds, and None means no limit."""
        self.inner = inner
        self.name = inner.name
        self.broken = ""
        """The failure; "" while the environment works."""
        self._timeout_s = timeout_s
        self._worker = Worker(f"watched {self.name}")
        self._closed = False

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin an episode."""
        state: State = self._call(f"reset({task!r}, {seed})", lambda: self.inner.reset(task, seed))
        return state

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action."""
        outcome: tuple[State, float, bool, Info]
        outcome = self._call(f"step({action!r})", lambda: self.inner.step(action))
        return outcome

    @property
    def waits(self) -> bool:
        """Return whether a step can be awaited, because the environment has an `astep`."""
        return hasattr(self.inner, "astep")

    async def astep(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action of an asynchronous environment in the caller's thread."""
        inner: Any = self.inner
        limit = asyncio.timeout(self._timeout_s)
        with self._convert_errors(f"step({action!r})"):
            try:
                async with limit:
                    outcome: tuple[State, float, bool, Info] = await inner.astep(action)
            except TimeoutError:
                # The environment's own TimeoutError is a crash and not a hang.
                if limit.expired():
                    raise NotInTime from None
                raise
        return outcome

    def admissible(self, state: State) -> list[str]:
        """Return the actions that are possible in a state."""
        actions: list[str] = self._call("admissible(...)", lambda: self.inner.admissible(state))
        return actions

    def clone(self) -> "Watched":
        """Return a fresh watched environment of the same kind; a broken one can be cloned too."""
        return Watched(self.inner.clone(), timeout_s=self._timeout_s)

    def close(self) -> None:
        """Close the environment within `CLOSING_S` seconds, ignoring errors; a broken one closes in the background."""
        if self._closed or self.broken:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            self._run(self.inner.close, CLOSING_S)
        self._worker.end()

    def _run(self, call: Callable[[], Any], timeout_s: float) -> Any:
        return call() if self._timeout_s is None else self._worker.run(call, timeout_s)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        with self._convert_errors(what):
            return self._run(call, self._timeout_s or 0.0)

    @contextlib.contextmanager
    def _convert_errors(self, what: str) -> Iterator[None]:
        """Convert errors inside the block to errors that the runtime can handle, and abandon the environment."""
        if self.broken or self._closed:
            raise EnvironmentCrashed(f"{self.name} was {self.broken or 'closed'}; continue with a clone() of it.")
        try:
            yield
        except NotInTime:
            message = f"{self.name} gave no answer to {what} within {self._timeout_s:g} s."
            raise self._abandon(EnvironmentHung(message)) from None
        # Before HardwonError, of which it is a subclass: that one leaves the environment usable.
        except EnvironmentFailure as error:
            # Raised again with its own cause; `from error` would chain the error to itself.
            raise self._abandon(error) from error.__cause__
        except HardwonError:
            raise
        except (Exception, SystemExit) as error:
            # SystemExit too: an environment that exits must not end the whole run.
            message = f"{self.name} broke in {what}: {type(error).__name__}: {error}"
            raise self._abandon(EnvironmentCrashed(message)) from error
        except BaseException as interrupt:  # Ctrl-C: the pending answer must not be read as that of the next call
            self._abandon(interrupt)
            raise

    def _abandon(self, error: _Error) -> _Error:
        """Mark the environment as broken, close it in the background, and return the error."""
        self.broken = f"abandoned ({str(error) or type(error).__name__})"
        # Unblock the worker first, or its queued `close` would wait behind the hanging call.
        with contextlib.suppress(Exception):
            getattr(self.inner, "abandon", lambda: None)()
        self._worker.end(self.inner.close)
        return error
