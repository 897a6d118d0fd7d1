"""Chat models by name, calls that can be abandoned, and readable errors of providers.

LangChain is imported when a model is created.
"""

import asyncio
import contextvars
import os
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hardwon.memory.errors import ConfigError, EngineFailure, MissingExtra, UnknownName
from hardwon.memory.wire import PLAIN_ANSWERS, parse_wait
from hardwon.runtime.interfaces.usage import ModelUsage

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

MAX_PAUSE_S = 30.0
"""Maximum pause after an error in seconds, whatever the provider requests."""
MOST_BYTES = 2**24
"""Largest answer of a provider in bytes."""
PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 413, 422, 501})
"""HTTP status codes that a repeated request would get again."""

# ---- creating a model


def open_model(
    model: "BaseChatModel | str", temperature: float | None, timeout_s: float, settings: dict[str, Any]
) -> Any:
    """Return a chat model for a model or its name."""
    if isinstance(model, str):
        if not model.strip():
            raise ConfigError("the name of the model is empty; give one such as openai:gpt-5.")
        return _open_by_name(model, {} if temperature is None else {"temperature": temperature}, timeout_s, settings)
    if not callable(getattr(model, "ainvoke", None)):
        raise ConfigError(f"model is {model!r}; pass a LangChain chat model or a name such as 'openai:gpt-5'.")
    if settings:
        raise ConfigError(f"{', '.join(settings)}: settings need a model given by name; set them on the model itself.")
    if temperature is None:
        return model
    if "temperature" not in type(model).model_fields:
        raise ConfigError(f"{type(model).__name__} has no temperature; omit the setting.")
    # A copy, so that the caller's own model keeps its temperature.
    return model.model_copy(update={"temperature": temperature})


def _open_by_name(name: str, defaults: dict[str, Any], timeout_s: float, settings: dict[str, Any]) -> Any:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingExtra.of("langchain", "agent") from error
    provider = name.partition(":")[0]
    if provider in ("openai", "azure_openai", "anthropic"):  # their clients would retry and wait on their own
        defaults = {"timeout": timeout_s, "max_retries": 0, **defaults}
    try:
        if provider in ("openai", "azure_openai") and find_spec("openai") and not _has_client(settings):
            defaults |= _open_clients(timeout_s)
        return init_chat_model(name, **{**defaults, **settings})
    except ImportError as error:
        package = re.search(r"pip install ([\w-]+)", str(error))
        needed = package[1] if package else f"langchain-{provider}"
        raise MissingExtra(f"{name} needs {needed}. Install it with: pip install {needed}") from error
    except Exception as error:
        raise _explain_error(name, provider, error) from error


def _has_client(settings: Mapping[str, Any]) -> bool:
    """Return whether the user chose how requests are sent, which excludes a client of ours."""
    names = ("http_client", "http_async_client", "openai_proxy")
    return any(settings.get(name) for name in names) or bool(os.environ.get("OPENAI_PROXY"))


def _open_clients(timeout_s: float) -> dict[str, Any]:
    """Return HTTP clients that read no more than `MOST_BYTES` of an answer, and no longer than `timeout_s`.

    A call that timed out is abandoned, but its thread would read an endless answer for ever.
    """
    from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

    def bound(response: Any) -> None:
        parts, check = response.iter_bytes, _Bound(response, timeout_s).check
        response.iter_bytes = lambda *size: map(check, parts(*size))

    async def abound(response: Any) -> None:
        parts, check = response.aiter_bytes, _Bound(response, timeout_s).check
        response.aiter_bytes = lambda *size: _check_each(check, parts(*size))

    return {
        "http_client": DefaultHttpxClient(headers=PLAIN_ANSWERS, event_hooks={"response": [bound]}),
        "http_async_client": DefaultAsyncHttpxClient(headers=PLAIN_ANSWERS, event_hooks={"response": [abound]}),
    }


