"""Generating and training on a GPU: a model of Qwen3-0.6B's shape with random weights, a LoRA of rank 16, bf16.

    hardwon bench gpu --write docs/benchmarks.md
    python -m benchmarks.training.gpu --json       # where only torch, transformers and peft are

Training is the learner's step, PPO on every token of 16 streams of 1,024. Generation is four turns of
128 episodes through the engine, 128 tokens seen and 64 said in each, with the adapter on. Beside each
is its floor: what the matrix multiplications, or reading weights and caches, take at the speed that
this device shows for them. MFU is of the device's published bf16 peak without sparsity.
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

from benchmarks.peers.report import figure
from hardwon.apps.shared.common import AsJson, out, say_json, table, tell
from hardwon.memory.errors import ConfigError, MissingExtra

from .train import fill, markdown

BEGIN, END = "<!-- bench gpu: begin -->", "<!-- bench gpu: end -->"
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Floating-point operations a second in bf16, dense, by a part of the device's name."""
PUBLIC = 13_300
"""Trained tokens a second that were published for such a model on one H100, at 11% MFU."""
RANK = 16
WARM = 2
"""Rounds before the clock counts."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """A model's shape, and what is done with it."""

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
    """Tokens of a stream that is trained on."""
    episodes: int = 128
    turns: int = 4
    seen: int = 128
    said: int = 64

    @property
    def weights(self) -> int:
        """Numbers in the matrices of the layers."""
        attention = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def forward_flops(self, length: float) -> float:
        """Floating-point operations of reading a token and scoring the next, in a text of this length."""
        attended = 4 * self.layers * self.heads * self.head * length / 2
        return 2 * (self.weights + self.hidden * self.vocabulary) + attended


TINY = Load(32, 2, 4, 2, 8, 48, 64, streams=2, length=24, episodes=3, turns=2, seen=4, said=3)


