"""Mutation testing: change one operator at a time and see whether a test fails.

    python tests/mutants.py --count 120 --seed 0 --out runs/mutants
    python tests/mutants.py --portions trainers --count 60 --near

cosmic-ray makes the mutants. A seeded sample of them is tried, each in a copy of what is committed,
with the tests that run the changed statement, by a coverage map that is made once for a commit, folder
by folder (see `mutant_map`). A test that fails without any mutant kills none. Results are appended to
`mutants.jsonl`: a run that was killed goes on where it stopped. `equivalent_mutants.toml` lists the
mutants that change nothing, and why.
"""

import argparse
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # run as a script
    sys.path.insert(0, str(ROOT))

from tests.mutant_map import (  # noqa: E402
    FOLDERS,
    environment,
    find_places,
    import_lines,
    map_tests,
    read_times,
    run_pytest,
    statements,
)

PORTIONS = ("memory", "runtime")
"""The portions that are tried by default."""
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
QUICK_TESTS = 60
"""Tests tried first: those of the module's own file, then the quickest."""
SLOW_S = 20.0
"""A test that takes more CPU time is run only for lines that no quicker one runs."""
ALL_TESTS_S = 120.0
"""How long the tests may take that a surviving mutant is tried with, the quickest first."""
PRELOADED = (
    "_hypothesis_pytestplugin", "anyio.pytest_plugin", "schemathesis.pytest.plugin",
    "faiss", "httpx", "hypothesis.strategies", "ijson", "langchain_core.language_models",
    "langgraph.graph", "numpy", "pydantic", "pytest_timeout", "mmh3", "sklearn.feature_extraction.text",
    "xdist.plugin",
)  # fmt: skip
"""What the tests import beside this project. A worker imports it once; each mutant is tried in a fork."""
PRELOADED_BY = {
    "trainers": ("torch", "tokenizers", "transformers", "peft", "safetensors.torch", "yaml", "rich.progress"),
}
"""What only the tests of a portion import."""
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{change}" for change in (
        "Eq_NotEq", "NotEq_Eq", "Lt_GtE", "Gt_LtE", "LtE_Gt", "GtE_Lt", "Is_IsNot", "IsNot_Is",
    )),
    *(f"core/ReplaceBinaryOperator_{change}" for change in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul")),
    "core/AddNot",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ZeroIterationForLoop",
)  # fmt: skip
"""Changes of behavior. Numbers are left out: most of them are settings, whose tests are the benchmarks."""


@dataclass(frozen=True)
class Mutant:
    """One change of one operator."""

    module: str
    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator.removeprefix('core/')}"


@dataclass(frozen=True)
class Score:
    """What became of a sample."""

    killed: int
    survivors: tuple[Mutant, ...]
    equivalent: tuple[Mutant, ...] = ()

    @property
    def tried(self) -> int:
        """How many mutants count: all but the equivalent ones."""
        return self.killed + len(self.survivors)

    @property
    def rate(self) -> float:
        """The share of those that count which a test killed."""
        return self.killed / self.tried if self.tried else 0.0

    def __str__(self) -> str:
        low, high = wilson(self.killed, self.tried)
        counted = f"killed {self.killed} of {self.tried}: {self.rate:.1%} (95 % interval {low:.1%} to {high:.1%})"
        return counted + f", {len(self.equivalent)} equivalent left out" * bool(self.equivalent)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    if not n:
        return 0.0, 1.0
    p, z = successes / n, 1.959964
    center, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (center - spread) / (1 + z * z / n), (center + spread) / (1 + z * z / n)


def find_mutants(tree: Path, portions: Sequence[str] = PORTIONS) -> list[Mutant]:
    """Return every mutant of the portions, in a fixed order."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    found = []
    for folder in (folder for portion in portions for folder in FOLDERS[portion]):
        for path in sorted((tree / folder).rglob("*.py")):
            module, lines = get_ast_from_path(path), path.read_text(encoding="utf-8").splitlines()
            for name in OPERATORS:
                operator = get_operator(name)()
                places = (at for node in ast_nodes(module) for at in operator.mutation_positions(node))
                found += [
                    Mutant(str(path.relative_to(tree)), name, number, start[0])
                    for number, (start, _) in enumerate(places)
                    if not changes_nothing(name, lines[start[0] - 1], start[1])
                ]
    return found


def changes_nothing(operator: str, line: str, column: int) -> bool:
    """Return whether a change there is none: the star before named parameters is no product, and `strict=True` of `zip`
    only guards against a programmer's mistake."""
    if operator.startswith("core/ReplaceBinaryOperator_Mul"):
        return is_star(line, column)
    return operator == "core/ReplaceTrueWithFalse" and line[:column].endswith("strict=")


