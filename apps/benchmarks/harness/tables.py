"""Print rows of figures as a table or as JSON, and write tables between two marks of a Markdown page.

place = Place(page, "learn")     # refuses a page without the marks
place.fill(lines)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardwon.apps.shared.common import print_figures, say_json, table
from hardwon.memory.errors import ConfigError

Row = dict[str, Any]


def build_row(what: str, n: int, value: float, unit: str, promise: str = "", digits: int = 3) -> Row:
    """Return the row of one figure with its unit and the promised bound."""
    return {"what": what, "n": n, "value": round(value, digits), "unit": unit, "promise": promise}


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool = False) -> None:
    """Print rows of equal columns as a table, or as JSON."""
    if as_json:
        say_json({"rows": rows})
        return
    numbers = [name for name, value in rows[0].items() if isinstance(value, int | float)]
    cells = [[_format_cell(value) for value in row.values()] for row in rows]
    print_figures(table(*rows[0], rows=cells, numbers=numbers))


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)


def format_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of equal columns as a Markdown table."""
    heads = [head.replace("_", " ") for head in rows[0]]
    lines = [[_format_number(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


def _format_number(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")


class Place:
    """The place of a benchmark's tables in a Markdown page, between two comments."""

    def __init__(self, page: Path, name: str) -> None:
        """Find the place.

        Raises:
            ConfigError: The page has no such comments.
        """
        self.page = page
        self._begin, self._end = (f"<!-- bench {name}: {which} -->" for which in ("begin", "end"))
        if self._begin not in page.read_text(encoding="utf-8"):
            raise ConfigError(f"{page} has no line {self._begin!r}; add it and {self._end!r} where the table belongs.")

    def fill(self, text: str) -> None:
        """Replace what is between the comments."""
        head, _, rest = self.page.read_text(encoding="utf-8").partition(self._begin)
        _, _, tail = rest.partition(self._end)
        self.page.write_text(f"{head}{self._begin}\n{text}\n{self._end}{tail}", encoding="utf-8")
