"""Format tables and plot learning curves of the coin experiment."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Metrics by stage and seed; may be nested."""
CURVES = {"C": ("together", "frozen extractor"), "D": ("grpo", "slea")}
"""Names of the runs to plot, by stage."""
COLOURS = ("#0b6e6e", "#c98a2b", "#7a5ea8", "#9aa0a6")
SMOOTH = 5
"""Window of the moving average, in updates."""


def format_tables(results: Results) -> str:
    """Return a markdown table per stage, with a row per condition and a column per seed.

    A success rate is followed by its paired difference ± standard error, if it has one. The standard error in the last
    column is the mean over seeds, an upper bound that treats the seeds as fully correlated.
    """
    lines: list[str] = []
    for stage, by_seed in results.items():
        lines += [f"## {stage}", "", f"| | {' | '.join(f'seed {seed}' for seed in by_seed)} | mean |"]
        lines.append("|---" * (len(by_seed) + 2) + "|")
        for name, cells in collect_rows(by_seed.values()).items():
            lines.append(f"| {name} | {' | '.join(map(format_cell, cells))} | {format_cell(compute_mean(cells))} |")
        lines.append("")
    return "\n".join(lines)


Cell = tuple[float, float | None, float | None]
"""A value; for success rates also the paired difference to the base and its standard error, else None."""


def collect_rows(by_seed: Any) -> dict[str, list[Cell]]:
    """Return the values of all seeds by row name."""
    rows: dict[str, list[Cell]] = {}
    for figures in by_seed:
        for name, cell in flatten(figures):
            rows.setdefault(name, []).append(cell)
    return rows


def flatten(figures: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Cell]]:
    """Yield each value with its path as a readable name; learning curves are skipped."""
    if "success" in figures:
        compared = figures["se"] > 0
        yield path, (figures["success"], figures["to_base"] if compared else None, figures["se"] if compared else None)
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path} {name}".strip())
        elif name not in ("success", "to_base", "se", "curve"):
            label = name.replace("_", " ")
            yield f"{path}: {label}" if path else label, (float(value), None, None)


def format_cell(cell: Cell) -> str:
    """Format a cell, for example `0.960 (+0.250 ± 0.043)`."""
    value, difference, error = cell
    return f"{value:.3f}" if difference is None else f"{value:.3f} ({difference:+.3f} ± {error:.3f})"


def compute_mean(cells: Sequence[Cell]) -> Cell:
    """Return the mean of each component over the seeds; missing components are ignored."""
    means = [
        fmean(present) if (present := [x for x in values if x is not None]) else None
        for values in zip(*cells, strict=True)
    ]
    return means[0] or 0.0, means[1], means[2]


def draw_curves(results: Results, folder: Path) -> list[Path]:
    """Plot success in training, the mean over seeds ± standard deviation, as `proof-c.png` and so on.

    Args:
        results: Metrics by stage and seed.
        folder: Output folder; created if missing.

    Returns:
        The paths of the plots.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for stage, names in CURVES.items():
        if stage not in results:
            continue
        figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
        lines = dict(build_lines(results[stage], names))
        for colour, (name, seeds) in zip(COLOURS, lines.items(), strict=False):
            points = [smooth(seed) for seed in seeds]
            middle = [fmean(column) for column in zip(*points, strict=True)]
            spread = [stdev(column) if len(column) > 1 else 0.0 for column in zip(*points, strict=True)]
            at = range(SMOOTH, SMOOTH + len(middle))
            axes.plot(at, middle, color=colour, linewidth=2, label=name)
            axes.fill_between(
                at,
                [m - s for m, s in zip(middle, spread, strict=True)],
                [m + s for m, s in zip(middle, spread, strict=True)],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        axes.set_ylim(0.4, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel(f"updates, each point the mean of {SMOOTH}")
        axes.set_ylabel("success in training")
        axes.set_title("Coin: " + " and ".join(names), loc="left", fontsize=11)
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
        figure.tight_layout()
        paths.append(folder / f"proof-{stage.lower()}.png")
        figure.savefig(paths[-1])
        pyplot.close(figure)
    return paths


def build_lines(
    by_seed: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, list[list[float]]]]:
    """Yield the label and the curves by seed of each run, with one line per arm if a run has several."""
    for name in names:
        curves = [figures[name]["curve"] for figures in by_seed.values()]
        if isinstance(curves[0][0], Mapping):
            for arm, label in (("memory", "shown memory"), ("control", "shown nothing")):
                yield f"{name}, {label}", [[point[arm] for point in curve] for curve in curves]
        else:
            yield name, [list(curve) for curve in curves]


def smooth(values: Sequence[float]) -> list[float]:
    """Return the moving average over SMOOTH values."""
    return [fmean(values[at - SMOOTH : at]) for at in range(SMOOTH, len(values) + 1)]
