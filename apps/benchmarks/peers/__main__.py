"""Runs one phase of one system; see `probe`. Libraries that print are sent to stderr."""

import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    """Import the script, timed, then run the phase."""
    tell = _own_stdout()
    _know_as_package("peers")
    script, variant, phase, folder, data, *rest = sys.argv[1:]
    began = time.perf_counter()
    opener = importlib.import_module(f"peers.{script}")
    tell({"import_s": time.perf_counter() - began})
    if hasattr(opener, "run"):  # no memory
        opener.run(Path(folder), Path(data), rest, tell)
        return
    probe = importlib.import_module("peers.probe")
    probe.run(phase, opener.open_memory, variant, Path(folder), Path(data), rest, tell)


def _own_stdout() -> Any:
    """A function that writes one line of JSON; whatever else is printed goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(event: dict[str, Any]) -> None:
        lines.write(json.dumps(event) + "\n")
        lines.flush()

    return tell


def _know_as_package(name: str) -> None:
    """Make this folder importable by a name, without putting what lies in or beside it on the path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)


main()
