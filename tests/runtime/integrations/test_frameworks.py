"""The examples of docs/frameworks.md run on the frameworks' own scripted models, where a framework is installed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n.*?^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))


@pytest.mark.parametrize(
    ("section", "package"),
    [
        ("OpenAI Agents SDK", "agents"),
        ("PydanticAI", "pydantic_ai"),
        ("smolagents", "smolagents"),
        ("LlamaIndex", "llama_index.core"),
        ("Google ADK", "google.adk"),
        ("CrewAI", "crewai"),
    ],
)
@pytest.mark.filterwarnings("ignore:asynchronous generator")  # PydanticAI leaves one to the garbage collector
@pytest.mark.filterwarnings("ignore:Function 'refund' has decorators")
def test_an_agent_of_the_framework_records_and_recalls(section, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    # smolagents reads the source of a tool, so the example is a file.
    source = tmp_path / "example.py"
    source.write_text(SECTIONS[section])
    exec(compile(SECTIONS[section], str(source), "exec"), {"__name__": "example"})
