"""Adapter for hardwon: each text is the state of a one-step episode, and vectors are computed at the first search."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory

from .probe import LookUp


class LookUpEmbedder:
    """The precomputed vectors behind the library's embedder interface."""

    name = fingerprint = "look-up"

    def __init__(self, look_up: LookUp) -> None:
        self.dim = look_up.dim
        self._look_up = look_up

    def embed(self, texts: Sequence[str]) -> Any:
        """Return unit vectors as a float32 array of shape (n, dim)."""
        import numpy as np

        return np.stack([self._look_up.get_vector(text) for text in texts])


class HardwonMemory:
    """A library in which each tenant is a namespace."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        self._path = path
        self._embedder = LookUpEmbedder(look_up)
        self._libraries: dict[str, ExperienceLibrary] = {}

    def _open_library(self, tenant: str) -> ExperienceLibrary:
        if tenant not in self._libraries:
            self._libraries[tenant] = ExperienceLibrary.open(self._path, embedder=self._embedder, namespace=tenant)
        return self._libraries[tenant]

    def add(self, tenant: str, text: str) -> None:
        """Record one episode of one step."""
        self._open_library(tenant).record(_build_episode(text))

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Record one single-step episode per text with one call."""
        self._open_library(tenant).record_many([_build_episode(text) for text in texts])

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts by vector search alone."""
        return [hit.what.pre.observation for hit in self._open_library(tenant).search(text, k, how="dense")]  # type: ignore[union-attr]

    def hybrid(self, tenant: str, text: str, terms: str, k: int) -> list[str]:
        """Return the texts that `recall` finds for an agent's step; the library picks its own query terms."""
        return [hit.what.pre.observation for hit in self._open_library(tenant).recall(text, k=k).steps]  # type: ignore[union-attr]

    def close(self) -> None:
        """Close every namespace."""
        for library in self._libraries.values():
            library.close()


def _build_episode(text: str) -> Trajectory:
    """Return an episode of one step that changes nothing, so the text is its only state."""
    state = State(text)
    return Trajectory("", (Step(state, "look", state, Diagnosis(True)),), True, ending="success")


def open_memory(folder: Path, look_up: LookUp, variant: str) -> HardwonMemory:
    """Open the library with its file in `folder`."""
    return HardwonMemory(folder / "library.db", look_up)
