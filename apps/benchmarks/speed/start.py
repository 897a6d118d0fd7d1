"""Measure the start time of `hardwon --help` and `import hardwon.memory`, and list the heavy packages they import."""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

HEAVY = ("torch", "transformers", "langgraph", "langchain", "sklearn", "faiss", "matplotlib", "sentence_transformers")
"""Packages whose import takes a large part of a second or more."""
_HELP = "import sys; sys.argv = ['hardwon', '--help']; from hardwon.apps.cli.app import main; main()"
STARTS: Mapping[str, str] = {"hardwon --help": _HELP, "import hardwon.memory": "import hardwon.memory"}
# The report runs at exit and on stderr: `hardwon --help` ends by SystemExit and prints on stdout.
_REPORT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {heavy!r} if name in sys.modules]), file=sys.stderr))
"""


def measure(repeats: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure every entry of `STARTS`.

    Args:
        repeats: number of new processes per entry.
        tell: function that receives lines of progress.

    Returns:
        One row per entry: median wall and CPU time in milliseconds, and the heavy packages that were imported.
    """
    rows = []
    for what, code in STARTS.items():
        tell(f"starting {what} {repeats} times ...")
        walls, cpus = zip(*(_time_start(code) for _ in range(repeats)), strict=True)
        rows.append(
            {
                "what": what,
                "p50_ms": round(1000 * statistics.median(walls), 1),
                "cpu_p50_ms": round(1000 * statistics.median(cpus), 1),
                "heavy": heavy_imports(code),
            }
        )
    return rows


def heavy_imports(code: str) -> list[str]:
    """Run code in a new Python process, and return the packages of `HEAVY` that it imported."""
    process = _run(_REPORT.format(heavy=HEAVY) + code)
    names: list[str] = json.loads(process.stderr.splitlines()[-1])
    return names


def _time_start(code: str) -> tuple[float, float]:
    """Run code in a new Python process, and return its wall and CPU time in seconds."""
    usage, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _run(code)
    wall, end_usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, end_usage.ru_utime + end_usage.ru_stime - usage.ru_utime - usage.ru_stime


def _run(code: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a new Python process, and capture its output."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
