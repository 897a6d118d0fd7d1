"""Admission: what of a step is worth sharing with the teams beside. YES or NO, for every step.

    choice = await RuleAdmission().decide(candidate)          # .admit, .p, .logprob

Back-ends: all, none, rules, and a logistic model of a few features that is trained on what was pulled
(`hardwon.trainers.roles.admission_learning`); a chat model that is asked is in `teams.chat_roles`, a role on the
shared base in the trainers. Nothing here reads or writes a bank.
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
from hardwon.runtime.interfaces.types import Usage

Vector = NDArray[np.float64]
NO_USAGE = Usage()
SURE = 1e-9
"""Probabilities are kept so far from 0 and 1, so that their logarithms are finite."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known when it is decided whether a step is shared: the task, the keys that there are, the step."""

    task: str
    keys: tuple[str, ...]
    """What was shared before, oldest first."""
    action: str
    key: str
    """The step in a few words."""
    value: str
    """What readers would get."""
    success: bool = True
    progress: float = 0.0
    cost: float = 1.0
    """How long the step took, beside the team's steps so far: 1 is as long as they did on average."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision, how probable YES was, and the log-probability of what was decided."""

    admit: bool
    p: float
    logprob: float = 0.0
    usage: Usage = NO_USAGE


class Admission(Protocol):
    """Decides about one step."""

    name: str

    async def decide(self, candidate: Candidate) -> Choice:
        """YES or NO; it may wait for a model."""
        ...


class AdmitAll:
    """Shares every step: the first of the two controls."""

    name = "all"

    async def decide(self, candidate: Candidate) -> Choice:
        """YES."""
        return Choice(True, 1.0)


class AdmitNone:
    """Shares nothing: the other one."""

    name = "none"

    async def decide(self, candidate: Candidate) -> Choice:
        """NO."""
        return Choice(False, 0.0)


class RuleAdmission:
    """Shares what went well, took its time and says something that no key says yet."""

    name = "rules"

    def __init__(self, *, like: float = 0.8, quick: float = 0.5) -> None:
        """like: words in common with a key from which a step says nothing new. quick: a step of this cost is free."""
        self._like, self._quick = like, quick

    async def decide(self, candidate: Candidate) -> Choice:
        """By similarity to the keys and cost."""
        new = max_similarity(candidate.key, candidate.keys) < self._like
        admit = candidate.success and bool(candidate.value.strip()) and new and candidate.cost > self._quick
        return Choice(admit, float(admit))


# -- the logistic model ---------------------------------------------------------------------------

KINDS = 12
"""Kinds of action are told apart by the hash of their verb, in so many classes."""
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
    *(f"kind {n}" for n in range(KINDS)),
)
"""The features, in their order."""


def compute_features(candidate: Candidate) -> Vector:
    """What the logistic model sees of a candidate, every number about in [0, 1]; see NAMES."""
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
    x[10 + zlib.crc32(get_verb(candidate.action).encode()) % KINDS] = 1.0
    return x


def max_similarity(key: str, keys: Sequence[str]) -> float:
    """The largest share of words that a key has in common with one of these (Jaccard); 0 where there is none."""
    words, most = extract_words(key), 0.0
    for other in map(extract_words, keys):
        common = len(words & other)
        most = max(most, common / max(1, len(words) + len(other) - common))
    return most


@lru_cache(maxsize=16384)
def extract_words(text: str) -> frozenset[str]:
    """The words of a text that name things."""
    return content_words(text)


def get_verb(action: str) -> str:
    """The kind of an action: its first word, or the tool that it calls."""
    return action.strip().partition("(")[0].partition(" ")[0].lower()


class LogisticAdmission:
    """YES with probability sigmoid(weights · features); fractions of a millisecond on a CPU.

    With an embedder the vector of the key, and how near it is to the task and to the nearest key, are
    features too.
    """

    name = "logistic"

    def __init__(
        self,
        weights: Sequence[float] | Vector | None = None,
        *,
        embedder: Embedder | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """weights: None begins at 0, with which YES and NO are as probable.

        chance: to sample from, for training; without it the more probable one is decided.
        Raises ConfigError for weights of another number than there are features.
        """
        self.embedder, self.chance = embedder, chance
        self._vectors: dict[str, Any] = {}
        wanted = len(NAMES) + (embedder.dim + 2 if embedder else 0)
        self.weights: Vector = np.zeros(wanted) if weights is None else np.asarray(weights, dtype=np.float64)
        if self.weights.shape != (wanted,):
            raise ConfigError(f"admission has {self.weights.size} weights for {wanted} features; train it anew.")

    async def decide(self, candidate: Candidate) -> Choice:
        """Sampled, or the more probable one."""
        return self.choose(self.features(candidate))

    def choose(self, x: Vector) -> Choice:
        """The decision about a candidate of these features."""
        p = self.probability(x)
        admit = p > 0.5 if self.chance is None else self.chance.random() < p
        return Choice(admit, p, math.log(p if admit else 1.0 - p))

    def probability(self, x: Vector) -> float:
        """Of YES."""
        score = min(max(float(self.weights @ x), -20.0), 20.0)
        return min(max(1.0 / (1.0 + math.exp(-score)), SURE), 1.0 - SURE)

    def features(self, candidate: Candidate) -> Vector:
        """All of them, those of the embedder last."""
        x = compute_features(candidate)
        if self.embedder is None:
            return x
        key, task = self._vector(candidate.key), self._vector(candidate.task)
        nearest = max((float(key @ self._vector(other)) for other in candidate.keys), default=0.0)
        return np.concatenate([x, key, [float(key @ task), nearest]])

    def _vector(self, text: str) -> Any:
        if text not in self._vectors:
            assert self.embedder is not None
            self._vectors[text] = self.embedder.embed([text])[0]
        return self._vectors[text]

    def save(self, path: str | Path) -> None:
        """As JSON, with the names of what the weights are for."""
        known = {"features": list(NAMES), "embedder": self.embedder.name if self.embedder else None}
        text = json.dumps({**known, "weights": [round(float(weight), 6) for weight in self.weights]}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "LogisticAdmission":
        """Raises ConfigError for a file that is none, or of other features than these."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            names, name, weights = saved["features"], saved["embedder"], saved["weights"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} holds no admission ({error!r}). Make one: hardwon bench team --out DIR"
            ) from error
        if names != list(NAMES):
            raise ConfigError(f"{path} was trained on other features than this hardwon has; train it anew.")
        return cls(weights, embedder=open_embedder(name) if name else None)
