"""Define the first page: what was learned, whether it helps, what it saves, and the latency of recall."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from nicegui import ui

from hardwon.apps.render.views import describe_end
from hardwon.apps.shared.common import excerpt, library_name, list_ways
from hardwon.apps.shared.lists import find_moment
from hardwon.memory import ExperienceLibrary

from . import charts, figures
from .frame import Room, html, page, show
from .lessons import find_lessons, render_lessons
from .markup import Html, Link, count, join, linked, section, table, tag

SHARE = "share of the last 10 episodes or more"


def add(api: FastAPI) -> None:
    """Add the first page."""

    @page(api, "/")
    async def overview(room: Room, axis: Literal["", "time", "episodes"] = "") -> None:
        def read(library: ExperienceLibrary) -> tuple[dict[str, Any], dict[str, list[Any]]]:
            totals = figures.overview(library, by_time=axis == "time" if axis else None)
            return totals, find_lessons(library)

        await show(room, "Overview", "/", read, lambda contents: _render(room, *contents))


def _render(room: Room, totals: Mapping[str, Any], lessons: Mapping[str, Any]) -> None:
    """Add the contents of the first page."""
    by_time = totals["by_time"]
    if not totals["episodes"]:
        if any(lessons.values()):  # added by a person or a client, before any episode
            html(render_lessons(lessons, room.link))
        html(_render_empty(library_name(room.api.state.shelf.path)))
        return
    html(render_lessons(lessons, room.link))
    html(
        section(
            "Does memory help?",
            tag("p", _describe_gain(totals)),
            *_render_groups(totals["arms"]),
            *_render_harm(totals["harm"]),
            *_render_spending(totals["spending"]),
            *_render_tests(totals["tested"]),
        )
    )
    html(_render_figures(totals))
    html(_render_axes("time" if by_time else "episodes", room.link))
    with ui.element("div").classes("two"):
        _add_chart("Lessons in use", {"lessons": totals["growth"]}, "lessons", share=False, by_time=by_time)
        _add_chart("Success of the newest episodes", totals["success"], SHARE, share=True, by_time=by_time)
    with ui.element("div").classes("two"):
        html(_render_newest(totals["newest"], room.link))
        with ui.element("section"):
            html(tag("h2", "Time of a recall"))
            waiting = html(tag("p", "Measuring …", class_="soft", role="status"))

            # Timed after the page is shown, because the first recall may load an index.
            async def timed() -> None:
                now = await room.read(figures.latency)
                served = figures.percentiles(list(room.api.state.measures.recalls))
                waiting.set_content(_render_latency(now, served))

            ui.timer(0.05, timed, once=True)
    html(_render_verbs(room.link, room.namespace))


def _render_verbs(link: Link, namespace: str) -> Html:
    """Return what a person does with a library, in their words, each with the place where it is done."""
    verbs = (
        ("Why was I told this, or not?", (link("/episodes"), "Open an episode"), " and ask there."),
        ("Does it help me?", None, "Above: runs with advice are compared with runs that got none, at random."),
        ("Prune", (link("/items", sort="used"), "Open a lesson"), " and retire it. What has no use expires by itself."),
        ("Reset one", (link("/items"), "Open a lesson"), " and undo its last change, or forget an episode."),
        ("Only for this project", None, f"This is the namespace {namespace}; every integration takes another one."),
        ("Take it along", (link("/v1/export"), "Export it"), " as lines of JSON, which `hardwon memory import` reads."),
    )
    rows = (
        tag(
            "div",
            tag("dt", question),
            tag("dd", tag("a", place[1], href=place[0]) if place else "", linked(rest)),
            class_="line",
        )
        for question, place, rest in verbs
    )
    return section("What you can do here", tag("dl", *rows, class_="pairs"))


def _add_chart(title: str, curves: Mapping[str, Any], y: str, *, share: bool, by_time: bool) -> None:
    if all(len(points) < 2 for points in curves.values()):
        return  # one point is no curve
    x = "time (UTC)" if by_time else "episodes"
    with ui.element("section"):
        html(tag("h2", title))
        chart = charts.lines(curves, x=x, y=y, share=share, is_time=by_time, is_count=not share)
        ui.echart(chart).classes("chart").props(f'role="img" aria-label="{title}, by {x}"')


def _describe_gain(totals: Mapping[str, Any]) -> str:
    """Return whether memory helps, in a sentence: by its tests, or by the runs that got no advice."""
    tested = {arm["arm"]: arm["success_rate"] for arm in totals["tested"]}
    if "empty" in tested and "step" in tested:
        return (
            f"On unseen tasks, the agent solves {tested['step']:.0%} when it asks this library at every step, and "
            f"{tested['empty']:.0%} with an empty one."
        )
    return f"{totals['advice'][:1].upper()}{totals['advice'][1:]}."


def _render_axes(axis: str, link: Link) -> Html:
    """Return the links that choose what the curves run over."""
    choices = {"time": "over time", "episodes": "over episodes"}
    links = [
        tag("a", words, href=link("/", axis=name), aria_current="true" if name == axis else None)
        for name, words in choices.items()
    ]
    return tag("nav", "Curves ", join([links[0], " · ", links[1]]), class_="axis soft", aria_label="Axis of the curves")


def _render_figures(totals: Mapping[str, Any]) -> Html:
    counted = totals["episodes"] - totals["excluded"]
    kinds = ", ".join(f"{kind} {n}" for kind, n in totals["items"].items()) or "none yet"
    waiting = f"; {totals['quarantined']} in quarantine" if totals["quarantined"] else ""
    cards = [
        ("Episodes", f"{totals['episodes']:,}", f"{totals['excluded']} excluded" if totals["excluded"] else ""),
        (
            "Succeeded",
            f"{totals['succeeded'] / counted:.0%}" if counted else "-",
            f"{totals['succeeded']:,} of {counted:,}",
        ),
        ("Steps", f"{totals['steps']:,}", ""),
        ("Lessons in use", f"{sum(totals['items'].values()):,}", kinds + waiting),
        ("Actions blocked", f"{totals['blocked']:,}", "by guardrails"),
    ]
    return tag(
        "dl",
        *(tag("div", tag("dt", n, tag("small", more)), tag("dd", value)) for n, value, more in cards if value != "0"),
        class_="figures",
    )


def _render_empty(path: str) -> Html:
    """Return the ways to fill an empty library, one line each."""
    return section(
        "This library has no experience yet",
        tag("p", "One line connects an agent. Its lessons appear here after a few episodes."),
        *(part for name, line in list_ways(path) for part in (tag("h3", name), tag("pre", tag("code", line)))),
    )


def _render_groups(arms: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Yield the success of each group of episodes, if there is more than one to compare."""
    if len(arms) < 2:
        return
    rows = [
        (
            figures.name_group(arm["arm"]),
            "with" if arm["memory"] else "without",
            arm["episodes"],
            arm["succeeded"],
            f"{arm['share']:.1%}",
            f"{arm['low']:.0%} to {arm['high']:.0%}",
        )
        for arm in arms
    ]
    head = ("how it played", "memory", "episodes", "succeeded", "success", "95% interval")
    yield table(head, rows, caption="Success with and without memory", numbers=head[2:])


