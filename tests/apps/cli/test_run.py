"""`hardwon run` and what is behind it: plans, seeds, intervals, and an experiment on a real game."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hardwon.__main__ import main
from hardwon.apps.cli.app import app
from hardwon.apps.experiment import ExperimentPlan, interval, run_plan, runner, summarise, training_order
from hardwon.apps.experiment.seeds import parse_checkpoints
from hardwon.apps.render.plot import draw_curve
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.validation import parse_range

MAPREADER = "numLocations=8, maxDistanceApart=3, maxDistractorItemsPerLocation=0, includeDoors=0"
ARGUMENTS = [
    *("run", "textworld", "--game", "mapreader", "--params", MAPREADER, "--episodes", "6", "--eval-every", "3"),
    *("--eval-seeds", "0-3", "--max-steps", "20", "--seed", "0", "--jobs", "1", "--json"),
]


def plan_in(folder: Path) -> ExperimentPlan:
    return ExperimentPlan(
        environment="textworld",
        game="mapreader",
        params=MAPREADER,
        episodes=6,
        checkpoints=(0, 6),
        train_seeds=tuple(range(20)),
        eval_fold="dev",
        eval_seeds=(0, 1, 2),
        arms=("empty", "step"),
        policy="episodic",
        library=str(folder / "library.db"),
        seeds=(0,),
        max_steps=20,
    )


def outcomes(rows):
    return sorted(
        (row["arm"], row["trained"], row["seed"], row["success"], row["steps"])
        for row in rows
        if row["phase"] == "test"
    )


def test_seeds_are_a_range_with_both_ends():
    assert parse_range("100-103") == range(100, 104)
    assert parse_range(" 7 ") == range(7, 8)


@pytest.mark.parametrize("text", ["", "a-b", "5-", "9-3", "1,2", "²", "1-²", "9" * 5000, "0-99999999999", "-5", "1--2"])
def test_seeds_that_are_no_range_are_refused_with_the_form(text):
    """Also digits that are no numbers, and more numbers than fit into memory."""
    with pytest.raises(ConfigError, match="seeds") as refused:
        parse_range(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("title", ["a $\\bad$ game", "half \udcff", "a" * 5000, "", "🚀\n名"])
def test_any_name_of_a_game_stands_above_its_curve(tmp_path, title):
    draw_curve(
        {"task": {"curve": [(0, 0.0), (1, 1.0)], "curve_ci95": [(0, 0.0, 0.1), (1, 0.9, 1.0)]}},
        tmp_path / "curve.png",
        title,
    )
    assert (tmp_path / "curve.png").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("text", "points"),
    [("", (0, 25, 50, 75, 100)), ("40", (0, 40, 80, 100)), ("10,25,50", (0, 10, 25, 50, 100)), ("500", (0, 100))],
)
def test_tests_come_at_the_start_on_the_way_and_at_the_end(text, points):
    assert parse_checkpoints(text, 100) == points


def test_every_training_seed_comes_once_before_any_comes_again(tmp_path):
    plan = replace(plan_in(tmp_path), episodes=45)
    order = training_order(plan, 0)
    assert sorted(order[:20]) == sorted(order[20:40]) == list(range(20))


def test_agent_seeds_learn_in_different_orders(tmp_path):
    assert training_order(plan_in(tmp_path), 0) != training_order(plan_in(tmp_path), 1)


def test_the_interval_over_seeds_is_students_t():
    """Rates .4 .5 .6: mean .5, s = .1, t(2) = 4.303: .5 +- 4.303 * .1 / sqrt 3."""
    assert interval([0.4, 0.5, 0.6], 50) == [0.2516, 0.7484]


def test_the_interval_of_one_seed_is_wilsons():
    """No success in 50 is not certainty: Wilson's upper bound is z^2 / (n + z^2)."""
    low, high = interval([0.0], 50)
    assert low == 0.0
    assert high == pytest.approx(1.96**2 / (50 + 1.96**2), abs=1e-4)


def test_equal_seeds_give_an_interval_without_width():
    assert interval([0.5, 0.5, 0.5], 50) == [0.5, 0.5]


def test_an_unknown_arm_lists_the_arms(tmp_path):
    with pytest.raises(UnknownName, match="step"):
        replace(plan_in(tmp_path), arms=("stepp",))


