"""An embedder from LangGraph's index settings, `index={"dims": ..., "embed": ...}`, for the store."""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from langgraph.store.base import ensure_embeddings
from langgraph.store.base.embed import EmbeddingsLambda

from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval.embedders import Vectors

_NO_IDENTITY = re.compile(
    r"key|token|secret|passw|credential|timeout|retr(?:y|ies)|chunk|batch|proxy|client|header|cache|verbose|progress"
    r"|concurren|worker|thread|device|callback|request_id|session",
    re.IGNORECASE,
)
"""Settings that change no vector, or that are secret."""


class GivenEmbedder:
    """Embedder for the application's own embeddings.

    It accepts LangChain embeddings, a function, a coroutine function, or a name like `provider:model`. Vectors
    are scaled to unit length, so that a dot product is the cosine similarity. The fingerprint covers the model's
    name, the dimensions and every setting that may change vectors: a deployment, a repository, a prefix, an address.
    Values with another fingerprint are embedded again when they are searched.
    """

    def __init__(self, index: Mapping[str, Any]) -> None:
        """Create the embedder from `dims` and `embed` of LangGraph's index settings."""
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
        self.name = f"langgraph:{_label(embed)}:{dims}"
        self.fingerprint = f"{self.name}:{_digest(embed)}"

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


def _label(embed: Any) -> str:
    """Return the name of embeddings for messages: their model, or their class or function."""
    if isinstance(embed, str):
        return embed
    model = getattr(embed, "model", None) or getattr(embed, "model_name", None)
    return str(model or getattr(embed, "__qualname__", type(embed).__qualname__))


def _digest(embed: Any) -> str:
    """Return a digest of everything that tells embeddings apart."""
    settings = json.dumps(_describe(embed, 6), sort_keys=True, default=str)
    return hashlib.blake2b(settings.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _read_cell(cell: CellType) -> Any:
    """Return a variable that a function closes over, or None if it is not set yet."""
    with suppress(ValueError):
        return cell.cell_contents
    return None


def _describe(value: Any, depth: int) -> Any:
    """Return plain JSON that differs for objects with other settings; None for what has none."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if not depth or isinstance(value, ModuleType):
        return None
    if isinstance(value, Mapping):
        named = {str(name): part for name, part in value.items()}
        return {name: _describe(part, depth - 1) for name, part in named.items() if not _NO_IDENTITY.search(name)}
    if isinstance(value, list | tuple):
        return [_describe(part, depth - 1) for part in value]
    if isinstance(value, set | frozenset | bytes | PurePath):
        return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
    if isinstance(value, partial):
        return [_describe(part, depth - 1) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, CodeType):
        return [value.co_names, _describe(value.co_consts, depth - 1)]
    if isinstance(value, MethodType):
        return [value.__func__.__qualname__, _describe(value.__self__, depth - 1)]
    if isinstance(value, FunctionType):
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        closed = {name: _read_cell(cell) for name, cell in cells.items()}
        parts = (closed, value.__defaults__, value.__kwdefaults__, value.__code__)
        return [value.__module__, value.__qualname__, *(_describe(part, depth - 1) for part in parts)]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    slots = (name for of in type(value).__mro__ for name in _list_slots(of))
    settings = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return [kind, _describe(settings | getattr(value, "__dict__", {}), depth)]


def _list_slots(of: type) -> Sequence[str]:
    """Return the names of the settings that a class keeps outside of `__dict__`."""
    slots = of.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if not name.startswith("__"))
