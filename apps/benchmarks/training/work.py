"""Run one round of each system of `hardwon bench train` in this process, and measure the limits of this machine.

Generation: `raw` is a single turn of transformers' `generate`, with as many prompt and completion tokens as an episode
has in all its turns. `raw, first prompt only` reads a single observation. `ours` plays four turns through the engine,
with log-probabilities.

Training: `raw` is transformers' own loss over all tokens, forward and backward. Ours includes clipping, AdamW and
metrics.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.harness.timing import time_cpu_s
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Ids, PackedSequence
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import SPECIAL, TinyConfig, build_model, build_tokenizer

EPISODES = 16
"""Episodes of a batch."""
BASE_EPISODES = 4
"""The same with a pretrained base, which takes a hundred times as long."""
TURNS = 4
SEEN, SAID = 24, 16
"""Tokens of an observation, and of the completion after it."""
SHAPE = TinyConfig(hidden=256, layers=2, heads=4, kv_heads=2, intermediate=768)
VOCABULARY = 437
"""Vocabulary size of the model."""
NARROW = TinyConfig(hidden=8, layers=2, heads=4, kv_heads=2, intermediate=8)
"""Layers with almost no computation, to measure the overhead."""

Systems = dict[tuple[str, str], Callable[[], object]]


@dataclass(frozen=True)
class Batch:
    """The model, its tokenizer, and the observed token ids by episode and turn."""

    model: Any
    tokenizer: Any
    observed: list[list[list[int]]]
    tokens: dict[str, int]
    """Number of tokens that a round is credited with, by phase."""
    load: Callable[[], Any]
    """Function that returns a model to train."""

    @classmethod
    def draw(cls, base: Path | None = None) -> "Batch":
        """Draw observations, the same in every run.

        Args:
            base: Hugging Face folder of a pretrained model, or None for a small model with random weights.
        """
        if base is None:
            words = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL))]
            load: Callable[[], Any] = partial(build_model, VOCABULARY, SHAPE)
            model, tokenizer, vocabulary, episodes = load(), build_tokenizer([" ".join(words)]), VOCABULARY, EPISODES
        else:
            model, tokenizer = load_base(base), AutoTokenizer.from_pretrained(str(base))
            # All systems train the same weights: the memory for five copies with gradients would be several GB more.
            load, vocabulary, episodes = (lambda: model), model.config.vocab_size, BASE_EPISODES
        chance, tokens = random.Random(0), range(len(SPECIAL), vocabulary)
        observed = [[chance.choices(tokens, k=SEEN) for _ in range(TURNS)] for _ in range(episodes)]
        generated = episodes * TURNS * SAID
        credited = {"generation": generated, "training": generated + episodes * TURNS * SEEN}
        return cls(model, tokenizer, observed, credited, load)

    def save(self, folder: Path) -> None:
        """Write the model, the tokenizer and the prompts to a folder, for another process."""
        self.model.save_pretrained(str(folder / "model"))
        self.tokenizer.save_pretrained(str(folder / "model"))
        content = {
            "prompts": [turns[0] for turns in self.observed],
            "observed": [turns[1:] for turns in self.observed],
            "said": SAID,
            "length": TURNS * (SEEN + SAID),
        }
        (folder / "batch.json").write_text(json.dumps(content), encoding="utf-8")


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load_base(folder: Path) -> Any:
    """Load a pretrained model in single precision.

    Raises:
        ConfigError: The folder holds no model.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json; write a model there with `hardwon model smollm2 {folder}`.")
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)


def build_systems(batch: Batch) -> Systems:
    """Return one round over the batch as a function, by phase and system."""
    model = batch.model
    everything = [[token for turn in turns for token in turn] for turns in batch.observed]
    first = [turns[0] for turns in batch.observed]
    trained = batch.load()
    learner = Learner(trained, trained.parameters(), LearnerSettings(lr=1e-5, budget=batch.tokens["training"]))
    all_tokens, imitation = _make_sequences(batch, lambda _: True), LossSettings(kind="imitation")
    completions = _make_sequences(batch, lambda at: at % (SEEN + SAID) >= SEEN)
    return {
        ("generation", "raw"): lambda: generate(model, everything),
        ("generation", "raw, first prompt only"): lambda: generate(model, first),
        ("generation", "ours"): lambda: play(model, batch.observed),
        ("training", "raw"): _build_raw_step(batch, update=False),
        ("training", "raw with AdamW's step"): _build_raw_step(batch, update=True),
        ("training", "ours, imitation, all tokens"): lambda: learner.step(all_tokens, imitation),
        ("training", "ours, ppo, all tokens"): lambda: learner.step(all_tokens, LossSettings()),
        ("training", "ours, ppo, what was said"): lambda: learner.step(completions, LossSettings()),
    }


