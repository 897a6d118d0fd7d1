"""What `hardwon bench train` measures: one round of each system in this process, and the floor under all of them.

Generation: `raw` is transformers' own `generate` in a single turn that reads as many tokens as an
episode's observations have and says as many as are said in its turns; `raw, first prompt only` reads a
single observation. Ours are four turns through the engine, with log-probabilities. Training: `raw` is
transformers' own loss over all tokens, forward and backward; ours include clipping, AdamW and metrics.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Ids, PackedSequence
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import SPECIAL, TinyConfig, build_model, build_tokenizer

EPISODES = 16
"""Rows of a batch."""
TURNS = 4
SEEN, SAID = 24, 16
"""Tokens of an observation, and of what is said after it."""
SHAPE = TinyConfig(hidden=256, layers=2, heads=4, kv_heads=2, intermediate=768)
VOCABULARY = 437
"""Words of the model."""
NARROW = TinyConfig(hidden=8, layers=2, heads=4, kv_heads=2, intermediate=8)
"""The same layers with next to nothing to compute: what is left is overhead."""

Systems = dict[tuple[str, str], Callable[[], object]]


@dataclass(frozen=True)
class Batch:
    """The model, its tokenizer, and what is observed: ids by episode and turn."""

    model: Any
    tokenizer: Any
    observed: list[list[list[int]]]
    tokens: dict[str, int] = field(default_factory=dict)
    """By phase, the tokens of a round that count."""

    @classmethod
    def drawn(cls) -> "Batch":
        """Random weights and words, always the same."""
        tokenizer = build_tokenizer([" ".join(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))])
        chance = random.Random(0)
        words = range(len(SPECIAL), VOCABULARY)
        observed = [[chance.choices(words, k=SEEN) for _ in range(TURNS)] for _ in range(EPISODES)]
        said = EPISODES * TURNS * SAID
        tokens = {"generation": said, "training": said + EPISODES * TURNS * SEEN}
        return cls(build_model(VOCABULARY, SHAPE), tokenizer, observed, tokens)

    def save(self, folder: Path) -> None:
        """As files, for another process."""
        self.model.save_pretrained(str(folder / "model"))
        self.tokenizer.save_pretrained(str(folder / "model"))
        told = {
            "prompts": [turns[0] for turns in self.observed],
            "observed": [turns[1:] for turns in self.observed],
            "said": SAID,
            "length": TURNS * (SEEN + SAID),
        }
        (folder / "batch.json").write_text(json.dumps(told), encoding="utf-8")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch uses one thread here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def systems(batch: Batch) -> Systems:
    """By phase and name, one round over the batch."""
    model = batch.model
    everything = [[token for turn in turns for token in turn] for turns in batch.observed]
    first = [turns[0] for turns in batch.observed]
    free, said = _streams(lambda _: True), _streams(lambda at: at % (SEEN + SAID) >= SEEN)
    return {
        ("generation", "raw"): lambda: generate(model, everything),
        ("generation", "raw, first prompt only"): lambda: generate(model, first),
        ("generation", "ours"): lambda: play(model, batch.observed),
        ("training", "raw"): _raw(stepping=False),
        ("training", "raw with AdamW's step"): _raw(stepping=True),
        ("training", "ours, imitation, all tokens"): _ours(free, LossSettings(kind="imitation")),
        ("training", "ours, ppo, all tokens"): _ours(free, LossSettings()),
        ("training", "ours, ppo, what was said"): _ours(said, LossSettings()),
    }


# -- generation -------------------------------------------------------------------------------------


def generate(model: Any, prompts: list[list[int]]) -> None:
    """As many tokens as an episode says, in a single turn."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=TURNS * SAID,
            max_new_tokens=TURNS * SAID,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )


