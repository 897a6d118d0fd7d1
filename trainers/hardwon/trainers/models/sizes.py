"""Memory and time that bases of several sizes take, computed from their shapes; nothing here is measured.

    python -m hardwon.trainers.models.sizes

A trained token costs two passes of the frozen base, forward and backward to the activations; the gradients of the
adapter are small beside them. Figures of a GPU assume bfloat16 and a share of its peak that training reaches.
"""

from dataclasses import dataclass

GIB = 2**30
RANK = 16
"""Rank of the adapters."""
BUDGET = 4096
"""Tokens of a micro-batch, as in `learner.budget`."""
CORE = 145e9, 0.65, 0.5
"""Floating-point operations per second of one core of the machine on which SmolLM2-135M was measured, and the shares of
them that reading and training reached there."""
GPU = 989e12, 0.3, 0.3
"""The same of an NVIDIA H100 in bfloat16; the shares are assumptions."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a decoder with grouped attention and a gated feed-forward layer."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    tied: bool = True
    norms: int = 0
    """Parameters of the norms of queries and keys, per layer."""
    biased: bool = False
    """Whether queries, keys and values have biases."""

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """Return the widths, in and out, of the linear layers of one block."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        wide = ((self.hidden, self.intermediate), (self.hidden, self.intermediate), (self.intermediate, self.hidden))
        return ((self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden), *wide)

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""
        block = sum(inside * outside for inside, outside in self.linears) + 2 * self.hidden + self.norms
        block += (self.heads + 2 * self.kv_heads) * self.head if self.biased else 0
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * block + tables + self.hidden

    def count_adapter(self, rank: int = RANK) -> int:
        """Return the number of parameters of an adapter of all linear layers but the head."""
        return self.layers * rank * sum(inside + outside for inside, outside in self.linears)

    def compute_cache(self, size: int) -> int:
        """Return the bytes of keys and values per token, for numbers of `size` bytes."""
        return 2 * self.layers * self.kv_heads * self.head * size

    def compute_activations(self, size: int) -> int:
        """Return the bytes per token that a backward pass needs: the inputs and outputs of every linear layer."""
        block = sum(inside + outside for inside, outside in self.linears) + 4 * self.hidden
        return self.layers * block * size

    def compute_training(self, size: int) -> float:
        """Return the bytes of training one role: base, adapter with Adam, and the activations of a micro-batch."""
        # 16 bytes: the parameter, its gradient and two averages in float32
        return self.parameters * size + 16 * self.count_adapter() + BUDGET * self.compute_activations(size)


BASES = (
    Shape("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49_152),
    Shape("Qwen2.5-0.5B", 896, 24, 14, 2, 64, 4864, 151_936, biased=True),
    Shape("Qwen3-0.6B", 1024, 28, 16, 8, 128, 3072, 151_936, norms=256),
    Shape("Qwen2.5-1.5B", 1536, 28, 12, 2, 128, 8960, 151_936, biased=True),
    Shape("Qwen3-1.7B", 2048, 28, 16, 8, 128, 6144, 151_936, norms=256),
    Shape("Qwen3-4B", 2560, 36, 32, 8, 128, 9728, 151_936, norms=256),
    Shape("Qwen2.5-7B", 3584, 28, 28, 4, 128, 18_944, 152_064, tied=False, biased=True),
    Shape("Qwen3-8B", 4096, 36, 32, 8, 128, 12_288, 151_936, tied=False, norms=256),
)
"""Shapes from the published configurations."""


def format_table() -> str:
    """Return the table as Markdown."""
    columns = (
        "base", "parameters", "weights fp32 / bf16, GiB", f"adapter r{RANK} with Adam, GiB per role",
        "cache of 1,000 tokens fp32 / bf16, MiB", "training fp32 / bf16, GiB",
        "1,000 tokens read / trained: one core, s", "the same: H100, ms",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for base in BASES:
        (core_reads, core_trains), (gpu_reads, gpu_trains) = (
            (2e3 * base.parameters / (rate * reads), 4e3 * base.parameters / (rate * trains))
            for rate, reads, trains in (CORE, GPU)
        )
        cells = (
            base.name,
            f"{base.parameters / 1e6:,.0f} M",
            f"{base.parameters * 4 / GIB:.1f} / {base.parameters * 2 / GIB:.1f}",
            f"{16 * base.count_adapter() / GIB:.2f}",
            f"{base.compute_cache(4) * 1000 / 2**20:.0f} / {base.compute_cache(2) * 1000 / 2**20:.0f}",
            f"{base.compute_training(4) / GIB:.1f} / {base.compute_training(2) / GIB:.1f}",
            f"{core_reads:.1f} / {core_trains:.1f}",
            f"{1000 * gpu_reads:.1f} / {1000 * gpu_trains:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_table())
