"""The first page: what the library holds, whether it helps, whether it harms, how fast it answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.render.views import format_success

from . import charts, figures
from .frame import Room, framed, html, page
from .markup import Html, Link, join, section, table, tag


def add(api: FastAPI) -> None:
    """The page at the root."""

    @page(api, "/")
    async def overview(room: Room) -> None:
        told = await room.read(figures.overview)
        with framed(room, "Overview", "/"):
            html(_figures(told))
            if not told["episodes"]:
                html(_bare())
                return
            with ui.element("div").classes("two"):
                _chart("Items by episodes recorded", {"items": told["growth"]}, "items", share=False)
                _chart("Success, of the newest episodes of each arm", told["success"], "share", share=True)
            html(
                section(
                    "With and without memory",
                    _arms(told["arms"]),
                    _harm(told),
                    _shown(told["shown"]),
                    *_tested(told["tested"]),
                )
            )
            with ui.element("div").classes("two"):
                html(_newest(told["newest"], room.link))
                with ui.element("section"):
                    html(tag("h2", "How long recall takes"))
                    waiting = html(tag("p", "It is being timed …", class_="soft"))

                    async def timed() -> None:
                        now = await room.read(figures.latency)
                        served = figures.percentiles(list(api.state.measures.recalls))
                        waiting.set_content(_latency(now, served))

                    ui.timer(0.05, timed, once=True)


def _chart(title: str, curves: Mapping[str, Any], y: str, *, share: bool) -> None:
    with ui.element("section"):
        html(tag("h2", title))
        ui.echart(charts.lines(curves, x="episodes", y=y, share=share)).classes("chart").props(
            f'role="img" aria-label="{title}"'
        )


def _figures(told: Mapping[str, Any]) -> Html:
    counted = told["episodes"] - told["excluded"]
    kinds = ", ".join(f"{kind} {n}" for kind, n in told["items"].items()) or "none yet"
    waiting = f"; {told['quarantined']} in quarantine" if told["quarantined"] else ""
    cards = [
        ("Episodes", f"{told['episodes']:,}", f"{told['excluded']} excluded" if told["excluded"] else ""),
        ("Succeeded", f"{told['succeeded'] / counted:.0%}" if counted else "-", f"{told['succeeded']:,} episodes"),
        ("Steps", f"{told['steps']:,}", ""),
        ("Items in use", f"{sum(told['items'].values()):,}", kinds + waiting),
        ("Actions blocked", f"{told['blocked']:,}", "by guardrails"),
    ]
    return tag(
        "dl", *(tag("div", tag("dt", n, tag("small", more)), tag("dd", value)) for n, value, more in cards),
        class_="figures",
    )  # fmt: skip


def _bare() -> Html:
    return section(
        "This library has no experience yet",
        tag("p", "An agent writes it: ", tag("code", "hardwon run textworld --library LIBRARY"), ", or over HTTP."),
    )


def _arms(arms: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        (
            one["arm"],
            "with" if one["memory"] else "without",
            one["episodes"],
            one["succeeded"],
            f"{one['share']:.1%}",
            f"{one['low']:.0%} to {one['high']:.0%}",
        )
        for one in arms
    ]
    head = ("arm", "memory", "episodes", "succeeded", "success", "95% interval")
    return table(head, rows, caption="Success by arm", numbers=head[2:])


def _harm(told: Mapping[str, Any]) -> Html:
    harm = told["harm"]
    if not harm["pairs"]:
        words = (
            "Whether memory does harm is not told by these episodes: no world (task and seed) was played both with "
            "and without it."
        )
        return tag("p", words, class_="soft")
    return tag(
        "p",
        f"In {harm['pairs']} episodes of worlds that were also played without memory, memory failed where going "
        f"without it had succeeded in {harm['harmed']} (harm {harm['share']:.1%}), and succeeded where that had failed "
        f"in {harm['helped']}.",
    )


def _tested(arms: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Of the experiment that made the library: the frozen agent on tasks that were never seen."""
    if not arms:
        return
    yield tag("h3", "Tested on unseen tasks, after the last episode")
    head = ("arm", "success", "95% interval", "harm", "steps", "blocked")
    rows = [
        (
            one["arm"],
            f"{one['success_rate']:.1%}",
            f"{one['ci95'][0]:.0%} to {one['ci95'][1]:.0%}",
            "-" if one["harm_rate"] is None else f"{one['harm_rate']:.0%}",
            one["steps"],
            one["blocked"],
        )
        for one in arms
    ]
    yield table(head, rows, caption="Tests by arm", numbers=head[1:])
    yield tag("p", "Harm: the share of tasks that the agent solved with an empty library and not with this one.")


def _shown(shown: Mapping[str, Mapping[str, Any]]) -> Html:
    if set(shown) < {"recalled", "withheld"}:
        return Html("")
    with_it, held = shown["recalled"], shown["withheld"]
    return tag(
        "p",
        f"Items held back at random tell what they are worth: episodes ended at {with_it['success']:.2f} on average "
        f"where an item was shown ({with_it['episodes']} times), at {held['success']:.2f} where it was held back "
        f"({held['episodes']} times).",
    )


def _newest(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
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


def _latency(now: Mapping[str, Any], served: Mapping[str, Any]) -> Html:
    timed = (("timed just now, in this library", now), ("the newest over HTTP", served))
    rows = [(name, one["n"], one["p50_ms"], one["p99_ms"]) for name, one in timed]
    head = ("recalls", "how many", "half within (ms)", "99% within (ms)")
    return join([table(head, rows, caption="Time of recall", numbers=head[1:])])
