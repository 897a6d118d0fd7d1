"""Whether the tests notice when the code does something else; see `mutants`."""

import os
import tomllib
from pathlib import Path

import pytest
from tests import mutant_map, mutants

COUNT, SEED = int(os.environ.get("MUTANTS", "120")), int(os.environ.get("SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_nineteen_of_twenty_mutants_are_killed():
    """A sample of the changes of an operator in memory and runtime; set MUTANTS to try more, SEED for others."""
    pytest.importorskip("cosmic_ray", reason="make test-mutants installs cosmic-ray")
    scores = mutants.run(Path("runs/mutants"), count=COUNT, seed=SEED, jobs=2)
    mutants.show(scores)
    assert scores[""].rate >= 0.95, "\n".join(map(str, scores[""].survivors))


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_nine_of_ten_mutants_of_the_trainers_are_killed():
    """A sample of the changes of an operator in the algorithms and roles."""
    pytest.importorskip("cosmic_ray", reason="make test-mutants installs cosmic-ray")
    options = {"count": COUNT // 2, "seed": SEED, "jobs": 2}
    scores = mutants.run(Path("runs/mutants"), **options, portions=["trainers"], near=True)
    mutants.show(scores)
    assert scores[""].rate >= 0.9, "\n".join(map(str, scores[""].survivors))


def test_a_score_leaves_out_what_is_equivalent_and_has_an_interval():
    one, other = (mutants.Mutant("a.py", "core/AddNot", number, 1) for number in range(2))
    known = mutants.Score(8, (one, other), (mutants.Mutant("a.py", "core/AddNot", 2, 3),))
    assert (known.tried, known.rate) == (10, 0.8)
    assert str(known) == "killed 8 of 10: 80.0% (95 % interval 49.0% to 94.3%), 1 equivalent left out"


def test_every_equivalent_mutant_says_why_and_is_still_there():
    """An entry of a line that was changed since is stale."""
    listed = tomllib.loads(mutants.EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    sources = {str(path.relative_to(mutants.ROOT)): path.read_text(encoding="utf-8") for path in portions()}
    for entry in listed:
        assert entry["why"]
        assert entry.keys() & {"module", "line"}
        texts = [sources[entry["module"]]] if "module" in entry else sources.values()
        lines = {line.strip() for text in texts for line in text.splitlines()}
        assert entry.get("line") is None or entry["line"] in lines, entry


def portions():
    return (path for name in mutant_map.FOLDERS for path in (mutants.ROOT / name).rglob("*.py"))


def test_statements_are_without_the_bodies_of_compound_ones(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("if (a and\n    b):\n    c = (1 +\n         2)\n")
    assert mutant_map.statements(path) == [range(1, 3), range(3, 5)]
    assert mutants.is_star("def f(a, *, b): return a * b", 9)
    assert not mutants.is_star("def f(a, *, b): return a * b", 25)
    assert mutants.changes_nothing("core/ReplaceTrueWithFalse", "zip(a, b, strict=True)", 17)
    assert not mutants.changes_nothing("core/ReplaceTrueWithFalse", "sort(a, reverse=True)", 16)


def test_a_mutant_of_what_runs_at_import_is_tried_with_all_tests_of_its_module(tmp_path):
    """One of them imports the module, and the others depend on it as well."""
    (tmp_path / "a.py").write_text("class A:\n    x = 1 + 2\n\n    def f(self, y=3 - 1):\n        return y + 1\n")
    tests = {"a.py": {0: ["importing", "other"], 2: ["importing"], 4: ["importing"], 5: ["other"]}}
    chosen = [mutants.choose_tests(mutants.Mutant("a.py", "x", 0, line), tmp_path, tests, {}) for line in (2, 4, 5)]
    assert chosen == [["importing", "other"], ["importing", "other"], ["other"]]


ASYNCHRONOUS = """
class Agent:
    async def stream(self, count):
        async for number in self._numbers(count):
            if number > 0:
                yield number

    async def _numbers(self, count):
        for number in range(count):
            yield number
"""
ITS_TEST = """
import asyncio
import time

import pytest
from hardwon.memory.agent import Agent


def test_stream():
    async def read():
        return [number async for number in Agent().stream(3)]

    time.sleep(0.3)
    assert asyncio.run(read()) == [1, 2]


@pytest.mark.parametrize("count", [0, 1])
def test_nothing(count):
    assert count < 2
"""


def test_asynchronous_generators_are_mapped_and_slow_tests_are_tried_where_no_other_runs_the_line(tmp_path):
    """Time on the wall is none of a test's own: a map made on a busy machine must not lose its tests."""
    pytest.importorskip("pytest_cov", reason="make test-mutants installs it")
    tree, module = tmp_path / "tree", "memory/hardwon/memory/agent.py"
    package = "memory/hardwon/memory/__init__.py"
    for name, text in {package: "", module: ASYNCHRONOUS, "tests/memory/test_agent.py": ITS_TEST}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "tests" / "mutant_map.py").write_text(Path(mutant_map.__file__).read_text())
    (tree / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n")
    places = mutant_map.find_places(tree, ["memory"], [module])
    assert places == [("tests/memory/test_agent.py",)]
    tests, seconds = mutant_map.map_tests(tree, tmp_path / "out", 1, ["memory"], places)
    stream = "tests/memory/test_agent.py::test_stream"
    assert [tests[module][line] for line in (4, 5, 6, 10)] == [[stream]] * 4
    assert seconds[stream] < 0.3
    mutant = mutants.Mutant(module, "core/AddNot", 0, 5)
    assert mutants.choose_tests(mutant, tree, tests, {stream: 1000.0}) == [stream]
    quick = {module: {5: [stream, "tests/memory/test_agent.py::test_nothing[0]"]}}
    assert mutants.choose_tests(mutant, tree, quick, {stream: 1000.0}) == quick[module][5][1:]
    # a second call reads the map from the disk
    (tree / "tests" / "memory" / "test_agent.py").unlink()
    assert mutant_map.map_tests(tree, tmp_path / "out", 1, ["memory"], places) == (tests, seconds)


def test_the_tests_are_mapped_folder_by_folder():
    places = mutant_map.find_places(mutants.ROOT, ["memory", "runtime"])
    assert ("tests/memory/values",) in places
    assert ("tests/apps/http/test_remote.py",) in places
    assert any("tests/memory/test_bank.py" in place for place in places)
    modules = ["trainers/hardwon/trainers/roles/guides/role.py", "memory/hardwon/memory/bank.py"]
    near = mutant_map.find_places(mutants.ROOT, ["trainers"], modules)
    assert near[0] == ("tests/trainers/roles/guides",)
    assert "tests/memory/test_bank.py" in near[1]


def test_code_without_a_folder_of_tests_is_tried_with_those_around_it():
    """Each test is mapped once, even if a folder and the one around it are both named."""
    files = ("composers/base.py", "updates/turns.py", "losses.py")
    modules = [f"trainers/hardwon/trainers/algorithms/{file}" for file in files]
    assert mutant_map.find_places(mutants.ROOT, ["trainers"], modules) == [("tests/trainers/algorithms",)]
    assert mutant_map.find_places(mutants.ROOT, ["trainers"], modules[1:2]) == [("tests/trainers/algorithms/updates",)]


def test_a_sample_keeps_its_mutants_when_others_are_added():
    """Two runs of different sizes share their mutants, so that results can be compared."""
    all_mutants = [mutants.Mutant(f"{name}.py", "core/AddNot", number, 1) for name in "abcd" for number in range(10)]
    few, many = mutants.sample(all_mutants, 5, 0), mutants.sample(all_mutants, 20, 0)
    assert set(few) < set(many)
    assert set(mutants.sample([one for one in all_mutants if one.module != "a.py"], 5, 0)) >= {
        one for one in few if one.module != "a.py"
    }
    assert set(mutants.sample(all_mutants, 5, 1)) != set(few)
