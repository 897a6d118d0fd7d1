"""Mutation testing: change one operator of memory or runtime at a time and see whether a test fails.

    python tests/mutants.py --count 120 --seed 0 --out runs/mutants

cosmic-ray makes the mutants. A seeded sample of them is tried, each in a copy of what is committed,
with the tests that run the changed line (by a coverage map, made once for a commit). A mutant that
survives the quick tests is tried again with every test that covers its line before it counts as a
survivor. Results are appended to `mutants.jsonl`, so that a run that was killed goes on.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PORTIONS = ("memory", "runtime")
QUICK_TESTS = 60
SLOW_S = 20.0
"""A test that takes longer is not run for each mutant."""
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


def find_mutants(tree: Path) -> list[Mutant]:
    """Return every mutant of the portions, in a fixed order."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    found = []
    for portion in PORTIONS:
        for path in sorted((tree / portion / "hardwon" / portion).rglob("*.py")):
            module = get_ast_from_path(path)
            for name in OPERATORS:
                operator = get_operator(name)()
                places = (at for node in ast_nodes(module) for at in operator.mutation_positions(node))
                found += [
                    Mutant(str(path.relative_to(tree)), name, number, start[0])
                    for number, (start, _) in enumerate(places)
                ]
    return found


def run_tests(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a copy of the project, with the code of that copy."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree, env=environment(tree), capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which `hardwon` is the code of a copy."""
    paths = os.pathsep.join(str(tree / portion) for portion in ("memory", "runtime", "trainers", "apps"))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def map_tests(tree: Path, out: Path, jobs: int) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """Return the tests that run each line of each module, and how long each test takes in seconds."""
    from coverage import CoverageData

    data, times = out / "coverage", out / "times.xml"
    if not times.exists():
        print("Mapping lines to tests (minutes) ...", file=sys.stderr)
        sources = [f"--cov={portion}/hardwon/{portion}" for portion in PORTIONS]
        done = run_tests(
            tree, *[f"tests/{portion}" for portion in PORTIONS], *sources, "--cov-context=test", "--cov-report=",
            f"--junitxml={times}", f"-n{jobs}",
        )  # fmt: skip
        if done.returncode not in (0, 1):
            times.unlink(missing_ok=True)
            sys.exit(f"The tests cannot be run without a mutant:\n{done.stdout[-2000:]}")
        (tree / ".coverage").replace(data)
    covered = CoverageData(str(data))
    covered.read()
    tests: dict[str, dict[int, list[str]]] = {}
    for file in covered.measured_files():
        lines = covered.contexts_by_lineno(file)
        module = "/".join(Path(file).parts[-(len(Path(file).parts) - Path(file).parts.index("hardwon") + 1) :])
        tests[module] = {
            line: sorted({name.partition("|")[0] for name in names if name}) for line, names in lines.items()
        }
    cases = list(ElementTree.parse(times).iter("testcase"))
    names = [f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}" for case in cases]
    seconds = {name: float(case.get("time") or 0.0) for name, case in zip(names, cases, strict=True)}
    # A test that fails without a mutant, or takes too long to be run for each, tells nothing.
    useless = {
        name
        for name, case in zip(names, cases, strict=True)
        if case.find("failure") is not None or case.find("error") is not None or seconds[name] > SLOW_S
    }
    tests = {
        module: {line: [name for name in some if name not in useless] for line, some in lines.items()}
        for module, lines in tests.items()
    }
    return tests, seconds


def try_mutant(mutant: Mutant, tests: list[str], seconds: dict[str, float]) -> str:
    """Return `killed` or `survived`; the current folder is a copy of the project."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec

    if not tests:
        return "not covered"
    spec = MutationSpec(
        module_path=Path(mutant.module), operator_name=mutant.operator, occurrence=mutant.occurrence,
        start_pos=(mutant.line, 0), end_pos=(mutant.line, 1),
    )  # fmt: skip
    own = f"test_{Path(mutant.module).stem}.py"
    ordered = sorted(tests, key=lambda name: (own not in name, seconds.get(name, 0.0), name))
    for chosen in (ordered[:QUICK_TESTS], ordered[QUICK_TESTS:]):
        if not chosen:
            break
        Path("chosen.txt").write_text("\n".join(chosen), encoding="utf-8")
        limit = 60 + 10 * sum(seconds.get(name, 1.0) for name in chosen)
        command = f"{shlex.quote(sys.executable)} -m pytest -x -q -p no:cacheprovider @chosen.txt"
        result = mutate_and_test([spec], command, limit)
        if result.test_outcome is None or result.test_outcome.value != "survived":
            return "killed"
    return "survived"


def work(number: int, out: Path, tree: Path, todo: list[Mutant], jobs: int) -> None:
    """Try every `jobs`-th mutant in a copy of its own and append what became of it."""
    tests, seconds = map_tests(tree, out, jobs)
    copy = out / f"copy-{number}"
    subprocess.run(["rm", "-rf", str(copy)], check=True)
    subprocess.run(["cp", "-r", str(tree), str(copy)], check=True)
    os.chdir(copy)
    os.environ.update(environment(copy))
    for mutant in todo[number::jobs]:
        outcome = try_mutant(mutant, tests.get(mutant.module, {}).get(mutant.line, []), seconds)
        with (out / "mutants.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(mutant), "outcome": outcome}) + "\n")
        print(f"{outcome:12} {mutant.module}:{mutant.line} {mutant.operator.removeprefix('core/')}", file=sys.stderr)


def results(out: Path) -> Iterator[tuple[Mutant, str]]:
    """Yield the mutants tried so far and their outcomes."""
    path = out / "mutants.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        outcome = record.pop("outcome")
        yield Mutant(**record), outcome


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a sample that does not depend on mutants elsewhere being added or removed."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.module}:{mutant.operator}:{mutant.occurrence}".encode()).hexdigest()

    chosen = sorted(mutants, key=rank)[:count]
    random.Random(seed).shuffle(chosen)
    return chosen


def run(out: Path, *, count: int, seed: int, jobs: int) -> tuple[int, list[Mutant]]:
    """Try a sample of mutants of the committed code; return how many were tried and which survived."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    out = (out / commit.stdout.strip()).resolve()
    tree = out / "tree"
    if not tree.exists():
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(tree)], check=True)
    map_tests(tree, out, jobs)
    chosen = sample(find_mutants(tree), count, seed)
    known = dict(results(out))
    todo = [mutant for mutant in chosen if mutant not in known]
    workers = [multiprocessing.Process(target=work, args=(n, out, tree, todo, jobs)) for n in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    known = dict(results(out))
    return len(chosen), [mutant for mutant in chosen if known.get(mutant) != "killed"]


def main() -> None:
    """Print the survivors and the kill rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants", help="where results are kept")
    options = parser.parse_args()
    tried, survivors = run(options.out, count=options.count, seed=options.seed, jobs=options.jobs)
    for mutant in survivors:
        print(f"survived {mutant.module}:{mutant.line} {mutant.operator}")
    print(f"killed {tried - len(survivors)} of {tried}: {(tried - len(survivors)) / tried:.1%}")


if __name__ == "__main__":
    main()
