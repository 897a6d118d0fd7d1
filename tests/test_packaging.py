"""What is installed is what is here: portions, public names, import times and directions, the changelog."""

import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import hardwon.memory
import hardwon.runtime
import hardwon.trainers
from hardwon.memory.lazy_names import attach_names

ROOT = Path(__file__).parents[1]
PORTIONS = ("memory", "runtime", "trainers", "apps")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = {"torch", "transformers", "langgraph"}
OPTIONAL = {
    "sklearn",
    "scipy",
    "matplotlib",
    "PIL",
    "torch",
    "transformers",
    "langchain",
    "langchain_core",
    "langgraph",
    "langsmith",
    "fastapi",
    "httpx",
    "nicegui",
    "mcp",
    "opentelemetry",
}
"""Packages of extras, and what they bring: the base must work where none is installed."""
LARGEST_MB = 200
"""Largest size of what an installation without extras brings: 180 MB when written, with room for new releases."""

PUBLIC = {
    "hardwon.memory": {
        "Add",
        "Admission",
        "Diagnosis",
        "Estimate",
        "EvolutionReport",
        "ExperienceLibrary",
        "Failure",
        "ForgetReceipt",
        "Grade",
        "HardwonError",
        "Hit",
        "Item",
        "Operation",
        "Outcome",
        "Problem",
        "Reasons",
        "Recollection",
        "Return",
        "State",
        "Step",
        "Summary",
        "Trajectory",
        "Update",
        "Usage",
        "Verdict",
    },
    "hardwon.runtime": {
        "AdmitAll",
        "AdmitNone",
        "Agent",
        "AwaitedGuidance",
        "BabyAI",
        "ChatAdmission",
        "ChatExtractor",
        "ChatPlanner",
        "ChatPolicy",
        "Context",
        "Decision",
        "DemonstrationPlanner",
        "Environment",
        "EpisodicPolicy",
        "Event",
        "ExperienceMiddleware",
        "FunctionEpisode",
        "GatedRetrieval",
        "Guidance",
        "HardwonInstrumentor",
        "HardwonStore",
        "Hint",
        "Info",
        "LogisticAdmission",
        "McpEnvironment",
        "McpTools",
        "LookaheadPolicy",
        "Plan",
        "PlannedStep",
        "Planner",
        "Policy",
        "PromptedGuidance",
        "RandomPolicy",
        "Result",
        "RetrievalGuidance",
        "RuleAdmission",
        "SkillPlanner",
        "Team",
        "TeamResult",
        "TextWorldExpress",
        "ToolEnvironment",
        "WarmUpGuidance",
        "open_environment",
        "remember",
    },
    "hardwon.trainers": {
        "Engine",
        "EngineChatModel",
        "LocalEngine",
        "PolicyRole",
        "Role",
        "Roles",
        "ServerEngine",
        "TokenPolicy",
        "TrainConfig",
        "TrainReport",
        "TrainedGuidance",
        "evaluate_checkpoint",
        "load_policy",
        "load_ranker",
        "load_roles",
        "train",
    },
}
"""Every public name: taking one away breaks applications, and adding one is a promise."""


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)


def imported(code: str) -> set[str]:
    """The top-level modules that a fresh process has after running some code."""
    done = run(sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.splitlines()}


# ---- layout


@pytest.mark.parametrize("portion", PORTIONS)
def test_portion_is_a_typed_part_of_the_namespace(portion):
    """An `__init__.py` in `hardwon` of one portion would hide the other three."""
    assert not (ROOT / portion / "hardwon" / "__init__.py").exists()
    assert (ROOT / portion / "hardwon" / portion / "py.typed").exists()
    assert (ROOT / portion / "hardwon" / portion / "__init__.py").exists()