async def _check_each(check: Callable[[bytes], bytes], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield check(part)


class _Bound:
    """The size and the time that an answer may take."""

    def __init__(self, response: Any, timeout_s: float) -> None:
        self._timeout_s, self._end, self._left = timeout_s, time.monotonic() + timeout_s, MOST_BYTES
        if response.headers.get("content-encoding", "identity") != "identity":
            raise EngineFailure("the answer is compressed, which was not requested")

    def check(self, part: bytes) -> bytes:
        """Return a part of the answer, unless it goes beyond a bound."""
        self._left -= len(part)
        if self._left < 0:
            raise EngineFailure(f"the answer has more than {MOST_BYTES:,} bytes")
        if time.monotonic() > self._end:
            raise EngineFailure(f"the answer was not whole after {self._timeout_s:g} s")
        return part


def _explain_error(name: str, provider: str, error: Exception) -> Exception:
    """Return an error that names the problem with creating the model and the next step."""
    message = _format_error(error)
    if re.match(r"Unsupported provider|Unable to infer model provider", message):
        providers = re.search(r"providers(?: are)?: ([\w, ]+)", message)
        return UnknownName.of("chat model provider", provider, providers[1].split(", ") if providers else ("openai",))
    if re.search(r"(?i:credential|api[_ ]?key)|[A-Z]_TOKEN\b", message):
        variable = re.search(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN)\b", message)
        needed = variable[0] if variable else f"{provider.upper()}_API_KEY"
        return ConfigError(f"{name} has no API key. Set {needed}, or pass api_key=...")
    return ConfigError(f"{name} cannot be used: {message}")


def _format_error(error: Any) -> str:
    """Return the message of an error; for a pydantic error without the input, which may contain a key."""
    if not hasattr(error, "errors"):
        return str(error)
    parts = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, part['loc']))}: {part['msg']}".lstrip(": ") for part in parts)


def name_of(model: Any) -> str:
    """Return the name that the model reports, or that of its class."""
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)


def usage_of(
    message: Any, request: Iterable[tuple[str, str]], answer: str, price: tuple[float, float]
) -> tuple[ModelUsage, bool]:
    """Return the tokens and cost of an answer, and whether they are estimated."""
    counts: Mapping[str, int] | None = getattr(message, "usage_metadata", None)
    estimated = not counts
    if not counts:
        counts = {"input_tokens": -(-sum(len(text) for _, text in request) // 4), "output_tokens": -(-len(answer) // 4)}
    prompt, completion = counts["input_tokens"], counts["output_tokens"]
    return ModelUsage(prompt, completion, (prompt * price[0] + completion * price[1]) / 1e6), estimated


# ---- calls that can be abandoned


def awaits(model: Any) -> bool:
    """Return whether the model has an asynchronous implementation of its own.

    LangChain otherwise calls it in a thread that cannot be abandoned.
    """
    from langchain_core.language_models import BaseChatModel

    return getattr(type(model), "_agenerate", None) is not BaseChatModel._agenerate


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """Run a call in a daemon thread, so that a call that hangs does not keep the process alive."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled any more, so a late result can always be set
    variables = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(variables.run(call))
        except StopIteration:  # from a scripted model without replies left; a future cannot hold this type
            future.set_exception(RuntimeError("the model raised StopIteration"))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="hardwon-chat", daemon=True).start()
    return future


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def in_own_loop(call: Coroutine[Any, Any, Any]) -> "Future[Any]":
    """Run a coroutine in our own event loop, one per process, in a daemon thread.

    The connections of a provider's client belong to the loop that opened them. After a second `asyncio.run` every
    pooled connection would fail with "Event loop is closed".
    """
    # Keyed by process: after a fork the parent's loop has no thread in the child.
    with _loops_lock:
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="hardwon-chat-loop", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(call, loop)


# ---- errors of providers


def status_of(error: Exception) -> int | None:
    """Return the HTTP status code of an error, or None."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    status = status_of(error)
    if status is not None:
        return status not in PERMANENT
    return isinstance(error, (TimeoutError, ConnectionError)) or bool(
        re.search(r"RateLimit|Timeout|Connection|Unavailable|Overloaded", type(error).__name__)
    )


def pause_s(error: Exception, n: int, chance: random.Random) -> float:
    """Return the seconds to wait before the next request.

    The value is the provider's `retry-after`, or else 0.5 s doubled with every error and varied by up to half.
    """
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    # The variation keeps many episodes from asking again at the same moment.
    usual_s = min(0.5 * 2.0 ** (n - 1), MAX_PAUSE_S) * chance.uniform(0.5, 1.5)
    return parse_wait(headers.get("retry-after"), usual_s, MAX_PAUSE_S)
