"""Run the script of one system in this process. Output that libraries print goes to stderr."""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    """Import the script and run it."""
    tell = _own_stdout()
    _register_package("peers")
    script, variant, _, folder, data, *rest = sys.argv[1:]
    opener = importlib.import_module(f"peers.{script}")
    if hasattr(opener, "run"):  # not a memory
        opener.run(Path(folder), Path(data), rest, tell)
        return
    probe = importlib.import_module("peers.probe")
    probe.run(opener.open_memory, variant, Path(folder), Path(data), rest, tell)


def _own_stdout() -> Any:
    """Return a function that writes one JSON line to stdout; redirect all other output to stderr."""
    # Some libraries print to stdout, even from C; duplicating the descriptor keeps the JSON lines separate.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(event: dict[str, Any]) -> None:
        lines.write(json.dumps(event) + "\n")
        lines.flush()

    return tell


def _register_package(name: str) -> None:
    """Make this folder importable as package `name` without adding it to `sys.path`."""
    # Python puts the script's folder on the path, where `processes` and others would shadow installed packages.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)


main()
