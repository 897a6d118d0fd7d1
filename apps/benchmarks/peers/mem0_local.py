"""Adapter for mem0 without a language model (infer=False), on its FAISS or its local Qdrant store.

Each tenant is a mem0 user. The constructor of mem0 builds an OpenAI client, so it gets an invalid API key. `add`
accepts a list of messages and stores them one by one, the closest that mem0 has to a batch call.

The variant `qdrant-keywords` adds mem0's keyword search, which needs fastembed. fastembed would download a list of stop
words for it; here it runs without this list, and the weights of Qdrant's inverse document frequency remain.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# mem0 reads these variables when it is imported.
os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = str(Path.cwd() / "mem0")
os.environ["OPENAI_API_KEY"] = "none"

from mem0 import Memory

from .probe import LookUp


class Mem0Embedder:
    """The precomputed vectors behind mem0's embedder interface."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """Return the vector of one text."""
        return self._look_up.list_vectors([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        """Return the vectors of several texts."""
        return self._look_up.list_vectors(texts)


class Mem0:
    """A mem0 memory with default settings, except for file locations and vector size."""

    def __init__(self, folder: Path, look_up: LookUp, store: str, *, keywords: bool = False) -> None:
        config: dict[str, Any] = {"path": str(folder / store), "embedding_model_dims": look_up.dim}
        if store == "faiss":
            config["distance_strategy"] = "cosine"
        self._memory: Any = Memory.from_config(
            {
                "vector_store": {"provider": store, "config": config},
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.embedding_model = Mem0Embedder(look_up)
        if keywords:
            from fastembed.sparse.bm25 import Bm25

            words = folder / "bm25"
            words.mkdir(exist_ok=True)
            self._memory.vector_store._bm25_encoder = Bm25("Qdrant/bm25", specific_model_path=str(words))

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Store all texts as one list of messages."""
        self._memory.add([{"role": "user", "content": text} for text in texts], user_id=tenant, infer=False)

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts above mem0's default threshold."""
        result = self._memory.search(text, filters={"user_id": tenant}, top_k=k)
        return [hit["memory"] for hit in result["results"]]

    def close(self) -> None:
        """Close the history database and, if there is one, the Qdrant client, which holds a file lock."""
        client = getattr(self._memory.vector_store, "client", None)
        if client is not None:
            client.close()
        self._memory.close()


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Mem0:
    """Open mem0 with its files in `folder`; `variant` names the vector store, with `-keywords` for keyword search."""
    store, _, keywords = variant.partition("-")
    return Mem0(folder, look_up, store, keywords=bool(keywords))
