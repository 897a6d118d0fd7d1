"""Measure the size and shape of the code beside the figures that it is to reach: `python -m tests.bars`.

Lines are those of the formatter, docstrings and comments included. *Core* is the library without the rooms that it
works without: methods, signals, fleet, workers, programs, dashboard, importers, proxy and coding agents.
"""

import ast
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PORTIONS = ("memory", "runtime", "trainers", "apps")
OUTSIDE_CORE = re.compile(
    r"memory/fleet/|trainers/(methods|workers|programs|sources|algorithms/(judging|updates))/|"
    r"apps/(dashboard|importers|proxy|coding_agents)/"
)
LONG_FUNCTION = 40
MANY_PARAMETERS = 6
STEMS = ("Manager", "Helper", "Util", "Sidecar", "Outlook", "Prospect", "Repertoire", "Surroundings", "Hull", "Desk")


@cache
def list_modules() -> dict[str, ast.Module]:
    """Return the parsed modules of the library by path."""
    files = (file for portion in PORTIONS for file in sorted((ROOT / portion / "hardwon").rglob("*.py")))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def count_lines(*folders: str, leave_out: re.Pattern[str] | None = None) -> int:
    """Return the lines of all Python files below the folders."""
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return sum(
        len(file.read_text(encoding="utf-8").splitlines())
        for file in files
        if leave_out is None or not leave_out.search(str(file.relative_to(ROOT)))
    )


def list_functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of the library."""
    for tree in list_modules().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def list_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class of the library with its path."""
    for path, tree in list_modules().items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def count_long_functions() -> int:
    """Return the number of functions with more lines than one reads at a glance; the docstring does not count."""
    return sum(_count_body_lines(function) > LONG_FUNCTION for function in list_functions())


def _count_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = function.body[0].end_lineno if ast.get_docstring(function) is not None else function.lineno
    return (function.end_lineno or 0) - (docstring or 0)


def count_wide_functions() -> int:
    """Return the number of functions with many parameters, without `self` and `cls`."""
    wide = 0
    for function in list_functions():
        parts = function.args
        names = [arg.arg for arg in (*parts.posonlyargs, *parts.args, *parts.kwonlyargs)]
        wide += len([name for name in names if name not in ("self", "cls")]) >= MANY_PARAMETERS
    return wide


def count_numbers() -> int:
    """Return the number of module constants that are numbers."""
    count = 0
    for tree in list_modules().values():
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            value = value.operand if isinstance(value, ast.UnaryOp) else value
            if isinstance(value, ast.BinOp):
                value = value.left
            count += isinstance(value, ast.Constant) and type(value.value) in (int, float)
    return count


def count_registries() -> int:
    """Return the number of objects that take implementations by name."""
    calls = (
        node.value
        for tree in list_modules().values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
    )
    return sum(getattr(call.func, "id", "") in ("Registry", "Methods") for call in calls)


def count_imports_of_methods() -> int:
    """Return the number of statements outside the rooms of methods that import from them."""
    count = 0
    for path, tree in list_modules().items():
        *package, name = path.removesuffix(".py").split("/")[1:]
        if "methods" in (name, package[-1]) and package[1] in ("runtime", "trainers"):
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                names = [".".join([*base, *([node.module] if node.module else []), alias.name]) for alias in node.names]
            count += any(re.match(r"hardwon\.(runtime|trainers)\.methods\b", name) for name in names)
    return count


def list_repeated_names() -> dict[str, list[str]]:
    """Return the names of classes and type aliases that several modules define, with their modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in list_modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if re.fullmatch(r"[A-Z][a-z]\w+", name):
                    places[name].add(path)
    return {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}


def list_imports() -> dict[str, set[str]]:
    """Return the modules of the library that each one imports, in functions and for annotations, too."""
    names = {path: ".".join(Path(path).with_suffix("").parts[1:]).removesuffix(".__init__") for path in list_modules()}
    modules, imports = set(names.values()), defaultdict[str, set[str]](set)
    for path, tree in list_modules().items():
        package = names[path].split(".")[: None if path.endswith("__init__.py") else -1]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imports[names[path]].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else []
                source = ".".join([*above, *filter(None, [node.module])])
                parts = (f"{source}.{alias.name}" for alias in node.names)
                imports[names[path]].update(part if part in modules else source for part in parts)
    return {name: (imports[name] & modules) - {name} for name in modules}


def list_circles() -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    imports = list_imports()
    reached: dict[str, set[str]] = {}
    for name in imports:
        reached[name], waiting = set(), [name]
        while waiting:
            new = imports[waiting.pop()] - reached[name]
            reached[name] |= new
            waiting += new
    rings = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return sorted(sorted(ring) for ring in rings if ring)


def count_members(name: str) -> int:
    """Return the number of public members of a class, those of its bases included."""
    classes = {node.name: node for _, node in list_classes()}

    def collect(cls: str) -> set[str]:
        node = classes.get(cls)
        if node is None:
            return set()
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        return own.union(*map(collect, bases))

    return len({member for member in collect(name) if not member.startswith("_")})


def measure_widest_class() -> int:
    """Return the number of methods of the class that has most."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return max(sum(isinstance(part, kinds) for part in node.body) for _, node in list_classes())


