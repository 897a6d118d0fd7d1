"""Emit OpenTelemetry spans for what agents ask of a library: recall, refusals, records, and whole episodes.

    HardwonInstrumentor().instrument()             # in a program that sets up OpenTelemetry itself
    opentelemetry-instrument python agent.py       # the same, by OpenTelemetry's own command

The spans follow the semantic conventions for generative AI: `search_memory`, `create_memory`, `update_memory` and
`invoke_agent`, and `check_guardrail`, which they lack. Spans hold ids and counts. Texts are added only with
`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`. Without `instrument()`, no code of this module runs.
"""

import functools
import inspect
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import version
from typing import Any

from hardwon.memory.errors import MissingExtra

try:
    from opentelemetry import trace
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
except ImportError as error:
    raise MissingExtra.of("opentelemetry-instrumentation", "otel") from error

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Environment variable of the conventions that allows texts in spans."""
_PLACES = (
    "hardwon.memory.parts.consulting:ConsultedLibrary",
    "hardwon.memory.library:ExperienceLibrary",
    "hardwon.memory.remote.library:RemoteLibrary",
    "hardwon.memory.fleet.library:FleetLibrary",
    "hardwon.runtime.agent:Agent",
)
"""Classes whose methods are traced; one that cannot be imported, because an extra is missing, is left out."""
_OPERATIONS = {
    "recall": "search_memory",
    "check": "check_guardrail",
    "record": "create_memory",
    "record_many": "create_memory",
    "evolve": "update_memory",
    "run": "invoke_agent",
    "arun": "invoke_agent",
}
_inside: ContextVar[bool] = ContextVar("hardwon_otel_inside", default=False)
"""Whether a traced method of a library runs, so that methods which call each other give one span."""

Attributes = dict[str, Any]


class HardwonInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its module switches type checks off
    """Instrumentor of libraries and agents, in the form of OpenTelemetry's other instrumentors.

    `instrument(tracer_provider=None, every_check=False)` starts, and `uninstrument()` stops. Checks that allow an
    action are left out unless `every_check` is set, because an agent checks every admissible action in every step.
    """

    _replaced: list[tuple[type, str, Any]]

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed besides hardwon: none."""
        return ()

    def _instrument(self, **options: Any) -> None:
        tracer = trace.get_tracer("hardwon", version("hardwon"), options.get("tracer_provider"))
        every_check = bool(options.get("every_check", False))
        self._replaced = []
        for cls in _find_classes():
            for name in _OPERATIONS:
                if name in vars(cls):
                    method = vars(cls)[name]
                    self._replaced.append((cls, name, method))
                    setattr(cls, name, _trace_method(tracer, method, name, every_check=every_check))

    def _uninstrument(self, **options: Any) -> None:
        for cls, name, method in self._replaced:
            setattr(cls, name, method)
        self._replaced = []


def _find_classes() -> Iterator[type]:
    for place in _PLACES:
        module, _, name = place.partition(":")
        try:
            yield getattr(import_module(module), name)
        except ImportError:  # an extra that is not installed
            continue


def _trace_method(tracer: Any, method: Callable[..., Any], name: str, *, every_check: bool) -> Callable[..., Any]:
    """Return a method that emits a span around its call."""
    operation = _OPERATIONS[name]
    if name == "check":
        return _trace_check(tracer, method, every_check=every_check)
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(self: Any, *args: Any, **options: Any) -> Any:
            with _span(tracer, operation, self, args) as attributes:
                result = await method(self, *args, **options)
                attributes |= _describe_result(operation, result)
            return result

        return awaited

    @functools.wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        if _inside.get() and operation != "invoke_agent":
            return method(self, *args, **options)
        with _span(tracer, operation, self, args) as attributes:
            result = method(self, *args, **options)
            attributes |= _describe_result(operation, result)
        return result

    return called


def _trace_check(tracer: Any, method: Callable[..., Any], *, every_check: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def check(self: Any, state: Any, action: str, **options: Any) -> Any:
        began = time.time_ns()
        verdict = method(self, state, action, **options)
        if every_check or not verdict.allowed:
            attributes: Attributes = {
                **_describe_owner("check_guardrail", self),
                "hardwon.guardrail.allowed": verdict.allowed,
                "hardwon.item.ids": tuple(verdict.items),
            }
            if _captures_content():
                attributes |= {"hardwon.action": action, "hardwon.guardrail.cause": verdict.cause}
            # The span is made afterwards: whether it is wanted is known only then.
            span = tracer.start_span(_name_span("check_guardrail", self), start_time=began, attributes=attributes)
            span.end()
        return verdict

    return check


@contextmanager
def _span(tracer: Any, operation: str, owner: Any, args: tuple[Any, ...]) -> Iterator[Attributes]:
    """Open a span, and add the attributes that its caller fills in; an error is recorded and raised."""
    attributes: Attributes = {}
    token = _inside.set(operation != "invoke_agent")
    try:
        with tracer.start_as_current_span(
            _name_span(operation, owner), attributes=_describe_owner(operation, owner)
        ) as span:
            if operation == "search_memory" and args and _captures_content():
                attributes["gen_ai.retrieval.query.text"] = str(getattr(args[0], "observation", args[0]))
            try:
                yield attributes
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise
            finally:
                span.set_attributes(attributes)
    finally:
        _inside.reset(token)


def _name_span(operation: str, owner: Any) -> str:
    return f"{operation} {_name_owner(operation, owner)}"


def _name_owner(operation: str, owner: Any) -> str:
    return str(owner.policy.name) if operation == "invoke_agent" else str(owner.namespace)


def _describe_owner(operation: str, owner: Any) -> Attributes:
    """Return the attributes of a span that are known before its call."""
    named = "gen_ai.agent.name" if operation == "invoke_agent" else "hardwon.namespace"
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "hardwon",
        named: _name_owner(operation, owner),
    }


def _captures_content() -> bool:
    return os.environ.get(CAPTURE, "").lower() in ("true", "1", "span_only", "span_and_event")


def _describe_result(operation: str, result: Any) -> Attributes:
    """Return the attributes of what a method returned: ids and counts."""
    describe: Mapping[str, Callable[[Any], Attributes]] = {
        "search_memory": _describe_recollection,
        "create_memory": _describe_record,
        "update_memory": lambda report: {"hardwon.admissions": len(report.admissions)},
        "invoke_agent": _describe_episode,
    }
    return describe[operation](result)


def _describe_recollection(recollection: Any) -> Attributes:
    return {
        "hardwon.recall.path": recollection.path,
        "hardwon.recall.steps": len(recollection.steps),
        "hardwon.recall.tokens": recollection.tokens,
        "hardwon.item.ids": tuple(hit.what.id for hit in recollection.items),
    }


def _describe_record(result: Any) -> Attributes:
    ids = (result,) if isinstance(result, str) else tuple(result)
    return {"hardwon.episode.ids": ids[:100], "hardwon.episodes": len(ids)}


def _describe_episode(result: Any) -> Attributes:
    episode, usage = result.trajectory, result.usage
    attributes = {
        "hardwon.episode.ids": (episode.id,),
        "hardwon.episode.steps": len(episode.steps),
        "hardwon.episode.score": float(episode.score),
        "hardwon.episode.ending": episode.ending,
        "hardwon.episode.success": episode.success,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    return {name: value for name, value in attributes.items() if value is not None}
