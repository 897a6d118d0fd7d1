"""Admission: the decision, for every step, whether it is shared with the other teams.

    choice = await RuleAdmission().decide(candidate)          # .admit, .p, .logprob

Implementations here share everything, nothing, or by rules, or use a logistic model trained on pulls
(`hardwon.trainers.roles.admission_learning`). A version with a chat model is in `teams.chat_roles`, and a trained role
is in the trainers. This module does not access a bank.
"""

import json
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval.embedders import Embedder, open_embedder
from hardwon.memory.situations.keys import content_words
from hardwon.runtime.interfaces.usage import ModelUsage

from .tuning import TUNING

Vector = NDArray[np.float64]
NO_USAGE = ModelUsage()


@dataclass(frozen=True, slots=True)
class SharingInput:
    """The input of a sharing decision: the task, the existing keys, and the step."""

    task: str
    keys: tuple[str, ...]
    """Keys of earlier entries, oldest first."""
    action: str
    key: str
    """Short summary of the step."""
    value: str
    """Text that readers get when they pull the entry."""
    success: bool = True
    progress: float = 0.0
    cost: float = 1.0
    """Duration of the step relative to the mean of the team's steps so far."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision, the probability of sharing, and the log-probability of the decision."""

    admit: bool
    p: float
    logprob: float = 0.0
    usage: ModelUsage = NO_USAGE


class SharingPolicy(Protocol):
    """Decides whether a step is shared."""

    name: str

    async def decide(self, candidate: SharingInput) -> Choice:
        """Decide whether to share a step; this may wait for a model."""
        ...


class AdmitAll:
    """Shares every step; a control condition."""

    name = "all"

    async def decide(self, candidate: SharingInput) -> Choice:
        """Return a decision to share."""
        return Choice(True, 1.0)


class AdmitNone:
    """Shares nothing; a control condition."""

    name = "none"

    async def decide(self, candidate: SharingInput) -> Choice:
        """Return a decision not to share."""
        return Choice(False, 0.0)


class RuleAdmission:
    """Shares steps that succeeded, took some time, and say something new."""

    name = "rules"

    async def decide(self, candidate: SharingInput) -> Choice:
        """Decide by success, similarity to the keys, and cost."""
        is_new = max_similarity(candidate.key, candidate.keys) < TUNING.same_key
        admit = candidate.success and bool(candidate.value.strip()) and is_new and candidate.cost > TUNING.cheap_step
        return Choice(admit, float(admit))


# -- the logistic model ---------------------------------------------------------------------------

NAMES = (
    "bias",
    "success",
    "progress",
    "cost",
    "like a key",
    "same as a key",
    "same action",
    "of the task",
    "words",
    "keys",
    *(f"kind {n}" for n in range(TUNING.verb_classes)),
)
"""Names of the features, in order."""


def compute_features(candidate: SharingInput) -> Vector:
    """Return the features of a candidate, shape (len(NAMES),), roughly in [0, 1]; see `NAMES`."""
    words, keys = extract_words(candidate.key), candidate.keys
    x = np.zeros(len(NAMES))
    x[:10] = (
        1.0,
        candidate.success,
        candidate.progress,
        min(candidate.cost, 3.0) / 3.0,
        max_similarity(candidate.key, keys),
        candidate.key in keys,
        any(f"{candidate.action} -> " in key for key in keys),
        min(1.0, 3 * len(words & extract_words(candidate.task)) / max(1, len(words))),
        min(len(candidate.value), 2000) / 2000,
        len(keys) / (len(keys) + 20),
    )
    # CRC32, because Python's own string hash differs between processes.
    x[10 + zlib.crc32(get_verb(candidate.action).encode()) % TUNING.verb_classes] = 1.0
    return x