# -- generation -------------------------------------------------------------------------------------


def generate(model: Any, prompts: list[list[int]]) -> None:
    """Generate an episode's number of tokens for each prompt, in a single turn."""
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
    """Play all episodes at once through the engine."""
    engine = LocalEngine(model, None)

    async def play_episode(number: int) -> None:
        name, chance = f"{number:03}", random.Random(number)
        prompt: Ids = ()
        for observation in observed[number]:
            prompt = (*prompt, *observation)
            request = Request(prompt, max_tokens=SAID, session=name, chance=chance)
            prompt = (*prompt, *(await engine.generate(request)).tokens)
        await engine.end(name)

    async def play_all() -> None:
        # Begin all episodes before the first one generates, so that the engine decodes them as one batch.
        for number in range(len(observed)):
            await engine.begin(f"{number:03}")
        await asyncio.gather(*(play_episode(number) for number in range(len(observed))))

    asyncio.run(play_all())


# -- training ---------------------------------------------------------------------------------------


def _make_sequences(batch: Batch, is_trained: Callable[[int], bool]) -> list[PackedSequence]:
    """Return a random packed sequence per episode; `is_trained` tells by position which tokens count."""
    chance, length = random.Random(0), TURNS * (SEEN + SAID)
    mask = tuple(at > 0 and is_trained(at) for at in range(length))
    logprobs, allowed = (-6.0,) * length, (None,) * length
    return [
        PackedSequence(
            tuple(chance.randrange(len(SPECIAL), batch.model.config.vocab_size) for _ in range(length)),
            *(mask, logprobs, (chance.choice((-1.0, 1.0)),) * length, allowed),
            *("policy", str(number), 0),
        )
        for number in range(len(batch.observed))
    ]


def _build_raw_step(batch: Batch, *, update: bool) -> Callable[[], object]:
    """Return a forward and backward pass of transformers as a function, with AdamW's step on request."""
    model = batch.load()
    ids = torch.tensor([sequence.tokens for sequence in _make_sequences(batch, lambda _: True)])
    adam = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def work() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        if update:
            adam.step()
        adam.zero_grad()

    return work


# -- the floor --------------------------------------------------------------------------------------


def measure_floor(batch: Batch) -> dict[str, Any]:
    """Measure the limits of this machine.

    Returns:
        Throughput if only the matrix multiplications took time, at the speed that this machine reaches for them, and
        the overhead of Python in the engine.
    """
    config, episodes = batch.model.config, len(batch.observed)
    weights = sum(parameter.numel() for parameter in batch.model.parameters() if parameter.dim() == 2)
    width, layers, length = config.hidden_size, config.num_hidden_layers, TURNS * (SEEN + SAID)
    token = 2 * weights + 4 * layers * width * length // 2  # a token attends to half of the sequence on average
    read = TURNS * (SEEN + SAID) / (TURNS * SAID)
    rows = episodes, episodes * length
    decoding, learning = (_measure_gflops(number, width, config.intermediate_size) for number in rows)
    narrow = build_model(config.vocab_size, replace(NARROW, layers=layers))
    overhead = min(time_cpu_s(lambda: play(narrow, batch.observed)) for _ in range(5)) / (TURNS * SAID)
    spare = 1 / (token * read / (decoding * 1e9) + overhead / episodes)
    return {
        "floating-point operations to read a token, M": round(token / 1e6, 2),
        "tokens read for one that is said": read,
        f"matrices of {episodes} rows, GFLOP/s": round(decoding, 1),
        f"matrices of {episodes * length} rows, GFLOP/s": round(learning, 1),
        "our overhead a decoding round of all episodes, CPU ms": round(1000 * overhead, 2),
        "generated a CPU-second at most, no overhead": round(decoding * 1e9 / (token * read)),
        "generated a CPU-second at most, with our overhead": round(spare),
        "trained a CPU-second at most": round(learning * 1e9 / (3 * token)),
    }


def _measure_gflops(rows: int, hidden: int, intermediate: int) -> float:
    """Return GFLOP/s of a multiplication of `rows` rows with a matrix of the model's own shape."""
    inputs, weight = torch.randn(rows, hidden), torch.randn(intermediate, hidden)
    # Repeat small multiplications: one alone is shorter than the resolution of the CPU clock.
    times = max(1, 200_000 * 256 * 768 // (rows * hidden * intermediate) // 20)

    def work() -> None:
        for _ in range(times):
            torch.nn.functional.linear(inputs, weight)

    with torch.inference_mode():
        best = min(time_cpu_s(work) for _ in range(7)) / times
    return 2 * rows * weight.numel() / best / 1e9
