"""Runs: training as it goes on, and experiments, read from the folder of runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from nicegui import ui

from hardwon.apps.http.state import runs as run_folder

from . import charts
from .frame import Room, framed, html, page
from .markup import Html, section, table, tag

POLL_S = 1.0
"""Seconds between two looks at a run that goes on."""
FIRST = ("Success", "success", "score", "reward", "loss", "kl")
"""Words of the metrics that are shown before others."""
CHARTS = 6
"""Charts of a training run at first; the others are chosen."""
SHARE = 0.3
"""A curve that reaches this and stays within 0 and 1 is drawn on all of that."""
_BESIDE = frozenset({"iteration", "kind"})

Curves = dict[str, list[list[float]]]


def add(api: FastAPI) -> None:
    """The list of runs, and a page for each."""
    folder: Path = api.state.runs

    @page(api, "/runs")
    async def runs(room: Room) -> None:
        await room.read(lambda library: None)
        room.caller.must(None, "read")
        found = await run_in_threadpool(run_folder.found, folder)
        with framed(room, "Runs", "/runs"):
            html(section("Training runs and experiments", _listed(found, room)))

    @page(api, "/runs/{name:path}")
    async def one(room: Room, name: str) -> None:
        await room.read(lambda library: None)
        room.caller.must(None, "read")
        kind, file = await run_in_threadpool(run_folder.file_of, folder, name)
        with framed(room, name, "/runs"):
            Live(kind, file)


def _listed(found: Sequence[Mapping[str, Any]], room: Room) -> Html:
    rows = [
        (
            tag("a", one["name"], href=room.link(f"/runs/{one['name']}")),
            "training" if one["kind"] == "train" else "experiment",
            one["lines"],
            tag("span", one["changed_at"][:19].replace("T", " "), class_="date"),
        )
        for one in found
    ]
    empty = "There are no runs in this folder: give another with `hardwon serve LIBRARY --runs FOLDER`."
    return table(("run", "kind", "lines", "last line (UTC)"), rows, caption="Runs", numbers=("lines",), empty=empty)


class Live:
    """The charts of a run, which grow while it writes."""

    def __init__(self, kind: str, file: Path) -> None:
        self._kind = kind
        self._tail = run_folder.Tail(file)
        self._rows: list[dict[str, Any]] = []
        self._charts: dict[str, ui.echart] = {}
        self._chosen: list[str] = []
        self._head = html("")
        self._choice = ui.select([], multiple=True, label="What to show", on_change=self._choose).props(
            "outlined dense use-chips"
        )
        self._choice.set_visibility(kind == "train")
        self._choice.classes("box")
        self._place = ui.element("div").classes("two")
        ui.timer(POLL_S, self._look, immediate=True)

    def _look(self) -> None:
        lines = self._tail.lines()
        if lines:
            self._rows += [json.loads(line) for line in lines]
            self._show()

    def _show(self) -> None:
        found = training(self._rows) if self._kind == "train" else experiment(self._rows)
        self._head.set_content(tag("p", _said(self._kind, self._rows), class_="soft", role="status"))
        names = sorted(found, key=lambda name: (max(map(len, found[name].values())) < 2, *_order(name)))
        if self._kind == "train" and names != self._choice.options:
            self._choice.set_options(names, value=self._chosen or names[:CHARTS])
        for name in self._chosen if self._kind == "train" else names:
            if name not in self._charts:
                self._draw(name, found[name])
            else:
                self._charts[name].options["series"] = charts.series(found[name])
                self._charts[name].update()

    def _draw(self, name: str, curves: Curves) -> None:
        x = "iteration" if self._kind == "train" else "episodes learnt from"
        heights = [y for points in curves.values() for _, y in points]
        share = min(heights) >= 0 and SHARE <= max(heights) <= 1
        with self._place, ui.element("section"):
            html(tag("h2", name))
            self._charts[name] = (
                ui.echart(charts.lines(curves, x=x, y="", share=share))
                .classes("chart")
                .props(f'role="img" aria-label="{name.replace(chr(34), "")}"')
            )

    def _choose(self) -> None:
        self._chosen = [name for name in self._choice.options if name in (self._choice.value or [])]
        self._place.clear()
        self._charts.clear()
        self._show()


def _order(name: str) -> tuple[int, str]:
    return next((at for at, word in enumerate(FIRST) if word in name), len(FIRST)), name


def _said(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    last = rows[-1]
    if kind == "train":
        return f"Training, iteration {last['iteration']}. New lines are shown as they are written."
    tested = sum(row.get("phase") == "test" for row in rows)
    return f"Experiment: {len(rows) - tested} episodes learnt from, {tested} tests. New ones are shown as they end."


def training(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curves]:
    """By metric, a curve for every kind of line (train, eval, warmstart) that has it."""
    found: dict[str, Curves] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _BESIDE and isinstance(value, int | float) and not isinstance(value, bool):
                points = found.setdefault(name, {}).setdefault(str(row.get("kind", "train")), [])
                points.append([row["iteration"], value])
    return found


def experiment(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curves]:
    """The learning curves of `hardwon run`: by arm, success in tests after so many episodes, and their steps."""
    tests: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    last = 0
    for row in rows:
        if row.get("phase") == "test" and row["success"] is not None:
            tests.setdefault(row["arm"], {}).setdefault(row["trained"], []).append(row)
            last = max(last, row["trained"])

    def curve(arm: str, name: str) -> list[list[float]]:
        points = [[at, round(sum(row[name] for row in r) / len(r), 4)] for at, r in sorted(tests[arm].items())]
        return points if len(points) > 1 else [*points, [last, points[0][1]]]  # learns nothing: the same everywhere

    named = {"success": "Success on unseen tasks", "steps": "Steps of an episode"}
    return {title: {arm: curve(arm, name) for arm in tests} for name, title in named.items()} if tests else {}