def is_star(line: str, column: int) -> bool:
    """Return whether the asterisk there stands before parameters, as in `def f(a, *, b)`."""
    return line[column + 1 :].lstrip().startswith(",")


def choose_tests(
    mutant: Mutant, tree: Path, tests: Mapping[str, Mapping[int, Sequence[str]]], seconds: Mapping[str, float]
) -> list[str]:
    """Return the tests that run the statement which a mutant changes; of what runs at import, the module's tests.

    Slow tests are left out, except where only slow ones run the statement.
    """
    known = tests.get(mutant.module, {})
    around = [lines for lines in statements(tree / mutant.module) if mutant.line in lines]
    here = min(around, key=len, default=range(mutant.line, mutant.line + 1))
    chosen = {name for line in {mutant.line, *here} for name in known.get(line, ())}
    # A test that imports a module seems to run these lines alone, although all of the module's tests depend on them.
    if known and mutant.line in import_lines(tree / mutant.module):
        chosen = set(known[0])
    quick = {name for name in chosen if seconds.get(name, 0.0) <= SLOW_S}
    return sorted(quick or chosen)


class Witness:
    """A plugin of pytest that writes down the first test that fails."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the name of a test that failed."""
        if report.failed:
            self._path.write_text(report.nodeid, encoding="utf-8")


def run_fork(copy: Path, chosen: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run tests in a fork; return pytest's exit code (None: it took too long) and the test that failed."""
    witness = copy.with_suffix(".failed")
    witness.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        code = 3
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            os.chdir(copy)
            os.environ.update(environment(copy))
            sys.path[:0] = [str(copy), *os.environ["PYTHONPATH"].split(os.pathsep)]
            arguments = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:pytest_cov",
                f"--basetemp={copy.with_suffix('.tmp')}",
            ]
            code = int(pytest.main([*arguments, *chosen], plugins=[Witness(witness)]))
        finally:
            os._exit(code)
    ends, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < ends:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
        time.sleep(0 if done else 0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return None, ""
    return os.waitstatus_to_exitcode(status), witness.read_text(encoding="utf-8") if witness.exists() else ""


def try_mutant(mutant: Mutant, copy: Path, tests: list[str], seconds: Mapping[str, float]) -> tuple[str, str]:
    """Return what became of a mutant and, where it was killed, which test failed."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    if not tests:
        return "not covered", ""
    own = f"test_{Path(mutant.module).stem}.py"
    ordered = sorted(tests, key=lambda name: (own not in name, seconds.get(name, 1.0), name))
    spent = 0.0
    within: list[str] = []
    for name in ordered:
        spent += seconds.get(name, 1.0)
        within += [name] if spent <= ALL_TESTS_S or not within else []
    with use_mutation(copy / mutant.module, get_operator(mutant.operator)(), mutant.occurrence):
        for chosen in (within[:QUICK_TESTS], within[QUICK_TESTS:]):
            if not chosen:
                break
            limit = 60 + 10 * sum(seconds.get(name, 1.0) for name in chosen)
            code, failed = run_fork(copy, chosen, limit)
            if code != 0:
                return "killed", failed or ("too slow" if code is None else f"exit code {code}")
    return "survived", ""


def work(number: int, out: Path, options: argparse.Namespace) -> None:
    """Try every `jobs`-th mutant in a copy of its own and append what became of it."""
    tree, copy = out / "tree", out / f"copy-{number}"
    portions = options.portions
    chosen = sample(find_mutants(tree, portions), options.count, options.seed)
    places = find_places(tree, portions, [mutant.module for mutant in chosen] if options.near else ())
    tests, seconds = map_tests(tree, out, options.jobs, portions, places)
    for module in (*PRELOADED, *(module for portion in portions for module in PRELOADED_BY.get(portion, ()))):
        with suppress(ImportError):
            import_module(module)
    sys.dont_write_bytecode = True  # a mutant's would outlive it
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    subprocess.run(["rm", "-rf", str(copy)], check=True)
    subprocess.run(["cp", "-a", str(tree), str(copy)], check=True)
    known = {mutant for mutant, _, _ in results(out)}
    mine = chosen[number :: options.jobs]
    for done, mutant in enumerate(mine, 1):
        if mutant in known:
            continue
        outcome, by = try_mutant(mutant, copy, choose_tests(mutant, tree, tests, seconds), seconds)
        with (out / "mutants.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(mutant), "outcome": outcome, "by": by}) + "\n")
        print(f"worker {number}: {done} of {len(mine)}: {outcome:12}{mutant} {by}", file=sys.stderr)


def results(out: Path) -> Iterator[tuple[Mutant, str, str]]:
    """Yield the mutants tried so far, their outcomes, and the tests that killed them."""
    path = out / "mutants.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        outcome, by = record.pop("outcome"), record.pop("by", "")
        yield Mutant(**record), outcome, by


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a sample that does not depend on mutants elsewhere being added or removed."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.module}:{mutant.operator}:{mutant.occurrence}".encode()).hexdigest()

    chosen = sorted(mutants, key=rank)[:count]
    random.Random(seed).shuffle(chosen)
    return chosen


def why_equivalent(mutant: Mutant, source: str, listed: Sequence[Mapping[str, str]]) -> str | None:
    """Return why a mutant of this line of source changes nothing that counts, where the list says so."""
    for entry in listed:
        named = {"module": mutant.module, "operator": mutant.operator.removeprefix("core/"), "line": source.strip()}
        if all(named[field] == entry[field] for field in named if field in entry):
            return entry["why"]
    return None


def failing_alone(tree: Path, out: Path, known: Iterable[tuple[Mutant, str, str]]) -> set[str]:
    """Return the tests that killed a mutant and fail without one as well."""
    killers = sorted({by for _, outcome, by in known if outcome == "killed" and "::" in by})
    checked, path = {}, out / "killers.json"
    if path.exists():
        checked = json.loads(path.read_text(encoding="utf-8"))
    new = [name for name in killers if name not in checked]
    report = out / "killers.xml"
    if new:
        run_pytest(tree, f"--junitxml={report}", *new)
        _, failing = read_times(report)
        checked |= {name: name.partition("[")[0] not in failing for name in new}
        path.write_text(json.dumps(checked), encoding="utf-8")
    return {name for name in killers if not checked[name]}


def run(
    out: Path, *, count: int, seed: int, jobs: int, portions: Sequence[str] = PORTIONS, near: bool = False
) -> dict[str, Score]:
    """Try a sample of mutants of the committed code; return the score of each portion, and of all as ``.

    With `near`, only the tests in the folders that mirror the changed modules are tried, so the rate is a lower bound.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # a map of tests belongs to a commit and to the portions that it covers
    parts = (commit.stdout.strip(), *(() if tuple(portions) == PORTIONS else portions), *(["near"] if near else []))
    out = (out / "-".join(parts)).resolve()
    tree = out / "tree"
    if not tree.exists():
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(tree)], check=True)
    chosen = sample(find_mutants(tree, portions), count, seed)
    map_tests(tree, out, jobs, portions, find_places(tree, portions, [m.module for m in chosen] if near else ()))
    command = [sys.executable, "-P", __file__, f"--count={count}", f"--seed={seed}", f"--jobs={jobs}", f"--out={out}"]
    command += ["--portions", *portions, *(["--near"] if near else [])]
    workers = [subprocess.Popen([*command, f"--worker={number}"], env=environment(tree)) for number in range(jobs)]
    ended = [worker.wait() for worker in workers]
    if any(ended):
        sys.exit(f"A worker stopped before its end. Run the same command again; what is known is in {out}.")
    return score(tree, out, chosen, portions)