def gpu(
    rounds: Annotated[int, typer.Option(min=1, help="Steps, and batches of episodes, that are timed.")] = 5,
    tiny: Annotated[bool, typer.Option(help="A model of a few thousand weights, on a CPU: does it run?")] = False,
    write: Annotated[Path | None, typer.Option(help="A Markdown file whose marked part gets the table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens a second, MFU and memory on a GPU, for a model of Qwen3-0.6B's shape with a LoRA."""
    if write is not None and BEGIN not in write.read_text(encoding="utf-8"):
        raise ConfigError(f"{write} has no line {BEGIN!r}; add it and {END!r} where the table belongs.")
    rows = measure(TINY if tiny else Load(), "cpu" if tiny else "cuda", rounds, tell)
    if write is not None:
        fill(write, BEGIN, END, [f"`hardwon bench gpu --rounds {rounds}`:", markdown(rows)])
    if as_json:
        say_json({"rows": rows})
    else:
        out().print(table(*rows[0], rows=[list(map(str, row.values())) for row in rows]))


def measure(load: Load, device: str, rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Figures with their names, training before generation. Raises ConfigError where there is no such device."""
    try:
        import torch
    except ImportError as missing:
        raise MissingExtra.of("torch", "train") from missing
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no GPU that torch can use; `--tiny` runs the same on a CPU with a tiny model.")
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(f"{name}: making the model ...")
    bench = _Bench(load, device, build(load, device), rounds, tell)
    peak = next((peak for part, peak in PEAKS.items() if part in name), None)
    figures = {
        "device": name,
        "weights of the layers' matrices, M": figure(load.weights / 1e6),
        **bench.training(peak),
        **bench.generation(),
    }
    return [{"what": what, "value": value} for what, value in figures.items() if value is not None]


def build(load: Load, device: str) -> Any:
    """The model with an adapter for a role `policy`: bf16 on a GPU, float32 on a CPU."""
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
    maker: Any = AutoModelForCausalLM
    with torch.device(device):
        model = maker.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    return add_adapter(model, "policy", RANK).to(device)


class _Bench:
    """The rounds of a load on a device."""

    def __init__(self, load: Load, device: str, model: Any, rounds: int, tell: Callable[[str], None]) -> None:
        self._load, self._device, self._model = load, device, model
        self._rounds, self._tell = rounds, tell

    def training(self, peak: float | None) -> Row:
        """The learner's step, in micro-batches as large as the memory allows."""
        load = self._load
        tokens = load.streams * load.length
        budget, seconds, memory = self._trained(tokens)
        # the base is frozen: its gradient goes through it, and none is made for it
        needed = 2 * load.forward_flops(load.length)
        rate = tokens / seconds
        reached = self._multiplied(tokens)
        return {
            "trained tokens a second": round(rate),
            f"times the {PUBLIC:,} that were published for one H100": figure(rate / PUBLIC),
            "operations that a trained token needs, G": figure(needed / 1e9),
            "MFU by those": _share(rate * needed, peak),
            "MFU as if all weights had gradients": _share(1.5 * rate * needed, peak),
            "matrices here, TFLOP/s": figure(reached / 1e12),
            "floor: trained tokens a second at that speed": round(reached / needed),
            "tokens of a micro-batch": budget,
            "memory of training, GB": memory,
        }

    def _trained(self, budget: int) -> tuple[int, float, float | None]:
        """Tokens of a micro-batch, median seconds of a step, GB."""
        import torch

        from hardwon.trainers.algorithms.learner import Learner, LearnerSettings
        from hardwon.trainers.models.adapters import parameters_of

        settings = LearnerSettings(lr=1e-5, budget=budget)
        learner = Learner(self._model, parameters_of(self._model, "policy"), settings, role="policy")
        given = self._streams()
        try:
            return budget, *self._timed("training", lambda: learner.step(given))
        except torch.OutOfMemoryError:
            if budget <= self._load.length:
                raise
        torch.cuda.empty_cache()
        return self._trained(budget // 2)

    def generation(self) -> Row:
        """Episodes of several turns through the engine."""
        from hardwon.trainers.engines.local import LocalEngine

        load = self._load
        said = load.episodes * load.turns * load.said
        engine = LocalEngine(self._model, None)
        seconds, memory = self._timed("generation", lambda: asyncio.run(self._play(engine)))
        a_round = seconds / (load.turns * load.said)
        half = load.turns * (load.seen + load.said) // 2  # what an episode has read on average
        cached = load.episodes * half * load.layers * 2 * load.kv_heads * load.head
        numbers = load.weights + load.hidden * load.vocabulary + cached
        floor = numbers * (2 if self._device == "cuda" else 4) / self._copied()
        return {
            "generated tokens a second": round(said / seconds),
            f"a decoding round of {load.episodes} episodes, ms": figure(1000 * a_round),
            "floor of it: reading weights and caches, ms": figure(1000 * floor),
            "memory of generation, GB": memory,
        }

    def _streams(self) -> Sequence[Any]:
        from hardwon.trainers.algorithms.samples import PackedSequence

        load, chance = self._load, random.Random(0)
        mask, even = (False, *(True,) * (load.length - 1)), (-12.0,) * load.length
        return [
            PackedSequence(
                tuple(chance.choices(range(load.vocabulary), k=load.length)),
                *(mask, even, (chance.choice((-1.0, 1.0)),) * load.length, (None,) * load.length),
                *("policy", str(number), 0),
            )
            for number in range(load.streams)
        ]

    async def _play(self, engine: Any) -> None:
        from hardwon.trainers.engines.base import Request

        load = self._load

        async def episode(number: int) -> None:
            name, chance = f"{number:04}", random.Random(number)
            prompt: tuple[int, ...] = ()
            for _ in range(load.turns):
                prompt = (*prompt, *chance.choices(range(load.vocabulary), k=load.seen))
                request = Request(prompt, max_tokens=load.said, session=name, chance=chance)
                prompt = (*prompt, *(await engine.generate(request)).tokens)
            await engine.end(name)

        for number in range(load.episodes):
            await engine.begin(f"{number:04}")
        await asyncio.gather(*(episode(number) for number in range(load.episodes)))

    # -- clocks -----------------------------------------------------------------------------------

    def _timed(self, what: str, work: Callable[[], object]) -> tuple[float, float | None]:
        """Median seconds of a round, and GB at the most, on a GPU."""
        import torch

        cuda, spent = self._device == "cuda", []
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for number in range(-WARM, self._rounds):
            self._tell(f"{what}: round {max(0, number + 1)} of {self._rounds} ...")
            spent.append(self._seconds(work))
        return median(spent[WARM:]), round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else None

    def _seconds(self, work: Callable[[], object]) -> float:
        import torch

        began = time.perf_counter()
        work()
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def _multiplied(self, rows: int) -> float:
        """Floating-point operations a second of a matrix of the model's own shape."""
        import torch

        load = self._load
        precision = torch.bfloat16 if self._device == "cuda" else torch.float32
        entering = torch.randn(rows, load.hidden, device=self._device, dtype=precision)
        weight = torch.randn(load.intermediate, load.hidden, device=self._device, dtype=precision)
        best = min(self._seconds(lambda: torch.nn.functional.linear(entering, weight)) for _ in range(20))
        return 2 * rows * load.hidden * load.intermediate / best

    def _copied(self) -> float:
        """Bytes a second that memory gives, by copying many."""
        import torch

        size = 2**30 if self._device == "cuda" else 2**24
        source = torch.empty(size, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return 2 * size / min(self._seconds(lambda: target.copy_(source)) for _ in range(10))


def _share(used: float, peak: float | None) -> float | None:
    return None if peak is None else round(used / peak, 3)


if __name__ == "__main__":
    typer.run(gpu)
