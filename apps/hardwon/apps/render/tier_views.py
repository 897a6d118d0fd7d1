"""The tiers on paper: attempts, situations, and how much of everything a library holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hardwon.apps.shared.common import excerpt, table

from .views import Line, earlier_step, part, step_names, times

SITUATION = 150
"""Characters of what a situation looks like, in a list of situations."""
NAMED = 40
"""Steps named behind one count of an attempt; `--json` names all."""


def attempt_view(attempt: Mapping[str, Any]) -> RenderableType:
    """An attempt: its counts, each with the steps behind it, its best step and its newest."""
    rows = [(name, len(ids), _some(ids)) for name, ids in attempt["evidence"].items() if ids]
    return Group(
        Text(f"attempt:{attempt['id']} `{attempt['pattern']}` in situation {attempt['signature']}", style="bold"),
        Text(
            f"tried {times(attempt['n'])}, mean return {attempt['mean_return']:.2f}; "
            f"{attempt['live']} steps live, {attempt['n'] - attempt['live']} folded"
        ),
        *part("What came of it", [table("", "times", "steps", rows=rows, numbers=("times",))]),
        *part("The best", [Text(earlier_step(attempt["best_step"]))]),
        *part("The newest", [Text(earlier_step(step)) for step in attempt["newest"]]),
    )


def _some(ids: Sequence[int]) -> str:
    """The newest of the steps, by name."""
    rest = len(ids) - NAMED
    return step_names(ids[-NAMED:]) + (f" and {rest} earlier" if rest > 0 else "")


def clusters_view(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A block a situation: what it looks like, and a row for every kind of action tried there."""
    parts: list[RenderableType] = []
    for cluster in found:
        facts = [
            _several(cluster["states"], "state"),
            _several(cluster["steps"], "step"),
            f"{cluster['failed']} failed",
        ]
        if cluster["mean_return"] is not None:
            facts.append(f"mean return {cluster['mean_return']:.2f}")
        parts += [
            Text.assemble((cluster["signature"], "bold"), f"  {', '.join(facts)}"),
            Padding(Text(excerpt(cluster["example"], SITUATION), style="dim"), (0, 0, 0, 2)),
            *([Padding(_attempts(cluster["attempts"]), (0, 0, 0, 2))] if cluster["attempts"] else []),
            Text(),
        ]
    return Group(*parts[:-1])


def _several(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            f"attempt:{one['id']}",
            one["n"],
            one["live"],
            one["mean_return"],
            f"step:{one['best']}",
            f"`{one['pattern']}`{_failures(one['failures'])}",
        )
        for one in attempts
    ]
    return table(
        "id", "tried", "live", "return", "best", "action and failures",
        rows=rows, numbers=("tried", "live", "return"), whole=("id", "best"),
    )  # fmt: skip


def _failures(counts: Mapping[str, int]) -> str:
    return ": " + ", ".join(f"{name} {n}" for name, n in counts.items()) if counts else ""


def stats_view(figures: Mapping[str, Any]) -> Table:
    """What a library holds, tier by tier."""
    return table("", "", rows=list(_figures(figures)))


def _figures(figures: Mapping[str, Any]) -> Iterator[Line]:
    yield "library", figures["path"]
    yield "namespace", f"{figures['namespace']}, of {', '.join(figures['namespaces'])}"
    files = f"file {decimal(figures['size_bytes'])}, index files {decimal(figures['index_bytes'])}"
    yield "size", f"{files}; schema {figures['schema']}"
    yield "embedder", f"{figures['embedder']}: {_counts(figures['vectors']) or 'nothing embedded yet'}"
    won = f"{figures['successes']} succeeded, {figures['excluded']} excluded"
    yield "episodes", f"{figures['episodes']}: {won}; in {figures['segments']} segments"
    yield "steps", f"{figures['steps']}: {figures['live']} live, {figures['folded']} folded"
    yield "failures", _counts(figures["failures"]) or "none"
    yield "situations", f"{figures['clusters']} in {figures['states']} states, with {figures['attempts']} attempts"
    for status, kinds in figures["items_by_status"].items():
        yield f"{status} items", f"{sum(kinds.values())}: {_counts(kinds)}"
    if not figures["items_by_status"]:
        yield "items", "none"
    yield "recorded", f"{figures['first']} to {figures['last']}" if figures["first"] else "never"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)
