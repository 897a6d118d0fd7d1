"""The rooms of the house: small folders, each with one sentence that says what it does."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tests.bars import count_numbers, list_circles

ROOT = Path(__file__).parents[1]
MOST_FILES = 15
FOLDERS = sorted(
    {
        file.parent
        for top in ("memory/hardwon", "runtime/hardwon", "trainers/hardwon", "apps", "examples", "tests")
        for file in (ROOT / top).rglob("*.py")
    }
)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_folder_is_small(folder):
    """A room that grows over this is two rooms. Published methods are one file each, and their folder is the index."""
    is_index = folder == ROOT / "trainers/hardwon/trainers/methods"
    assert is_index or len(list(folder.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(
    "file",
    [folder / "__init__.py" for folder in FOLDERS if (folder / "__init__.py").exists()],
    ids=lambda file: str(file.parent.relative_to(ROOT)),
)
def test_package_has_a_docstring(file):
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("portion", ["memory", "runtime", "trainers", "apps"])
def test_every_room_is_in_the_contract(portion):
    """A room that no layer names may import anything."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == [f"hardwon.{portion}"])
    named = {name.strip().strip("()") for layer in layers for name in layer.split(":")}  # parentheses: optional
    home = ROOT / portion / "hardwon" / portion
    there = {path.stem for path in home.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert named == there - {"__init__"}


def test_no_benchmark_is_in_the_package():
    """Benchmarks and experiments run from a clone; see `hardwon.apps.shared.clone`."""
    packaged = [path for path in FOLDERS if "hardwon" in path.relative_to(ROOT).parts and "tests" not in path.parts]
    assert packaged
    assert not [path for path in packaged if {"benchmarks", "experiments", "team_tasks"} & set(path.parts)]


def find_tables():
    """The names of the library's tables, from the frozen schema."""
    schema = (ROOT / "tests" / "frozen" / "schema.sql").read_text(encoding="utf-8")
    return set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?[\"'`]?(\w+)", schema))


def test_apps_ask_the_library_and_not_its_tables():
    """The schema is private to `hardwon.memory`; everything above calls its methods."""
    tables = "|".join(sorted(find_tables()))
    assert "trajectories" in tables
    sql = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE|TABLE)\s+[\"'`]?(?:{tables})\b")
    wrong = []
    for file in sorted((ROOT / "apps" / "hardwon").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            imports = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imports += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Constant)):
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and sql.search(node.value):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.value[:60]!r}")
            if any(name.partition(".")[0] in ("sqlite3", "sqlite_utils") for name in imports):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} imports SQLite")
    assert wrong == []


@pytest.mark.parametrize("portion", ["memory", "runtime", "trainers", "apps"])
def test_every_room_is_a_package(portion):
    """A folder without `__init__.py` imports in a checkout, and the documentation does not find its names."""
    folders = {file.parent for file in (ROOT / portion / "hardwon" / portion).rglob("*.py")}
    assert not [folder.relative_to(ROOT) for folder in sorted(folders) if not (folder / "__init__.py").is_file()]


def test_no_module_imports_itself_through_others():
    """Neither in a function nor for an annotation: what two modules need is in a third one."""
    assert list_circles() == []


MOST_NUMBERS = 250


def test_numbers_that_somebody_chose_are_fields():
    """A number that is used once stands where it is used, and the others are fields of their room's `tuning.py`."""
    assert count_numbers() <= MOST_NUMBERS


@pytest.mark.parametrize("file", sorted(ROOT.glob("*/hardwon/**/tuning.py")), ids=lambda file: file.parent.name)
def test_a_tuned_number_says_what_it_means(file):
    source = file.read_text(encoding="utf-8")
    (record,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assert "frozen=True" in ast.unparse(record.decorator_list[0])
    for field, following in zip(record.body, [*record.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            is_explained = "  # " in source.splitlines()[(field.end_lineno or 0) - 1] or isinstance(following, ast.Expr)
            assert is_explained, f"{file.relative_to(ROOT)}:{field.lineno} has no comment and no docstring"
