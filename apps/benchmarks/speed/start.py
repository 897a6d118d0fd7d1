"""Measure how fast `hardwon --help`, `import hardwon.memory` and the hooks start, and list their heavy packages.

The hooks answer as in a running session: their standby runs. Its own CPU time is not counted.
"""

import json
import resource
import statistics
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fixtures import Rooms
from benchmarks.harness.timing import run_python, time_ms
from hardwon.memory import ExperienceLibrary

HEAVY = (
    "torch",
    "transformers",
    "langgraph",
    "langchain",
    "sklearn",
    "numpy",
    "faiss",
    "matplotlib",
    "sentence_transformers",
)
"""Packages whose import takes a tenth of a second or more."""
_HELP = "import sys; sys.argv = ['hardwon', '--help']; from hardwon.apps.cli.app import main; main()"
STARTS: Mapping[str, str] = {"hardwon --help": _HELP, "import hardwon.memory": "import hardwon.memory"}
CALL = {"tool_name": "Bash", "tool_input": {"command": "make test"}, "tool_use_id": "t-1"}
EVENTS: Mapping[str, Mapping[str, Any]] = {
    "SessionStart": {"source": "startup"},
    "UserPromptSubmit": {"prompt": "put a clean mug on the table"},
    "PreToolUse": CALL,
    "PostToolUse": {**CALL, "tool_response": {"stdout": "3 passed"}},
    "Stop": {},
}
_HOOK = """
import io, os, sys
os.environ["HARDWON_HOME"] = {home!r}
sys.stdin = io.TextIOWrapper(io.BytesIO({event!r}))
from hardwon.apps.coding_agents.hook import main
main(["claude-code"])
"""
# The report runs at exit and on stderr: `hardwon --help` ends by SystemExit and prints on stdout.
_REPORT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {heavy!r} if name in sys.modules]), file=sys.stderr))
"""


def measure(repeats: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure every entry of `STARTS`, and a hook at every event.

    Args:
        repeats: number of new processes per entry.
        tell: function that receives lines of progress.

    Returns:
        One row per entry: median wall and CPU time in milliseconds, and the heavy packages that were imported.
    """
    with TemporaryDirectory(dir="/tmp") as home:  # a path that is short enough for a socket
        hooks = {f"hook, {name}": _write_hook(home, name, fields) for name, fields in EVENTS.items()}
        with ExperienceLibrary.open(f"{home}/coding.db") as library:
            library.record_many(Rooms().generate_episodes(1000, lambda *_: ()))
        run_python(hooks["hook, UserPromptSubmit"])  # starts the standby
        return [_measure_start(what, code, repeats, tell) for what, code in {**STARTS, **hooks}.items()]


def _write_hook(home: str, name: str, fields: Mapping[str, Any]) -> str:
    """Return the code of a hook that answers an event."""
    event = {"session_id": "s", "hook_event_name": name, "cwd": "/", **fields}
    return _HOOK.format(home=home, event=json.dumps(event).encode())


def _measure_start(what: str, code: str, repeats: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the row of one entry."""
    tell(f"starting {what} {repeats} times ...")
    walls, cpus = zip(*(_time_start(code) for _ in range(repeats)), strict=True)
    return {
        "what": what,
        "p50_ms": round(statistics.median(walls), 1),
        "cpu_p50_ms": round(1000 * statistics.median(cpus), 1),
        "heavy": heavy_imports(code),
    }


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
