"""Adapter for chromadb's PersistentClient: one collection, cosine distance, the tenant in the metadata."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromadb

from .probe import ONE, LookUp


class Chroma:
    """A chromadb collection that receives precomputed vectors and embeds nothing itself."""

    def __init__(self, folder: Path, look_up: LookUp) -> None:
        settings = chromadb.Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(path=str(folder), settings=settings)
        self._collection: Any = self._client.get_or_create_collection(
            "memories", metadata={"hnsw:space": "cosine"}, embedding_function=None
        )
        self._look_up = look_up

    def add(self, tenant: str, text: str) -> None:
        """Add one text with one call."""
        self.add_batch(tenant, [text])

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Add all texts with one call."""
        self._collection.add(
            ids=[str(row) for row in self._look_up.find_rows(texts)],
            embeddings=self._look_up.list_vectors(texts),
            documents=list(texts),
            metadatas=[{"tenant": tenant} for _ in texts],
        )

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts, filtered by tenant if there is more than one tenant."""
        # A metadata filter slows the query, so it is used only where there is something to filter.
        where = None if tenant == ONE else {"tenant": tenant}
        result = self._collection.query(query_embeddings=self._look_up.list_vectors([text]), n_results=k, where=where)
        return list(result["documents"][0])

    def close(self) -> None:
        """Do nothing: the client writes on every call and has no close method."""


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Chroma:
    """Open the collection with its files in `folder`."""
    return Chroma(folder, look_up)
