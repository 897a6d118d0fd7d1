"""Find the repository clone that hardwon runs from; benchmarks, experiments and sample tasks are not in the wheel."""

import sys
from pathlib import Path

from hardwon.memory.errors import ConfigError

_ROOT = Path(__file__).resolve().parents[4]


def find_clone() -> Path | None:
    """Return the root of the clone, or None if hardwon is installed without one."""
    return _ROOT if (_ROOT / "apps" / "benchmarks" / "cli.py").is_file() else None


def use_clone(wanted: str) -> None:
    """Make `benchmarks` and `examples` of the clone importable."""
    root = find_clone()
    if root is None:
        raise ConfigError(
            f"{wanted} needs a clone of the repository, and hardwon is installed without one at {_ROOT}. "
            "Clone it, run `make install` there, and use its `.venv/bin/hardwon`."
        )
    # Appended, so that no folder of the clone shadows an installed package.
    for folder in (str(root / "apps"), str(root)):
        if folder not in sys.path:
            sys.path.append(folder)
