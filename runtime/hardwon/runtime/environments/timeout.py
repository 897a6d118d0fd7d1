"""An environment under watch: what breaks or hangs in it becomes an error the runtime can act on.

    environment = Watched(BabyAI("GoToLocal"), timeout_s=30)
    environment.step("forward")        # EnvironmentCrashed, EnvironmentHung, or the step

Once it has failed it is abandoned: closed in the background if it can be, and never called again.
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
"""How long `close` waits for an environment to close before it leaves that to the background."""

_Error = TypeVar("_Error", bound=BaseException)


class Watched:
    """An `Environment` around another one, `inner`.

    Calls run in one background thread, so that the caller can stop waiting after `timeout_s`; with
    None they run in the caller's. Errors that the caller made (`ConfigError`, `UnknownName`,
    `MissingExtra`) pass through and break nothing. A method `abandon()` of `inner`, where it has one,
    is called once it is given up, to cut off a call that hangs; it must not wait.
    """

    def __init__(self, inner: Environment, *, timeout_s: float | None = 60.0) -> None:
        self.inner = inner
        self.name = inner.name
        self.broken = ""
        """What went wrong with it; "" while it works."""
        self._timeout_s = timeout_s
        self._worker = Worker(f"watched {self.name}")
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

    @property
    def waits(self) -> bool:
        """Whether a step can be awaited: the environment has an `astep`."""
        return hasattr(self.inner, "astep")

    async def astep(self, action: str) -> tuple[State, float, bool, Info]:
        """Take an action of an environment that can be awaited, in the caller's thread. Raises as `reset` does."""
        inner: Any = self.inner
        limit = asyncio.timeout(self._timeout_s)
        with self._explained(f"step({action!r})"):
            try:
                async with limit:
                    outcome: tuple[State, float, bool, Info] = await inner.astep(action)
            except TimeoutError:
                if limit.expired():
                    raise NotInTime from None
                raise
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
        if self._closed or self.broken:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            self._run(self.inner.close, CLOSING_S)
        self._worker.end()

    def _run(self, call: Callable[[], Any], timeout_s: float) -> Any:
        return call() if self._timeout_s is None else self._worker.run(call, timeout_s)

    def _watch(self, what: str, call: Callable[[], Any]) -> Any:
        with self._explained(what):
            return self._run(call, self._timeout_s or 0.0)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """What goes wrong inside, as an error the runtime can act on; the environment is given up."""
        if self.broken or self._closed:
            raise EnvironmentCrashed(f"{self.name} was {self.broken or 'closed'}; go on with a clone() of it.")
        try:
            yield
        except NotInTime:
            words = f"{self.name} gave no answer to {what} within {self._timeout_s:g} s."
            raise self._abandon(EnvironmentHung(words)) from None
        except EnvironmentFailure as error:
            raise self._abandon(error) from error.__cause__
        except HardwonError:
            raise
        except (Exception, SystemExit) as error:
            words = f"{self.name} broke in {what}: {type(error).__name__}: {error}"
            raise self._abandon(EnvironmentCrashed(words)) from error
        except BaseException as interrupt:  # Ctrl-C: the answer is still to come and must not be taken for the next
            self._abandon(interrupt)
            raise

    def _abandon(self, error: _Error) -> _Error:
        """Never call it again, and let the background close it, when it ever can."""
        self.broken = f"abandoned ({str(error) or type(error).__name__})"
        with contextlib.suppress(Exception):
            getattr(self.inner, "abandon", lambda: None)()
        self._worker.end(self.inner.close)
        return error
