"""A warm start is saved on its way, and goes on where it was: bit for bit the uninterrupted one."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests import warm
from tests.trainers.folder_base import save_base
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers import feasibility, train, trainer
from hardwon.trainers.algorithms.imitation import Imitation
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.checkpoint import Checkpoints
from hardwon.trainers.console import EpisodeCount
from hardwon.trainers.engines.base_models import load_tokenizer
from hardwon.trainers.loop import TrainingLoop
from hardwon.trainers.player import Player
from hardwon.trainers.session import Session
from hardwon.trainers.warmstart import demonstrations, updates

SAVING = """
from hardwon.trainers.__main__ import main
from hardwon.trainers.warmstart import demonstrations, updates
updates.SAVE_S = 0.0
main()
"""
"""The command, with a checkpoint after every update of the warm start."""
UPDATES = 40
WARM = {"examples": {"copies": 2}, "learning": {"updates": UPDATES, "batch": 2}}
CHAT = {
    "arms": {"control": 2, "retrieved": 2},
    "library": {"explored": {"more": {"seeds": "400-405"}}},
    "roles": {"policy": {"learner": {"lr": 0.003}}, "extractor": {"settings": {"ready": 4}}},
}


def list_inside(out):
    """The numbers of the checkpoints inside the warm start."""
    return [int(path.name) for path in updates.open_checkpoints(Path(out)).all()]


def kill_inside(settings, folder, least):
    """Start the run in a process of its own, and kill it once so many updates of its warm start are saved."""
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-c", SAVING, str(folder / "config.yaml"), "--quiet", "run.threads=1"]
    process = warm.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    saved = folder / "run" / updates.FOLDER
    while process.poll() is None and not any(int(path.name) >= least for path in saved.glob("[0-9]*")):
        time.sleep(0.005)
    process.kill()
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err


def test_looking_for_demonstrations_tells_its_progress_and_which_are_lost(corridor, monkeypatch, tmp_path, capsys):
    """An environment that breaks takes its examples away; the run would go on with what is left, without a word."""
    original = Player.demonstrate

    async def break_two(self, *arguments):
        first, second, *rest = await original(self, *arguments)
        return [*(replace(one, failed="environment_crash", rows=()) for one in (first, second)), *rest]

    monkeypatch.setattr(Player, "demonstrate", break_two)
    monkeypatch.setattr("hardwon.trainers.warmstart.demonstrations.EpisodeCount", partial(EpisodeCount, every_s=0.0))
    demonstrate(corridor, tmp_path)
    lines = capsys.readouterr().err
    assert "looked for demonstrations in 5 of 6 task instances" in lines
    assert re.search(r"2 of \d+ demonstrations cannot be played again: environment_crash \(2\)\.", lines)


def demonstrate(corridor, tmp_path, **settings):
    """Make one update of a warm start of a base with a chat template."""
    model = {"base": str(save_base(tmp_path / "base")), "adapter": 4, "device": "cpu"}
    warm = {"examples": {"copies": 2}, "learning": {"updates": 1, "batch": 2}}
    explore = {"worlds": {"seeds": "0-5"}, "steps": 30}
    train(
        corridor(**CHAT, model=model, warmstart=warm, explore=explore, run={"iterations": 0}, **settings), quiet=False
    )


def test_a_demonstration_that_cleaning_broke_is_played_whole(corridor, monkeypatch, tmp_path, capsys):
    """A step that shows nothing new, such as cooling a thing, is taken for a circle; the rest does not succeed."""
    monkeypatch.setattr(
        demonstrations, "clean_trajectory", lambda trajectory: replace(trajectory, steps=trajectory.steps[1:])
    )
    demonstrate(corridor, tmp_path)
    lines = capsys.readouterr().err
    assert "cannot be played again" not in lines
    assert re.search(r"warm start: [1-9]\d* demonstrations of [1-9]\d* tokens, the longest of [1-9]\d*", lines)


def test_demonstrations_show_plans_where_the_run_has_a_planner(corridor, monkeypatch, tmp_path):
    """A policy learns to follow plans from those that it has read."""
    samples: list[Sample] = []

    def keep(rows, turns):
        samples.extend(rows)
        return pack_samples(rows, turns)

    monkeypatch.setattr("hardwon.trainers.warmstart.demonstrations.pack_samples", keep)
    train(
        corridor(
            environment={"name": "tests.trainers.gating.test_other_worlds:Fetch", "max_steps": 6},
            arms={"control": 1, "retrieved": 1},
            explore={"worlds": {"seeds": "0-3"}, "steps": 30},
            library={"explored": {"more": {"seeds": "16-31"}}, "planner": "demonstrations"},
            model={"base": str(save_base(tmp_path / "base")), "adapter": 4, "device": "cpu"},
            warmstart={"examples": {"copies": 2}, "learning": {"updates": 1, "batch": 2}},
            run={"iterations": 0},
        )
    )
    tokenizer = load_tokenizer(tmp_path / "base")
    turns = [tokenizer.decode(one.prompt).rpartition("<|im_start|>user")[2] for one in samples]
    assert 0 < sum("<plan>" in turn for turn in turns) < len(turns)  # control reads none


@pytest.mark.parametrize(("limit", "kept"), [("longest", True), ("shortest", False), ("less", None)])
def test_demonstrations_that_the_model_cannot_read_are_left_out(corridor, monkeypatch, tmp_path, capsys, limit, kept):
    """Their end would be trained at positions that the base has never seen."""
    original, sizes = demonstrations._play_again, []

    def play_and_measure(loop, config):
        examples = original(loop, config)
        sizes.extend(sorted(map(len, examples)))
        limits = {"longest": sizes[-1], "shortest": sizes[0], "less": sizes[0] - 1}
        monkeypatch.setattr(type(loop.session), "context", limits[limit])
        return examples

    monkeypatch.setattr(demonstrations, "_play_again", play_and_measure)
    monkeypatch.setattr(feasibility, "check_prompts", lambda *_: None)  # it reads the limit, too
    if kept is None:
        with pytest.raises(CannotLearn, match="left out: the longest has"):
            demonstrate(corridor, tmp_path)
        return
    demonstrate(corridor, tmp_path)
    assert sizes[0] < sizes[-1]
    lines = capsys.readouterr().err
    assert ("demonstrations are left out" in lines) is not kept
    readable = len(sizes) if kept else sizes.count(sizes[0])
    assert f"warm start: {readable} demonstrations" in lines


def test_a_prompt_that_only_recollections_make_too_long_is_refused(corridor, monkeypatch, tmp_path):
    """Episodes are measured with what the library recalls in them, before the warm start or the first iteration."""
    sizes = []

    def measure(loop):
        sizes.append(demonstrations.measure_recalled(loop))
        with monkeypatch.context() as patch:
            patch.setattr(loop.session.environment, "branches", None, raising=False)
            assert demonstrations.measure_recalled(loop) == 0, "its actions must not be repeated"
        return sizes[-1]

    monkeypatch.setattr(trainer, "measure_recalled", measure)
    model = {"base": str(save_base(tmp_path / "base")), "adapter": 4, "device": "cpu"}
    explore, run = {"worlds": {"seeds": "0-5"}, "steps": 30}, {"iterations": 0}
    settings = {**CHAT, "model": model, "warmstart": None, "explore": explore, "run": run}
    monkeypatch.setattr(Session, "context", 10**6)
    alone = {**settings, "roles": {"policy": {}}, "guidance": {"retrieved": "episodes"}}
    train(corridor(**alone), [f"run.out={tmp_path / 'pasted'}"])
    train(corridor(**settings), [f"run.out={tmp_path / 'free'}"])
    pasted, longest = sizes
    assert pasted != longest, "each arm is measured with what it shows"
    monkeypatch.setattr(Session, "context", longest - 1)
    with pytest.raises(CannotLearn, match=f"has {longest} tokens, and the model reads {longest - 1}"):
        train(corridor(**settings), [f"run.out={tmp_path / 'bound'}"])
    train(corridor(**{**settings, "arms": {"control": 2}, "library": {}, "roles": {"policy": {}}}))
    assert sizes[-1] == 0


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_kill_inside_the_warm_start_loses_no_update(corridor, monkeypatch, tmp_path, is_chat):
    """Weights, optimizer and log are those of the straight run; demonstrations are not played again."""
    settings = corridor(warmstart=WARM, run={"iterations": 1})
    if is_chat:
        model = {"base": str(save_base(tmp_path / "base")), "adapter": 4, "device": "cpu"}
        settings = corridor(**CHAT, model=model, warmstart=WARM, run={"iterations": 1})
    train(settings, [f"run.out={tmp_path / 'straight'}", "run.threads=1"])
    kill_inside(settings, tmp_path, least=7)
    assert not (tmp_path / "run" / "checkpoints").exists()
    number = list_inside(tmp_path / "run")[-1]
    assert 7 <= number < UPDATES
    update = Imitation.update
    made: list[int] = []

    def count(self):
        update(self)
        made.append(len(self.curve))

    monkeypatch.setattr(Imitation, "update", count)
    monkeypatch.delattr(Player, "demonstrate")
    monkeypatch.setattr(updates, "SAVE_S", 0.0)  # later checkpoints delete the one that the run continues from
    report = train(settings, ["run.threads=1"], resume=True)
    assert made == [*range(number + 1, UPDATES + 1)]
    assert report.iterations == 1
    assert_same(tmp_path / "straight", tmp_path / "run")
    assert lines(tmp_path / "straight") == lines(tmp_path / "run")
    assert list_inside(tmp_path / "run") == []


class InsideAPrint:
    """A stream in the middle of a print: a second one fails."""

    def write(self, text: str) -> int:
        raise RuntimeError("reentrant call")


def test_a_stop_inside_the_warm_start_is_heeded_after_the_update(corridor, monkeypatch, capsys, tmp_path):
    """The report names the checkpoint, the run goes on as the straight run, and nothing else begins in its folder."""
    settings, update = corridor(warmstart=WARM, run={"iterations": 1}), Imitation.update

    def interrupted(self):
        update(self)
        if len(self.curve) == 5:
            with monkeypatch.context() as during:
                during.setattr(sys, "stderr", InsideAPrint())
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Imitation, "update", interrupted)
    report = train(settings, quiet=False)
    assert (report.iterations, report.stopped) == (0, True)
    assert report.checkpoint.endswith(f"{updates.FOLDER}/000005")
    err = capsys.readouterr().err
    assert f"warm start: update 4 of {UPDATES}, loss " in err
    assert f"stopped and saved after update 5 of {UPDATES} of the warm start; add --resume" in err
    monkeypatch.setattr(Imitation, "update", update)
    with pytest.raises(ConfigError, match="holds a run already; continue it with --resume"):
        train(settings)
    with pytest.raises(ConfigError, match=r"warmstart\.learning\.lr was .* but a resumed run must keep it"):
        train(settings, ["warmstart.learning.lr=0.1"], resume=True)
    train(settings, resume=True)
    train(settings, [f"run.out={tmp_path / 'straight'}"])
    assert_same(tmp_path / "straight", tmp_path / "run")
    assert lines(tmp_path / "straight") == lines(tmp_path / "run")


def test_a_stop_after_the_last_update_is_heeded_before_the_first_iteration(corridor, monkeypatch, tmp_path):
    settings, update = corridor(eval={"every": 2, "copies": 1}, run={"iterations": 2}), Imitation.update

    def interrupted(self):
        update(self)
        if self.is_done:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Imitation, "update", interrupted)
    report = train(settings)
    assert (report.iterations, report.stopped) == (0, True)
    monkeypatch.setattr(Imitation, "update", update)
    train(settings, resume=True)
    train(settings, [f"run.out={tmp_path / 'straight'}"])
    assert_same(tmp_path / "straight", tmp_path / "run")
    assert lines(tmp_path / "straight") == lines(tmp_path / "run")


def test_a_kill_in_the_first_evaluation_does_not_lose_the_warm_start(corridor, monkeypatch, tmp_path):
    async def killed(self):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TrainingLoop, "_evaluate", killed)
    settings = corridor(eval={"every": 1, "copies": 1}, run={"iterations": 1, "out": str(tmp_path / "run")})
    with pytest.raises(RuntimeError, match="out of memory"):
        train(settings)
    assert [path.name for path in Checkpoints(tmp_path / "run" / "checkpoints").all()] == ["000000"]


def test_a_kill_after_the_last_update_writes_no_line_twice(corridor, monkeypatch, tmp_path):
    """The line of the warm start is in the log before the checkpoint that follows it."""

    def killed(loop):
        raise RuntimeError("out of memory")

    settings = corridor(warmstart=WARM, run={"iterations": 1})
    with monkeypatch.context() as patch:
        patch.setattr(updates, "SAVE_S", 0.0)
        patch.setattr(updates, "finish", killed)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(settings)
    assert list_inside(tmp_path / "run") == [UPDATES - 1]
    assert [line["kind"] for line in lines(tmp_path / "run")] == ["warmstart"]
    train(settings, resume=True)
    assert [line["kind"] for line in lines(tmp_path / "run")] == ["warmstart", "train"]


def test_a_micro_batch_has_the_budget_of_the_policy(corridor, monkeypatch):
    budgets: list[int] = []
    update = Imitation.update

    def note(self: Imitation) -> None:
        budgets.append(self._learner.settings.budget)
        update(self)

    monkeypatch.setattr(Imitation, "update", note)
    train(corridor(run={"iterations": 0}, roles={"policy": {"learner": {"budget": 99}}}))
    assert {*budgets} == {99}


def test_a_short_warm_start_is_not_saved_on_its_way(corridor, monkeypatch):
    monkeypatch.setattr(updates, "_save", lambda *_: pytest.fail("saved"))
    assert train(corridor(run={"iterations": 0})).iterations == 0


def test_a_run_that_cannot_learn_stops_before_its_warm_start(corridor, monkeypatch):
    """An hour of imitation would come first."""
    monkeypatch.setattr(Imitation, "update", lambda self: pytest.fail("imitated"))
    with pytest.raises(RuntimeError, match="every arm has one episode per group"):
        train(corridor(arms={"control": 1}))
