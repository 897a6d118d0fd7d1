import os
import subprocess
import sys

import pytest

from tacit.memory.errors import ConfigError, MissingExtra, UnknownName
from tacit.runtime.chat import ChatPolicy

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.language_models import FakeListChatModel


def test_importing_it_imports_no_model_library():
    code = (
        "import sys, tacit.runtime.chat\n"
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
    with pytest.raises(ConfigError, match="give a LangChain chat model"):
        ChatPolicy(3)  # type: ignore[arg-type]
