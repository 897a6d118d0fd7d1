"""The report of `hardwon bench peers`: tables, ratios to the baseline, and targets.

A row is a dictionary of one system's figures. Nothing is measured here.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.apps.shared.common import excerpt
from hardwon.memory.errors import ConfigError

BEGIN, END = "<!-- bench peers: begin -->", "<!-- bench peers: end -->"
AGAIN = ", again"
"""Suffix of the baseline's names in its second run."""
Row = dict[str, Any]

RATED = (
    *("add_per_s", "add_cpu_ms", "batch_per_s", "batch_cpu_ms", "first_search_ms"),
    *("dense_p50_ms", "dense_p99_ms", "dense_cpu_ms", "hybrid_p50_ms", "hybrid_p99_ms", "hybrid_cpu_ms"),
    *("rss_mb", "disk_mb", "import_s"),
)
"""Figures that are also given as a ratio to the baseline; hybrid figures are compared with the FTS5 variant."""
_WRITING = {
    "added": "one by one",
    "add_per_s": "a second",
    "add_cpu_ms": "CPU ms each",
    "batch_per_s": "by 100",
    "batch_cpu_ms": "CPU ms",
    "first_search_ms": "then 1st search",
}
_DENSE = {
    "held": "held",
    "dense_p50_ms": "p50 ms",
    "dense_p99_ms": "p99 ms",
    "dense_cpu_ms": "CPU ms",
    "agreement": "agreement@5",
}
_HYBRID = {"hybrid_p50_ms": "p50 ms", "hybrid_p99_ms": "p99 ms", "hybrid_cpu_ms": "CPU ms"}
_COSTS = {"rss_mb": "RSS MB", "disk_mb": "disk MB", "import_s": "import s"}
TARGETS = (
    ("dense p50 over its parts", "dense_p50_ms", "parts", "at most", 1.2),
    ("dense p50 over LangGraph's SqliteStore", "dense_p50_ms", "langgraph", "at most", 0.1),
    ("hybrid p50 over its parts", "hybrid_p50_ms", "parts + fts5", "at most", 1.2),
    ("durable single adds over the parts'", "add_per_s", "parts", "at least", 0.8),
    ("adds a second in batches", "batch_per_s", "", "at least", 15_000),
    ("disk, MB", "disk_mb", "", "at most", 40),
    ("searches of a tenant short of 5", "tenant_short", "", "at most", 0),
    ("acknowledged writes lost by kill -9", "kill_lost", "", "at most", 0),
)
"""Targets of hardwon: label, figure, system that it is divided by ("" for none), bound, value."""


