"""mem0 without a language model (infer=False), with its FAISS or its local Qdrant store; a user is a tenant.

Its constructor builds an OpenAI client, so it is given a key that opens nothing. `add` takes a list of
messages, which it goes through one by one: that is its batch.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["MEM0_TELEMETRY"] = "False"
os.environ["MEM0_DIR"] = str(Path.cwd() / "mem0")
os.environ["OPENAI_API_KEY"] = "none"

from mem0 import Memory

from .probe import LookUp


class Embedder:
    """The vectors made beforehand, in the form that mem0 asks for."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """One vector."""
        return self._look_up.lists([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        """Several."""
        return self._look_up.lists(texts)


class Mem0:
    """Its defaults, but for where its files are and how wide a vector is."""

    def __init__(self, folder: Path, look_up: LookUp, store: str) -> None:
        config: dict[str, Any] = {"path": str(folder / store), "embedding_model_dims": look_up.dim}
        if store == "faiss":
            config["distance_strategy"] = "cosine"
        self._memory: Any = Memory.from_config(
            {
                "vector_store": {"provider": store, "config": config},
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.embedding_model = Embedder(look_up)

    def add(self, tenant: str, text: str) -> None:
        """One message."""
        self._memory.add(text, user_id=tenant, infer=False)

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """A list of messages."""
        self._memory.add([{"role": "user", "content": text} for text in texts], user_id=tenant, infer=False)

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Its search with its own threshold."""
        found = self._memory.search(text, filters={"user_id": tenant}, top_k=k)
        return [each["memory"] for each in found["results"]]

    def close(self) -> None:
        """Close its history; its Qdrant client keeps a lock until it is closed as well."""
        client = getattr(self._memory.vector_store, "client", None)
        if client is not None:
            client.close()
        self._memory.close()


def open_memory(folder: Path, look_up: LookUp, variant: str) -> Mem0:
    """Files in this folder."""
    return Mem0(folder, look_up, variant)
