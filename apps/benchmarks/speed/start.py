"""How long `hardwon --help` and `import hardwon.memory` take in a fresh Python, and what they import."""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

HEAVY = ("torch", "transformers", "langgraph", "langchain", "sklearn", "faiss", "matplotlib", "sentence_transformers")
"""Packages whose import costs a good part of a second or more."""
_HELP = "import sys; sys.argv = ['hardwon', '--help']; from hardwon.apps.cli.app import main; main()"
STARTS: Mapping[str, str] = {"hardwon --help": _HELP, "import hardwon.memory": "import hardwon.memory"}
_REPORT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {heavy!r} if name in sys.modules]), file=sys.stderr))
"""


def measure(repeats: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every start: wall and CPU milliseconds, and the heavy packages that were imported."""
    rows = []
    for what, code in STARTS.items():
        tell(f"starting {what} {repeats} times ...")
        walls, cpus = zip(*(_start(code) for _ in range(repeats)), strict=True)
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
    """Which of HEAVY a fresh Python has imported after this code."""
    answer = _run(_REPORT.format(heavy=HEAVY) + code)
    found: list[str] = json.loads(answer.stderr.splitlines()[-1])
    return found


def _start(code: str) -> tuple[float, float]:
    """Wall and CPU seconds of one fresh Python."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    _run(code)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
