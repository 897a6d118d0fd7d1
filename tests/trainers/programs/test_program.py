"""A program that was never changed is trained: its model calls become rows with the tokens that were sampled."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers import train
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.engines.base_models import load_base
from hardwon.trainers.engines.local import LocalEngine


def compute_again(base, rollouts):
    """Return the recorded and the recomputed log-probabilities of every trained token, by a cold engine."""
    model, tokenizer = load_base(base, ModelConfig(base=str(base), device="cpu"))
    cold = LocalEngine(model, tokenizer)
    rows = [row for rollout in rollouts for row in rollout.rows]
    sequences = pack_samples(rows, {rollout.trajectory.id: [1.0] * len(rollout.rows) for rollout in rollouts})
    again = asyncio.run(cold.logprobs(sequences, "policy"))
    return sequences, [list(each.logprobs) for each in sequences], again


def test_a_program_is_trained_on_the_tokens_that_were_sampled(program, base, rollouts, tmp_path):
    train(program())
    assert len(rollouts) == 4
    assert [len(rollout.rows) for rollout in rollouts] == [2] * 4
    assert {rollout.outcome for rollout in rollouts} == {0.0, 1.0}
    sequences, recorded, again = compute_again(base, rollouts)
    assert len(sequences) == 4, "the second prompt continues the tokens of the first answer"
    for each, other in zip(recorded, again, strict=True):
        assert other == pytest.approx(each, abs=1e-4)
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["policy/grad_norm"] > 0
    assert metrics["policy/samples_per_rollout"] == 1.0
    saved = torch.load(find_checkpoint(tmp_path / "run") / "policy.pt", weights_only=True)["state"]["weights"]
    moved = [name for name, weight in saved.items() if "lora_B" in name and weight.abs().sum() > 0]
    assert moved, "the update moves the weights"


def read_metrics(out):
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "train"]


def find_checkpoint(out):
    from hardwon.trainers.checkpoint import find

    return find(out)


FAULTY = """
import json, os, subprocess, sys, time, urllib.request

def post(path, **body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

def ask():
    return post("/chat/completions", messages=[{"role": "user", "content": "go east"}], max_tokens=4)

kind = int(os.environ["HARDWON_EPISODE"][-1])
if kind != 5:
    ask()
if kind == 1:
    raise SystemExit("the agent is broken")
if kind == 3:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["CHILD"], "w").write(str(child.pid))
    time.sleep(600)
if kind == 4:
    for _ in range(9):
        ask()
if kind != 2:
    post("/outcome", outcome=kind / 10)
"""


def test_faults_of_a_program_are_counted_and_never_a_failure_of_the_policy(program, rollouts, tmp_path, monkeypatch):
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    train(program(FAULTY, timeout_s=10, sections={"arms": {"control": 6}, "environment": {"max_steps": 3}}))
    failed = [rollout.failed for rollout in rollouts]
    assert failed == ["", "program_crashed", "ungraded", "program_hung", "program_crashed", "no_model_calls"]
    assert "the agent is broken" in rollouts[1].trajectory.meta["failed"]
    assert "403" in rollouts[4].trajectory.meta["failed"], "the fourth call is refused at environment.max_steps"
    assert [bool(rollout.rows) for rollout in rollouts] == [True] + [False] * 5
    (metrics,) = read_metrics(tmp_path / "run")
    assert (metrics["failed/program_crashed"], metrics["episodes"]) == (2.0, 1.0)
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z", "its child has ended"


def test_a_broken_program_can_count_as_a_failure(program, rollouts):
    train(program(FAULTY, timeout_s=60, broken=-1.0, sections={"arms": {"control": 2}}))
    assert [rollout.trajectory.score for rollout in rollouts] == [0.0, -1.0]
    assert all(rollout.rows and not rollout.failed for rollout in rollouts)


def test_a_reward_function_grades(program, rollouts, tmp_path, monkeypatch):
    (tmp_path / "own_reward.py").write_text(
        "def grade(episode):\n"
        "    assert episode.messages[-1]['role'] == 'assistant'\n"
        "    if episode.input['n'] == 3:\n        raise KeyError('no such key')\n"
        "    return episode.input['n'] / 4\n"
    )
    (tmp_path / "inputs.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(4)))
    monkeypatch.chdir(tmp_path)
    settings = program(
        FAULTY.replace("kind != 2", "False"),
        reward="own_reward:grade",
        inputs="inputs.jsonl",
        sections={"tasks": {"train": {"seeds": "2-3"}, "eval": {"seeds": "0-0"}}, "arms": {"control": 1}},
    )
    settings["arms"] = {"control": 2}
    settings["program"]["broken"] = 0.0
    settings["run"]["groups"] = 2
    train(settings)
    graded = {(rollout.trajectory.seed, rollout.failed, rollout.trajectory.score) for rollout in rollouts}
    assert graded == {(2, "", 0.5), (2, "", 0.0), (3, "reward_failed", 0.0), (3, "", 0.0)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"program": {"command": ""}}, "needs program.command"),
        ({"environment": {"name": "textworld"}}, "set environment.name=program"),
        ({"arms": {"retrieved": 2}}, "program.urls.retrieved"),
        ({"program": {"urls": {"other": "http://localhost/v1"}}}, "names no arm"),
        ({"model": {"base": "tiny"}}, "set model.base"),
        ({"roles": {"policy": {"settings": {"actions": "changes"}}}}, "settings.actions needs an environment"),
        ({"warmstart": {}}, "warmstart needs an environment"),
        ({"program": {"reward": "grade"}}, "MODULE:CALLABLE"),
        ({"program": {"inputs": "missing.jsonl"}}, "cannot be read"),
        ({"program": {"command": "/missing/agent"}}, "cannot be started"),
    ],
)
def test_settings_that_do_not_fit_are_refused(program, settings, words):
    with pytest.raises(ConfigError, match=words):
        train(program(sections=settings))
