"""Extra examples: which groups they replace, and that a run learns from them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.folder_base import keep_requests, save_base

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import Arm
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.config.loading import of
from hardwon.trainers.methods.hpt import gate_groups
from hardwon.trainers.player import Player
from hardwon.trainers.session import Session

BEST = Trajectory("task", (Step(State("hall"), "go east", State("room"), Diagnosis(True)),), True, id="best")


def group(*outcomes, name="train#3"):
    fields = ("policy", 1, "control", "", "")
    return [
        Rollout(
            replace(BEST, id=f"{name}/{n}", success=bool(outcome)),
            (Sample((1,), (2,), (-0.5,), (True,), (None,), *fields, f"{name}/{n}", 0),),
            name,
        )
        for n, outcome in enumerate(outcomes)
    ]


def render(path):
    n = len(path.steps)
    fields = ("policy", 0, "control", "", "", path.id)
    return [Sample((1, *(2,) * t), (2,), (0.0,), (True,), (None,), *fields, t) for t in range(n)]


def gate(rollouts, demonstrate=lambda task, seed: BEST, **settings):
    advantages = {one.trajectory.id: [0.5] for one in rollouts}
    return gate_groups(rollouts, advantages, demonstrate, render, **settings)


def test_gate_by_hand():
    """0 of 8: imitation; 1 of 8: reinforcement; never both."""
    hopeless, extra, counts = gate(group(*[0] * 8))
    assert {*map(tuple, hopeless.values())} == {(0.0,)}
    assert [(one.trace, one.advantages) for one in extra] == [("demonstration/train#3/control", (0.0, 1.0))]
    assert counts == {"sft_share": 1.0}
    kept, extra, counts = gate(group(1, *[0] * 7))
    assert {*map(tuple, kept.values())} == {(0.5,)}
    assert (extra, counts) == ([], {"sft_share": 0.0})


def test_a_gate_above_zero_takes_weak_groups_as_well():
    assert gate(group(1, 1, 0, 0), successes=2, weight=0.3)[1][0].advantages == (0.0, 0.3)


def test_without_a_demonstration_a_group_keeps_its_advantages():
    assert gate(group(0, 0), demonstrate=lambda task, seed: None)[0]["train#3/0"] == [0.5]


def test_groups_are_gated_one_by_one():
    changed, extra, counts = gate([*group(0, 0), *group(1, 0, name="train#4")])
    assert (changed["train#3/0"], changed["train#4/0"], len(extra), counts["sft_share"]) == ([0.0], [0.5], 1, 0.5)


def test_a_loss_that_needs_log_probabilities_of_sampling_is_refused(corridor):
    with pytest.raises(ConfigError, match=r"loss\.kind is ppo; set loss\.kind=imitation"):
        of(corridor(roles={"policy": {"extra": {"gate": {}}}}))
    with pytest.raises(ConfigError, match=r"extra\.gate\.sucesses"):
        of(corridor(roles={"policy": {"extra": {"gate": {"sucesses": 1}}, "loss": {"kind": "imitation"}}}))


def test_a_run_imitates_what_a_file_demonstrates(corridor, tmp_path):
    """Exploration of one step finds nothing, so only `tasks.demonstrations` names a success."""
    path = tmp_path / "paths.json"
    path.write_text(json.dumps([{"task": "", "seed": 1, "actions": ["go west", "go west"]}]))
    roles = {"policy": {"extra": {"gate": {}}, "loss": {"kind": "imitation"}, "credit": {"name": "dr-grpo"}}}
    plain = {"arms": {"control": 2}, "warmstart": None, "environment": {"name": "corridor:Corridor", "max_steps": 1}}
    run: dict[str, Any] = {"iterations": 1, "groups": 1, "rerolls": 0}
    for n, demonstrations in enumerate((["explored"], ["explored", str(path)])):
        tasks = {"train": {"seeds": "1-1"}, "eval": {"seeds": "100-100"}, "demonstrations": demonstrations}
        run["out"] = str(tmp_path / f"run{n}")
        train(corridor(**plain, roles=roles, tasks=tasks, run=run, explore={"steps": 1, "tries": 1}))
        (line,) = metrics.read(tmp_path / f"run{n}")
        assert line.get("policy/sft_share", 0.0) == float(n), "without an example there is no update"


def test_an_imitated_example_reads_as_the_policy_does(corridor, tmp_path, monkeypatch):
    """With the listed actions, although the agent that plays demonstrations records none."""
    asked = keep_requests(monkeypatch)
    model = {"base": str(save_base(tmp_path / "base")), "adapter": 2, "device": "cpu"}
    session = Session.open(of(corridor(model=model, arms={"control": 1}, warmstart=None)), tmp_path / "run")
    player = Player(session)
    asyncio.run(player.play([("", 7)], {Arm("control"): 1}, salt="x"))
    player.close()
    (row, *_) = session.prompts.rows(session.demonstrations.find("", 7))
    session.close()
    assert row.prompt == asked["policy"][0]
    assert "go east" in session.tokenizer.decode(row.prompt)


def test_a_run_imitates_where_every_episode_fails(corridor):
    """One step is too few for any success, so only the demonstrations have a gradient."""
    roles = {"policy": {"extra": {"gate": {}}, "loss": {"kind": "imitation"}, "credit": {"name": "dr-grpo"}}}
    plain = {"arms": {"control": 2}, "warmstart": None, "environment": {"name": "corridor:Corridor", "max_steps": 1}}
    tasks = {"train": {"seeds": "1-1"}, "eval": {"seeds": "100-100"}}
    run = {"iterations": 1, "groups": 1, "rerolls": 0}
    out = train(corridor(**plain, roles=roles, tasks=tasks, run=run, explore={"tries": 9})).out
    (line,) = metrics.read(Path(out))
    assert line["policy/sft_share"] == 1.0
    assert line["groups_without_signal"] == 0
    assert line["policy/grad_norm"] > 0
