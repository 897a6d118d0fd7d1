"""What can only be read off the library's file as a whole: its namespaces, and its clusters page by page."""

from pathlib import Path
from typing import Any

from tacit.memory import ExperienceLibrary
from tacit.memory.store import Store


def namespaces(path: Path, *, read_only: bool = True) -> list[str]:
    """The parts of a library."""
    store = Store(path, read_only=read_only)
    try:
        return [row[0] for row in store.rows("SELECT name FROM namespaces ORDER BY name")]
    finally:
        store.close()


def clusters(path: Path, namespace: str, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Situations by signature, the most frequent first: how often they were met and what pays there."""
    with ExperienceLibrary.open(path, namespace=namespace, read_only=True) as library:
        return library.clusters(limit, offset)
