"""Open trained roles for a command."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hardwon.memory.errors import MissingExtra

if TYPE_CHECKING:
    from hardwon.trainers.serving import Roles

HELP = "Folder of trained roles, written by `hardwon train --export`."
"""Help of the option `--roles`, which several commands have."""


@dataclass(frozen=True, slots=True)
class NoRoles:
    """The roles of a command without `--roles`."""

    policy: None = None
    guidance: None = None
    extractor: None = None
    admission: None = None


@lru_cache(maxsize=1)
def open_roles(folder: str | Path | None) -> "Roles | NoRoles":
    """Load the trained roles of an export once per process. Without a folder there are none.

    Raises:
        ConfigError: The folder is not an export, or its base or instructions are others than in training.
        MissingExtra: A package of the extra `train` is missing.
    """
    if not folder:
        return NoRoles()
    try:
        from hardwon.trainers.serving import load_roles

        return load_roles(folder)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        # a missing module of our own is a bug, not an extra to install
        if package in ("", "hardwon"):
            raise
        raise MissingExtra.of(package, "train") from missing
