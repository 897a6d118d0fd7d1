"""What the documentation says is so: its Python runs, its commands and options exist, its links lead somewhere."""

import os
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import hardwon.memory
import hardwon.runtime
import hardwon.trainers
from hardwon.apps.cli.app import app

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "examples" / "experiments"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *EXPERIMENTS.glob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HARDWON: Any = typer.main.get_command(app)
"""The tree of commands; typer brings a click of its own, so it is told by what it has."""


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if kind == language:
                yield page, text


def named(pairs: Iterator[tuple[Path, str]]) -> list[object]:
    found = list(pairs)
    names = [f"{page.relative_to(ROOT)}-{n}" for n, (page, _) in enumerate(found)]
    return [pytest.param(text, id=name) for name, (_, text) in zip(names, found, strict=True)]


def commands() -> Iterator[tuple[Path, str]]:
    """Every `hardwon ...` or `make ...` that a page names: lines of console blocks, and code in a sentence."""
    for page, text in blocks("console"):
        lines = text.replace("\\\n", " ").splitlines()
        yield from ((page, line.removeprefix("$ ").split(" #")[0].strip()) for line in lines if line.startswith("$ "))
    for page in PAGES:
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        yield from ((page, " ".join(code.split())) for code in re.findall(r"`((?:hardwon|make)\s[^`]*)`", prose))


def told(program: str) -> list[str]:
    return sorted({line for _, line in commands() if line.split()[0] == program})


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, f"{path} {name}")
    else:
        yield path, command


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **settings):
        return self


def refund(order: str) -> str:
    """Refund an order."""
    return f"{order} was refunded"


def run_code(code: str) -> dict[str, Any]:
    """Run the code of a page, where `model` and `tools` are those that a reader has."""
    call = {"name": "refund", "args": {"order": "A-1042"}, "id": "1"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    names: dict[str, Any] = {"__name__": "page", "model": model, "tools": [refund]}
    exec(compile(code, "page", "exec"), names)
    return names


@pytest.mark.parametrize("code", named(blocks("python")))
def test_python_in_a_page_runs(code, tmp_path, monkeypatch):
    """Offline, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    library = run_code(code).get("library")
    if library is not None:
        library.close()


def test_the_agent_of_the_readme_is_recorded_and_recalled(tmp_path, monkeypatch):
    """A reader's own model and tools learn something with the lines of the README."""
    monkeypatch.chdir(tmp_path)
    (code,) = [code for page, code in blocks("python") if page == ROOT / "README.md"]
    names = run_code(code)
    with names["library"] as library:
        names["agent"].invoke({"messages": [("user", "Refund order A-1042.")]})
        assert library.admin.stats()["episodes"] == 1
        assert library.recall("Refund order A-1042.").steps[0].what.action == 'refund(order="A-1042")'


def test_the_readme_shows_what_the_support_agent_prints(tmp_path, monkeypatch, capsys):
    """To show what it prints now: HARDWON_FREEZE=1 python -m pytest tests/test_docs.py -k support."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARDWON_MODEL", raising=False)
    runpy.run_path(str(ROOT / "examples" / "support_agent.py"), run_name="__main__")
    block = f"```console\n$ python examples/support_agent.py\n{capsys.readouterr().out}```"
    page = ROOT / "README.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- support agent: begin -->\n")
    text, end, after = rest.partition("\n<!-- support agent: end -->")
    if os.environ.get("HARDWON_FREEZE"):
        page.write_text(before + begin + block + end + after, encoding="utf-8")
    else:
        assert text == block


def test_the_readme_is_short():
    """A stranger reads one screen or two."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("line", told("hardwon"))
def test_command_in_a_page_exists_with_its_options(line):
    """`hardwon memory ls LIBRARY --kind guardrail`: each part is known to the command line."""
    command = HARDWON
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands and hasattr(command, "default"):
            words.insert(0, command.default)
        assert words[0] in command.commands, f"{line}: there is no {words[0]}"
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert asked <= options | {"--help"}, f"{line}: there is no {', '.join(asked - options)}"


def test_every_command_is_in_a_page():
    """Whoever reads the documentation knows of it."""
    prose = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name, _ in leaves(HARDWON, "hardwon"):
        family, _, own = name.rpartition(" ")
        listed = re.search(rf"`{family} \w+`(?:[\s,]|and|`\w+`)*`{own}`", prose)
        assert name in prose or listed, f"{name} is in no page"


@pytest.mark.parametrize(("name", "command"), [pytest.param(*leaf, id=leaf[0]) for leaf in leaves(HARDWON, "hardwon")])
def test_every_parameter_has_a_sentence_of_help(name, command):
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize("line", told("make"))
def test_make_target_in_a_page_exists(line):
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {word for word in line.split()[1:] if "=" not in word} <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """To a file that is here; addresses of the web are not asked."""
    for target in re.findall(r"(?:\]\(|src=\")([^)\"\s]+)[)\"]", page.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        if not path.startswith(("http:", "https:")):
            there = page.parent / path if path else page
            assert there.exists(), f"{page.name}: {target}"
        if heading and path.endswith(".md"):
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_every_picture_is_used():
    """A picture that no page shows is left over."""
    prose = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in [*(ROOT / "docs" / "images").iterdir(), *(EXPERIMENTS / "images").iterdir()]:
        assert picture.name in prose, picture.name


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (EXPERIMENTS / "learning-games.md", "learn"),
        (EXPERIMENTS / "training-speed.md", "train"),
        (ROOT / "docs" / "benchmarks.md", "gpu"),
    ],
)
def test_benchmarks_have_a_place_for_their_tables(page, name):
    """`hardwon bench learn --write PAGE` replaces the text between these lines."""
    text = page.read_text(encoding="utf-8")
    assert text.index(f"<!-- bench {name}: begin -->") < text.index(f"<!-- bench {name}: end -->")


