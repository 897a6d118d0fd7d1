"""Run by test_parallel.py under `accelerate launch`: steps of a learner, alone in the first process and together."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from hardwon.trainers.algorithms import parallel
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.models.adapters import add_adapter, parameters_of
from hardwon.trainers.models.tiny import TinyConfig, build_model

SETTINGS = LearnerSettings(lr=1e-2, minibatches=2, budget=24)
LOSS = LossSettings(entropy=0.01)


def streams() -> list[PackedSequence]:
    """Nine of different lengths, one of which has no signal."""
    made = []
    for n in range(9):
        size, advantage = 5 + n, (0.0 if n == 4 else 1.0 - n / 3)
        tokens = tuple((7 * n + 3 * at) % 40 for at in range(size))
        mask = tuple(at > 2 for at in range(size))
        made.append(
            PackedSequence(
                tokens, mask, (-3.0,) * size, (advantage,) * size, (None,) * size, "policy", f"trace{n // 2}", 1
            )
        )
    return made


def learner(how: str) -> Learner:
    """In double precision, so that what differs is not the order of adding."""
    shape = TinyConfig(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=16)
    model: Any = build_model(40, shape)
    if how != "whole":
        model = add_adapter(model, "policy", 4)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return Learner(model.double(), parameters_of(model, "policy"), SETTINGS, role="policy")


def told(learner: Learner, told: dict[str, float]) -> dict[str, Any]:
    """What the test compares."""
    return {"weights": [value for p in learner.parameters for value in p.detach().flatten().tolist()], "told": told}


def main(out: Path, how: str) -> None:
    """Three steps."""
    torch.set_num_threads(1)
    ours = parallel.get_team()
    assert ours is not None
    if ours.rank == 0:
        alone = learner(how)
        before = told(alone, {})["weights"]
        answers = [alone.step(streams(), LOSS, temperature=0.7) for _ in range(3)]
        (out / "alone.json").write_text(json.dumps({**told(alone, answers[-1]), "before": before}))
    mine = learner(how)
    if ours.shards:
        ours.shard_base(mine.model)
    ours.active = True
    if ours.rank == 0:
        answers = [mine.step(streams(), LOSS, temperature=0.7) for _ in range(3)]
        ours.broadcast_job(("end", None))
    else:
        answers = []
        while (job := ours.receive_job())[0] != "end":
            _, sequences, loss, temperature = job[1]
            answers.append(mine.step(sequences, loss, temperature=temperature))
    (out / f"{ours.rank}.json").write_text(json.dumps(told(mine, answers[-1])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
