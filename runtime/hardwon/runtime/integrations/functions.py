"""Experience for plain functions: a decorator, and a context manager for the episode in which they are called.

    @remember
    def refund(order: str) -> str: ...

    with FunctionEpisode(library, "Refund Ada's order.") as episode:
        print(episode.hint)
        refund("A-1042")

Within an episode, every call of a decorated function becomes a step, with its result or its exception. Outside, the
function is called as it is. Failures of the library are logged and never reach the caller.
"""

import inspect
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import CallForbidden, ConfigError, LibraryBusy
from hardwon.memory.guardrails.outage import is_outage
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.guidance.base import Guidance
from hardwon.runtime.interfaces.endings import decide
from hardwon.runtime.interfaces.results import find_failure
from hardwon.runtime.loop.enforcement import mode_of

from .recording import begin_run, record_run, report_busy
from .tool_episode import SHOWN_CHARS, extract_text
from .tool_run import ToolRun, format_hint, format_refusal, format_warning

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_current: ContextVar["FunctionEpisode | None"] = ContextVar("hardwon_function_episode", default=None)


class FunctionEpisode:
    """An episode of calls of functions that are decorated with `remember`; a context manager, also for `async with`.

    It applies to the calls of this thread or task and of tasks that it starts. `asyncio.to_thread` passes it on; a
    `threading.Thread` does not, unless you run its target in `contextvars.copy_context()`.
    """

    @check_types
    def __init__(
        self,
        library: ExperienceLibrary,
        task: str,
        *,
        guardrails: bool | Literal["warn", "block"] = "warn",
        guidance: Guidance | None = None,
        recall_k: int = 5,
        extractor: Extractor | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the episode.

        Args:
            library: Where experience is recalled from and recorded to.
            task: What is to be done, in words that also fit similar tasks.
            guardrails: "warn" logs a warning and runs a call that kept failing. "block" (or True) raises
                `CallForbidden` instead. False checks no guardrails.
            guidance: Turns recalled experience into a hint. None uses `RetrievalGuidance`.
            recall_k: Number of similar steps and items to recall.
            extractor: Reads the finished episode and proposes items. None leaves this to the library's rules.
            meta: Further properties to record, such as the version of your program.

        Raises:
            ConfigError: The setting of the guardrails is invalid.
        """
        fields = {"environment": "functions", **(meta or {})}
        self._header = Trajectory(task, (), None, arm="retrieved", meta=fields, id=uuid.uuid4().hex)
        self._run: ToolRun = begin_run(
            library, task, mode=mode_of(guardrails), guidance=guidance, recall_k=recall_k, header=self._header
        )
        self._extractor = extractor
        self._score: float | bool | None = None
        self._graded = False
        self._token: Token[FunctionEpisode | None] | None = None
        self.warnings: list[str] = []
        """Warnings of guardrails about the calls so far."""
        self.id = ""
        """Id of the episode once it is recorded."""

    @property
    def hint(self) -> str:
        """Return what earlier episodes suggest now, as data for a prompt; empty if there is nothing."""
        run = self._run

        def find() -> str:
            with run.lock:
                return format_hint(run.find_hint(run.get_state()))

        return _try("recall", find) or ""

    @check_types
    def grade(self, outcome: float | bool | None) -> None:
        """Set the outcome: success or not, a score in [0, 1], or None if it is unknown.

        Without a grade, the episode succeeds if the last call of every function worked and no exception ended it.

        Raises:
            ConfigError: The score is not in [0, 1].
        """
        if outcome is not None and not 0.0 <= float(outcome) <= 1.0:
            raise ConfigError(f"the outcome is {outcome!r}; use True, False, None or a score from 0 to 1.")
        self._score, self._graded = outcome, True

    def __enter__(self) -> Self:
        if self._token is not None:
            raise ConfigError("this episode was entered before; create a new FunctionEpisode for another one.")
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        _try("recording an episode", lambda: self._record(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _record(self, error: BaseException | None) -> None:
        score = None
        if self._graded:
            success = None if self._score is None else float(self._score) >= 1.0
            score = None if self._score is None else float(self._score)
        elif error is None:
            success = self._run.episode.judge()
        else:
            # A cancelled or interrupted program says nothing about its calls.
            success = decide("failed" if isinstance(error, Exception) else "unfinished", is_broken=False)
        ending = "success" if success else "done" if error is None else type(error).__name__
        self.id = record_run(
            self._run, success=success, score=score, environment="functions", ending=ending, meta=self._header.meta,
            episode=self._header.id, extractor=self._extractor,
        )  # fmt: skip

    def _rule_on(self, name: str, arguments: Mapping[str, Any], call_id: str) -> None:
        """Check a call that is about to run."""
        run = self._run
        call = {"id": call_id, "name": name, "args": arguments}
        ruling = _try("a guardrail check", lambda: run.rule_on(call))
        if ruling is None or (ruling.runs and not ruling.warned):
            return
        if not ruling.runs and run.mode == "block":
            _try("recording a refusal", lambda: run.add_refusal(call, ruling))
            raise CallForbidden(format_refusal(Call(name, arguments, "").text, ruling.verdict))
        # In `warn` mode even a repeated failure runs, and its step must say so.
        with run.lock:
            run.rulings[call_id] = Call(name, arguments, "").text, replace(ruling, runs=True)
        self.warnings.append(format_warning(ruling.verdict))
        logger.warning("%s: %s", name, self.warnings[-1])

    def _add(self, call: Call, call_id: str, outage: bool) -> None:
        run = self._run

        def add() -> None:
            with run.lock:
                run.add_answer(call, call_id, outage=outage)
                run.calls = (*run.calls, call)
                run.state = run.episode.state(run.calls)

        _try("recording a call", add)


def _try(what: str, work: Callable[[], _T]) -> _T | None:
    """Return the result of `work`, or None after logging an error."""
    try:
        return work()
    except LibraryBusy as error:
        report_busy("functions", error)
        return None
    except Exception:
        logger.exception("%s failed; the program continues without it", what)
        return None


@overload
def remember(function: Callable[_P, _T], /) -> Callable[_P, _T]: ...
@overload
def remember(
    *, name: str = "", skip: Collection[str] = (), failed: Callable[[Any], object] | None = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...


@check_types
def remember(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    skip: Collection[str] = (),
    failed: Callable[[Any], object] | None = None,
) -> Any:
    """Record every call of a function or coroutine function within a `FunctionEpisode` as a step.

    The result, the exception and the arguments reach the caller and the function unchanged.

    Args:
        function: The function to decorate.
        name: Name of the action. By default that of the function.
        skip: Parameters that are not recorded, such as keys and large objects.
        failed: Returns whether a result reports a failure. Without it, a call fails if it raises, or if the result
            says so, such as `"Error: no such order"` or `{"success": False}`; see docs/outcomes.md.

    Returns:
        The decorated function, or the decorator if only options were given.

    Raises:
        ConfigError: The function is a generator, which has no single result, or `skip` names no parameter.
    """
    if function is None:
        return lambda decorated: remember(decorated, name=name, skip=skip, failed=failed)  # type: ignore[call-overload]
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{function.__qualname__} is a generator, which has no result; decorate a function.")
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise ConfigError(f"{function!r} does not say its parameters; decorate a function that calls it.") from error
    if unknown := sorted(set(skip) - set(signature.parameters)):
        raise ConfigError(f"skip names {unknown[0]!r}, which is no parameter of {function.__qualname__}.")
    recorder = _Recorder(name or function.__name__, signature, frozenset(skip), failed)
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            end = recorder.begin(args, kwargs)
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                end(None, error)
                raise
            end(result, None)
            return result

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        end = recorder.begin(args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            end(None, error)
            raise
        end(result, None)
        return result

    return run


class _Recorder:
    """Records the calls of one function."""

    def __init__(
        self, name: str, signature: inspect.Signature, skip: frozenset[str], failed: Callable[[Any], object] | None
    ) -> None:
        self._name, self._signature, self._failed = name, signature, failed
        first = next(iter(signature.parameters), "")
        self._skip = skip | ({first} if first in ("self", "cls") else set())
        self._count = 0

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any, BaseException | None], None]:
        """Check a call, and return the function to call with its result or its exception."""
        episode = _current.get()
        arguments = None if episode is None else _try("reading arguments", lambda: self._bind(args, kwargs))
        if episode is None or arguments is None:
            return lambda result, error: None
        self._count += 1
        call_id = f"{self._name}-{id(self)}-{self._count}"
        episode._rule_on(self._name, arguments, call_id)

        def end(result: Any, error: BaseException | None) -> None:
            _try("recording a call", lambda: self._end(episode, arguments, call_id, result, error))

        return end

    def _end(
        self,
        episode: FunctionEpisode,
        arguments: Mapping[str, Any],
        call_id: str,
        result: Any,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            text = clip(f"{type(error).__name__}: {error}", SHOWN_CHARS)
            # A call that was cut off shows nothing about it.
            outage = not isinstance(error, Exception) or is_outage(error)
            episode._add(Call(self._name, arguments, f"error: {text}", text), call_id, outage)
            return
        text = clip("" if result is None else extract_text(to_plain(result)), SHOWN_CHARS)
        has_failed = None if self._failed is None else bool(self._failed(result))
        failure = clip(find_failure(result, failed=has_failed), SHOWN_CHARS)
        episode._add(Call(self._name, arguments, text, failure), call_id, False)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by name; None if the call does not fit, which Python itself reports."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        return {name: to_plain(value) for name, value in bound.arguments.items() if name not in self._skip}


def to_plain(value: Any, depth: int = 6) -> Any:
    """Return a value as JSON; objects become their `repr`, without memory addresses, which differ in every run."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clip(extract_text(value), SHOWN_CHARS)
    if isinstance(value, Mapping) and depth:
        return {str(name): to_plain(part, depth - 1) for name, part in list(value.items())[:100]}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        parts = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [to_plain(part, depth - 1) for part in list(parts)[:100]]
    if "__repr__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:
        return f"<{type(value).__name__}>"
    return clip(extract_text(repr(value)), 200)
