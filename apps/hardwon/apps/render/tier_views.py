"""Render the contents of a library as text: attempts, situations and statistics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hardwon.apps.shared.common import excerpt, table

from .views import LabeledLine, build_section, format_count, format_earlier_step, format_step_refs

NAMED = 40
"""Number of steps listed for one count of an attempt; `--json` lists all."""


def render_attempt(attempt: Mapping[str, Any]) -> RenderableType:
    """Render an attempt: its counts with the steps behind them, its best step and its newest steps."""
    rows = [(name, len(ids), _list_newest(ids)) for name, ids in attempt["evidence"].items() if ids]
    return Group(
        Text(f"attempt:{attempt['id']} `{attempt['pattern']}` in situation {attempt['signature']}", style="bold"),
        Text(
            f"tried {format_count(attempt['n'])}, mean return {attempt['mean_return']:.2f}; "
            f"{attempt['live']} steps live, {attempt['n'] - attempt['live']} folded"
        ),
        *build_section("Outcomes", [table("", "times", "steps", rows=rows, numbers=("times",))]),
        *build_section("Best step", [Text(format_earlier_step(attempt["best_step"]))]),
        *build_section("Newest steps", [Text(format_earlier_step(step)) for step in attempt["newest"]]),
    )


def _list_newest(ids: Sequence[int]) -> str:
    """Return the references of the newest steps, and the number of earlier ones."""
    rest = len(ids) - NAMED
    return format_step_refs(ids[-NAMED:]) + (f" and {rest} earlier" if rest > 0 else "")


def render_clusters(clusters: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Render situations: an example of each, and a row for every kind of action tried in it."""
    parts: list[RenderableType] = []
    for cluster in clusters:
        facts = [
            _format_plural(cluster["states"], "state"),
            _format_plural(cluster["steps"], "step"),
            f"{cluster['failed']} failed",
        ]
        if cluster["mean_return"] is not None:
            facts.append(f"mean return {cluster['mean_return']:.2f}")
        parts += [
            Text.assemble((cluster["signature"], "bold"), f"  {', '.join(facts)}"),
            Padding(Text(excerpt(cluster["example"], 150), style="dim"), (0, 0, 0, 2)),
            *([Padding(_render_attempts(cluster["attempts"]), (0, 0, 0, 2))] if cluster["attempts"] else []),
            Text(),
        ]
    return Group(*parts[:-1])


def _format_plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _render_attempts(attempts: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            f"attempt:{attempt['id']}",
            attempt["n"],
            attempt["live"],
            attempt["mean_return"],
            f"step:{attempt['best']}",
            f"`{attempt['pattern']}`{_format_failures(attempt['failures'])}",
        )
        for attempt in attempts
    ]
    return table(
        "id", "tried", "live", "return", "best", "action and failures",
        rows=rows, numbers=("tried", "live", "return"), whole=("id", "best"),
    )  # fmt: skip


def _format_failures(counts: Mapping[str, int]) -> str:
    return ": " + ", ".join(f"{name} {n}" for name, n in counts.items()) if counts else ""


def render_stats(figures: Mapping[str, Any]) -> Table:
    """Render the statistics of a library as a table."""
    return table("", "", rows=list(_describe_figures(figures)))


def _describe_figures(figures: Mapping[str, Any]) -> Iterator[LabeledLine]:
    yield "does it help?", figures["advice"]["says"]
    yield "library", figures["path"]
    yield "namespace", f"{figures['namespace']}, of {', '.join(figures['namespaces'])}"
    files = f"file {decimal(figures['size_bytes'])}, index files {decimal(figures['index_bytes'])}"
    yield "size", f"{files}; schema {figures['schema']}"
    yield "embedder", f"{figures['embedder']}: {_format_counts(figures['vectors']) or 'nothing embedded yet'}"
    won = f"{figures['successes']} succeeded, {figures['excluded']} excluded"
    yield "episodes", f"{figures['episodes']}: {won}"
    yield "steps", f"{figures['steps']}: {figures['live']} live, {figures['folded']} folded"
    yield "failures", _format_counts(figures["failures"]) or "none"
    yield "situations", f"{figures['clusters']} in {figures['states']} states, with {figures['attempts']} attempts"
    for status, kinds in figures["items_by_status"].items():
        yield f"{status} items", f"{sum(kinds.values())}: {_format_counts(kinds)}"
    if not figures["items_by_status"]:
        yield "items", "none"
    yield "recorded", f"{figures['first']} to {figures['last']}" if figures["first"] else "never"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)
