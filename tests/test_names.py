"""Names: one class name has one meaning in a package, and functions are named by verbs of the field."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("memory", "runtime", "trainers", "apps")
BANNED = re.compile(r"^_*(told|said|shown|asked|found|known|made|taken|mine|here|near|one|others)(_|$)")


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
