"""`hardwon train` and `hardwon eval`: doors to the trainer, and the settings that the examples bring."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from tests.trainers.config.method_examples import load_example
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.trainers.__main__ import print_arms
from hardwon.trainers.config.loading import load
from hardwon.trainers.config.methods import collect_settings, list_methods

ROOT = Path(__file__).parents[3]
CORRIDOR = ROOT / "tests" / "trainers"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A file with settings that train in the corridor in a second."""
    monkeypatch.syspath_prepend(str(CORRIDOR))
    settings = {
        "environment": {"name": "corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-5"}, "eval": {"seeds": "100-102"}},
        "explore": {"worlds": {"seeds": "0-2"}, "steps": 10, "tries": 1},
        "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
        "arms": {"control": 2, "experience": 2},
        "eval": {"every": 1, "copies": 1},
        "run": {"iterations": 1, "groups": 2, "threads": 1, "out": str(tmp_path / "run")},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_train_plays_an_environment_of_the_current_folder(config, tmp_path, monkeypatch):
    """`MODULE:CLASS` of a file in the folder that one is in, which is on no search path."""
    (tmp_path / "own_corridor.py").write_text((CORRIDOR / "corridor.py").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(CORRIDOR))])
    monkeypatch.delitem(sys.modules, "own_corridor", raising=False)
    settings = yaml.safe_load(config.read_text())
    settings["environment"]["name"] = "own_corridor:Corridor"
    config.write_text(yaml.safe_dump(settings))
    assert json.loads(hardwon("train", config, "--json", "-q").stdout)["iterations"] == 1
    assert (
        "own_corridor:Gate"
        in hardwon("train", config, "environment.name=own_corridor:Gate", f"run.out={tmp_path}/no", code=2).stderr
    )


def hardwon(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def test_a_run_is_trained_evaluated_and_exported(config, tmp_path):
    """Its report and its evaluation are JSON on stdout, with nothing else there."""
    report = json.loads(hardwon("train", config, "--json", "--export", tmp_path / "export").stdout)
    assert report["iterations"] == 1
    assert (tmp_path / "export" / "policy" / "model.safetensors").exists()
    arms = json.loads(hardwon("eval", tmp_path / "run", "--json").stdout)
    assert {arm: part["success"] for arm, part in arms.items()} == {
        arm: part["success"] for arm, part in report["final"].items()
    }
    assert {part["temperature"] for part in arms.values()} == {report["temperature"]} == {1.0}
    only = json.loads(
        hardwon(
            "eval", tmp_path / "run", "--arm", "control", "--seeds", "200-204", "--copies", 2, "--at-once", 3, "--json"
        ).stdout
    )
    assert {arm: part["episodes"] for arm, part in only.items()} == {"control": 10}
    assert "holds a run already" in hardwon("train", config, code=2).stderr
    assert "1 iterations" in hardwon("train", config, "--resume", "-q").stdout
    assert "unknown arm 'experiense'" in hardwon("eval", tmp_path / "run", "--arm", "experiense", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "episodic"), "there is no folder episodic. For a policy of that name: hardwon run"),
        (("eval", ".", "--seeds", "0-3"), "there is no checkpoint in"),
        (("train", "nowhere.yaml"), "cannot be read"),
    ],
)
def test_a_wrong_call_says_what_to_do(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in hardwon(*arguments, code=2).stderr


def test_a_setting_that_does_not_exist_is_named(config):
    assert (
        "run.iteration is no setting: did you mean iterations?"
        in hardwon("train", config, "run.iteration=3", code=2).stderr
    )


def test_printed_settings_are_settings(config, tmp_path):
    printed = tmp_path / "printed.yaml"
    printed.write_text(hardwon("train", config, "run.iterations=7", "--print-config").stdout)
    assert load(printed) == load(config, ["run.iterations=7"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_settings_of_the_examples_are_valid(example):
    """And their worlds disjoint, which is checked when they are read."""
    assert load(example).run.out.startswith("runs/")


def test_the_smallest_example_trains(tmp_path):
    """A few of its episodes in the real game: it reads, plays, learns and saves."""
    few = ["explore.worlds.seeds=0-3", "warmstart.learning.updates=3", "eval.every=0", "run.iterations=1"]
    few += ["run.groups=2", "arms.control=2", "arms.experience=2", f"run.out={tmp_path / 'run'}"]
    few += ["model.tiny.hidden=16", "model.tiny.intermediate=16"]
    report = json.loads(hardwon("train", ROOT / "examples" / "train_coin.yaml", *few, "--json", "-q").stdout)
    assert Path(report["checkpoint"]).name == "000001"


def test_a_table_in_a_pipe_is_cut_nowhere(capsys):
    numbers = {"episodes": 90, "success": 0.8, "low": 0.7, "high": 0.89, "difference": 0.044, "error": 0.047}
    print_arms({"retrieved-frozen": {**numbers, "harm": 0.08, "steps": 5.0, "tokens": 1158.0, "excluded": 0}})
    _, row = capsys.readouterr().out.splitlines()  # without a temperature nothing is said about it
    assert row.split("  ")[0] == "retrieved-frozen"
    assert "+0.044 ± 0.047" in row


@pytest.mark.parametrize(("temperature", "words"), [(0.0, "greedy actions"), (0.7, "actions sampled at temperature")])
def test_a_table_says_how_actions_were_chosen(capsys, temperature, words):
    """Greedy figures and sampled ones must not be compared by mistake."""
    numbers = {"episodes": 9, "success": 0.8, "low": 0.7, "high": 0.9, "difference": None, "error": None, "harm": None}
    numbers |= {"steps": 5.0, "tokens": 10.0, "excluded": 0, "temperature": temperature}
    print_arms({"control": numbers, "retrieved": numbers})
    assert capsys.readouterr().out.splitlines()[-1].startswith(words)


def test_a_table_says_why_episodes_are_in_no_figure(capsys):
    """An arm whose prompts outgrow the model would look good without the games that it could not finish."""
    numbers = {"episodes": 5, "success": 0.8, "low": 0.7, "high": 0.9, "difference": None, "error": None, "harm": None}
    numbers |= {"steps": 5.0, "tokens": 10.0}
    problems = {"context_exceeded": 4, "environment_error": 1}
    print_arms({"control": numbers | {"excluded": 0}, "retrieved": numbers | {"excluded": 5, "problems": problems}})
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "retrieved: 5 of 10 episodes are in no figure: context_exceeded (4), environment_error (1)"


def test_an_interrupted_run_says_how_to_go_on(config, monkeypatch):
    import hardwon.trainers.trainer as trainer

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "train", stop)
    assert "add --resume" in hardwon("train", config, code=130).stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["roles.policy.learner.lr=0"], "so nothing is trained"),
        (["roles.policy.credit.name=empg"], "needs the signal entropy, which nothing feeds"),
        (["roles.policy.credit.name=tree"], "and nothing feeds it"),
        (["roles={policy: {}, extractor: {}}"], "no arm shows its items"),
        (["roles={policy: {}, guide: {}}"], "compares at least two of its texts"),
        (["arms={control: 2, guided: 2}"], "no role writes one"),
        (["arms={control: 2, library: 2}", "library.learn=false"], "recalls from a library that stays empty"),
        (["arms={control: 1}"], "every arm has one episode per group"),
    ],
)
def test_a_run_that_cannot_learn_exits_with_1(config, overrides, message):
    """At load as during the first iteration: the settings are well formed, and nothing could come of them."""
    assert message in " ".join(hardwon("train", config, *overrides, code=1).stderr.split())


