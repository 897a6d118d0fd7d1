"""Let another memory rank the notes of each tenant for its queries.

A text is identified by its row in `texts.jsonl`, and its vector is the same row of `vectors.npy`, computed once for all
systems. Answers are reported as row numbers; -1 stands for a text that is not in the data.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Tell = Callable[[dict[str, Any]], None]


class LookUp:
    """The embedder of every system: looks up precomputed vectors by text."""

    def __init__(self, data: Path) -> None:
        lines = [json.loads(line) for line in (data / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        self.texts: list[str] = [line["text"] for line in lines]
        self.vectors: Any = np.load(data / "vectors.npy")
        self.dim = int(self.vectors.shape[1])
        # Some systems strip what they are asked.
        self._rows = {text.strip(): row for row, text in enumerate(self.texts)}

    def get_vector(self, text: str) -> Any:
        """Return the vector of a text.

        Returns:
            A float32 unit vector of shape (dim,).

        Raises:
            KeyError: If the text is not in the data.
        """
        return self.vectors[self._rows[text.strip()]]

    def list_vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of the texts as lists of floats."""
        return [self.get_vector(text).tolist() for text in texts]

    def find_rows(self, texts: Sequence[str]) -> list[int]:
        """Return the row number of each text, or -1 if it is not in the data."""
        return [self._rows.get(text.strip(), -1) for text in texts]


class MemoryAdapter(Protocol):
    """The interface that each script implements for its system."""

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Add several texts with one call."""
        ...

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts of a tenant."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


def run(
    opener: Callable[[Path, LookUp, str], MemoryAdapter],
    variant: str,
    folder: Path,
    data: Path,
    rest: Sequence[str],
    tell: Tell,
) -> None:
    """Open the memory in `folder` and rank texts.

    Args:
        opener: Opens the system under test.
        variant: Passed to `opener`.
        folder: Holds the files of the memory.
        data: Holds `texts.jsonl` and `vectors.npy`.
        rest: Arguments of `rank_texts`, each as JSON.
        tell: Receives the events.
    """
    look_up = LookUp(data)
    memory = opener(folder, look_up, variant)
    rank_texts(memory, look_up, [json.loads(word) for word in rest], tell)
    memory.close()


def rank_texts(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Add the notes of each tenant, and report the best rows for each of its queries.

    `rest` is [file, k]. The file holds a list of [tenant, rows of the notes, rows of the queries] as JSON; it is a file
    because a command line is too short. The rows of each tenant are reported as one event.
    """
    path, k = rest
    for tenant, notes, queries in json.loads(Path(path).read_text(encoding="utf-8")):
        memory.add_batch(tenant, [look_up.texts[row] for row in notes])
        tell({"found": [look_up.find_rows(memory.search(tenant, look_up.texts[row], k)) for row in queries]})
