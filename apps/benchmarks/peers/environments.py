"""Virtual environments with pinned versions, one per system, kept in a cache folder.

An environment is reused as long as its requirements and its Python version stay the same; otherwise it is rebuilt.
Nothing is installed into the environment that runs the benchmark.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hardwon.memory.errors import HardwonError

CACHE = Path("~/.cache/hardwon/peers")
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "mem0-hybrid": (
        "mem0ai==2.2.1",
        "faiss-cpu==1.15.1",
        "qdrant-client==1.20.0",
        "fastembed==0.9.1",
        "numpy",
    ),
    "langmem": ("langmem==0.0.30", "numpy"),
    "trl": ("torch==2.13.0", "transformers==5.23.0", "trl==1.16.0", "numpy"),
}
"""Requirements of each environment."""
INSTALL_S = 900
_STAMP = "requirements.txt"


class NotInstalled(HardwonError, RuntimeError):
    """An environment could not be created; the message quotes the installer's last error."""


def find_python(name: str, cache: Path) -> Path | None:
    """Return the Python of an environment that is already there, or None. Nothing is installed."""
    python = _locate_python(cache.expanduser() / name)
    return python if python.exists() else None


def format_install(name: str, cache: Path) -> str:
    """Return the shell line that creates an environment."""
    folder = cache.expanduser() / name
    requirements = " ".join(REQUIREMENTS[name])
    return f"python -m venv {folder} && {_locate_python(folder)} -m pip install {requirements}"


def _locate_python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def python_of(name: str, cache: Path, tell: Callable[[str], None]) -> Path:
    """Return the Python of an environment, creating the environment if necessary.

    Args:
        name: Key of `REQUIREMENTS`.
        cache: Folder that holds the environments.
        tell: Receives a progress message before an installation.

    Returns:
        Path of the Python executable.

    Raises:
        NotInstalled: If the installation fails or takes longer than `INSTALL_S`.
    """
    folder = cache.expanduser() / name
    python = _locate_python(folder)
    wanted = f"# Python {sys.version.split()[0]}\n" + "\n".join(REQUIREMENTS[name]) + "\n"
    stamp = folder / _STAMP
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    tell(f"{name}: installing {', '.join(REQUIREMENTS[name])} into {folder} ...")
    # The stamp is written last, so an interrupted installation is not mistaken for a complete one.
    for command in _list_commands(folder, python, REQUIREMENTS[name]):
        _run(command)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _list_commands(folder: Path, python: Path, requirements: Sequence[str]) -> list[list[str]]:
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
        process = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"not installed: {error}") from error
    if process.returncode:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        # pip appends notices after its error, so the last line is not always the reason.
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise NotInstalled(f"not installed: {errors[-1] if errors else f'exit code {process.returncode}'}")
