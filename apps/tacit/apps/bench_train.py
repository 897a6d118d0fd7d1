"""What training costs: our step beside a raw forward and backward pass of the same model on the same tokens.

The model is a Qwen2 of 1.7M parameters with random weights; 16 streams of 160 tokens, one thread.
Systems take turns in every round and are compared by the CPU time of this process, so other work on
the machine weighs on all of them alike. `raw` is transformers' own loss over all tokens without an
optimiser; `transcript` trains on the fourth of the tokens that are an agent's words.
"""

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tacit.memory.errors import MissingExtra

STREAMS = 16
"""Rows of a batch."""
LENGTH = 160
"""Tokens of each."""
VOCABULARY = 437
"""Words of the model."""
TURN = (24, 8)
"""Tokens of an observation, and of the action that follows, in a transcript."""
WARM = 2
"""Rounds before the clock counts."""

Work = Callable[[], object]


def measure(rounds: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every system: tokens by CPU-second, and that in units of the raw pass of the same round."""
    try:
        import torch
    except ImportError as missing:
        raise MissingExtra.of("torch", "train") from missing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _rows(_systems(), rounds, tell)
    finally:
        torch.set_num_threads(threads)


def _rows(systems: dict[str, Work], rounds: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    costs: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(-WARM, rounds):
        tell(f"round {max(0, number + 1)} of {rounds} ...")
        for name, work in systems.items():
            began = time.process_time()
            work()
            if number >= 0:
                costs[name].append(time.process_time() - began)
    return [
        {
            "system": name,
            "tokens_per_cpu_s": round(STREAMS * LENGTH / median(spent)),
            "to_raw": round(median(raw / own for raw, own in zip(costs["raw"], spent, strict=True)), 3),
        }
        for name, spent in costs.items()
    ]


def _systems() -> dict[str, Work]:
    """By name, one pass over the batch."""
    import torch

    from tacit.trainers.optim import Learner, LearnerSettings, LossSettings
    from tacit.trainers.rows import Stream
    from tacit.trainers.tiny import TinyConfig, build_model

    shape = TinyConfig(hidden=256, layers=2, heads=4, kv_heads=2, intermediate=768)
    chance = random.Random(0)
    tokens = [tuple(chance.randrange(10, VOCABULARY) for _ in range(LENGTH)) for _ in range(STREAMS)]

    def streams(spoken: Callable[[int], bool]) -> list[Stream]:
        mask = tuple(at > 0 and spoken(at) for at in range(LENGTH))
        even, free = (-6.0,) * LENGTH, (None,) * LENGTH
        return [
            Stream(ids, mask, even, (chance.choice((-1.0, 1.0)),) * LENGTH, free, "policy", str(number), 0)
            for number, ids in enumerate(tokens)
        ]

    def raw() -> Work:
        model, ids = build_model(VOCABULARY, shape), torch.tensor(tokens)

        def work() -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            model.zero_grad()

        return work

    def ours(given: list[Stream], loss: LossSettings) -> Work:
        model = build_model(VOCABULARY, shape)
        learner = Learner(model, model.parameters(), LearnerSettings(lr=1e-5, budget=STREAMS * LENGTH))
        return lambda: learner.step(given, loss)

    everything, words = streams(lambda _: True), streams(lambda at: at % sum(TURN) >= TURN[0])
    return {
        "raw": raw(),
        "ours, imitation, all tokens": ours(everything, LossSettings(kind="imitation")),
        "ours, ppo, all tokens": ours(everything, LossSettings()),
        "ours, ppo, transcript": ours(words, LossSettings()),
    }
