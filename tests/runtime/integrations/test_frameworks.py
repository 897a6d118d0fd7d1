"""The examples of docs/frameworks.md run on the frameworks' own scripted models, where a framework is installed."""

import re
from pathlib import Path

import pytest

from hardwon.memory import ExperienceLibrary

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
SECTIONS = {
    part.partition("\n")[0]: program[1]
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")
    if (program := re.search(r"^```py\n(.*?)^```$", part, re.M | re.S))
}


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
    with ExperienceLibrary.open(tmp_path / "support.db") as library:
        # The ids are random, the times are not.
        first, second = (library.episodes.get(row["id"]) for row in reversed(library.episodes.find()))
    assert [step.action for step in (*first.steps, *second.steps)] == ['refund(order="A-1")'] * 2
    assert not first.steps[0].why.similar
    assert second.steps[0].why.similar, "the hint did not reach the second run"
