"""The map of mutation testing: the tests that run each line, and how long each test takes; see `mutants`.

It is made folder by folder and kept on disk. As a plugin of pytest, this module writes down the CPU time of each test.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDERS = {
    "memory": ("memory/hardwon/memory",),
    "runtime": ("runtime/hardwon/runtime",),
    "trainers": (
        "trainers/hardwon/trainers/algorithms",
        "trainers/hardwon/trainers/methods",
        "trainers/hardwon/trainers/roles",
    ),
}
"""The folders of each portion that are changed. Of the trainers, those that decide what is learned."""
TESTS = {
    # a remote library and general answers have their tests beside the server
    "memory": (
        "tests/memory",
        "tests/runtime",
        "tests/apps/http/test_remote.py",
        "tests/apps/http/routes/test_general.py",
    ),
    "runtime": (
        "tests/memory",
        "tests/runtime",
        "tests/apps/http/test_remote.py",
        "tests/apps/http/routes/test_general.py",
    ),
    "trainers": ("tests/trainers",),
}
"""Where the map looks for the tests of a portion."""
_CLOCK = "HARDWON_MUTANTS_CLOCK"
"""Environment variable with the file to which the tests of a map write their CPU times."""
Times = dict[str, float]
Place = tuple[str, ...]
"""Test files and folders that are mapped together."""
Map = dict[str, dict[int, list[str]]]
"""By module and line, the tests that run it. Line 0 stands for the module: what runs at import is tried with all."""


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which `hardwon` is the code of a copy."""
    paths = os.pathsep.join(str(tree / portion) for portion in ("memory", "runtime", "trainers", "apps"))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths}


