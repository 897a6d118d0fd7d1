"""Measure generation and training on a GPU: random weights in the shape of Qwen3-0.6B, a LoRA of rank 16, bf16.

    hardwon bench gpu --write docs/benchmarks.md
    python -m benchmarks.training.gpu --json       # with only torch, transformers and peft installed

Training is the learner's PPO step on every token of 16 packed sequences of 1,024 tokens. Generation plays four turns
of 128 episodes through the engine, with 128 prompt tokens and 64 completion tokens per turn and the adapter enabled.
Each comes with its floor: the time that the matrix multiplications, or reading the weights and caches, would take at
the speed measured on this device. MFU is relative to the device's published dense bf16 peak.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.harness.tables import Place, Row, format_markdown, print_rows
from hardwon.apps.shared.common import AsJson, tell
from hardwon.memory.errors import ConfigError, MissingExtra

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 floating-point operations per second, by a part of the device's name."""
PUBLIC = 13_300
"""Published rate for such a model on one H100, in trained tokens per second, at 11% MFU."""
RANK = 16
WARM = 2
"""Untimed rounds before the measurement."""


@dataclass(frozen=True)
class Load:
    """The shape of a model, and the amount of work."""

    hidden: int = 1024
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head: int = 128
    """Width of an attention head."""
    intermediate: int = 3072
    vocabulary: int = 151_936
    streams: int = 16
    length: int = 1024
    """Tokens per packed sequence."""
    episodes: int = 128
    turns: int = 4
    seen: int = 128
    said: int = 64

    @property
    def weights(self) -> int:
        """Return the number of weights in the matrices of the layers."""
        attention = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def forward_flops(self, length: float) -> float:
        """Return the floating-point operations to read one token and score the next.

        Args:
            length: tokens in the sequence; on average, a token attends to half of them.
        """
        attended = 4 * self.layers * self.heads * self.head * length / 2
        return 2 * (self.weights + self.hidden * self.vocabulary) + attended


TINY = Load(32, 2, 4, 2, 8, 48, 64, streams=2, length=24, episodes=3, turns=2, seen=4, said=3)


