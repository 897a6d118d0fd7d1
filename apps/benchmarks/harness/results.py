"""Keep the results of a measurement in one file, so that an interrupted run continues where it stopped.

    results = Results(out / "results.jsonl", {"game": "coin", "tests": 30})
    if not results.find(arm="own", seed=0):
        results.add({"arm": "own", "seed": 0, "success": True})

The first line of the file is the setup; the other lines are one row each.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError

from .tables import Row


class Results:
    """The rows of one setup."""

    def __init__(self, path: Path, setup: Mapping[str, Any]) -> None:
        """Read the rows of an earlier run.

        Raises:
            ConfigError: The file holds the results of another setup.
        """
        self._path = path
        self.rows: list[Row] = []
        # As it is read back: tuples become lists.
        line = json.dumps({"setup": setup})
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line + "\n", encoding="utf-8")
            return
        lines = path.read_bytes().split(b"\n")
        whole = [part for part in lines[:-1] if part]
        if lines[-1] or not whole:  # the process was killed while it wrote a line
            path.write_bytes(b"\n".join([*whole, b""]))
        if not whole or json.loads(whole[0]) != json.loads(line):
            raise ConfigError(f"{path} holds the results of another setup. Give another --out, or remove the folder.")
        self.rows = [json.loads(part) for part in whole[1:]]

    def find(self, **fields: Any) -> list[Row]:
        """Return the rows with these values."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in fields.items())]

    def add(self, *rows: Row) -> None:
        """Write rows."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        self.rows += rows