def run_pytest(tree: Path, *arguments: str, clock: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a copy of the project, with the code of that copy."""
    variables = {**environment(tree), **({_CLOCK: str(clock)} if clock else {})}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def find_places(tree: Path, portions: Sequence[str], modules: Iterable[str] = ()) -> list[Place]:
    """Return the parts of the test suite that are mapped one by one: each folder, and the files beside folders.

    Args:
        tree: The copy of the project.
        portions: The portions that are changed.
        modules: If given, only the folders that mirror these modules; mapping them takes minutes instead of hours.
    """
    if modules := tuple(modules):
        mirrors = (_find_mirror(tree, module) for module in modules)
        beside = dict.fromkeys(filter(None, mirrors))
        return [place for place in beside if not any((str(folder),) in beside for folder in Path(place[0]).parents)]
    places: dict[Place, None] = {}
    for name in dict.fromkeys(name for portion in portions for name in TESTS[portion]):
        if (tree / name).is_file():
            places[(name,)] = None
            continue
        places |= dict.fromkeys(
            (f"{name}/{path.name}",) for path in sorted((tree / name).iterdir()) if _has_tests(path)
        )
        places[_list_files(tree, name)] = None
    return [place for place in places if place]


def _has_tests(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("test_*.py"))


def _list_files(tree: Path, folder: str) -> Place:
    """Return the test files of a folder, without those in its subfolders."""
    return tuple(f"{folder}/{path.name}" for path in sorted((tree / folder).glob("test_*.py")))


def _find_mirror(tree: Path, module: str) -> Place:
    """Return the tests beside a module: `tests/memory/values` for `memory/hardwon/memory/values/effects.py`."""
    portion, _, *rooms, _ = Path(module).parts
    while len(rooms) > 1:
        if (tree / "tests" / Path(*rooms)).is_dir():
            return ("/".join(("tests", *rooms)),)
        rooms.pop()  # the tests of a small folder are beside those of the folder around it
    return _list_files(tree, f"tests/{portion}")


def map_tests(tree: Path, out: Path, jobs: int, portions: Sequence[str], places: Sequence[Place]) -> tuple[Map, Times]:
    """Return the tests that run each line of each module, and how long each test takes in seconds.

    Each place is mapped by itself and kept on disk, so that a run that was stopped goes on with the next one.
    """
    tests: Map = {}
    seconds: Times = {}
    for place in places:
        lines_of_modules, times = _map_place(tree, out / "maps", jobs, portions, place)
        seconds |= times
        for module, lines in lines_of_modules.items():
            known = tests.setdefault(module, {})
            for line, names in lines.items():
                known[line] = sorted({*known.get(line, ()), *names})
    return tests, seconds


def _map_place(tree: Path, out: Path, jobs: int, portions: Sequence[str], place: Place) -> tuple[Map, Times]:
    """Return the map of one part of the tests, from the disk if it was made before."""
    from coverage import CoverageData

    label = hashlib.sha256("\n".join((*place, *portions)).encode()).hexdigest()[:8]
    folder = out / f"{Path(place[0]).stem}-{label}"
    folder.mkdir(parents=True, exist_ok=True)
    data, times, names, clock = (folder / name for name in ("coverage", "times.xml", "tests.txt", "cpu.jsonl"))
    if not names.exists():  # A name that pytest does not find again would look like a test that fails.
        names.write_text(run_pytest(tree, "--collect-only", *place).stdout, encoding="utf-8")
    collected = frozenset(names.read_text(encoding="utf-8").splitlines())
    if not (data.exists() and times.exists()):
        print(f"Mapping lines to tests of {place[0]} ...", file=sys.stderr)
        clock.unlink(missing_ok=True)
        sources = [f"--cov={source}" for portion in portions for source in FOLDERS[portion]]
        workers = [f"-n{jobs}"] if jobs > 1 else []
        options = ["--cov-context=test", "--cov-report=", f"--junitxml={times}", "-p", "tests.mutant_map", *workers]
        done = run_pytest(tree, *place, *sources, *options, clock=clock)
        if done.returncode not in (0, 1):
            sys.exit(f"The tests cannot be run without a mutant:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        (tree / ".coverage").replace(data)
    seconds, useless = read_times(times)
    seconds |= read_clock(clock)
    covered = CoverageData(str(data))
    covered.read()
    tests: Map = {}
    for file in covered.measured_files():
        module = "/".join(Path(file).parts[Path(file).parts.index("hardwon") - 1 :])
        lines = {
            line: {name.rpartition("|")[0] for name in names if name}
            for line, names in covered.contexts_by_lineno(file).items()
        }
        lines[0] = set[str]().union(*lines.values())
        tests[module] = {
            line: sorted(name for name in names & collected if name.partition("[")[0] not in useless)
            for line, names in lines.items()
        }
    return tests, seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down the CPU time of a test, where this module is a plugin.

    The time on the wall depends on what else the machine does: on a busy one a test of two seconds takes twenty, and
    would not be tried.
    """
    before = os.times()
    try:
        return (yield)
    finally:
        spent = sum(os.times()[:4]) - sum(before[:4])
        if path := os.environ.get(_CLOCK):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps([item.nodeid, spent]) + "\n")


def read_clock(path: Path) -> Times:
    """Return the CPU seconds of each test."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    return dict(map(json.loads, lines))


def read_times(times: Path) -> tuple[dict[str, float], set[str]]:
    """Return the seconds of each test, and the functions that fail without a mutant."""
    seconds, useless = {}, set()
    for case in ElementTree.parse(times).iter("testcase"):
        name = f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"
        seconds[name] = float(case.get("time") or 0.0)
        if case.find("failure") is not None or case.find("error") is not None:
            useless.add(name.partition("[")[0])
    return seconds, useless


@cache
def statements(path: Path) -> list[range]:
    """Return the lines of each statement of a module, the body of a compound one left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            found.append(range(node.lineno, max(last, node.lineno) + 1))
    return found


@cache
def import_lines(path: Path) -> frozenset[int]:
    """Return the lines that run when a module is imported: all but the bodies of functions."""
    found = set[int]()
    waiting: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        found.update(range(node.lineno, max(last, node.lineno) + 1))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return frozenset(found)