def gpu(
    rounds: Annotated[int, typer.Option(min=1, help="Number of timed steps and batches of episodes.")] = 5,
    tiny: Annotated[
        bool, typer.Option(help="Check the benchmark on a CPU with a model of a few thousand weights.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="Markdown file to write the table to, between its marks.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens per second, MFU and memory on a GPU, for a model in the shape of Qwen3-0.6B with a LoRA."""
    place = Place(write, "gpu") if write else None
    rows = measure(TINY if tiny else Load(), "cpu" if tiny else "cuda", rounds, tell)
    if place:
        place.fill(f"`hardwon bench gpu --rounds {rounds}`:\n\n{format_markdown(rows)}")
    print_rows(rows, as_json)


def measure(load: Load, device: str, rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure training, then generation.

    Args:
        load: shape of the model, and the amount of work.
        device: `cuda` or `cpu`.
        rounds: number of timed rounds.
        tell: function that receives lines of progress.

    Returns:
        One row per figure; figures that the device does not have are left out.

    Raises:
        ConfigError: torch finds no GPU.
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError as missing:
        raise MissingExtra.of("torch", "train") from missing
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU; `--tiny` runs the same benchmark on a CPU with a tiny model.")
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(f"{name}: building the model ...")
    bench = _Bench(load, device, build(load, device), rounds, tell)
    peak = next((peak for part, peak in PEAKS.items() if part in name), None)
    figures = {
        "device": name,
        "weights of the layers' matrices, M": _round_figure(load.weights / 1e6),
        **bench.measure_training(peak),
        **bench.measure_generation(),
    }
    return [{"what": what, "value": value} for what, value in figures.items() if value is not None]


def build(load: Load, device: str) -> Any:
    """Build the model with an adapter for the role `policy`, in bf16 on a GPU and float32 on a CPU."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from hardwon.trainers.models.adapters import add_adapter

    config = Qwen3Config(
        vocab_size=load.vocabulary,
        hidden_size=load.hidden,
        intermediate_size=load.intermediate,
        num_hidden_layers=load.layers,
        num_attention_heads=load.heads,
        num_key_value_heads=load.kv_heads,
        head_dim=load.head,
        max_position_embeddings=max(load.length, load.turns * (load.seen + load.said)),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    auto_model: Any = AutoModelForCausalLM
    with torch.device(device):
        model = auto_model.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    return add_adapter(model, "policy", RANK).to(device)


class _Bench:
    """The timed rounds of a load on a device."""

    def __init__(self, load: Load, device: str, model: Any, rounds: int, tell: Callable[[str], None]) -> None:
        self._load, self._device, self._model = load, device, model
        self._rounds, self._tell = rounds, tell

    def measure_training(self, peak: float | None) -> Row:
        """Time the learner's step, in the largest micro-batches that fit in memory."""
        load = self._load
        tokens = load.streams * load.length
        budget, seconds, memory = self._time_training(tokens)
        # The base weights are frozen: the backward pass computes gradients of their inputs, but none of the weights.
        needed = 2 * load.forward_flops(load.length)
        rate = tokens / seconds
        flops = self._measure_flops(tokens)
        return {
            "trained tokens a second": round(rate),
            f"times the {PUBLIC:,} that were published for one H100": _round_figure(rate / PUBLIC),
            "operations that a trained token needs, G": _round_figure(needed / 1e9),
            "MFU by those": _compute_mfu(rate * needed, peak),
            "MFU as if all weights had gradients": _compute_mfu(1.5 * rate * needed, peak),
            "matrices here, TFLOP/s": _round_figure(flops / 1e12),
            "floor: trained tokens a second at that speed": round(flops / needed),
            "tokens of a micro-batch": budget,
            "memory of training, GB": memory,
        }

    def _time_training(self, budget: int) -> tuple[int, float, float | None]:
        """Return tokens per micro-batch, median seconds per step, and peak GB; halve micro-batches that do not fit."""
        import torch

        from hardwon.trainers.algorithms.learner import Learner, LearnerSettings
        from hardwon.trainers.models.adapters import parameters_of

        settings = LearnerSettings(lr=1e-5, budget=budget)
        learner = Learner(self._model, parameters_of(self._model, "policy"), settings, role="policy")
        sequences = self._make_sequences()
        try:
            return budget, *self._time_rounds("training", lambda: learner.step(sequences))
        except torch.OutOfMemoryError:
            if budget <= self._load.length:
                raise
        # Retry outside the `except` block: inside it, the traceback would keep the tensors of the failed step alive.
        torch.cuda.empty_cache()
        return self._time_training(budget // 2)

    def measure_generation(self) -> Row:
        """Time episodes of several turns through the engine."""
        from hardwon.trainers.engines.local import LocalEngine

        load = self._load
        completion_tokens = load.episodes * load.turns * load.said
        engine = LocalEngine(self._model, None)
        seconds, memory = self._time_rounds("generation", lambda: asyncio.run(self._play(engine)))
        round_s = seconds / (load.turns * load.said)
        # Decoding is bound by memory: each round reads all weights and half of the final caches on average.
        half = load.turns * (load.seen + load.said) // 2
        cached = load.episodes * half * load.layers * 2 * load.kv_heads * load.head
        numbers = load.weights + load.hidden * load.vocabulary + cached
        floor = numbers * (2 if self._device == "cuda" else 4) / self._measure_bandwidth()
        return {
            "generated tokens a second": round(completion_tokens / seconds),
            f"a decoding round of {load.episodes} episodes, ms": _round_figure(1000 * round_s),
            "floor of it: reading weights and caches, ms": _round_figure(1000 * floor),
            "memory of generation, GB": memory,
        }

    def _make_sequences(self) -> Sequence[Any]:
        """Return random packed sequences that are trained on in every position but the first."""
        from hardwon.trainers.algorithms.samples import PackedSequence

        load, chance = self._load, random.Random(0)
        mask, logprobs = (False, *(True,) * (load.length - 1)), (-12.0,) * load.length
        return [
            PackedSequence(
                tuple(chance.choices(range(load.vocabulary), k=load.length)),
                *(mask, logprobs, (chance.choice((-1.0, 1.0)),) * load.length, (None,) * load.length),
                *("policy", str(number), 0),
            )
            for number in range(load.streams)
        ]

    async def _play(self, engine: Any) -> None:
        """Play all episodes at once through the engine."""
        from hardwon.trainers.engines.base import Request

        load = self._load

        async def play_episode(number: int) -> None:
            name, chance = f"{number:04}", random.Random(number)
            prompt: tuple[int, ...] = ()
            for _ in range(load.turns):
                prompt = (*prompt, *chance.choices(range(load.vocabulary), k=load.seen))
                request = Request(prompt, max_tokens=load.said, session=name, chance=chance)
                prompt = (*prompt, *(await engine.generate(request)).tokens)
            await engine.end(name)

        # Begin all episodes before the first one generates, so that the engine decodes them as one batch.
        for number in range(load.episodes):
            await engine.begin(f"{number:04}")
        await asyncio.gather(*(play_episode(number) for number in range(load.episodes)))

    # -- clocks -----------------------------------------------------------------------------------

    def _time_rounds(self, what: str, work: Callable[[], object]) -> tuple[float, float | None]:
        """Return the median seconds per round and, on a GPU, the peak memory in GB."""
        import torch

        cuda, seconds = self._device == "cuda", []
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for number in range(-WARM, self._rounds):
            self._tell(f"{what}: round {max(0, number + 1)} of {self._rounds} ...")
            seconds.append(self._time_call(work))
        return median(seconds[WARM:]), round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else None

    def _time_call(self, work: Callable[[], object]) -> float:
        """Return the seconds that a call takes, including the work that it queues on the GPU."""
        import torch

        start = time.perf_counter()
        work()
        if self._device == "cuda":
            torch.cuda.synchronize()  # kernels run asynchronously
        return time.perf_counter() - start

    def _measure_flops(self, rows: int) -> float:
        """Return floating-point operations per second of a matrix multiplication in the model's own shape."""
        import torch

        load = self._load
        precision = torch.bfloat16 if self._device == "cuda" else torch.float32
        inputs = torch.randn(rows, load.hidden, device=self._device, dtype=precision)
        weight = torch.randn(load.intermediate, load.hidden, device=self._device, dtype=precision)
        best = min(self._time_call(lambda: torch.nn.functional.linear(inputs, weight)) for _ in range(20))
        return 2 * rows * load.hidden * load.intermediate / best

    def _measure_bandwidth(self) -> float:
        """Return the memory bandwidth in bytes per second, measured by copying a large buffer."""
        import torch

        size = 2**30 if self._device == "cuda" else 2**24
        source = torch.empty(size, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        # A copy reads and writes every byte, so it moves twice the size.
        return 2 * size / min(self._time_call(lambda: target.copy_(source)) for _ in range(10))


def _round_figure(value: float) -> float:
    """Round to three significant digits, or to a whole number from 100 on."""
    return round(value) if value >= 100 else float(f"{value:.3g}")


def _compute_mfu(used: float, peak: float | None) -> float | None:
    """Return the share of the peak that is used, or None if the peak is unknown."""
    return None if peak is None else round(used / peak, 3)


if __name__ == "__main__":
    typer.run(gpu)
