"""Define the pages of runs: live charts of training runs and experiments from the folder of runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from hardwon.apps.http.state import runs as run_folder

from . import charts
from .figures import name_group
from .frame import Room, framed, html, page
from .markup import Html, count, section, table, tag

FIRST = ("Success", "success", "score", "reward", "loss", "kl")
"""Words in the names of metrics that are shown first."""
_BESIDE = frozenset({"iteration", "kind"})

Curves = dict[str, list[list[float]]]


def add(api: FastAPI) -> None:
    """Add the list of runs and the page of a run."""
    folder: Path = api.state.runs

    @page(api, "/runs")
    async def runs(room: Room) -> None:
        # Reads no data, but checks the token and loads the namespaces of the menu.
        await room.read(lambda library: None)
        room.caller.must(None, "log")
        runs = await run_in_threadpool(run_folder.list_runs, folder)
        with framed(room, "Runs", "/runs"):
            html(section("Training runs and experiments", await run_in_threadpool(_render_list, folder, runs, room)))

    @page(api, "/runs/{name:path}")
    async def run(room: Room, name: str) -> None:
        await room.read(lambda library: None)
        room.caller.must(None, "log")
        kind, file = await run_in_threadpool(run_folder.find_run, folder, name)
        with framed(room, name, "/runs"):
            LiveCharts(kind, file)


def _render_list(folder: Path, runs: Sequence[Mapping[str, Any]], room: Room) -> Html:
    rows = [
        (
            tag("a", run["name"], href=room.link(f"/runs/{run['name']}")),
            "training" if run["kind"] == "train" else "experiment",
            _describe_result(folder / run["name"], run),
            tag("span", run["changed_at"][:19].replace("T", " "), class_="date"),
        )
        for run in runs
    ]
    empty = "There are no runs in this folder. Choose another with `hardwon serve LIBRARY --runs FOLDER`."
    return table(
        ("run", "kind", "unseen tasks solved, or newest figures", "last change (UTC)"),
        rows,
        caption="Runs",
        empty=empty,
    )


def _describe_result(folder: Path, run: Mapping[str, Any]) -> str:
    """Return what came out of a run: the success of each arm on unseen tasks, or the newest figures of a training."""
    try:
        if run["kind"] == "train":
            newest = json.loads(
                (folder / run_folder.KINDS["train"]).read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]
            )
            names = sorted(newest.keys() - _BESIDE, key=_sort_key)
            figures = [f"{name} {newest[name]:.3g}" for name in names if isinstance(newest[name], int | float)]
            return f"iteration {newest['iteration']}: {', '.join(figures[:3])}"
        arms = json.loads((folder / "result.json").read_text(encoding="utf-8"))["arms"]
        return "; ".join(f"{name_group(arm)}: {figures['success_rate']:.0%}" for arm, figures in arms.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"no result yet, {count(run['lines'], 'line')}"


class LiveCharts:
    """Charts of a run that are updated while it writes."""

    def __init__(self, kind: str, file: Path) -> None:
        self._kind = kind
        self._tail = run_folder.Tail(file)
        self._rows: list[dict[str, Any]] = []
        self._charts: dict[str, ui.echart] = {}
        self._chosen: list[str] = []
        self._head = html(tag("p", "Waiting for the first line …", class_="soft", role="status"))
        self._choice = ui.select([], multiple=True, label="Metrics", on_change=self._select_metrics).props(
            "outlined dense use-chips"
        )
        self._choice.set_visibility(kind == "train")
        self._choice.classes("box")
        self._place = ui.element("div").classes("two")
        ui.timer(1.0, self._poll, immediate=True)

    def _poll(self) -> None:
        lines = self._tail.lines()
        if lines:
            self._rows += [json.loads(line) for line in lines]
            self._update_charts()

    def _update_charts(self) -> None:
        figures = training(self._rows) if self._kind == "train" else experiment(self._rows)
        self._head.set_content(tag("p", _describe_progress(self._kind, self._rows), class_="soft", role="status"))
        # Curves with a single point come last.
        names = sorted(figures, key=lambda name: (max(map(len, figures[name].values())) < 2, *_sort_key(name)))
        if self._kind == "train" and names != self._choice.options:
            # The value reaches `_chosen` through `_select_metrics`, the handler of changes.
            self._choice.set_options(names, value=self._chosen or names[:6])
        for name in self._chosen if self._kind == "train" else names:
            if name not in self._charts:
                self._add_chart(name, figures[name])
            else:
                self._charts[name].options["series"] = charts.series(figures[name])
                self._charts[name].update()

    def _add_chart(self, name: str, curves: Curves) -> None:
        x = "iteration" if self._kind == "train" else "training episodes"
        heights = [y for points in curves.values() for _, y in points]
        # The y axis covers 0 to 1 for curves in this range that reach this value.
        share = min(heights) >= 0 and 0.3 <= max(heights) <= 1
        with self._place, ui.element("section"):
            html(tag("h2", name))
            self._charts[name] = (
                ui.echart(charts.lines(curves, x=x, y="", share=share))
                .classes("chart")
                # A quotation mark in the name would end the attribute.
                .props(f'role="img" aria-label="{name.replace(chr(34), "")}"')
            )

    def _select_metrics(self) -> None:
        self._chosen = [name for name in self._choice.options if name in (self._choice.value or [])]
        self._place.clear()
        self._charts.clear()
        self._update_charts()


def _sort_key(name: str) -> tuple[int, str]:
    return next((at for at, word in enumerate(FIRST) if word in name), len(FIRST)), name


def _describe_progress(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    last = rows[-1]
    if kind == "train":
        return f"Training, iteration {last['iteration']}. The page updates while the run writes."
    tested = sum(row.get("phase") == "test" for row in rows)
    return f"Experiment: {len(rows) - tested} training episodes, {tested} tests. The page updates while the run writes."


def training(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curves]:
    """Return the curves of every metric, one for each kind of line (train, eval, warmstart)."""
    metrics: dict[str, Curves] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _BESIDE and isinstance(value, int | float) and not isinstance(value, bool):
                points = metrics.setdefault(name, {}).setdefault(str(row.get("kind", "train")), [])
                points.append([row["iteration"], value])
    return metrics


def experiment(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curves]:
    """Return the learning curves of `hardwon run`: test success and steps by training episodes, for every arm."""
    tests: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    last = 0
    for row in rows:
        if row.get("phase") == "test" and row["success"] is not None:
            tests.setdefault(row["arm"], {}).setdefault(row["trained"], []).append(row)
            last = max(last, row["trained"])

    def curve(arm: str, name: str) -> list[list[float]]:
        points = [[at, round(sum(row[name] for row in r) / len(r), 4)] for at, r in sorted(tests[arm].items())]
        return points if len(points) > 1 else [*points, [last, points[0][1]]]  # the arm does not learn: draw a constant

    named = {"success": "Share of unseen tasks that were solved", "steps": "Mean number of steps of a test"}
    if not tests:
        return {}
    return {title: {name_group(arm): curve(arm, name) for arm in tests} for name, title in named.items()}
