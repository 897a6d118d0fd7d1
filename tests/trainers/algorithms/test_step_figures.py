"""Figures of a training step, its divisors and its processes: each test fails when one operator is another."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hardwon.trainers.algorithms import learner as step, parallel
from hardwon.trainers.algorithms.logprobs import get_device_and_dtype
from hardwon.trainers.algorithms.losses import masked_mean
from hardwon.trainers.algorithms.settings import LossSettings
from hardwon.trainers.algorithms.updates.tally import Tally, summarize
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.models.tiny import TinyConfig, build_model

SHAPE = TinyConfig(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=16)


def test_the_figures_of_a_step_by_hand():
    sums = {"loss": 6.0, "kl_old": 5.0, "weight": 4.0, "weight_squared": 2.0}
    tally = Tally(updates=2, skipped=1, tokens=30, trained=10, norms=[1.0, 3.0], sums=sums)
    assert summarize(tally, seconds=2.0) == {
        "loss": 2.0,
        "kl_old": 0.5,
        "ess": 0.8,
        "grad_norm": 2.0,
        "grad_norm_max": 3.0,
        "updates": 2,
        "skipped": 1,
        "tokens": 30,
        "tokens_trained": 10,
        "tokens_per_second": 15.0,
    }


class Tokens:
    """A micro-batch of two tokens."""

    def __init__(self):
        self.advantages, self.sequence, self.old = torch.ones(2), torch.zeros(2, dtype=torch.long), torch.zeros(2)

    def __len__(self):
        return 2


@pytest.mark.parametrize("old", ["sampled", "trainer"])
def test_only_probabilities_of_the_trainer_are_corrected_for_who_sampled(monkeypatch, old):
    given: dict[str, Any] = {}

    def policy_loss(*args, **options):
        given.update(options)
        return SimpleNamespace(value=torch.zeros(()), metrics={"clip_fraction": 0.0})

    monkeypatch.setattr(step, "policy_loss", policy_loss)
    batch, values = Tokens(), torch.zeros(2)
    step._compute_objective(values, values, cast(Any, batch), torch.ones(2), 2.0, LossSettings(old=cast(Any, old)))
    assert given["rollout"] is (batch.old if old == "trainer" else None)


def test_a_masked_mean_by_hand():
    assert float(masked_mean(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1.0, 0.0, 1.0]), 4.0)) == 2.0


@pytest.mark.parametrize(
    ("stored", "computed"), [("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")]
)
def test_log_probabilities_are_as_precise_as_the_model_but_never_halves(stored, computed):
    model = torch.nn.Linear(2, 2).to(getattr(torch, stored))
    assert get_device_and_dtype(model) == (torch.device("cpu"), getattr(torch, computed))


# -- several processes


@pytest.mark.parametrize(("setting", "shards"), [("true", True), ("True", True), ("false", False), (None, False)])
def test_a_launcher_says_whether_the_base_is_sharded(monkeypatch, setting, shards):
    import accelerate  # type: ignore[import-untyped]

    monkeypatch.setattr(parallel, "_TEAM", [])
    monkeypatch.setattr(accelerate, "PartialState", lambda cpu: SimpleNamespace(process_index=1, num_processes=2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    if setting is None:
        monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    else:
        monkeypatch.setenv("ACCELERATE_USE_FSDP", setting)
    team = parallel.get_team()
    assert team is not None
    assert team.shards is shards
    assert parallel.get_team() is team
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert parallel.get_team() is None


def test_each_layer_of_the_base_is_sharded_and_its_adapter_is_not(monkeypatch):
    import torch.distributed.fsdp as fsdp
    from transformers.modeling_layers import GradientCheckpointingLayer

    class Sharded:
        """What a layer is after it was sharded."""

    calls: list[tuple[Any, set[Any]]] = []
    monkeypatch.setattr(fsdp, "FSDPModule", Sharded)
    monkeypatch.setattr(fsdp, "fully_shard", lambda layer, ignored_params: calls.append((layer, ignored_params)))
    model = add_adapter(build_model(12, SHAPE), "policy", rank=2)
    parallel.ProcessGroup(0, 2, True).shard_base(model)
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    assert [layer for layer, _ in calls] == layers
    assert len(layers) == 2
    for layer, ignored in calls:
        assert ignored == {value for name, value in layer.named_parameters() if ".lora_" in name}
        assert ignored


def test_a_worker_shares_its_steps_from_the_start_job_on():
    jobs = [("start", "checkpoint"), ("step", ("policy", ["a"], "loss", 0.7)), ("end", None)]
    steps, closed = list[Any](), list[bool]()
    session = SimpleNamespace(close=lambda: closed.append(True))
    team = SimpleNamespace(receive_job=lambda: jobs.pop(0), active=False)
    team.steps = {"policy": lambda *given, **how: steps.append((*given, how, team.active))}
    parallel.run_worker(cast(Any, team), lambda checkpoint: session)
    assert steps == [(["a"], "loss", {"temperature": 0.7}, True)]
    assert closed == [True]
