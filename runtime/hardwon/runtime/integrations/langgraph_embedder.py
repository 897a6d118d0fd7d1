"""An embedder that LangGraph is given, `index={"dims": ..., "embed": ...}`, as the store uses embedders."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from langgraph.store.base import ensure_embeddings
from langgraph.store.base.embed import EmbeddingsLambda

from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval.embedders import Vectors


class GivenEmbedder:
    """Embeds by what the application gave: LangChain embeddings, a function, a coroutine function, or `provider:model`.

    Vectors are scaled to length 1, so that their product is the cosine. They belong to this embedder by its name
    and dimensions: values that another one embedded are embedded again when they are searched.
    """

    def __init__(self, index: Mapping[str, Any]) -> None:
        """Raise ConfigError for an index without dims or embed, or with something that cannot embed."""
        if unknown := sorted(set(index) - {"dims", "embed", "fields"}):
            raise ConfigError(f"index has {', '.join(unknown)}; give dims, embed and fields.")
        dims: object = index.get("dims")
        embed: Any = index.get("embed")
        if embed is None or isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise ConfigError(f"index has dims {dims!r} and embed {embed!r:.60}; give both, or fields alone.")
        if not (isinstance(embed, str) or callable(embed) or hasattr(embed, "embed_documents")):
            raise ConfigError(f"index embed is {embed!r:.60}; give embeddings, a function, or provider:model.")
        self.dim = dims
        provided: Any = embed  # a type checker takes what is callable for a function of any kind
        try:
            self._embeddings = ensure_embeddings(provided)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError(f"index embed {embed!r:.60} cannot be used: {error}") from error
        model = getattr(embed, "model", None) or getattr(embed, "model_name", None)
        given = embed if isinstance(embed, str) else model or getattr(embed, "__qualname__", type(embed).__qualname__)
        self.name = self.fingerprint = f"langgraph:{given}:{dims}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts that are stored, (n, dim) float32."""
        return self._scaled(self._embedded(list(texts)))

    def _embedded(self, texts: list[str]) -> list[list[float]]:
        given = self._embeddings
        if isinstance(given, EmbeddingsLambda) and getattr(given, "func", None) is None:  # a coroutine function alone
            with ThreadPoolExecutor(1) as thread:  # the caller's thread may run a loop already
                return thread.submit(lambda: asyncio.run(given.aembed_documents(texts))).result()
        return given.embed_documents(texts)

    def _scaled(self, vectors: Sequence[Sequence[float]]) -> Vectors:
        found = np.asarray(vectors, dtype=np.float32)
        if found.ndim != 2 or found.shape[1] != self.dim:
            raise ConfigError(f"{self.name} made vectors of shape {found.shape}; index has dims {self.dim}.")
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        scaled: Vectors = (found / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return scaled