def test_harm_is_what_memory_lost_of_what_the_control_won(tmp_path):
    plan = replace(plan_in(tmp_path), eval_seeds=(0, 1))
    row = {"phase": "test", "agent_seed": 0, "trained": 6, "score": 0, "steps": 1, "ending": "", "blocked": 0}
    row |= {"tokens": 0, "cpu_s": 0.0}
    rows = [
        {**row, "arm": arm, "seed": seed, "success": won}
        for arm, seed, won in [("empty", 0, True), ("empty", 1, True), ("step", 0, True), ("step", 1, False)]
    ]
    assert summarise(plan, rows)["step"]["harm_rate"] == 0.5


def test_an_excluded_episode_counts_in_no_mean(tmp_path):
    plan = replace(plan_in(tmp_path), eval_seeds=(0, 1), arms=("step",))
    row = {"phase": "test", "arm": "step", "agent_seed": 0, "trained": 6, "steps": 1, "ending": "", "blocked": 0}
    row |= {"tokens": 0, "cpu_s": 0.0}
    rows = [{**row, "seed": 0, "success": True, "score": 1.0}, {**row, "seed": 1, "success": None, "score": 0.0}]
    summary = summarise(plan, rows)["step"]
    assert (summary["success_rate"], summary["mean_score"], summary["excluded"]) == (1.0, 1.0, 1)


def test_a_run_prints_one_json_object_and_leaves_library_rows_and_curve(tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert set(printed["arms"]) == {"random", "empty", "task", "step"}
    step = printed["arms"]["step"]
    assert {"success_rate", "mean_score", "per_seed", "ci95", "curve", "steps", "blocked", "cpu_s"} <= set(step)
    assert [at for at, _ in step["curve"]] == [0, 3, 6]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 6 + (2 + 2 * 3) * 4
    with ExperienceLibrary.open(printed["library"], read_only=True) as library:
        assert library.episodes.count() == 6


def test_without_matplotlib_a_run_keeps_its_figures_and_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "pip install '.[plot]'" in result.stderr
    assert json.loads(result.stdout)["curve"] is None
    assert json.loads((tmp_path / "result.json").read_text())["curve"] is None
    assert not (tmp_path / "curve.png").exists()
    with pytest.raises(MissingExtra, match="matplotlib is not installed"):
        draw_curve({}, tmp_path / "curve.png", "no plot")


def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path):
    """Cut in the middle of a row, with the library ahead of the rows, as a kill leaves them."""
    whole = run_plan(plan_in(tmp_path / "a"), tmp_path / "a")
    cut = plan_in(tmp_path / "b")
    run_plan(cut, tmp_path / "b")
    rows = tmp_path / "b" / "episodes.jsonl"
    rows.write_bytes(rows.read_bytes()[:-130])
    again = run_plan(cut, tmp_path / "b")
    assert outcomes(again) == outcomes(whole)


