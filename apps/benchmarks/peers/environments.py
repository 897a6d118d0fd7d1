"""A virtual environment for each system, made once with pinned versions and kept in a cache folder.

An environment is used again as long as its requirements and its Python are the same; otherwise it is
made anew. Nothing is installed into the environment that runs the benchmark.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hardwon.memory.errors import HardwonError

CACHE = Path("~/.cache/hardwon/peers")
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "langgraph": (
        "langgraph-checkpoint==4.3.2",
        "langgraph-checkpoint-sqlite==3.1.2",
        "sqlite-vec==0.1.9",
        "pysqlite3-binary",
        "numpy",
    ),
    "chromadb": ("chromadb==1.5.9", "numpy"),
    "mem0": ("mem0ai==2.2.1", "faiss-cpu==1.15.1", "qdrant-client==1.20.0", "numpy"),
    "trl": ("torch==2.13.0", "transformers==5.23.0", "trl==1.16.0", "numpy"),
}
"""What is installed into each environment."""
INSTALL_S = 900
_STAMP = "requirements.txt"


class NotInstalled(HardwonError, RuntimeError):
    """An environment could not be made; the message has the installer's own last words."""


def python_of(name: str, cache: Path, tell: Callable[[str], None]) -> Path:
    """The Python of an environment, made if need be; "" is the one that runs. Raises NotInstalled."""
    if not name:
        return Path(sys.executable)
    folder = cache.expanduser() / name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    wanted = f"# Python {sys.version.split()[0]}\n" + "\n".join(REQUIREMENTS[name]) + "\n"
    stamp = folder / _STAMP
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    tell(f"{name}: installing {', '.join(REQUIREMENTS[name])} into {folder} ...")
    for command in _commands(folder, python, REQUIREMENTS[name]):
        _run(command)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _commands(folder: Path, python: Path, requirements: Sequence[str]) -> list[list[str]]:
    uv = shutil.which("uv")
    if uv:
        return [
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(python), *requirements],
        ]
    return [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
    ]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"not installed: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise NotInstalled(f"not installed: {errors[-1] if errors else f'exit code {done.returncode}'}")
