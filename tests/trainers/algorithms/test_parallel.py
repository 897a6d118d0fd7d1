"""Several processes, one learner: the same step as one process makes, and the same run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainers.test_trainer import weights

from hardwon.memory.errors import ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms import parallel
from hardwon.trainers.algorithms.parallel import ProcessGroup
from hardwon.trainers.config.loading import of

HERE = Path(__file__).parents[1]


def launched(script: list[str], *, sharded: bool = False, processes: int = 2) -> None:
    """Run by `accelerate launch` in several processes on the CPU."""
    how = ["--use_fsdp", "--fsdp_version", "2"] if sharded else ["--multi_gpu"]  # the launcher's name for several
    command = [sys.executable, "-m", "accelerate.commands.launch", *how, "--num_processes", str(processes)]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    ran = subprocess.run([*command, *script], env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["whole", "adapter", "sharded"])
def test_two_processes_make_the_step_of_one(tmp_path, how):
    """Gradients added up over global denominators: the same weights to 1e-6, in every process."""
    launched([str(HERE / "learn_together.py"), str(tmp_path), how], sharded=how == "sharded")
    alone, *together = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "0", "1")]
    for one in together:
        assert one["weights"] == pytest.approx(alone["weights"], abs=1e-6)
        for name in ("loss", "grad_norm", "tokens_trained", "updates", "entropy", "tokens"):
            assert one["told"][name] == pytest.approx(alone["told"][name], rel=1e-6), name
    assert alone["weights"] != alone["before"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_in_two_processes_goes_on_in_one(corridor, tmp_path):
    """The first plays and saves; resumed alone it is an ordinary run, and nothing is logged twice."""
    settings: dict[str, Any] = corridor(run={"iterations": 3, "threads": 1})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    launched(["-m", "hardwon.trainers", str(tmp_path / "config.yaml"), "--quiet"])
    assert [line["iteration"] for line in metrics.read(tmp_path / "run")] == [1, 2, 3]
    report = train(settings, [f"run.out={tmp_path / 'run'}", "run.iterations=4"], resume=True)
    assert report.iterations == 4
    train(settings, [f"run.out={tmp_path / 'alone'}", "run.iterations=4"])
    ours, theirs = (weights(tmp_path / name) for name in ("run", "alone"))
    assert ours[0] == theirs[0]


def test_shares_are_about_even_and_lose_nothing():
    from tests.trainers.learn_together import streams as made

    streams = made()
    shares = [ProcessGroup(rank, 3).select_share(streams) for rank in range(3)]
    assert sorted(len(part) for share in shares for part in share) == [len(part) for part in streams]
    assert max(sum(map(len, share)) for share in shares) - min(sum(map(len, share)) for share in shares) < 14


def test_a_sharded_base_needs_adapters_and_a_server(corridor, monkeypatch):
    monkeypatch.setattr(parallel, "_TEAM", [ProcessGroup(0, 2, shards=True)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="a sharded base cannot generate"):
        parallel.check_sharding(of(corridor(model={"adapter": 4})))


class Alone(ProcessGroup):
    """A team of one process that answers for the others, so that its messages can be read."""

    sent: Any = None

    def broadcast_job(self, job):
        self.sent = job

    def all_reduce(self, parameters, values):
        return {name: 2 * value for name, value in values.items()}

    def find_max(self, number):
        return number + 1


def test_team_changes_a_step_only_once_its_workers_wait():
    """Before `active` a process of a team trains alone, as in a warm start."""
    from tests.trainers.learn_together import streams as made

    from hardwon.trainers.algorithms.settings import LossSettings

    streams, loss = made(), LossSettings(kl=0.1)
    single, team = parallel.SingleProcess(), Alone(0, 2, shards=True)
    for alone in (single, team):
        alone.check_loss(loss)
        assert alone.share_step("policy", streams, loss, 0.7) is streams
        assert alone.count_idle_passes(3) == 0
        assert alone.sum_update([], {"tokens": 4.0}) == {"tokens": 4.0}
    team.active = True
    assert len(team.share_step("policy", streams, loss, 0.7)) < len(streams)
    assert team.sent == ("step", ("policy", streams, loss, 0.7))
    assert team.count_idle_passes(3) == 1
    assert team.sum_update([], {"tokens": 4.0}) == {"tokens": 8.0}
    with pytest.raises(ConfigError, match=r"loss\.kl=0"):
        team.check_loss(loss)


def test_a_learner_joins_the_processes_of_its_run_under_its_role(monkeypatch):
    """A worker finds the step of a role by the role's name; a single process keeps no list."""
    from tests.trainers.learn_together import learner

    monkeypatch.setattr(parallel, "_TEAM", [team := ProcessGroup(1, 2)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    joined = learner("whole")
    assert team.steps == {"policy": joined.step}
    monkeypatch.setenv("WORLD_SIZE", "1")
    learner("whole")
    assert team.steps == {"policy": joined.step}


def test_the_workers_get_the_loss_and_the_temperature_of_the_step(monkeypatch):
    from tests.trainers.learn_together import LOSS, learner, streams as made

    monkeypatch.setattr(parallel, "_TEAM", [team := Alone(0, 2)])
    monkeypatch.setenv("WORLD_SIZE", "2")
    joined, streams = learner("whole"), made()
    team.active = True
    joined.step(streams, LOSS, temperature=0.7)
    assert team.sent == ("step", ("policy", streams, LOSS, 0.7))


def find_blank_keys(value: Any) -> list[Any]:
    """Return the blank keys of nested mappings."""
    if isinstance(value, dict):
        blank = [name for name in value if isinstance(name, str) and not name.strip()]
        return blank + [name for inner in value.values() for name in find_blank_keys(inner)]
    return [name for inner in value for name in find_blank_keys(inner)] if isinstance(value, list | tuple) else []


def test_state_of_a_learner_has_no_blank_names():
    """What a checkpoint stores is readable: no entry hides under an empty name."""
    from tests.trainers.learn_together import LOSS, learner, streams as made

    trained = learner("adapter")
    trained.step(made(), LOSS)
    state = trained.state_dict()
    assert set(state) == {"adam", "updates"}
    assert find_blank_keys(state) == []