def test_every_portion_is_named_wherever_portions_are():
    """One forgotten place makes a portion uninstalled, unchecked or not editable."""
    tools = PYPROJECT["tool"]
    assert set(PORTIONS) == {path.parent.name for path in ROOT.glob("*/hardwon")}
    assert tools["hatch"]["build"]["dev-mode-dirs"] == list(PORTIONS)
    assert tools["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"{folder}/hardwon" for folder in PORTIONS]
    assert set(PORTIONS) <= set(tools["hatch"]["build"]["targets"]["sdist"]["only-include"])
    assert tools["mypy"]["mypy_path"].split(":") == list(PORTIONS)
    assert set(PORTIONS) <= set(tools["mypy"]["files"])
    assert tools["pyright"]["include"] == list(PORTIONS)
    assert tools["ruff"]["src"] == list(PORTIONS)
    assert tools["importlinter"]["root_packages"] == [f"hardwon.{folder}" for folder in PORTIONS]


# ---- public names


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there(module):
    """Also those that are imported only when they are first used."""
    found = sys.modules[module]
    for name in sorted(PUBLIC[module]):
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isfunction(value):  # an alias of types belongs to no module
            assert value.__module__.startswith(f"{module}."), name


def test_public_names_are_exactly_these():
    """A name that is added or taken away is a decision, to be made here as well."""
    for package in (hardwon.memory, hardwon.runtime, hardwon.trainers):
        assert sorted(package.__all__) == sorted(PUBLIC[package.__name__])
        assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("portion", ["memory", "runtime", "trainers"])
def test_public_names_stand_once_in_their_package(portion):
    """The imports for type checkers are the list that is imported from on first use."""
    source = (ROOT / portion / "hardwon" / portion / "__init__.py").read_text(encoding="utf-8")
    for name in PUBLIC[f"hardwon.{portion}"]:
        assert len(re.findall(rf"\b{name} as {name}\b", source)) == 1, name
        assert not re.search(rf"[\"']{name}[\"']", source.rpartition("__all__")[0]), name


def test_a_package_offers_what_its_source_imports_for_type_checkers(tmp_path, monkeypatch):
    """Only names that are marked as public, from modules of its own, and nothing is imported before its use."""
    package = tmp_path / "lazy_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from hardwon.memory.lazy_names import attach_names\n"
        "if TYPE_CHECKING:\n"
        "    from pathlib import Path as Path\n"
        "    from .deep.things import First as First, Second\n"
        "__all__, __getattr__, __dir__ = attach_names(__name__)\n"
    )
    (package / "deep").mkdir()
    (package / "deep" / "things.py").write_text("First, Second = 1, 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = importlib.import_module("lazy_package")
    assert lazy.__all__ == ["First"]
    assert "First" in dir(lazy)
    assert "lazy_package.deep.things" not in sys.modules
    assert lazy.First == 1
    with pytest.raises(AttributeError, match="Second"):
        _ = lazy.Second


def test_a_package_without_its_source_says_so(tmp_path, monkeypatch):
    """Names are read from the source; a bundle of compiled files alone lacks it."""
    (tmp_path / "bare_package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    bare = importlib.import_module("bare_package")
    monkeypatch.setattr(bare.__spec__, "loader", None)
    with pytest.raises(ImportError, match=r"bare_package, which lists its public names, is missing"):
        attach_names("bare_package")


def test_name_that_does_not_exist_is_an_attribute_error():
    """Lazy names must not turn a typing mistake into something else."""
    with pytest.raises(AttributeError, match="Agnet"):
        _ = hardwon.runtime.Agnet


# ---- imports


@pytest.mark.parametrize(
    "code",
    [
        "import hardwon.memory",
        "import hardwon.runtime",
        "import hardwon.trainers",
        "import hardwon.memory; hardwon.memory.ExperienceLibrary.open(':memory:').close()",
        "import typer.testing; from hardwon.apps.cli.app import app; typer.testing.CliRunner().invoke(app, ['--help'])",
        "from hardwon.apps.cli import eval; from hardwon.trainers.__main__ import train",
    ],
)
def test_light_imports_stay_light(code):
    """torch takes seconds to import, langgraph most of one: nobody pays for what is not used."""
    assert imported(code) & HEAVY == set()


DOOR = """
from hardwon.memory import State


class Door:
    name = "door"

    def reset(self, task="", seed=0):
        return State("A closed door.", task="open the door")

    def step(self, action):
        won = action == "open door"
        return State("A door.", task="open the door"), float(won), won, {"success": won, "score": float(won)}

    def admissible(self, state):
        return ["open door", "wait"]

    def clone(self):
        return Door()

    def close(self):
        pass
"""
WITHOUT_EXTRAS = f"""
import sys
sys.path[:0] = ['']
for name in {sorted(OPTIONAL)}:
    sys.modules[name] = None  # as if it were not installed
import hardwon.memory, hardwon.runtime, hardwon.trainers, hardwon.apps
from typer.testing import CliRunner
from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import MissingExtra
from hardwon.runtime import FunctionEpisode, remember
"""
BASE_DAY = """
with ExperienceLibrary.open('library.db') as library:
    @remember
    def pay(method):
        if method == 'cash':
            raise ValueError('no cash')
        return 'paid'
    for customer in range(8):
        with FunctionEpisode(library, f'Pay customer {customer}.') as episode:
            try:
                pay('cash')
            except ValueError:
                pay('voucher')
    assert 'voucher' in FunctionEpisode(library, 'Pay customer 9.').__enter__().hint
    library.evolve()
    item = library.items.find()[0].id
reads = (['doctor', 'library.db'], ['memory', 'ls', 'library.db'], ['memory', 'search', 'library.db', 'pay'])
edit = ['memory', 'edit', 'library.db', item, '--title', 'Voucher', '--score', '1', '--tag', 'pay']
for command in (*reads, edit, ['check-env', 'door_world:Door']):
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (command, result.output)
plays = ['run', 'door_world:Door', '--episodes', '2', '--eval-seeds', '0-1', '--jobs', '1', '--out', 'run']
needs = ((plays, 'agent'), (['serve', 'library.db'], 'agent'), (['mcp', 'library.db'], 'agent'), (['methods'], 'train'))
for command, extra in (*needs, (['proxy', 'library.db', '--upstream', 'http://127.0.0.1:9/v1'], 'agent')):
    result = CliRunner().invoke(app, command)
    assert result.exit_code and f".[{extra}]" in str(result.exception) + result.output, (command, result.output)
for package in (hardwon.runtime, hardwon.trainers):
    for name in package.__all__:
        try:
            getattr(package, name)
        except MissingExtra as error:
            assert 'pip install' in str(error)
"""


def test_the_base_works_without_any_optional_package(tmp_path):
    """The library, its commands, and functions that learn; what needs more names the extra."""
    (tmp_path / "door_world.py").write_text(DOOR)
    done = run(sys.executable, "-c", f"{WITHOUT_EXTRAS}{BASE_DAY}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_one_way():
    """The contracts of pyproject.toml, checked by import-linter."""
    check = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = run(sys.executable, "-c", check, "--no-logo", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
    files = sum(len(list((ROOT / portion / "hardwon" / portion).rglob("*.py"))) for portion in PORTIONS)
    assert int(done.stdout.split("Analyzed ")[1].split()[0]) >= files  # what is not found breaks no contract


# ---- versions and extras


def test_version_is_said_once():
    done = run(sys.executable, "-m", "hardwon", "--version")
    assert done.stdout == f"hardwon {version('hardwon')}\n"


def test_no_message_installs_a_package_of_our_name():
    """hardwon is not on PyPI yet, and its former name is a stranger's: what users are told installs from a clone."""
    told = re.compile(r"pip install[^\n]*(?:tacit|(?<!clone of )hardwon\b)")
    for path in (path for folder in (*PORTIONS, "docs", "examples") for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".md"):
            assert not told.search(path.read_text(encoding="utf-8")), path


def test_what_is_not_released_is_short():
    """A longer list belongs to a version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(text.split("## [Unreleased]")[1].split("\n## [")[0].strip().splitlines()) <= 80


def test_changelog_speaks_of_this_version():
    assert f"## [{version('hardwon')}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_extra_that_is_named_exists():
    """In errors, docs and examples; an extra of a wrong name installs nothing."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    told = re.compile(
        r"""\.\[([a-z][a-z,]*)\]|(?:require_extra|MissingExtra\.of)\([^)]*"([a-z]+)"\)|"""
        r"""attach_names\(__name__, extra="(\w+)\""""
    )
    files = [path for folder in (*PORTIONS, "docs", "examples", "deploy") for path in (ROOT / folder).rglob("*")]
    for path in (*files, ROOT / "README.md", ROOT / "Makefile"):
        if path.suffix in (".py", ".md") or path.name in ("Makefile", "Dockerfile"):
            named = {"".join(groups) for groups in told.findall(path.read_text(encoding="utf-8"))}
            assert {extra for names in named for extra in names.split(",")} <= set(extras), path


def test_torch_is_bound_and_not_in_the_core():
    """Without an upper bound pip takes a build of several GB."""
    project = PYPROJECT["project"]
    asked = [line for extra in project["optional-dependencies"].values() for line in extra if line.startswith("torch")]
    assert asked
    assert set(asked) == {"torch>=2.6,<2.14"}
    heavy = ("torch", "transformers", "sentence", "lang")
    assert not [line for line in project["dependencies"] if line.startswith(heavy)]


def test_decisions_are_short_and_numbered():
    """The number of a deleted decision is not used again, so that an old reference never names another one."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len({path.name[:4] for path in decisions}) == len(decisions)
    for path in decisions:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 40, path.name
        assert lines[0].startswith(f"# {path.name[:3]} "), path.name


def test_architecture_lists_every_decision_under_the_title_of_its_file():
    """A list by hand ends at the last decision that somebody remembered to add."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    titles = dict(re.findall(r"^- \[(\d{3} [^]]+)\]\(decisions/([^)]+)\.md\)$", page, re.MULTILINE))
    assert sorted(titles.values()) == sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for title, name in titles.items():
        assert name == re.sub(r"[^a-z0-9]+", "-", title.lower().replace("'", "")).strip("-")


# ---- what only a built package or a broken module shows


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is made from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.glob("*.tar.gz"))) == 1
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_has_every_module_and_no_other(wheel):
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("hardwon/")}
    there = {
        str(path.relative_to(ROOT / portion))
        for portion in PORTIONS
        for path in (ROOT / portion / "hardwon").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == there


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """The core alone, from a directory in which the sources are not: no torch, and everything imports."""
    python = tmp_path / "venv" / "bin" / "python"
    for command in (
        (sys.executable, "-m", "venv", tmp_path / "venv"),
        (python, "-m", "pip", "install", "--quiet", wheel),
        (python, "-c", "import hardwon.memory, hardwon.runtime, hardwon.trainers, hardwon.apps"),
        (python, "-c", "from hardwon.runtime import Agent, EpisodicPolicy"),
        (python.with_name("hardwon"), "--help"),
        (python.with_name("hardwon"), "doctor"),
    ):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    of_venv = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    brought = [path for path in packages.iterdir() if path.name not in of_venv]
    size = sum(int(line.split()[0]) for line in run("du", "-sk", *brought).stdout.splitlines()) / 1024
    assert size < LARGEST_MB, f"{size:.0f} MB without extras; see: du -sm {packages}/* | sort -n"
    done = run(python, "-c", "import torch", cwd=tmp_path)
    assert "No module named 'torch'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkers_see_a_planted_type_error(tmp_path):
    """As `make types` calls them; a checker that looks at the wrong folders is green whatever happens."""
    for name in (*PORTIONS, "tests", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for portion in PORTIONS:
        planted = tmp_path / portion / "hardwon" / portion / "planted.py"
        planted.write_text(
            'from hardwon.memory import Item\n\nwrong: int = Item("insight", "x").title\n', encoding="utf-8"
        )
    for checker in ("mypy", "pyright"):
        done = run(Path(sys.executable).with_name(checker), cwd=tmp_path)
        assert done.returncode == 1
        for portion in PORTIONS:
            assert f"{portion}/hardwon/{portion}/planted.py:3" in done.stdout, done.stdout + done.stderr
