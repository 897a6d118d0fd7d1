"""Tables and pictures of the proof on coin: a row a condition, a column a seed; success over updates."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By stage and seed, figures by name, nested."""
CURVES = {"C": ("together", "frozen extractor"), "D": ("grpo", "slea")}
"""Runs whose curves are drawn, by stage."""
COLOURS = ("#0b6e6e", "#c98a2b", "#7a5ea8", "#9aa0a6")
SMOOTH = 5
"""Updates whose mean is a point of a curve."""


def tables(results: Results) -> str:
    """A markdown table a stage. A success is beside its paired difference ± standard error, where there is one;
    the mean's standard error is that of the seeds' mean, as if the seeds shared all their chance."""
    lines: list[str] = []
    for stage, by_seed in results.items():
        lines += [f"## {stage}", "", f"| | {' | '.join(f'seed {seed}' for seed in by_seed)} | mean |"]
        lines.append("|---" * (len(by_seed) + 2) + "|")
        for name, cells in rows(by_seed.values()).items():
            lines.append(f"| {name} | {' | '.join(map(shown, cells))} | {shown(mean(cells))} |")
        lines.append("")
    return "\n".join(lines)


Cell = tuple[float, float | None, float | None]
"""A figure, and for a success its difference to what it is compared with and that one's standard error."""


def rows(by_seed: Any) -> dict[str, list[Cell]]:
    """Every figure by name, one for each seed."""
    found: dict[str, list[Cell]] = {}
    for figures in by_seed:
        for name, cell in flat(figures):
            found.setdefault(name, []).append(cell)
    return found


def flat(figures: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Cell]]:
    """Every figure with its name in words; curves are left to the pictures."""
    if "success" in figures:
        compared = figures["se"] > 0
        yield path, (figures["success"], figures["to_base"] if compared else None, figures["se"] if compared else None)
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path} {name}".strip())
        elif name not in ("success", "to_base", "se", "curve"):
            said = name.replace("_", " ")
            yield f"{path}: {said}" if path else said, (float(value), None, None)


def shown(cell: Cell) -> str:
    """`0.960 (+0.250 ± 0.043)`"""
    value, difference, error = cell
    return f"{value:.3f}" if difference is None else f"{value:.3f} ({difference:+.3f} ± {error:.3f})"


def mean(cells: Sequence[Cell]) -> Cell:
    """Of each of the three."""
    found = [
        fmean(known) if (known := [x for x in each if x is not None]) else None for each in zip(*cells, strict=True)
    ]
    return found[0] or 0.0, found[1], found[2]


def draw_curves(results: Results, folder: Path) -> list[Path]:
    """`proof-C.png` and so on: success in training, mean of the seeds ± their deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for stage, names in CURVES.items():
        if stage not in results:
            continue
        figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
        lines = dict(lines_of(results[stage], names))
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
        made.append(folder / f"proof-{stage.lower()}.png")
        figure.savefig(made[-1])
        pyplot.close(figure)
    return made


def lines_of(by_seed: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Iterator[tuple[str, list[list[float]]]]:
    """A line for every run, and for each of its arms where it has several: a curve for each seed."""
    for name in names:
        curves = [figures[name]["curve"] for figures in by_seed.values()]
        if isinstance(curves[0][0], Mapping):
            for arm, said in (("memory", "shown memory"), ("control", "shown nothing")):
                yield f"{name}, {said}", [[point[arm] for point in curve] for curve in curves]
        else:
            yield name, [list(curve) for curve in curves]


def smooth(values: Sequence[float]) -> list[float]:
    """Means of SMOOTH in a row."""
    return [fmean(values[at - SMOOTH : at]) for at in range(SMOOTH, len(values) + 1)]
