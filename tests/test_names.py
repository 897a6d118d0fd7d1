"""Names: a class or an alias has one meaning in the library, and functions are named by verbs of the field."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.bars import list_repeated_names

ROOT = Path(__file__).parents[1]
PACKAGES = ("memory", "runtime", "trainers", "apps")
WORDS = "told|said|shown|asked|found|known|made|taken|mine|here|near|one|others"
BANNED = re.compile(rf"^_*({WORDS})(_|$)")
BANNED_WORD = re.compile(rf"^_*({WORDS})$")
STEMS = re.compile(
    "(^|_)(anew|take_back|look_back|study|foresee|prospects?|repertoire|surroundings|hull|sidecar|desk|cast)(_|$)"
)
"""Coined words that were renamed, in functions, parameters, variables and modules."""


@cache
def read(file):
    """Return the definitions of a module as (kind, name, line) and the names it assigns to as (name, line).

    The nodes themselves are 600,000, which the collector of garbage would walk until the tests end.
    """
    nodes = tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    fields = {node.target for node in nodes if isinstance(node, ast.AnnAssign)}
    assigned = ((node, *find_assigned_name(node)) for node in nodes)
    return (
        [(type(node), node.name, node.lineno) for node in nodes if isinstance(node, kinds)],
        [(name, line) for node, name, line in assigned if name and not (name == "shown" and node in fields)],
    )


def definitions(package, *kinds):
    """Yield the name and the place of every definition of these kinds below a package's folder."""
    for file in sorted((ROOT / package / "hardwon" / package).rglob("*.py")):
        for kind, name, line in read(file)[0]:
            if kind in kinds:
                yield name, f"{file.relative_to(ROOT)}:{line}"


def test_class_or_alias_has_one_meaning():
    """A reader who searches for a name finds one definition; `Context` of keys is still to be renamed."""
    assert {name: files for name, files in list_repeated_names().items() if name != "Context"} == {}


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
        for name, line in read(file)[1]:
            if BANNED_WORD.match(name):
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


GAMES = re.compile(
    r"\b(textworld|babyai|alfworld|scienceworld|miniwob|bfcl|cookingworld|mapreader|twc|gotolocal|pickuploc|minigrid"
    r"|cookbook|microwave|fridge|countertop|sinkbasin|kitchen|stove|thermometer|recipe)\b",
    re.IGNORECASE,
)
VERBS = re.compile(
    r"\b(go to|go (?:north|south|east|west)|turn (?:left|right)|go forward|pick up|heat|cool|clean"
    r"|slice|chop|dice|fry|roast|eat|cook|toggle|examine|prepare meal|pour|dunk)\b"
    r"|^\W*(?:b|\?:)*(take|open|close|focus on)\b"
)
"""Verbs of the games. `put`, `drop`, `read`, `insert` and `pull` are also words of programs."""
NO_COMMANDS = {
    "memory/hardwon/memory/storage/database.py": ("hardwon run textworld",),
    "runtime/hardwon/runtime/integrations/verifiers.py": ('environment: str = "textworld"',),
    "memory/hardwon/memory/learning/curator.py": ("focus on the task", "take your time"),
}
"""Texts that are no commands of a game, by file: a message with an example, a default to open, and empty phrases."""


def find_compared_texts(tree):
    """Yield the texts of a module that its code compares or matches with, with their lines."""
    for node in ast.walk(tree):
        is_pattern = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
        if is_pattern or isinstance(node, (ast.Compare, ast.Set, ast.Tuple, ast.List, ast.Dict)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value, inner.lineno


def find_game_words(source):
    """Return the words of games in the code of a module, docstrings excepted."""
    tree = ast.parse(source)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented]
    names = [(node.value, node.lineno) for node in constants if isinstance(node.value, str)]
    return [
        *((line, match[0]) for text, line in names for match in GAMES.finditer(text)),
        *((line, match[0]) for text, line in find_compared_texts(tree) for match in VERBS.finditer(text)),
    ]


@pytest.mark.parametrize("package", ["memory", "runtime"])
def test_no_game_is_named_outside_the_environments(package):
    """What an agent learns comes from its experience: no module knows a game, its things or its verbs."""
    places = []
    for file in sorted((ROOT / package / "hardwon" / package).rglob("*.py")):
        name, source = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        if "environments" not in file.parts:
            for text in NO_COMMANDS.get(name, ()):
                source = source.replace(text, "")
            places += [f"{name}:{line} {word}" for line, word in find_game_words(source)]
    assert places == []


def test_a_word_of_a_game_is_noticed():
    assert find_game_words('if action.startswith("open fridge"): pass') == [(1, "fridge")]
    assert find_game_words('re.compile(r"^(take|put) (.+) from")') == [(1, "^(take")]
    assert find_game_words('MOVES = {"go north", "wait"}') == [(1, "go north")]
    assert find_game_words('"""Open the fridge."""\nraise ValueError("close the file and try again")') == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_has_a_banned_stem(package):
    names = []
    for file in sorted((ROOT / package / "hardwon" / package).rglob("*.py")):
        definitions, assigned = read(file)
        here = [
            file.stem,
            *(name for kind, name, _ in definitions if kind is not ast.ClassDef),
            *(name for name, _ in assigned),
        ]
        names += [f"{file.relative_to(ROOT)} {name}" for name in here if STEMS.search(name)]
    assert names == []
