"""Models that cannot be opened, and errors of providers: what is missing, and whether to ask again."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.llm.chat_model import in_own_loop, in_thread, is_transient, name_of, open_model, pause_s

chat_models = pytest.importorskip("langchain.chat_models", reason="needs the chat extra")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (ImportError("Please install it with `pip install langchain-foo`."), MissingExtra, "needs langchain-foo."),
        (ImportError("no module"), MissingExtra, "needs langchain-bar. Install it with: pip install langchain-bar"),
        (
            ValueError("Unsupported provider. Supported providers are: baz, qux"),
            UnknownName,
            "There are: baz, q",
        ),
        (ValueError("Unable to infer model provider for bar"), UnknownName, "There are: openai"),
        (ValueError("Set the FOO_API_KEY environment variable"), ConfigError, "Set FOO_API_KEY, or pass"),
        (ValueError("no credentials"), ConfigError, "Set BAR_API_KEY, or pass"),
        (ValueError("it is closed"), ConfigError, "cannot be used: it is closed"),
    ],
)
def test_a_model_that_cannot_be_opened_says_what_is_missing(monkeypatch, error, kind, told):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(chat_models, "init_chat_model", fail)
    with pytest.raises(kind, match=told):
        open_model("bar:x" if kind is not UnknownName else "bax:x", None, 1.0, {})


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (SimpleNamespace(model_name="large", model="other"), "large"),
        (SimpleNamespace(model="small"), "small"),
        (SimpleNamespace(), "SimpleNamespace"),
    ],
)
def test_the_name_of_a_model_is_what_it_reports_or_its_class(model, name):
    assert name_of(model) == name


class RateLimitError(Exception):
    pass


def answer(status):
    """An error with the status in its response."""
    error: Any = RuntimeError("no")
    error.response = SimpleNamespace(status_code=status)
    return error


@pytest.mark.parametrize(
    ("error", "is_worth_it"),
    [
        (answer(500), True),
        (answer(401), False),
        (TimeoutError(), True),
        (ConnectionError(), True),
        (RateLimitError(), True),
        (ValueError(), False),
    ],
)
def test_an_error_that_may_pass_is_worth_another_request(error, is_worth_it):
    assert is_transient(error) is is_worth_it


@pytest.mark.parametrize(("n", "seconds"), [(1, 0.75), (2, 1.5)])
def test_pauses_double_and_vary(n, seconds):
    chance: Any = SimpleNamespace(uniform=lambda low, high: high)
    assert pause_s(ValueError(), n, chance) == seconds


def test_a_call_that_hangs_does_not_keep_the_process_alive():
    async def look():
        await asyncio.sleep(0)
        return threading.current_thread().daemon

    assert in_thread(lambda: threading.current_thread().daemon).result(10)
    assert in_own_loop(look()).result(10)
