"""Library files for the workers, stored once for each content."""

import hashlib
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hardwon.trainers.checkpoint import copy_library


class Libraries:
    """Copies of libraries by digest, as `put` stores them."""

    def __init__(self, folder: Path, put: Callable[[Any], Any]) -> None:
        self._folder, self._put = folder, put
        self._stored: dict[str, Any] = {}

    def read(self, name: str, path: str | Path) -> str:
        """Store what a library file holds now, and return the digest of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy = self._folder / f"{name}.db"
        copy_library(path, copy)
        data = copy.read_bytes()
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if digest not in self._stored:
            self._stored[digest] = self._put(data)
        return digest

    def get(self, digest: str) -> Any:
        """Return what `put` returned for a content."""
        return self._stored[digest]

    def keep(self, digests: Collection[str]) -> None:
        """Drop the contents that no worker has."""
        self._stored = {digest: stored for digest, stored in self._stored.items() if digest in digests}

    def close(self) -> None:
        """Delete the copies."""
        self._stored.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
