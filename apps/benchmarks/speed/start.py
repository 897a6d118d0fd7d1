"""Measure the start time of `hardwon --help` and `import hardwon.memory`, and list the heavy packages they import."""

import json
import resource
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness.timing import run_python, time_ms

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
                "p50_ms": round(statistics.median(walls), 1),
                "cpu_p50_ms": round(1000 * statistics.median(cpus), 1),
                "heavy": heavy_imports(code),
            }
        )
    return rows


def heavy_imports(code: str) -> list[str]:
    """Run code in a new Python process, and return the packages of `HEAVY` that it imported."""
    process = run_python(_REPORT.format(heavy=HEAVY) + code)
    names: list[str] = json.loads(process.stderr.splitlines()[-1])
    return names


def _time_start(code: str) -> tuple[float, float]:
    """Run code in a new Python process, and return its wall time in milliseconds and its CPU time in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_ms, _ = time_ms(run_python, code)
    end_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_ms, end_usage.ru_utime + end_usage.ru_stime - usage.ru_utime - usage.ru_stime