def play(model: Any, observed: list[list[list[int]]]) -> None:
    """All episodes at once through the engine."""
    engine = LocalEngine(model, None)

    async def episode(number: int) -> None:
        name, chance = f"{number:03}", random.Random(number)
        prompt: Ids = ()
        for seen in observed[number]:
            prompt = (*prompt, *seen)
            request = Request(prompt, max_tokens=SAID, session=name, chance=chance)
            prompt = (*prompt, *(await engine.generate(request)).tokens)
        await engine.end(name)

    async def all_of_them() -> None:
        for number in range(len(observed)):
            await engine.begin(f"{number:03}")
        await asyncio.gather(*(episode(number) for number in range(len(observed))))

    asyncio.run(all_of_them())


# -- training ---------------------------------------------------------------------------------------


def _streams(spoken: Callable[[int], bool]) -> list[PackedSequence]:
    chance, length = random.Random(0), TURNS * (SEEN + SAID)
    mask = tuple(at > 0 and spoken(at) for at in range(length))
    even, free = (-6.0,) * length, (None,) * length
    return [
        PackedSequence(
            tuple(chance.randrange(len(SPECIAL), VOCABULARY) for _ in range(length)),
            *(mask, even, (chance.choice((-1.0, 1.0)),) * length, free),
            *("policy", str(number), 0),
        )
        for number in range(EPISODES)
    ]


def _raw(*, stepping: bool) -> Callable[[], object]:
    model = build_model(VOCABULARY, SHAPE)
    ids = torch.tensor([stream.tokens for stream in _streams(lambda _: True)])
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def work() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        if stepping:
            adam.step()
        adam.zero_grad()

    return work


def _ours(given: list[PackedSequence], loss: LossSettings) -> Callable[[], object]:
    model = build_model(VOCABULARY, SHAPE)
    budget = sum(map(len, given))
    learner = Learner(model, model.parameters(), LearnerSettings(lr=1e-5, budget=budget))
    return lambda: learner.step(given, loss)


# -- the floor --------------------------------------------------------------------------------------


def floor(batch: Batch) -> dict[str, Any]:
    """What the multiplications alone would take at the speed that the matrices have here, and what Python takes."""
    weights = sum(parameter.numel() for parameter in batch.model.parameters() if parameter.dim() == 2)
    width, layers, length = SHAPE.hidden, SHAPE.layers, TURNS * (SEEN + SAID)
    token = 2 * weights + 4 * layers * width * length // 2  # a token sees half of the others
    read = TURNS * (SEEN + SAID) / (TURNS * SAID)
    decoding, learning = _gflops(EPISODES), _gflops(EPISODES * length)
    narrow = build_model(VOCABULARY, NARROW)
    overhead = min(_seconds(lambda: play(narrow, batch.observed)) for _ in range(5)) / (TURNS * SAID)
    spare = 1 / (token * read / (decoding * 1e9) + overhead / EPISODES)
    return {
        "floating-point operations to read a token, M": round(token / 1e6, 2),
        "tokens read for one that is said": read,
        f"matrices of {EPISODES} rows, GFLOP/s": round(decoding, 1),
        f"matrices of {EPISODES * length} rows, GFLOP/s": round(learning, 1),
        "our overhead a decoding round of all episodes, CPU ms": round(1000 * overhead, 2),
        "generated a CPU-second at most, no overhead": round(decoding * 1e9 / (token * read)),
        "generated a CPU-second at most, with our overhead": round(spare),
        "trained a CPU-second at most": round(learning * 1e9 / (3 * token)),
    }


def _gflops(rows: int) -> float:
    """Of a layer of the model's own shape."""
    entering, weight = torch.randn(rows, SHAPE.hidden), torch.randn(SHAPE.intermediate, SHAPE.hidden)
    times = max(1, 200_000 // rows // 20)

    def work() -> None:
        for _ in range(times):
            torch.nn.functional.linear(entering, weight)

    with torch.inference_mode():
        best = min(_seconds(work) for _ in range(7)) / times
    return 2 * rows * weight.numel() / best / 1e9


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
