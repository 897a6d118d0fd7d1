"""What people read of `hardwon bench peers`: tables, the ratios to the plain parts, and what ours is to reach.

Only shown here, nothing is measured; a row is a dictionary of figures of one system.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.apps.shared.common import excerpt
from hardwon.memory.errors import ConfigError

BEGIN, END = "<!-- bench peers: begin -->", "<!-- bench peers: end -->"
AGAIN = ", again"
"""Ends the names of the plain parts when they run for the second time."""
Row = dict[str, Any]

RATED = (
    *("add_per_s", "add_cpu_ms", "batch_per_s", "batch_cpu_ms", "first_search_ms"),
    *("dense_p50_ms", "dense_p99_ms", "dense_cpu_ms", "hybrid_p50_ms", "hybrid_p99_ms", "hybrid_cpu_ms"),
    *("rss_mb", "disk_mb", "import_s"),
)
"""Figures that are also given as a ratio to the plain parts: to those with FTS5 where the others have none."""
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
"""What ours is to reach: figure, the system it is divided by, bound, value."""


def tables(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Headed tables: writing, searching, costs, faults, and what ours is to reach. In brackets, times the parts."""
    worded = [row for row in rows if "hybrid_p50_ms" in row]
    made = [
        ("Writing: adds a second, one by one and by 100 in a call", [_line(row, _WRITING) for row in rows]),
        ("Searching by vector", [_line(row, _DENSE) for row in rows]),
        ("Searching by vector and words", [_line(row, _HYBRID) for row in worded]),
        ("Costs", [_line(row, _COSTS) for row in rows]),
        ("Tenants and faults", [_faults(row) for row in rows if _has_faults(row)]),
        ("To reach", targets(rows)),
    ]
    return [(head, lines) for head, lines in made if lines]


def _line(row: Row, columns: Mapping[str, str]) -> Row:
    return {"system": row["system"]} | {head: _cell(row, name) for name, head in columns.items()}


def _cell(row: Row, name: str) -> str:
    if name not in row:
        return "-"
    value = row[name]
    words = _words(value)
    ratio = row.get("ratios", {}).get(name)
    return words if ratio is None else f"{words} ({ratio:.2g}x)" if ratio < 100 else f"{words} ({ratio:.0f}x)"


def _words(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _has_faults(row: Row) -> bool:
    return any(name in row for name in ("tenant_short", "kill_lost", "writers_kept", "error"))


def _faults(row: Row) -> Row:
    """Tenants, kill and two writers in few words; what went wrong at the end of the row."""
    errors = dict.fromkeys(row[name] for name in ("error", "kill_error", "writers_error") if name in row)
    return {
        "system": row["system"],
        "short, foreign": _of(row, "tenant_short", "tenant_foreign", "tenant_queries"),
        "kill -9: lost": _of(row, "kill_lost", "kill_added"),
        "by": _of(row, "kills_with_loss", "kills"),
        "two kept": _of(row, "writers_kept", "writers_added"),
        "noted": excerpt("; ".join(errors)),
    }


def _of(row: Row, *names: str) -> str:
    """`0, 1 of 200`: the last of these figures is the whole."""
    figures = [str(row.get(name, "")) for name in names]
    return f"{', '.join(figures[:-1])} of {figures[-1]}" if all(figures) else "-"


def targets(rows: Sequence[Row]) -> list[Row]:
    """Each target beside what was measured; those that this run cannot tell are left out."""
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
                "measured": _words(figure(measured)),
                "reached": "yes" if reached else "no",
            }
        )
    return lines


def can_be_written(path: Path) -> None:
    """Raise ConfigError when the file has no place for the tables."""
    if BEGIN not in path.read_text(encoding="utf-8"):
        raise ConfigError(f"{path} has no line {BEGIN!r}; add it and {END!r} where the tables belong.")


def write(path: Path, rows: Sequence[Row], command: str) -> None:
    """Replace the marked part of a Markdown file by the tables."""
    parts = [f"`{command}`:"]
    for head, lines in tables(rows):
        parts.append(f"**{head}**\n")
        parts[-1] += "\n".join(["", *_markdown(lines)])
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}", encoding="utf-8")


def _markdown(lines: Sequence[Row]) -> list[str]:
    heads = [head for head in lines[0] if any(line[head] not in ("", "-") for line in lines)]
    told = [" | ".join(str(line[head]).replace("|", "/") for head in heads) for line in lines]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {line} |" for line in told)]


def figure(value: Any) -> float:
    """Three digits that mean something, all of those before the point."""
    return round(float(value)) if value >= 100 else float(f"{value:.3g}")


def ratios_of(row: Row, rows: Iterable[Row]) -> Row:
    """Each figure over the plain parts': adds and searches by vector over those in turn, all else over their mean."""
    ratios = {}
    for name in RATED:
        if name in row and (plain := _plain(name, row, rows)):
            ratios[name] = round(row[name] / plain, 3)
    return ratios


def _plain(name: str, row: Row, rows: Iterable[Row]) -> float:
    beside = row.get(f"beside_{name}")
    if beside is not None:
        return float(beside)
    base = "parts + fts5" if name.startswith("hybrid") else "parts"
    plain = [other[name] for other in rows if other["system"].removesuffix(AGAIN) == base and name in other]
    return sum(plain) / len(plain) if plain else 0.0
