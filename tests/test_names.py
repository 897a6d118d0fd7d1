"""Names: one class name has one meaning in a package, and functions are named by verbs of the field."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("memory", "runtime", "trainers", "apps")
WORDS = "told|said|shown|asked|found|known|made|taken|mine|here|near|one|others"
BANNED = re.compile(rf"^_*({WORDS})(_|$)")
BANNED_WORD = re.compile(rf"^_*({WORDS})$")


def definitions(package, *kinds):
    """Yield the name and the place of every definition of these kinds below a package's folder."""
    for file in sorted((ROOT / package / "hardwon" / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield node.name, f"{file.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("package", PACKAGES)
def test_class_name_has_one_meaning(package):
    """A reader who searches for a class finds one."""
    places = defaultdict(set)
    for name, place in definitions(package, ast.ClassDef):
        places[name].add(place.rpartition(":")[0])
    assert {name: sorted(files) for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_not_named_by_participles(package):
    """`told` had twelve meanings in twelve files; a verb phrase has one."""
    functions = definitions(package, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [f"{place} {name}" for name, place in functions if BANNED.match(name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_are_not_named_by_participles(package):
    """A variable, a parameter and an attribute is named by a noun; a participle before a noun is allowed.

    So is one name of the data: the field `shown` of records that count how often an item was shown, which is also a key
    of their JSON.
    """
    places = []
    for file in sorted((ROOT / package / "hardwon" / package).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        fields = {node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
        for node in ast.walk(tree):
            name, line = find_assigned_name(node)
            if BANNED_WORD.match(name) and not (name == "shown" and node in fields):
                places.append(f"{file.relative_to(ROOT)}:{line} {name}")
    assert places == []


def find_assigned_name(node):
    """Return the name that a node assigns to and its line, or an empty string."""
    if isinstance(node, ast.arg):
        return node.arg, node.lineno
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id, node.lineno
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr, node.lineno
    return "", 0
