"""Ours: a text is the state of an episode of one step; vectors are made when they are first searched."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory

from .probe import LookUp


class Embedder:
    """The vectors made beforehand, as an embedder of the library's."""

    name = fingerprint = "look-up"

    def __init__(self, look_up: LookUp) -> None:
        self.dim = look_up.dim
        self._look_up = look_up

    def embed(self, texts: Sequence[str]) -> Any:
        """(n, dim) float32 unit rows."""
        import numpy as np

        return np.stack([self._look_up.one(text) for text in texts])


class Ours:
    """A namespace is a tenant."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        self._path = path
        self._embedder = Embedder(look_up)
        self._libraries: dict[str, ExperienceLibrary] = {}

    def _of(self, tenant: str) -> ExperienceLibrary:
        if tenant not in self._libraries:
            self._libraries[tenant] = ExperienceLibrary.open(self._path, embedder=self._embedder, namespace=tenant)
        return self._libraries[tenant]

    def add(self, tenant: str, text: str) -> None:
        """Record an episode of one step."""
        self._of(tenant).record(_episode(text))

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Record as many episodes of one step by one call."""
        self._of(tenant).record_many([_episode(text) for text in texts])

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """By meaning alone."""
        return [hit.what.pre.observation for hit in self._of(tenant).search(text, k, how="dense")]  # type: ignore[union-attr]

    def hybrid(self, tenant: str, text: str, terms: str, k: int) -> list[str]:
        """What an agent's step would recall; the library chooses its own words."""
        return [hit.what.pre.observation for hit in self._of(tenant).recall(text, k=k).steps]  # type: ignore[union-attr]

    def close(self) -> None:
        """Close every namespace."""
        for library in self._libraries.values():
            library.close()


def _episode(text: str) -> Trajectory:
    """A step that changes nothing: the text is its one state."""
    state = State(text)
    return Trajectory("", (Step(state, "look", state, Diagnosis(True)),), True, ending="success")


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Ours:
    """A library in this folder."""
    return Ours(folder / "library.db", look_up)