def max_similarity(key: str, keys: Sequence[str]) -> float:
    """Return the largest Jaccard similarity between the words of a key and of any of `keys`; 0 without keys."""
    words, most = extract_words(key), 0.0
    for key_words in map(extract_words, keys):
        common = len(words & key_words)
        most = max(most, common / max(1, len(words) + len(key_words) - common))
    return most


@lru_cache(maxsize=16384)
def extract_words(text: str) -> frozenset[str]:
    """Return the content words of a text."""
    return content_words(text)


def get_verb(action: str) -> str:
    """Return the kind of an action: its first word, or the name of the tool that it calls."""
    return action.strip().partition("(")[0].partition(" ")[0].lower()


class LogisticAdmission:
    """Shares with probability sigmoid(weights · features); a decision takes well below 1 ms on a CPU.

    With an embedder, the features also include the vector of the key and its similarity to the task and to the
    most similar key.
    """

    name = "logistic"

    def __init__(
        self,
        weights: Sequence[float] | Vector | None = None,
        *,
        embedder: Embedder | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Create a logistic model.

        Args:
            weights: One weight per feature. None means all zeros, so that both decisions are equally likely.
            embedder: Adds features of the key's vector.
            chance: Generator for sampling decisions in training. None always takes the more likely decision.

        Raises:
            ConfigError: The number of weights differs from the number of features.
        """
        self.embedder, self.chance = embedder, chance
        self._vectors: dict[str, Any] = {}
        size = len(NAMES) + (embedder.dim + 2 if embedder else 0)
        self.weights: Vector = np.zeros(size) if weights is None else np.asarray(weights, dtype=np.float64)
        if self.weights.shape != (size,):
            raise ConfigError(f"admission has {self.weights.size} weights for {size} features; train it again.")

    async def decide(self, candidate: SharingInput) -> Choice:
        """Decide whether to share a candidate: sampled, or the more likely decision."""
        return self.choose(self.features(candidate))

    def choose(self, x: Vector) -> Choice:
        """Return the decision for a vector of features."""
        p = self.probability(x)
        admit = p > 0.5 if self.chance is None else self.chance.random() < p
        return Choice(admit, p, math.log(p if admit else 1.0 - p))

    def probability(self, x: Vector) -> float:
        """Return the probability of sharing, for a vector of features."""
        # Clip to avoid an overflow in exp; at 20 the probability is within 2.1e-9 of its limit.
        score = min(max(float(self.weights @ x), -20.0), 20.0)
        return 1.0 / (1.0 + math.exp(-score))

    def features(self, candidate: SharingInput) -> Vector:
        """Return all features of a candidate, those of the embedder last."""
        x = compute_features(candidate)
        if self.embedder is None:
            return x
        key, task = self._embed(candidate.key), self._embed(candidate.task)
        nearest = max((float(key @ self._embed(entry_key)) for entry_key in candidate.keys), default=0.0)
        return np.concatenate([x, key, [float(key @ task), nearest]])

    def _embed(self, text: str) -> Any:
        # Keys of the bank return in every later decision, so each is embedded once.
        if text not in self._vectors:
            assert self.embedder is not None
            self._vectors[text] = self.embedder.embed([text])[0]
        return self._vectors[text]

    def save(self, path: str | Path) -> None:
        """Write the weights as JSON, with the names of their features."""
        header = {"features": list(NAMES), "embedder": self.embedder.name if self.embedder else None}
        text = json.dumps({**header, "weights": [round(float(weight), 6) for weight in self.weights]}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "LogisticAdmission":
        """Load a model that `save` wrote.

        Raises:
            ConfigError: The file is not a saved admission model, or its features differ from those of this version.
        """
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            names, name, weights = saved["features"], saved["embedder"], saved["weights"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is not a saved admission model ({error!r}). Train one: hardwon bench team --out DIR"
            ) from error
        if names != list(NAMES):
            raise ConfigError(f"{path} has other features than this version of hardwon; train it again.")
        return cls(weights, embedder=open_embedder(name) if name else None)
