"""Plot the learning curves of an experiment: success by training episodes, with a confidence band per arm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardwon.memory.errors import MissingExtra

COLOURS = {
    "random": "#9aa0a6",
    "empty": "#c98a2b",
    "task": "#7a5ea8",
    "step": "#0b6e6e",
    "unguarded": "#b5546c",
    "skills": "#3f6fb5",
    "demonstrations": "#7a5195",
    "search": "#5a7d2b",
}
NAMES = {
    "random": "random",
    "empty": "no library",
    "task": "library, once a task",
    "step": "library, every step",
    "unguarded": "without guardrails",
    "skills": "with plans of skills",
    "demonstrations": "with bound demonstrations",
    "search": "looking ahead in a clone",
}


def draw_curve(arms: Mapping[str, Mapping[str, Any]], path: Path, title: str) -> None:
    """Write the plot of all arms to `path`, in the format of its suffix."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra.of("matplotlib", "plot") from error

    matplotlib.use("Agg")  # no display is needed, and no window opens
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=150)
    ends = []
    for name, arm in arms.items():
        at, success = zip(*arm["curve"], strict=True)
        colour = COLOURS.get(name, "#444444")
        flat = len(arm["curve_ci95"]) == 1
        axes.plot(at, success, color=colour, linewidth=2, marker=None if flat else "o", markersize=4, label=name)
        # An arm that does not learn is tested once; extend its interval over the whole axis.
        band = arm["curve_ci95"] if not flat else [[x, *arm["curve_ci95"][0][1:]] for x in at]
        axes.fill_between(
            [point[0] for point in band],
            [point[1] for point in band],
            [point[2] for point in band],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        ends.append((success[-1], at[-1], NAMES.get(name, name), colour))
    _label_ends(axes, ends)
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("training episodes")
    axes.set_ylabel("success on unseen tasks")
    # A name of a game may have signs of mathematics, half a character, or thousands of characters.
    printable = title[-200:].encode(errors="replace").decode()
    axes.set_title(printable, loc="left", fontsize=11, parse_math=False)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    # pyplot keeps every figure in memory until it is closed.
    pyplot.close(figure)


def _label_ends(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Label the last point of every arm, and move labels apart where they would overlap."""
    lowest = -1.0
    for success, at, name, colour in sorted(ends):
        lowest = max(success, lowest + 0.065)
        axes.annotate(
            name, (at, lowest), xytext=(6, 0), textcoords="offset points", color=colour, va="center", fontsize=9
        )
    axes.margins(x=0)
