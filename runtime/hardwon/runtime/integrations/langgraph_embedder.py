"""An embedder from LangGraph's index settings, `index={"dims": ..., "embed": ...}`, for the store."""

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
    """Embedder for the application's own embeddings.

    It accepts LangChain embeddings, a function, a coroutine function, or a name like `provider:model`. Vectors
    are scaled to unit length, so that a dot product is the cosine similarity. The fingerprint consists of the
    model's name and the dimensions; values with another fingerprint are embedded again when they are searched.
    """

    def __init__(self, index: Mapping[str, Any]) -> None:
        """Create the embedder from `dims` and `embed` of LangGraph's index settings.

        Raises:
            ConfigError: `dims` or `embed` is missing, or `embed` cannot embed.
        """
        if unknown := sorted(set(index) - {"dims", "embed", "fields"}):
            raise ConfigError(f"index has {', '.join(unknown)}; the supported keys are dims, embed and fields.")
        dims: object = index.get("dims")
        embed: Any = index.get("embed")
        if embed is None or isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise ConfigError(f"index has dims {dims!r} and embed {embed!r:.60}; pass both, or only fields.")
        if not (isinstance(embed, str) or callable(embed) or hasattr(embed, "embed_documents")):
            raise ConfigError(f"index embed is {embed!r:.60}; pass embeddings, a function, or 'provider:model'.")
        self.dim = dims
        provided: Any = embed  # `Any`, because mypy cannot match a callable with the overloads
        try:
            self._embeddings = ensure_embeddings(provided)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError(f"index embed {embed!r:.60} does not work: {error}") from error
        model = getattr(embed, "model", None) or getattr(embed, "model_name", None)
        label = embed if isinstance(embed, str) else model or getattr(embed, "__qualname__", type(embed).__qualname__)
        self.name = self.fingerprint = f"langgraph:{label}:{dims}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, shape (n, dim), float32, each of unit length or zero.

        Raises:
            ConfigError: The vectors do not have `dim` dimensions.
        """
        return self._normalize(self._embed_texts(list(texts)))

    def _embed_texts(self, texts: list[str]) -> list[list[float]]:
        embeddings = self._embeddings
        # With only a coroutine function, LangChain's synchronous method would raise.
        if isinstance(embeddings, EmbeddingsLambda) and getattr(embeddings, "func", None) is None:
            with ThreadPoolExecutor(1) as thread:  # the caller's thread may already run an event loop
                return thread.submit(lambda: asyncio.run(embeddings.aembed_documents(texts))).result()
        return embeddings.embed_documents(texts)

    def _normalize(self, vectors: Sequence[Sequence[float]]) -> Vectors:
        matrix = np.asarray(vectors, dtype=np.float32)
        if matrix.ndim != 2 or matrix.shape[1] != self.dim:
            raise ConfigError(f"{self.name} returned vectors of shape {matrix.shape}, but index has dims {self.dim}.")
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        normalized: Vectors = (matrix / np.where(lengths > 0, lengths, 1.0)).astype(
            np.float32
        )  # zero vectors stay zero
        return normalized