@pytest.mark.parametrize(
    "override",
    ["roles.policy.learner.lrr=1", "roles.policy.learner.lr=fast", "roles.policy.loss.entropy=-1", "run.groups=0"],
)
def test_malformed_settings_exit_with_2(config, override):
    hardwon("train", config, override, code=2)


# -- published methods


def test_all_methods_are_listed_with_their_papers():
    result = CliRunner().invoke(app, ["methods", "--json"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert {*list_methods(), "StrategyGuide", "Searcher"} <= {*rows}
    assert rows["gigpo"]["paper"] == "arXiv:2505.10978"
    assert all(row["use"] for row in rows.values())


@pytest.mark.parametrize("method", ["gigpo", "exit", "rungs"])
def test_the_command_of_an_example_makes_the_run_in_which_the_method_acts(method, monkeypatch):
    monkeypatch.chdir(ROOT)
    row = json.loads(CliRunner().invoke(app, ["methods", method, "--json"]).stdout)
    program, command, config, option, name, *overrides = shlex.split(row["example"])
    assert [program, command, option, name] == ["hardwon", "train", "--method", method]
    assert load(config, overrides, method=name) == load_example(method)
    assert row["settings"] == collect_settings(method)


def test_one_method_is_printed_with_each_setting_on_a_line():
    lines = CliRunner().invoke(app, ["methods", "seeupo"]).stdout.splitlines()
    assert 'settings  roles.policy.learner.order="reverse-turns"' in lines
    assert "          roles.policy.loss.kl=0.002" in lines
    assert not [line for line in lines if line.split()[1:] == ["-"]], "a row without a value says nothing"
    assert [line for line in lines if line.startswith("evidence")] == ["evidence  a port and the abstract"]


def test_an_unknown_method_is_refused_with_the_nearest():
    result = CliRunner().invoke(app, ["methods", "gigp"])
    assert result.exit_code == 2
    assert "Did you mean 'gigpo'" in result.stderr
