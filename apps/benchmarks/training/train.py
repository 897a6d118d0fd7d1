"""Compare generation and training with TRL and plain transformers: one model, one batch, one thread.

The model is a Qwen2 of 1.7M parameters with random weights, or a pretrained one. The batch is 16 episodes (4 with a
pretrained model) of four turns, each with an observation of 24 tokens and a completion of 16 tokens. Systems take turns
in every round and are compared by the CPU time of their process in that round, so that other load on the machine
affects all of them alike. TRL runs in its own virtual environment; if it cannot be installed, its rows are left out and
the reason is reported. See `benchmarks.training.work` and `benchmarks.peers.trl_grpo` for the work of each system.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness.tables import Place, Row, format_markdown
from benchmarks.harness.timing import take_turns, time_cpu_s
from hardwon.memory.errors import MissingExtra

WARM = 2
"""Untimed rounds before the measurement."""
TRL = "generation and training", "trl"
"""Name of the arm whose process reports both phases at once."""
TRL_LIMIT_S = 60.0
"""Time limit in seconds for a round of TRL; its start may take ten times as long."""
BASE_TIMES = 10
"""Factor of both limits with a pretrained base."""
TARGETS = (
    ("generated, over TRL's `rollout_func`", "generation", "ours", "trl", 1.5),
    ("generated, over a single turn of transformers", "generation", "ours", "raw", 0.9),
    ("trained, over TRL's", "training", "ours, ppo, what was said", "trl", 1.0),
    ("trained, over a raw forward and backward pass", "training", "ours, ppo, all tokens", "raw", 0.95),
)
"""Targets: name, phase, our row, baseline row, and the least ratio of our throughput to the baseline's."""

Tell = Callable[[str], None]
Seconds = dict[tuple[str, str], list[float]]
"""CPU seconds of every round, by phase and system."""


def measure(rounds: int, cache: Path | None, tell: Tell, base: Path | None = None) -> Row:
    """Run all systems, and compare their throughput.

    Args:
        rounds: number of timed rounds.
        cache: folder of TRL's virtual environment; None leaves TRL out.
        tell: function that receives lines of progress.
        base: Hugging Face folder of a pretrained model; None for a small model with random weights.

    Returns:
        `rows` (one per system), `targets`, `floor` (limits of this machine) and, without TRL, the reason as `trl`.

    Raises:
        ConfigError: The folder holds no model.
        MissingExtra: torch or transformers is not installed.
    """
    try:
        from . import work as work
    except ImportError as missing:
        raise MissingExtra.of(missing.name or "torch", "train") from missing

    with work.use_one_thread(), TemporaryDirectory(prefix="hardwon-train-") as folder:
        batch = work.Batch.draw(base)
        systems = work.build_systems(batch)
        with _open_trl(batch, Path(folder), rounds, cache, tell, BASE_TIMES if base else 1) as trl:
            seconds, why = _run_rounds(systems, trl, rounds, tell)
        floor = work.measure_floor(batch)
    rows = _build_rows(seconds, batch.tokens)
    return {"rows": rows, "targets": targets(rows), "floor": floor, **({"trl": why} if why else {})}


def _run_rounds(
    systems: Mapping[tuple[str, str], Callable[[], object]], trl: Any, rounds: int, tell: Tell
) -> tuple[Seconds, str]:
    """Return the CPU seconds of every system by round, and the reason if TRL is missing."""
    from benchmarks.peers.processes import ScriptDied

    seconds: Seconds = {name: [] for name in systems}
    process, why = (None, trl) if isinstance(trl, str) else (trl, "")

    def step_trl() -> Any:
        nonlocal process, why
        if process is None:
            return None
        try:
            process.until("ready")
            process.go()
            return process.until("step")
        except ScriptDied as error:  # go on without TRL: our own rows are still valid
            process, why = None, str(error)
            return None

    arms: dict[tuple[str, str], Callable[[], Any]] = {name: partial(time_cpu_s, work) for name, work in systems.items()}
    for number, spent in take_turns({**arms, TRL: step_trl}, rounds, WARM):
        tell(f"round {number + 1} of {rounds} ...")
        if steps := spent.pop(TRL):
            spent["generation", "trl"], spent["training", "trl"] = steps
        for name, value in spent.items():
            seconds.setdefault(name, []).append(value)
    # Ratios need a value from every round, so a TRL that died midway has no row.
    return {name: values for name, values in seconds.items() if len(values) == rounds}, why


@contextmanager
def _open_trl(batch: Any, folder: Path, rounds: int, cache: Path | None, tell: Tell, times: int) -> Iterator[Any]:
    """Start TRL's process and yield it, or yield the reason why it is missing."""
    from benchmarks.peers.environments import NotInstalled, python_of
    from benchmarks.peers.processes import Phase

    if cache is None:
        yield "left out"
        return
    try:
        python = python_of("trl", cache, tell)
    except NotInstalled as error:
        yield str(error)
        return
    batch.save(folder / "data")
    limit_s = times * TRL_LIMIT_S * (10 + rounds)
    with Phase(python, ("trl_grpo", ""), "grpo", folder / "trl", folder / "data", [rounds + WARM], limit_s) as process:
        yield process


def _build_rows(seconds: Seconds, tokens: Mapping[str, int]) -> list[Row]:
    """Return a row per system; a ratio is the median of the ratios within each round."""
    rows = []
    for (phase, system), spent in seconds.items():
        row: Row = {
            "phase": phase,
            "system": system,
            "tokens_per_cpu_s": round(tokens[phase] / median(spent)),
        }
        for base in ("raw", "trl"):
            baseline = seconds.get((phase, base))
            row[f"to_{base}"] = _median_ratio(baseline, spent) if baseline else None
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["phase"]))


def _median_ratio(baseline: Sequence[float], spent: Sequence[float]) -> float:
    """Return the median of `baseline / own` over the rounds."""
    return round(median(base / own for base, own in zip(baseline, spent, strict=True)), 3)


def targets(rows: Sequence[Row]) -> list[Row]:
    """Return every target with its measured value; targets without a measurement are left out."""
    by_system = {(row["phase"], row["system"]): row for row in rows}
    return [
        {"what": what, "to reach": least, "measured": measured, "reached": "yes" if measured >= least else "no"}
        for what, phase, ours, base, least in TARGETS
        if (measured := by_system[phase, ours][f"to_{base}"]) is not None
    ]


def write(place: Place, results: Row, command: str) -> None:
    """Write the tables into a page."""
    floor = [{"the floor": name, "": value} for name, value in results["floor"].items()]
    parts = [f"`{command}`:", *map(format_markdown, (results["rows"], results["targets"], floor))]
    if "trl" in results:
        parts.append(f"TRL: {results['trl']}.")
    place.fill("\n\n".join(parts))