def score(tree: Path, out: Path, chosen: Sequence[Mutant], portions: Sequence[str] = PORTIONS) -> dict[str, Score]:
    """Return the scores of the mutants chosen, by what is known of them."""
    known = [one for one in results(out) if one[0] in set(chosen)]
    wrong = failing_alone(tree, out, known)
    killed = {mutant for mutant, outcome, by in known if outcome == "killed" and by not in wrong}
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    lines = {module: (tree / module).read_text(encoding="utf-8").splitlines() for module in {m.module for m in chosen}}

    def of(portion: str) -> Score:
        mine = [mutant for mutant in chosen if mutant.module.startswith(portion)]
        rest = [mutant for mutant in mine if mutant not in killed]
        same = [m for m in rest if why_equivalent(m, lines[m.module][m.line - 1], listed) is not None]
        return Score(len(mine) - len(rest), tuple(m for m in rest if m not in same), tuple(same))

    return {portion: of(portion) for portion in (*portions, "")}


def main() -> None:
    """Print the survivors and the kill rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--portions", nargs="+", choices=[*FOLDERS], default=PORTIONS, help="which code is changed")
    parser.add_argument("--near", action="store_true", help="try only the tests in the folders that mirror the modules")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants", help="where results are kept")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.out, options)
    else:
        names = ("count", "seed", "jobs", "portions", "near")
        show(run(options.out, **{name: getattr(options, name) for name in names}))


def show(scores: Mapping[str, Score]) -> None:
    """Print the survivors and the rate of each portion."""
    for mutant in scores[""].survivors:
        print(f"survived {mutant}")
    for portion, reached in scores.items():
        print(f"{portion or 'all':8}{reached}")


if __name__ == "__main__":
    main()
