"""Memory and time of an iteration by GPU, computed from shapes and data sheets; nothing here is measured.

    python -m hardwon.trainers.models.gpus

A recipe is one policy with an adapter that trains and generates on one GPU in bfloat16, in `EPISODES` episodes at once.

    memory = weights + adapter with Adam + activations of a micro-batch + cache of all episodes
    read   = 2 * parameters * tokens read / (COMPUTE * peak)
    decode = sampled tokens of one episode * (weights + half of the full cache) / (MEMORY * bandwidth)
    train  = 4 * parameters * tokens / (COMPUTE * peak)
"""

from dataclasses import dataclass

from .sizes import BASES, BUDGET, GIB, Shape

COMPUTE, MEMORY = 0.3, 0.6
"""Shares of a GPU's peak compute and of its bandwidth that are reached; assumptions."""
USABLE = 0.9
"""Share of a GPU's memory that a run may take."""
EPISODES, READ, SAMPLED = 64, 1700, 300
"""The iteration: 8 groups of 8 episodes, each of which reads and samples so many tokens."""
RECIPES = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet describes it."""

    name: str
    memory: float
    """In GiB."""
    peak: float
    """Dense bfloat16 operations per second."""
    bandwidth: float
    """Bytes per second."""


GPUS = (
    Gpu("RTX 4090", 24, 165e12, 1.008e12),
    Gpu("L40S", 48, 362e12, 0.864e12),
    Gpu("A100 80 GB", 80, 312e12, 2.039e12),
    Gpu("H100 SXM", 80, 989e12, 3.35e12),
)


@dataclass(frozen=True, slots=True)
class IterationEstimate:
    """Memory and time of one iteration of a recipe."""

    memory: float
    """In bytes, with `learner.budget` as it is by default."""
    rollouts: float
    """Seconds of reading and decoding."""
    training: float
    """Seconds of the update."""


def estimate(base: Shape, gpu: Gpu) -> IterationEstimate:
    """Return what an iteration takes on a GPU."""
    cache = EPISODES * (READ + SAMPLED) * base.compute_cache(2)
    memory = base.compute_training(2) + cache
    read = 2 * base.parameters * EPISODES * READ / (COMPUTE * gpu.peak)
    decode = SAMPLED * (2 * base.parameters + cache / 2) / (MEMORY * gpu.bandwidth)
    training = 4 * base.parameters * EPISODES * (READ + SAMPLED) / (COMPUTE * gpu.peak)
    return IterationEstimate(memory, read + decode, training)


def find_budget(base: Shape, gpu: Gpu) -> int:
    """Return the largest `learner.budget` that fits, in thousands of tokens up to the default; 0 if none does."""
    fixed = estimate(base, gpu).memory - BUDGET * base.compute_activations(2)
    room = USABLE * gpu.memory * GIB - fixed
    return min(BUDGET, int(room / base.compute_activations(2)) // 1024 * 1024) if room > 0 else 0


def format_recipes() -> str:
    """Return the table as Markdown."""
    columns = (
        "base",
        "GPU",
        "memory, GiB",
        "learner.budget that fits",
        "rollouts, s",
        "update, s",
        "100 iterations, min",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for base in (base for base in BASES if base.name in RECIPES):
        for gpu in GPUS:
            numbers, budget = estimate(base, gpu), find_budget(base, gpu)
            minutes = 100 * (numbers.rollouts + numbers.training) / 60
            cells = (
                base.name, gpu.name, f"{numbers.memory / GIB:.1f} of {gpu.memory:.0f}",
                f"{budget:,}" if budget else "none: too small", f"{numbers.rollouts:.1f}", f"{numbers.training:.1f}",
                f"{minutes:.0f}" if budget else "-",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_recipes())