def _render_harm(harm: Mapping[str, Any]) -> Iterator[Html]:
    if harm["pairs"]:
        yield tag(
            "p",
            f"{harm['pairs']} episodes with memory can be compared with episodes without it on the same task. Memory "
            f"made {harm['harmed']} of them worse ({harm['share']:.1%}): only the agent with memory failed. It made "
            f"{harm['helped']} better: only the agent with memory succeeded.",
        )


def _render_spending(spending: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Yield what episodes cost with and without memory, and what memory saved or cost."""
    if not spending:
        return
    yield tag("h3", "What it saves, on tasks played both ways")
    head = ("of", "with memory", "without", "saved per episode", "saved in all")
    rows = [
        (
            row["unit"],
            _format_amount(row["with"]),
            _format_amount(row["without"]),
            _format_amount(row["without"] - row["with"]),
            f"{_format_amount(row['saved'])} in {row['n']:,} episodes",
        )
        for row in spending
    ]
    yield table(head, rows, caption="Savings", numbers=head[1:])
    if not any(row["unit"] == "tokens" for row in spending):
        yield tag("p", "No tokens are recorded in these episodes.", class_="soft")


def _format_amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 2) + 0.0:,.2f}"  # + 0.0 removes the sign of -0.0


def _render_tests(arms: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Yield the test results of the experiment that created the library, on unseen tasks with a frozen agent."""
    if not arms:
        return
    yield tag("h3", "Tested on unseen tasks, after the last episode")
    head = ("how it played", "success", "95% interval", "made worse", "steps per episode", "refused per episode")
    rows = [
        (
            figures.name_group(arm["arm"]),
            f"{arm['success_rate']:.1%}",
            f"{arm['ci95'][0]:.0%} to {arm['ci95'][1]:.0%}",
            "-" if arm["harm_rate"] is None else f"{arm['harm_rate']:.0%}",
            arm["steps"],
            arm["blocked"],
        )
        for arm in arms
    ]
    yield table(head, rows, caption="Tests with and without memory", numbers=head[1:])
    yield tag("p", "Made worse: the share of tasks that the agent solved with an empty library but not with this one.")


def _render_newest(rows: Sequence[Mapping[str, Any]], link: Link) -> Html:
    return section(
        "Newest episodes",
        tag(
            "ol",
            *(
                tag(
                    "li",
                    tag("a", excerpt(row["task"], 70) or "no task", href=link(f"/episodes/{row['id']}")),
                    f" {describe_end(row)}, {count(row['n_steps'], 'step')}, {figures.name_group(row['arm'])}, ",
                    tag("span", find_moment(row)[:16].replace("T", " "), class_="date"),
                )
                for row in rows
            ),
            class_="plain",
        ),
    )


def _render_latency(now: Mapping[str, Any], served: Mapping[str, Any]) -> Html:
    timed = (("measured now, in this library", now), ("latest over HTTP", served))
    rows = [(name, times["n"], times["p50_ms"], times["p99_ms"]) for name, times in timed if times["n"]]
    head = ("recalls", "count", "half within (ms)", "99% within (ms)")
    return join([table(head, rows, caption="Time of a recall", numbers=head[1:])])
