"""Generating and training beside TRL and plain transformers: one model, one batch, one thread, one run.

A Qwen2 of 1.7M parameters with random weights; 16 episodes of four turns, each an observation of 24
tokens and 16 tokens that are said. Systems take turns in every round, and are compared by the CPU time
of their process in that round, so other work on the machine weighs on all of them alike. TRL runs in a
virtual environment of its own; where it does not install, its rows are left out and said so. What each
system does is in `bench_train_work` and `peers.trl_grpo`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hardwon.memory.errors import ConfigError, MissingExtra

BEGIN, END = "<!-- bench train: begin -->", "<!-- bench train: end -->"
WARM = 2
"""Rounds before the clock counts."""
TRL_LIMIT_S = 60.0
"""What TRL may take for a round; and ten times that to begin."""
TARGETS = (
    ("generated, over TRL's `rollout_func`", "generation", "ours", "trl", 1.5),
    ("generated, over a single turn of transformers", "generation", "ours", "raw", 0.9),
    ("trained, over TRL's", "training", "ours, ppo, what was said", "trl", 1.0),
    ("trained, over a raw forward and backward pass", "training", "ours, ppo, all tokens", "raw", 0.95),
)
"""What ours is to reach: phase, our row, the row it is divided by, at least."""

Row = dict[str, Any]
Tell = Callable[[str], None]
Seconds = dict[tuple[str, str], list[float]]
"""By phase and system, CPU seconds of every round."""


def measure(rounds: int, cache: Path | None, tell: Tell) -> Row:
    """Rows, the floor, and what is to be reached. TRL's environment is in `cache`; None leaves TRL out."""
    try:
        from . import work as work
    except ImportError as missing:
        raise MissingExtra.of(missing.name or "torch", "train") from missing

    with work.one_thread(), TemporaryDirectory(prefix="hardwon-train-") as folder:
        batch = work.Batch.drawn()
        systems = work.systems(batch)
        with _trl(batch, Path(folder), rounds, cache, tell) as trl:
            seconds, why = _rounds(systems, trl, rounds, tell)
        floor = work.floor(batch)
    rows = _rows(seconds, batch.tokens)
    return {"rows": rows, "targets": targets(rows), "floor": floor, **({"trl": why} if why else {})}


def _rounds(
    systems: Mapping[tuple[str, str], Callable[[], object]], trl: Any, rounds: int, tell: Tell
) -> tuple[Seconds, str]:
    """What every system took, and why TRL is not among them."""
    from benchmarks.peers.processes import ScriptDied

    seconds: Seconds = {name: [] for name in systems}
    process, why = (None, trl) if isinstance(trl, str) else (trl, "")
    for number in range(-WARM, rounds):
        tell(f"round {max(0, number + 1)} of {rounds} ...")
        spent = {}
        for name, work in systems.items():
            began = time.process_time()
            work()
            spent[name] = time.process_time() - began
        if process is not None:
            try:
                process.until("ready")
                process.go()
                spent["generation", "trl"], spent["training", "trl"] = process.until("step")
            except ScriptDied as error:
                process, why = None, str(error)
        if number >= 0:
            for name, value in spent.items():
                seconds.setdefault(name, []).append(value)
    return {name: values for name, values in seconds.items() if len(values) == rounds}, why


@contextmanager
def _trl(batch: Any, folder: Path, rounds: int, cache: Path | None, tell: Tell) -> Iterator[Any]:
    """TRL's process, ready for its first round, or why there is none."""
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
    limit_s = TRL_LIMIT_S * (10 + rounds)
    with Phase(python, ("trl_grpo", ""), "grpo", folder / "trl", folder / "data", [rounds + WARM], limit_s) as process:
        yield process


def _rows(seconds: Seconds, tokens: Mapping[str, int]) -> list[Row]:
    """A row for every system; ratios are medians of those of the rounds."""
    rows = []
    for (phase, system), spent in seconds.items():
        row: Row = {
            "phase": phase,
            "system": system,
            "tokens_per_cpu_s": round(tokens[phase] / median(spent)),
        }
        for base in ("raw", "trl"):
            others = seconds.get((phase, base))
            row[f"to_{base}"] = _ratio(others, spent) if others else None
        rows.append(row)
    return sorted(rows, key=lambda row: str(row["phase"]))


def _ratio(others: Sequence[float], spent: Sequence[float]) -> float:
    return round(median(other / own for other, own in zip(others, spent, strict=True)), 3)


def targets(rows: Sequence[Row]) -> list[Row]:
    """Each target beside what was measured; those that this run cannot tell are left out."""
    found = {(row["phase"], row["system"]): row for row in rows}
    return [
        {"what": what, "to reach": least, "measured": measured, "reached": "yes" if measured >= least else "no"}
        for what, phase, ours, base, least in TARGETS
        if (measured := found[phase, ours][f"to_{base}"]) is not None
    ]


def check_marks(path: Path) -> None:
    """Raise ConfigError when the file has no place for the tables."""
    if BEGIN not in path.read_text(encoding="utf-8"):
        raise ConfigError(f"{path} has no line {BEGIN!r}; add it and {END!r} where the tables belong.")


def write(path: Path, found: Row, command: str) -> None:
    """Replace the marked part of a Markdown file by the tables."""
    parts = [f"`{command}`:", markdown(found["rows"]), markdown(found["targets"])]
    parts.append(markdown([{"the floor": name, "": value} for name, value in found["floor"].items()]))
    if "trl" in found:
        parts.append(f"TRL: {found['trl']}.")
    fill(path, BEGIN, END, parts)


def fill(path: Path, begin: str, end: str, parts: Sequence[str]) -> None:
    """Put paragraphs between two marks of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n" + "\n\n".join(parts) + f"\n{end}{after}", encoding="utf-8")


def markdown(lines: Sequence[Row]) -> str:
    """Rows of the same columns as a table."""
    heads = list(lines[0])
    told = [" | ".join(_words(line[head]) for head in heads) for line in lines]
    named = " | ".join(head.replace("_", " ") for head in heads)
    return "\n".join([f"| {named} |", "|" + "---|" * len(heads), *(f"| {line} |" for line in told)])


def _words(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