def test_processes_of_a_run_leave_ctrl_c_to_it():
    """From their first moment: importing takes seconds, and each would print a traceback."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with runner._without_interrupts():
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_the_start_of_a_command_is_no_traceback(monkeypatch):
    monkeypatch.setattr("hardwon.apps.cli.app.main", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit, match="130"):
        main()
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["hardwon"] == f"{main.__module__}:{main.__name__}"


def test_a_second_experiment_learns_into_the_same_library(tmp_path):
    """Episodes that a library had before, such as those of another game, are not those of this experiment."""
    first = plan_in(tmp_path)
    second = replace(first, game="coin", params="numLocations=3", seeds=(0, 1))
    run_plan(first, tmp_path / "first")
    run_plan(second, tmp_path / "second", jobs=1)
    run_plan(second, tmp_path / "second", jobs=1)  # finished
    for seed, count in ((0, 12), (1, 6)):
        with ExperienceLibrary.open(second.library_path(seed), read_only=True) as library:
            assert library.episodes.count() == count


def test_a_finished_run_is_not_run_again(tmp_path):
    plan = plan_in(tmp_path)
    first = run_plan(plan, tmp_path)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    assert run_plan(plan, tmp_path) == first
    assert (tmp_path / "episodes.jsonl").read_bytes() == before


def test_a_folder_in_which_another_process_runs_is_refused(tmp_path):
    """Both would learn every episode, and the results would be those of twice as many."""
    plan = replace(plan_in(tmp_path), episodes=1, checkpoints=(1,), eval_seeds=(0,), arms=("step",))

    def run_again(row):
        with pytest.raises(ConfigError, match="another process is running in"):
            run_plan(plan, tmp_path / "out", jobs=1)

    assert len(run_plan(plan, tmp_path / "out", jobs=1, on_row=run_again)) == 2
    assert len(run_plan(plan, tmp_path / "out", jobs=1)) == 2  # the lock is gone with the run


@pytest.mark.parametrize("name", ["plan.json", "counts.json", "episodes.jsonl", "result.json", "curve.png"])
def test_no_result_is_written_through_a_link(tmp_path, name):
    """A folder of results may come from somebody else, such as the `runs` of a repository."""
    plan = replace(plan_in(tmp_path), episodes=0, checkpoints=(0,), arms=("empty",))
    other, out = tmp_path / "other.txt", tmp_path / "out"
    other.write_text("")
    out.mkdir()
    (out / name).symlink_to(other)
    with pytest.raises(ConfigError, match=f"{name} is a link"):
        run_plan(plan, out)
    assert other.read_text() == ""


def test_another_plan_in_the_same_folder_is_refused(tmp_path):
    plan = replace(plan_in(tmp_path), episodes=0, checkpoints=(0,), arms=("empty",))
    run_plan(plan, tmp_path)
    with pytest.raises(ConfigError, match=r"max_steps was 20 and is 10.*rm -r"):
        run_plan(replace(plan, max_steps=10), tmp_path)


def test_without_episodes_to_learn_from_all_agent_seeds_read_one_library(tmp_path):
    learned = plan_in(tmp_path)
    run_plan(learned, tmp_path / "out", jobs=1)
    before = (tmp_path / "library.db").read_bytes()
    frozen = replace(learned, episodes=0, checkpoints=(0,), seeds=(0, 1))
    for seed in frozen.seeds:
        with frozen.open_library(seed) as library:
            assert (library.admin.read_only, library.episodes.count()) == (True, 6)
    assert {row["agent_seed"] for row in run_plan(frozen, tmp_path / "again", jobs=1)} == {0, 1}
    assert (tmp_path / "library.db").read_bytes() == before
    assert [file.name for file in tmp_path.glob("*.db")] == ["library.db"]


def test_the_same_seed_gives_the_same_numbers_in_any_process(tmp_path):
    """Whatever the hash seed of the process, and whether seeds run in one process or in two."""
    few = ("--episodes", "3", "--eval-seeds", "0-1", "--seed", "1", "--arms", "empty,step")
    here, there = ([*ARGUMENTS[:-3], *few, "--jobs", jobs, "--out", str(tmp_path / jobs)] for jobs in "12")
    assert CliRunner().invoke(app, here).exit_code == 0
    call = [sys.executable, "-c", "from hardwon.apps.cli.app import main; main()", *there]
    subprocess.run(call, env={**os.environ, "PYTHONHASHSEED": "2"}, check=True, capture_output=True)
    rows = [(tmp_path / jobs / "episodes.jsonl").read_text().splitlines() for jobs in "12"]
    one, two = (outcomes(map(json.loads, each)) for each in rows)
    assert one == two
    assert len(one) == 2 * 2 * 3  # agent seeds, tests, and the empty library once and the own one before and after


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "textworld"),
        (["textworld", "--game", "coinn"], "Did you mean 'coin'"),
        (["textworld", "--policy", "gpt"], "episodic"),
        (["textworld", "--arms", "stepp"], "unguarded"),
        (["textworld", "--arms", ","], "unguarded"),
        (["textworld", "--device", "tpu"], "tpu"),
        (["textworld", "--library", "mysql://host/db"], "postgresql://"),
        (["textworld", "--eval-seeds", "9-1"], "backwards"),
        (["textworld", "--eval-every", "x"], "--eval-every"),
        (["textworld", "--eval-fold", "tset", "--game", "coin"], "tset"),
        (["textworld", "--game", "coin", "--params", "numLocationz=3"], "numLocationz"),
        (["textworld", "--game", "coin", "--roles", "nowhere"], "nowhere"),
        (["textworld", "--game", "coin", "--arms", "step,strategies", "--strategies", "nowhere.toml"], "nowhere.toml"),
        (["textworld", "--game", "coin", "--beside", "nowhere.db"], "nowhere.db"),
        (["textworld", "--game", "coin", "--policy", "openia:gpt-5"], "openia"),
    ],
)
def test_a_wrong_call_says_what_there_is_and_leaves_no_folder(tmp_path, arguments, words):
    library = ["--library", str(tmp_path / "new" / "library.db")] if "--beside" in arguments else []
    result = CliRunner().invoke(app, ["run", *arguments, *library, "--out", str(tmp_path / "new" / "out")])
    assert result.exit_code == (1 if library else 2)  # a missing file is no wrong word
    assert words in result.output
    assert not list(tmp_path.iterdir())


def test_another_library_is_recalled_from_beside_the_own_one(tmp_path):
    """`--beside`: the records of the learner say in which episodes it was used, and it is only read."""
    first = plan_in(tmp_path)
    run_plan(first, tmp_path / "first", jobs=1)
    size = (tmp_path / "library.db").stat().st_size
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        before = library.episodes.count()
    second = replace(first, library=str(tmp_path / "second.db"), beside=(str(tmp_path / "library.db"),))
    run_plan(second, tmp_path / "out", jobs=1)
    with ExperienceLibrary.open(tmp_path / "second.db", read_only=True) as library:
        used = [row["meta"]["stores"]["library"] for row in library.episodes.find()]
    assert len(used) == 6
    assert set(used) == {True, False}
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        assert library.episodes.count() == before
    assert size
    with pytest.raises(ConfigError, match="called library"):
        replace(first, beside=(str(tmp_path / "library.db"), str(tmp_path / "other" / "library.db")))
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    assert "--beside" in shown


def test_the_arm_strategies_plays_with_the_best_strategy_of_the_file(tmp_path):
    file = tmp_path / "strategies.toml"
    file.write_text('[plain]\n[short]\nmax_steps = 1\n[blind]\npolicy = "random"\n')
    plan = replace(plan_in(tmp_path), arms=("step", "strategies"), strategies=str(file), checkpoints=(6,))
    rows = run_plan(plan, tmp_path / "out", jobs=1)
    assert {row["arm"] for row in rows if row["phase"] == "test"} == {"step", "strategies"}
    with ExperienceLibrary.open(tmp_path / "library.db", read_only=True) as library:
        assert {row["meta"]["strategy"] for row in library.episodes.find()} == {"plain", "short", "blind"}
    for changes in ({"strategies": ""}, {"arms": ("step",)}):
        with pytest.raises(ConfigError, match="--strategies"):
            replace(plan, **changes)


def test_the_policy_auto_tests_its_strategies_while_it_learns(tmp_path):
    plan = replace(plan_in(tmp_path), arms=("empty", "task", "step"), policy="auto", checkpoints=(0, 8), episodes=8)
    rows = run_plan(plan, tmp_path / "out", jobs=1)
    assert {row["arm"] for row in rows if row["phase"] == "test"} == {"empty", "task", "step"}
    with ExperienceLibrary.open(tmp_path / "library.db", read_only=True) as library:
        played = [row["meta"] for row in reversed(library.episodes.find())]
    assert [meta["strategy"] for meta in played if meta.get("test")] == ["episodic", "lookahead"]
    assert {meta["strategy"] for meta in played} == {"episodic", "lookahead"}
    again = ("--policy", "auto", "--episodes", "0", "--eval-seeds", "0-1", "--max-steps", "20", "--json")
    folders = ("--library", str(tmp_path / "library.db"), "--out", str(tmp_path / "again"))
    result = CliRunner().invoke(app, [*ARGUMENTS[:6], *again, *folders])
    assert result.exit_code == 0, result.output


def test_auto_beside_strategies_is_refused(tmp_path):
    file = tmp_path / "strategies.toml"
    file.write_text("[plain]\n")
    plan = replace(plan_in(tmp_path), policy="auto", arms=("step", "strategies"), strategies=str(file))
    with pytest.raises(ConfigError, match="auto has its own strategies"):
        run_plan(plan, tmp_path / "out", jobs=1)