def count_words() -> int:
    """Return the words of the documentation pages, without the log of decisions."""
    pages = (page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts)
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def count_settings() -> int:
    """Return the number of settings of a training configuration, over all its sections."""
    from dataclasses import fields, is_dataclass
    from typing import get_args, get_type_hints

    from hardwon.trainers.config.schema import TrainConfig

    sections: set[type] = set()

    def count(kind: type) -> int:
        if kind in sections:
            return 0
        sections.add(kind)
        hints, total = get_type_hints(kind), 0
        for field in fields(kind):
            parts = [hints[field.name], *get_args(hints[field.name])]
            inner = [part for part in parts if isinstance(part, type) and is_dataclass(part)]
            total += sum(map(count, inner)) if inner else 1
        return total

    return count(TrainConfig)


def count_stems() -> int:
    """Return the number of classes whose names contain a banned stem."""
    return sum(any(stem in node.name for stem in STEMS) for _, node in list_classes())


# -- calls


def trace_calls(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions of the library a piece of work calls, and in how many files."""
    calls: list[str] = []

    def note(frame: object, event: str, _: object) -> None:
        file = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and "/hardwon/" in file and "site-packages" not in file:
            calls.append(file)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(calls), len({*calls})


def trace_recall() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the calls and files of a repeated recall, and of the first recall of the same state after a write."""
    from tests.frozen.test_frozen import build_house

    from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory

    with tempfile.TemporaryDirectory() as folder, ExperienceLibrary.open(f"{folder}/bars.db") as library:
        build_house(library)
        library.evolve()
        state = State("You are in the hall. The cellar door is closed.", location="hall", task="fetch the coin")
        library.recall(state)
        library.recall(state)
        warm = trace_calls(lambda: library.recall(state))
        step = Step(state, "go down", state, Diagnosis(False, Failure.PRECONDITION, evidence="The door is closed."))
        library.record(Trajectory(state.task, (step,), success=False, score=0.0, ending="failure", id="new"))
        return warm, trace_calls(lambda: library.recall(state))


def list_bars() -> Iterator[tuple[str, object, object]]:
    """Yield the name of each bar, its figure, and the figure to reach."""
    warm, first = trace_recall()
    yield "library, lines", count_lines(*(f"{portion}/hardwon" for portion in PORTIONS)), 81_000
    yield "core, lines", count_lines(*(f"{portion}/hardwon" for portion in PORTIONS), leave_out=OUTSIDE_CORE), 59_000
    yield "benchmarks and experiments, lines", count_lines("apps/benchmarks", "examples/experiments"), 9_100
    yield "tests, lines", count_lines("tests"), 66_000
    yield "repeated recall, calls", warm[0], 50
    yield "repeated recall, files", warm[1], 9
    yield "first recall after a write, calls", first[0], 350
    yield "first recall after a write, files", first[1], 18
    yield "public members of ExperienceLibrary", count_members("ExperienceLibrary"), 18
    yield "numeric module constants", count_numbers(), 250
    yield "import circles, those of annotations and functions included", len(list_circles()), 0
    yield "registries", count_registries(), 2
    yield "imports of methods outside their rooms", count_imports_of_methods(), 0
    yield "names with two meanings", len(list_repeated_names()), 10
    yield "settings of a training configuration", count_settings(), 95
    yield f"functions over {LONG_FUNCTION} lines", count_long_functions(), 30
    yield f"functions with {MANY_PARAMETERS} or more parameters", count_wide_functions(), 120
    yield "methods of the widest class", measure_widest_class(), 20
    yield "classes with a banned stem", count_stems(), 0
    yield "words in docs", count_words(), 43_000


def main() -> None:
    """Print the bars."""
    table = Table("bar", box=None, pad_edge=False)
    table.add_column("now", justify="right")
    table.add_column("to reach", justify="right")
    for name, value, goal in list_bars():
        table.add_row(name, f"{value:,}", f"{goal:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