def test_every_public_name_is_in_the_reference():
    """A name that the site leaves out cannot be looked up."""
    for package in (hardwon.memory, hardwon.runtime, hardwon.trainers):
        page = ROOT / "docs" / "reference" / f"{package.__name__.rpartition('.')[2]}.md"
        listed = re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert sorted(listed) == sorted(f"{package.__name__}.{name}" for name in package.__all__)


@pytest.mark.parametrize(
    "page",
    [
        *("langchain", "langgraph", "mcp", "coding-agents", "functions", "proxy", "frameworks", "tracing", "importing"),
        *("http", "trainers", "dashboard", "install"),
    ],
)
def test_every_door_opens_with_at_most_two_commands(page):
    """Whoever follows the first block of commands has something that works; so it is for a container."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    starts = [text, *([text.partition("## In a container")[2]] if page == "install" else [])]
    for start in starts:
        language, first = FENCE.findall(start)[0]
        assert language in ("console", "python", "py")
        if language == "console":
            assert 1 <= sum(line.startswith("$ ") for line in first.splitlines()) <= 2


def test_every_page_is_in_the_navigation():
    """A page that the site does not link to is read by nobody; mkdocs.yml lists those that other pages link to."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    linked = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name in (linked if name.startswith("decisions/") else navigation), name


def test_the_files_of_the_architecture_page_exist():
    """Whoever looks for the file behind a question finds it there, and every room of a package has a row."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:memory|runtime|trainers|apps)/hardwon/[\w/.]+)`", page)
    assert len(files) > 20
    assert not [file for file in files if not (ROOT / file).exists()]
    for package, table in re.findall(r"^\| `(\w+/hardwon/\w+/)` \| \|\n((?:\|.*\n)+)", page, re.MULTILINE):
        rows = {name for row in table.splitlines() for name in re.findall(r"`([\w/.]+)`", row.split(" | ")[0])}
        assert not [name for name in rows if not (ROOT / package / name).exists()]
        rooms = {f"{path.name}/" for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
        assert rooms <= rows, rooms - rows
