"""chromadb's PersistentClient: one collection, cosine, the tenant in the metadata."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromadb

from .probe import ONE, LookUp


class Chroma:
    """Vectors are given, so that it embeds nothing."""

    def __init__(self, folder: Path, look_up: LookUp) -> None:
        settings = chromadb.Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(path=str(folder), settings=settings)
        self._collection: Any = self._client.get_or_create_collection(
            "memories", metadata={"hnsw:space": "cosine"}, embedding_function=None
        )
        self._look_up = look_up

    def add(self, tenant: str, text: str) -> None:
        """One call with one text."""
        self.add_batch(tenant, [text])

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """One call."""
        self._collection.add(
            ids=[str(row) for row in self._look_up.rows(texts)],
            embeddings=self._look_up.lists(texts),
            documents=list(texts),
            metadatas=[{"tenant": tenant} for _ in texts],
        )

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Filtered by tenant where there are several."""
        where = None if tenant == ONE else {"tenant": tenant}
        found = self._collection.query(query_embeddings=self._look_up.lists([text]), n_results=k, where=where)
        return list(found["documents"][0])

    def close(self) -> None:
        """It writes as it goes; there is nothing to close."""


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Chroma:
    """Files in this folder."""
    return Chroma(folder, look_up)