def tables(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return titled tables: writing, searching, costs, faults and targets.

    Figures in parentheses are ratios to the baseline. Empty tables are left out.

    Args:
        rows: One row per system, as `compare.measure` returns them.

    Returns:
        Pairs of a title and the lines of the table.
    """
    hybrid_rows = [row for row in rows if "hybrid_p50_ms" in row]
    sections = [
        ("Writing: adds a second, one by one and by 100 in a call", [_format_line(row, _WRITING) for row in rows]),
        ("Searching by vector", [_format_line(row, _DENSE) for row in rows]),
        ("Searching by vector and words", [_format_line(row, _HYBRID) for row in hybrid_rows]),
        ("Costs", [_format_line(row, _COSTS) for row in rows]),
        ("Tenants and faults", [_format_faults(row) for row in rows if _has_faults(row)]),
        ("To reach", targets(rows)),
    ]
    return [(head, lines) for head, lines in sections if lines]


def _format_line(row: Row, columns: Mapping[str, str]) -> Row:
    return {"system": row["system"]} | {head: _format_cell(row, name) for name, head in columns.items()}


def _format_cell(row: Row, name: str) -> str:
    if name not in row:
        return "-"
    value = row[name]
    number = _format_number(value)
    ratio = row.get("ratios", {}).get(name)
    return number if ratio is None else f"{number} ({ratio:.2g}x)" if ratio < 100 else f"{number} ({ratio:.0f}x)"


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _has_faults(row: Row) -> bool:
    return any(name in row for name in ("tenant_short", "kill_lost", "writers_kept", "error"))


def _format_faults(row: Row) -> Row:
    """Return tenant, kill and concurrent-writer figures, with the errors in the last column."""
    errors = dict.fromkeys(row[name] for name in ("error", "kill_error", "writers_error") if name in row)
    return {
        "system": row["system"],
        "short, foreign": _format_share(row, "tenant_short", "tenant_foreign", "tenant_queries"),
        "kill -9: lost": _format_share(row, "kill_lost", "kill_added"),
        "by": _format_share(row, "kills_with_loss", "kills"),
        "two kept": _format_share(row, "writers_kept", "writers_added"),
        "noted": excerpt("; ".join(errors)),
    }


def _format_share(row: Row, *names: str) -> str:
    """Return `0, 1 of 200`, where the last of the named figures is the total."""
    figures = [str(row.get(name, "")) for name in names]
    return f"{', '.join(figures[:-1])} of {figures[-1]}" if all(figures) else "-"


def targets(rows: Sequence[Row]) -> list[Row]:
    """Return each target with the measured value; skip targets that this run has not measured."""
    ours = next((row for row in rows if row["system"] == "ours"), {})
    lines = []
    for what, name, over, bound, value in TARGETS:
        measured = ours.get(name)
        if measured is not None and over.startswith("parts"):
            measured = ours["ratios"].get(name)
        elif measured is not None and over:
            base = next((row.get(name) for row in rows if row["system"] == over), None)
            measured = measured / base if base else None
        if measured is None:
            continue
        reached = measured <= value if bound == "at most" else measured >= value
        lines.append(
            {
                "what": what,
                "to reach": f"{bound} {value:,}",
                "measured": _format_number(figure(measured)),
                "reached": "yes" if reached else "no",
            }
        )
    return lines


def can_be_written(path: Path) -> None:
    """Check that a file has the marker for the tables.

    Raises:
        ConfigError: If the marker is missing.
    """
    if BEGIN not in path.read_text(encoding="utf-8"):
        raise ConfigError(f"{path} has no line {BEGIN!r}; add it and {END!r} where the tables belong.")


def write(path: Path, rows: Sequence[Row], command: str) -> None:
    """Replace the marked part of a Markdown file with the tables."""
    parts = [f"`{command}`:"]
    for head, lines in tables(rows):
        parts.append(f"**{head}**\n")
        parts[-1] += "\n".join(["", *_format_markdown(lines)])
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def _format_markdown(lines: Sequence[Row]) -> list[str]:
    heads = [head for head in lines[0] if any(line[head] not in ("", "-") for line in lines)]
    cells = [" | ".join(str(line[head]).replace("|", "/") for head in heads) for line in lines]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {line} |" for line in cells)]


def figure(value: Any) -> float:
    """Round to three significant digits, or to a whole number from 100 on."""
    return round(float(value)) if value >= 100 else float(f"{value:.3g}")


def ratios_of(row: Row, rows: Iterable[Row]) -> Row:
    """Return the ratio of each figure to the baseline.

    Adds and vector searches are divided by the baseline measured in turn with them. All other figures are divided by
    the mean of the two baseline runs.
    """
    ratios = {}
    for name in RATED:
        if name in row and (baseline := _find_baseline(name, row, rows)):
            ratios[name] = round(row[name] / baseline, 3)
    return ratios


def _find_baseline(name: str, row: Row, rows: Iterable[Row]) -> float:
    # Measured in alternation with this system, so a change of machine speed affects both alike.
    beside = row.get(f"beside_{name}")
    if beside is not None:
        return float(beside)
    base = "parts + fts5" if name.startswith("hybrid") else "parts"
    baseline = [other[name] for other in rows if other["system"].removesuffix(AGAIN) == base and name in other]
    return sum(baseline) / len(baseline) if baseline else 0.0
