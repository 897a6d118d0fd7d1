"""Define the first page: the contents of the library, its benefit, its harm, and the latency of recall."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.render.views import format_success

from . import charts, figures
from .frame import Room, framed, html, page
from .markup import Html, Link, join, section, table, tag


def add(api: FastAPI) -> None:
    """Add the first page."""

    @page(api, "/")
    async def overview(room: Room) -> None:
        totals = await room.read(figures.overview)
        with framed(room, "Overview", "/"):
            html(_render_figures(totals))
            if not totals["episodes"]:
                html(_render_empty())
                return
            with ui.element("div").classes("two"):
                _add_chart("Items by episodes recorded", {"items": totals["growth"]}, "items", share=False)
                _add_chart("Success rate of the newest episodes, by arm", totals["success"], "share", share=True)
            html(
                section(
                    "With and without memory",
                    _render_arms(totals["arms"]),
                    _render_harm(totals),
                    _render_withheld(totals["shown"]),
                    *_render_tests(totals["tested"]),
                )
            )
            with ui.element("div").classes("two"):
                html(_render_newest(totals["newest"], room.link))
                with ui.element("section"):
                    html(tag("h2", "Recall latency"))
                    waiting = html(tag("p", "Measuring …", class_="soft"))

                    # Timed after the page is shown, because the first recall may load an index.
                    async def timed() -> None:
                        now = await room.read(figures.latency)
                        served = figures.percentiles(list(api.state.measures.recalls))
                        waiting.set_content(_render_latency(now, served))

                    ui.timer(0.05, timed, once=True)


def _add_chart(title: str, curves: Mapping[str, Any], y: str, *, share: bool) -> None:
    with ui.element("section"):
        html(tag("h2", title))
        ui.echart(charts.lines(curves, x="episodes", y=y, share=share)).classes("chart").props(
            f'role="img" aria-label="{title}"'
        )


def _render_figures(totals: Mapping[str, Any]) -> Html:
    counted = totals["episodes"] - totals["excluded"]
    kinds = ", ".join(f"{kind} {n}" for kind, n in totals["items"].items()) or "none yet"
    waiting = f"; {totals['quarantined']} in quarantine" if totals["quarantined"] else ""
    cards = [
        ("Episodes", f"{totals['episodes']:,}", f"{totals['excluded']} excluded" if totals["excluded"] else ""),
        ("Succeeded", f"{totals['succeeded'] / counted:.0%}" if counted else "-", f"{totals['succeeded']:,} episodes"),
        ("Steps", f"{totals['steps']:,}", ""),
        ("Items in use", f"{sum(totals['items'].values()):,}", kinds + waiting),
        ("Actions blocked", f"{totals['blocked']:,}", "by guardrails"),
    ]
    return tag(
        "dl", *(tag("div", tag("dt", n, tag("small", more)), tag("dd", value)) for n, value, more in cards),
        class_="figures",
    )  # fmt: skip


def _render_empty() -> Html:
    return section(
        "This library has no experience yet",
        tag("p", "Record experience with ", tag("code", "hardwon run textworld --library LIBRARY"), ", or over HTTP."),
    )


def _render_arms(arms: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        (
            arm["arm"],
            "with" if arm["memory"] else "without",
            arm["episodes"],
            arm["succeeded"],
            f"{arm['share']:.1%}",
            f"{arm['low']:.0%} to {arm['high']:.0%}",
        )
        for arm in arms
    ]
    head = ("arm", "memory", "episodes", "succeeded", "success", "95% interval")
    return table(head, rows, caption="Success by arm", numbers=head[2:])


def _render_harm(totals: Mapping[str, Any]) -> Html:
    harm = totals["harm"]
    if not harm["pairs"]:
        words = "Harm is unknown: no task instance (task and seed) was played both with and without memory."
        return tag("p", words, class_="soft")
    return tag(
        "p",
        f"{harm['pairs']} episodes with memory can be compared with episodes without it on the same task. In "
        f"{harm['harmed']} of them only the agent with memory failed (harm {harm['share']:.1%}); in {harm['helped']} "
        "only the agent with memory succeeded.",
    )


def _render_tests(arms: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Yield the test results of the experiment that created the library, on unseen tasks with a frozen agent."""
    if not arms:
        return
    yield tag("h3", "Tested on unseen tasks, after the last episode")
    head = ("arm", "success", "95% interval", "harm", "steps", "blocked")
    rows = [
        (
            arm["arm"],
            f"{arm['success_rate']:.1%}",
            f"{arm['ci95'][0]:.0%} to {arm['ci95'][1]:.0%}",
            "-" if arm["harm_rate"] is None else f"{arm['harm_rate']:.0%}",
            arm["steps"],
            arm["blocked"],
        )
        for arm in arms
    ]
    yield table(head, rows, caption="Tests by arm", numbers=head[1:])
    yield tag("p", "Harm: the share of tasks that the agent solved with an empty library but not with this one.")


def _render_withheld(arms: Mapping[str, Mapping[str, Any]]) -> Html:
    if set(arms) < {"recalled", "withheld"}:
        return Html("")
    with_it, held = arms["recalled"], arms["withheld"]
    return tag(
        "p",
        f"Some items are withheld at random to measure their effect. Mean success is {with_it['success']:.2f} when an "
        f"item was shown ({with_it['episodes']} times) and {held['success']:.2f} when it was withheld "
        f"({held['episodes']} times).",
    )


def _render_newest(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
    return section(
        "Newest episodes",
        tag(
            "ol",
            *(
                tag(
                    "li",
                    tag("a", row["id"][:12], href=link(f"/episodes/{row['id']}"), class_="code"),
                    f" {format_success(None if row['success'] is None else bool(row['success']))}, "
                    f"{row['n_steps']} steps, arm {row['arm']}, {row['recorded_at'][:16].replace('T', ' ')}",
                )
                for row in rows
            ),
            class_="plain",
        ),
    )


def _render_latency(now: Mapping[str, Any], served: Mapping[str, Any]) -> Html:
    timed = (("measured now, in this library", now), ("latest over HTTP", served))
    rows = [(name, times["n"], times["p50_ms"], times["p99_ms"]) for name, times in timed]
    head = ("recalls", "count", "median (ms)", "p99 (ms)")
    return join([table(head, rows, caption="Recall latency", numbers=head[1:])])
