"""A chat model by its name, calls that can be left, and what its provider raises, in our words.

LangChain is imported when a model is made, not before.
"""

import asyncio
import contextvars
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Usage

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

MAX_PAUSE_S = 30.0
"""The longest pause after an error, whatever the provider asks for."""
PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 413, 422, 501})
"""HTTP status codes that the same request would get again."""

# ---- making the model


def open_model(
    model: "BaseChatModel | str", temperature: float | None, timeout_s: float, settings: dict[str, Any]
) -> Any:
    if isinstance(model, str):
        return _by_name(model, {} if temperature is None else {"temperature": temperature}, timeout_s, settings)
    if not callable(getattr(model, "ainvoke", None)):
        raise ConfigError(f"model is {model!r}; give a LangChain chat model or a name such as 'openai:gpt-5'.")
    if settings:
        raise ConfigError(f"{', '.join(settings)}: only a model given by name takes settings; set them on the model.")
    if temperature is None:
        return model
    if "temperature" not in type(model).model_fields:
        raise ConfigError(f"{type(model).__name__} has no temperature; leave it out.")
    return model.model_copy(update={"temperature": temperature})


def _by_name(name: str, given: dict[str, Any], timeout_s: float, settings: dict[str, Any]) -> Any:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise MissingExtra.of("langchain", "chat") from error
    provider = name.partition(":")[0]
    if provider in ("openai", "azure_openai", "anthropic"):  # whose clients would retry and wait by themselves
        given = {"timeout": timeout_s, "max_retries": 0, **given}
    try:
        return init_chat_model(name, **{**given, **settings})
    except ImportError as error:
        package = re.search(r"pip install ([\w-]+)", str(error))
        wanted = package[1] if package else f"langchain-{provider}"
        raise MissingExtra(f"{name} needs {wanted}. Install it with: pip install {wanted}") from error
    except Exception as error:
        raise _worded(name, provider, error) from error


def _worded(name: str, provider: str, error: Exception) -> Exception:
    """What went wrong when the model was made, and the next step."""
    told = _told(error)
    if re.match(r"Unsupported provider|Unable to infer model provider", told):
        known = re.search(r"providers(?: are)?: ([\w, ]+)", told)
        return UnknownName.of("chat model provider", provider, known[1].split(", ") if known else ("openai",))
    if re.search(r"(?i:credential|api[_ ]?key)|[A-Z]_TOKEN\b", told):
        variable = re.search(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN)\b", told)
        needed = variable[0] if variable else f"{provider.upper()}_API_KEY"
        return ConfigError(f"{name} has no API key. Set {needed}, or pass api_key=...")
    return ConfigError(f"{name} cannot be used: {told}")


def _told(error: Any) -> str:
    """The error's words; of a pydantic error without the input, which may hold a key."""
    if not hasattr(error, "errors"):
        return str(error)
    parts = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, part['loc']))}: {part['msg']}".lstrip(": ") for part in parts)


def name_of(model: Any) -> str:
    """What the model calls itself."""
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)


def usage_of(
    message: Any, asked: Iterable[tuple[str, str]], answer: str, price: tuple[float, float]
) -> tuple[Usage, bool]:
    """The tokens of an answer and what they cost; and whether they are an estimate, of four characters each."""
    told: Mapping[str, int] | None = getattr(message, "usage_metadata", None)
    estimated = not told
    if not told:
        told = {"input_tokens": -(-sum(len(text) for _, text in asked) // 4), "output_tokens": -(-len(answer) // 4)}
    prompt, completion = told["input_tokens"], told["output_tokens"]
    return Usage(prompt, completion, (prompt * price[0] + completion * price[1]) / 1e6), estimated


# ---- calls that can be left


def awaits(model: Any) -> bool:
    """Whether the model awaits by itself; else LangChain would call it in a thread that cannot be left."""
    from langchain_core.language_models import BaseChatModel

    return getattr(type(model), "_agenerate", None) is not BaseChatModel._agenerate


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """The call in a daemon thread: one that hangs must not keep the process from ending."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # a late result must not find it cancelled
    variables = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(variables.run(call))
        except StopIteration:  # a scripted model that ran dry; futures cannot hold it
            future.set_exception(RuntimeError("the model raised StopIteration"))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="hardwon-chat", daemon=True).start()
    return future


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def in_own_loop(call: Coroutine[Any, Any, Any]) -> "Future[Any]":
    """The call in an event loop of our own, one per process, in a daemon thread.

    The connections of a provider's client belong to the loop that opened them: after a second
    `asyncio.run` every pooled one would fail with "Event loop is closed".
    """
    with _loops_lock:
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="hardwon-chat-loop", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(call, loop)


# ---- errors of a provider


def status_of(error: Exception) -> int | None:
    """The HTTP status code behind the error, if there is one."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_transient(error: Exception) -> bool:
    """Whether the same request may well succeed later."""
    status = status_of(error)
    if status is not None:
        return status not in PERMANENT
    return isinstance(error, (TimeoutError, ConnectionError)) or bool(
        re.search(r"RateLimit|Timeout|Connection|Unavailable|Overloaded", type(error).__name__)
    )


def pause_s(error: Exception, n: int, chance: random.Random) -> float:
    """What the provider asks for, else half a second doubled with every error, give or take a half."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, min(float(headers["retry-after"]), MAX_PAUSE_S))
    except (KeyError, ValueError, TypeError):
        return min(0.5 * 2.0 ** (n - 1), MAX_PAUSE_S) * chance.uniform(0.5, 1.5)
