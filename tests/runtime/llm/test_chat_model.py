import asyncio
import gzip
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.clients.misbehaving import misbehaving

from hardwon.memory import Recollection, State
from hardwon.memory.errors import ConfigError, MissingExtra, PolicyFailure, UnknownName
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.llm import chat_model
from hardwon.runtime.policies.chat import ChatPolicy

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.language_models import FakeListChatModel


class Provider(ThreadingHTTPServer):
    """An OpenAI-compatible server that answers `go north` once its `errors` (status, headers) are used up."""

    daemon_threads, request_queue_size = True, 64
    errors: list[tuple[int, dict[str, str]]]

    class RequestHandlerClass(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            errors = self.server.errors  # type: ignore[attr-defined]
            status, headers = errors.pop(0) if errors else (200, {})
            usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "go north"}}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
            body = json.dumps({**answer, "usage": usage} if status == 200 else {"error": {"message": "no"}}).encode()
            self.send_response(status)
            for name, value in {**headers, "content-type": "application/json", "content-length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None:
            pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    pytest.importorskip("langchain_openai")
    server = Provider(("127.0.0.1", 0), Provider.RequestHandlerClass)
    server.errors = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def policy(provider: Provider, **options: Any) -> ChatPolicy:
    return ChatPolicy("openai:tiny", base_url=f"http://127.0.0.1:{provider.server_port}/v1", api_key="none", **options)


def context() -> Context:
    actions = ("go north", "go south")
    return Context(State("a hall"), actions, Recollection(), None, {}, (), WorkingMemory(), random.Random(0))


def test_a_server_is_asked_by_its_url(provider):
    decision = policy(provider).decide(context())
    assert (decision.action, decision.usage) == ("go north", ModelUsage(5, 2, 0.0, 1))


def test_episodes_of_a_second_event_loop_are_answered_too(provider):
    """Pooled connections die with the loop that opened them; 12 of them once used up every retry."""
    chat = policy(provider, max_retries=0)

    async def together() -> list[Decision]:
        return await asyncio.gather(*(chat.adecide(context()) for _ in range(12)))

    assert [len(asyncio.run(together())) for _ in range(3)] == [12, 12, 12]


def test_a_rate_limit_is_waited_out(provider):
    pauses: list[float] = []
    provider.errors = [(429, {"retry-after": "3"}), (503, {})]
    assert policy(provider, sleep=pauses.append).decide(context()).why.extra["attempts"] == 3
    assert pauses[0] == 3.0


def test_a_wrong_key_is_told_at_once(provider):
    provider.errors = [(401, {})]
    with pytest.raises(PolicyFailure, match=r"in 1 of at most 3 requests: 1 × .*Authentication"):
        policy(provider).decide(context())


HEAD = b"HTTP/1.1 %s X\r\nContent-Type: application/json\r\n%sConnection: close\r\n\r\n"
ENDLESS: dict[str, tuple[list[bytes], str]] = {
    "huge": ([HEAD % (b"200", b""), *[b"x" * 4_000] * 1_000], "more than 10,000 bytes"),
    "huge error": ([HEAD % (b"500", b""), *[b"x" * 4_000] * 1_000], "more than 10,000 bytes"),
    "huge by its own word": ([HEAD % (b"200", b"Content-Length: 10000000\r\n"), *[b"x" * 4_000] * 1_000], "more than"),
    "slow": ([HEAD % (b"200", b""), *[b" "] * 1_000], "not whole|no answer within"),
    "compressed": (
        [HEAD % (b"200", b"Content-Encoding: gzip\r\n") + gzip.compress(b" " * 10**6)],
        "compressed, which was not requested",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("how", ["decide", "adecide"])
def test_an_answer_without_an_end_is_a_failure_in_time(name, how, monkeypatch):
    """The thread of a call that timed out ends, too, instead of collecting the rest of the answer."""
    pytest.importorskip("langchain_openai")
    monkeypatch.setattr(chat_model, "MOST_BYTES", 10_000)
    parts, message = ENDLESS[name]
    with misbehaving(parts) as url:
        chat = ChatPolicy(
            "openai:tiny", base_url=f"{url}/v1", api_key="none", max_retries=0, timeout_s=0.5 if name == "slow" else 9
        )
        with pytest.raises(PolicyFailure, match=message):
            asyncio.run(chat.adecide(context())) if how == "adecide" else chat.decide(context())
        for thread in threading.enumerate():
            if thread.name == "hardwon-chat":
                thread.join(5)
                assert not thread.is_alive()


def test_importing_it_imports_no_model_library():
    code = (
        "import sys, hardwon.runtime.policies.chat\n"
        "print([n for n in ('langchain', 'langchain_core', 'langgraph', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_provider_lists_those_there_are():
    pytest.importorskip("langchain")
    with pytest.raises(UnknownName, match=r"Did you mean 'openai'\?"):
        ChatPolicy("opennai:gpt")


def test_a_missing_package_says_how_to_install_it():
    pytest.importorskip("langchain")
    with pytest.raises(MissingExtra, match="pip install langchain-perplexity"):
        ChatPolicy("perplexity:sonar")


def test_a_missing_key_names_its_variable(monkeypatch):
    pytest.importorskip("langchain_openai")
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match="Set OPENAI_API_KEY, or pass api_key"):
        ChatPolicy("openai:gpt-5")


def test_settings_reach_a_model_given_by_name():
    pytest.importorskip("langchain_openai")
    chat = ChatPolicy("openai:tiny", temperature=0.5, timeout_s=9, base_url="http://127.0.0.1:1/v1", api_key="none")
    model = chat._model
    assert (model.openai_api_base, model.temperature, model.request_timeout) == ("http://127.0.0.1:1/v1", 0.5, 9)
    assert model.max_retries == 0, "the retries are ours: two loops of them would multiply"
    assert chat.name == "openai:tiny"


def test_a_model_gets_the_temperature_and_keeps_its_own():
    pytest.importorskip("langchain_openai")
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="tiny", temperature=0.9, api_key="none")  # type: ignore[arg-type]
    assert ChatPolicy(model, temperature=0.1)._model.temperature == 0.1
    assert model.temperature == 0.9


def test_a_setting_the_provider_does_not_take_is_named_and_the_key_is_not():
    pytest.importorskip("langchain_openai")
    with pytest.raises(ConfigError, match="n must be at least 1") as caught:
        ChatPolicy("openai:tiny", n=0, api_key="secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"timeout_s": 0},
        {"history": -1},
        {"structured": "sometimes"},
        {"price_usd_per_million": (1.0, -1.0)},
        {"temperature": 0.5},
        {"base_url": "http://127.0.0.1"},
    ],
)
def test_a_setting_that_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ChatPolicy(FakeListChatModel(responses=[]), **wrong)


def test_something_that_is_no_model_is_refused():
    with pytest.raises(ConfigError, match="pass a LangChain chat model"):
        ChatPolicy(3)  # type: ignore[arg-type]
